"""The shipped rubric and YAML rubrics: read verbatim, refused with line and field."""

import pytest

from rcp_bayes.errors import InputError
from rcp_bayes.rubric import DEFAULT_RUBRIC, Criterion, Rubric, criteria_named, load_rubric

GOOD = """\
- id: C1
  name: Topic
  question: Is it on topic?
- id: "007"
  name: yes
  question: >
    Does it
    answer?
"""


def write(tmp_path, text):
    path = tmp_path / "rubric.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_shipped_rubric():
    assert DEFAULT_RUBRIC.ids == ("C1", "C2", "C3", "C4", "C5")
    assert [c.name for c in DEFAULT_RUBRIC.criteria][3] == "Direct Answer"
    assert all(c.question.endswith("?") for c in DEFAULT_RUBRIC.criteria)
    assert load_rubric() is DEFAULT_RUBRIC


def test_criteria_by_id():
    found = criteria_named(["U1", "C4"])
    assert found == (Criterion("U1"), DEFAULT_RUBRIC.criteria[3])


@pytest.mark.parametrize("head", ["", "criteria:\n"])
def test_yaml_is_read_as_written(tmp_path, head):
    rubric = load_rubric(write(tmp_path, head + GOOD))
    assert rubric.criteria == (
        Criterion("C1", "Topic", "Is it on topic?"),
        Criterion("007", "yes", "Does it answer?"),
    )


def test_unquoted_numbers_keep_their_zeros(tmp_path):
    rubric = load_rubric(write(tmp_path, "- {id: 010, name: 1.0, question: 0x1F}"))
    assert rubric.criteria == (Criterion("010", "1.0", "0x1F"),)


def test_digest_tells_rubrics_apart_and_nothing_else():
    base = Rubric((Criterion("a", "b", "c"), Criterion("d", "e", "f")))
    assert base.digest == Rubric((Criterion("a", "b", "c"), Criterion("d", "e", "f"))).digest
    others = [
        Rubric(base.criteria[::-1]),
        Rubric(base.criteria[:1]),
        Rubric((Criterion("a", "bc", ""), Criterion("d", "e", "f"))),
        Rubric((Criterion("a", "b", "c?"), Criterion("d", "e", "f"))),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no criteria"),
        ("[]", "no criteria"),
        ("text", "no criteria"),
        ("a: b", "no criteria"),
        ("- C1", "line 1: not an entry"),
        ("- {id: C1, name: n}", "line 1, column question: missing or empty"),
        ("- {id: C1, name: '', question: q}", "line 1, column name: missing or empty"),
        ("- {id: C1, name: n, question: null}", "line 1, column question: not a text"),
        ("- {id: C1, name: n, question: [q]}", "line 1, column question: not a text"),
        ("- {id: C1, name: n, question: q, weight: 2}", "column weight: unknown field"),
        ("- id: C1\n  id: C2\n  name: n\n  question: q", "line 2, column id: field given twice"),
        (
            "- {id: A, name: n, question: q}\n- {id: A, name: m, question: p}",
            "line 2, column id: criterion id 'A' occurs twice",
        ),
        ("- {id: position, name: n, question: q}", "another column of Stage B"),
        ("- {id: 'C 1', name: n, question: q}", "holds a space or a comma"),
        ("- {id: C1, name: n, question: Which: one?}\n- {", "not YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_refused_files(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_rubric(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_absent_file(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_rubric(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="directory"):
        load_rubric(tmp_path)


def test_rubric_in_code():
    with pytest.raises(ValueError, match="at least one"):
        Rubric(())
    with pytest.raises(ValueError, match="twice"):
        Rubric((Criterion("a"), Criterion("a")))
    with pytest.raises(ValueError, match="Stage B"):
        Rubric((Criterion("doc_id"),))
