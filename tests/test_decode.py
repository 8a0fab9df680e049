"""The decoder on answers as judges really give them, and on thousands of damaged ones."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcp_bayes.judge.decode import Response, decode

TWO = ("D1", "D2")
ELEVEN = tuple(str(i + 1) for i in range(11))
RUBRIC = ("C1", "C2")


def a(content, labels=TWO, finish="stop", reasoning=None):
    return decode("a", Response(content, reasoning, finish), labels)


def b(content, labels=TWO):
    return decode("b", Response(content), labels, RUBRIC)


GOOD = '{"scores": {"D1": 2, "D2": -1.5}}'


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f'<think>D1 gets {{5}}, D2 gets -5: {{"scores": {{"D1": 5}}}}</think>{GOOD}',
        f"first I think, then I answer</think>\n{GOOD}",
        f"Here you are: {GOOD} I hope this {{helps}}.",
        f"The set {{D1, D2}} is scored thus. {GOOD}",
        f'In the form {{"scores": {{"D1": <score>, "D2": <score>}}}}: {GOOD}',
        f"<THINK>one</THINK> <thinking>two <think> three</thinking>{GOOD}",
        f"lost</think> and found <think>again</think>{GOOD} <think>never closed",
        '{"scores": {"D1": {"reason": "a </think> tag <think>", "score": 2}, "D2": -1.5}}',
        '{"D1": 2, "D2": -1.5}',
        '{"scores": [{"label": "D1", "score": 2}, {"label": "D2", "score": "-1.5"}]}',
        '{"scores": {"D2": -1.5, "D1": {"score": "2.0", "reason": "good"}}}',
        '{"scores": {"[D1]": 2.0, " D2 ": -1.50}}',
        '{"scores": {"D1": 2, "D1": 2, "D2": -1.5}}',
        '{"scores": [{"id": "D1", "score": 2}, {"id": "D2", "score": -1.5},'
        ' {"id": "D1", "score": 2}]}',
    ],
)
def test_readable(content):
    assert a(content).scores == (2.0, -1.5)
    assert a(content).category is None


@pytest.mark.parametrize(
    ("content", "category"),
    [
        ("", "empty"),
        (None, "empty"),
        ("   \n", "empty"),
        ("<think>nothing but thoughts</think>", "empty"),
        ("None of these passages relate to the query.", "no_json"),
        ("D1: 4, D2: 3", "no_json"),
        ('{"scores": {"D1": 2, "D2": oops}}', "invalid_json"),
        ('{"scores": {"D1": 2, "D2": 1}', "invalid_json"),
        ('{"scores": [{"draft": {"D1": 2, "D2": 1}}, ', "invalid_json"),
        ('{"scores": {"D1": 2}}', "incomplete"),
        ('{"scores": {"D1": 2, "D2": 7}}', "out_of_range"),
        ('{"scores": {"D1": 2, "D2": -9}}', "out_of_range"),
        ('{"scores": {"D1": 2, "D2": 9.2e124}}', "out_of_range"),
        ('{"scores": {"D1": 2, "D2": 1e999}}', "out_of_range"),
        ('{"scores": {"D1": 2, "D2": 191}}', "out_of_range"),
        ('{"scores": {"D1": 2, "D2": ' + "9" * 6000 + "}}", "out_of_range"),
        ('{"scores": {"D1": 2, "D2": null}}', "schema"),
        ('{"scores": {"D1": 2, "D2": true}}', "schema"),
        ('{"scores": {"D1": 2, "D2": NaN}}', "schema"),
        ('{"scores": {"D1": 2, "D2": Infinity}}', "schema"),
        ('{"scores": {"D1": 2, "D2": "good"}}', "schema"),
        ('{"scores": {"D1": 2, "D2": 1, "D3": 0}}', "schema"),
        ('{"scores": {"D1": 2, "D1": 3, "D2": 1}}', "schema"),
        (
            '{"scores": [{"id": "D1", "score": 2}, {"id": "D1", "score": 1},'
            ' {"id": "D2", "score": 1}]}',
            "schema",
        ),
        ('{"scores": [2, 1]}', "schema"),
        ("{}", "schema"),
    ],
)
def test_unreadable_has_a_reason(content, category):
    decoded = a(content)
    assert decoded.category == category
    assert decoded.scores is decoded.ranks is decoded.passes is None


def test_cut_by_the_token_limit():
    assert a('{"scores": {"D1": 2, "D2', finish="length").category == "truncated"
    assert a('{"scores": {"D1": 2, "D2": {"score": 1}', finish="length").category == "truncated"
    assert a("<think>and on and on", finish="length").category == "truncated"
    assert a(GOOD + " and then", finish="length").scores == (2.0, -1.5)


def test_refused():
    assert a(None, finish="content_filter").category == "refused"


def test_reasoning_field_is_read_only_where_content_is_empty():
    assert a("", reasoning=f"hm. {GOOD}").scores == (2.0, -1.5)
    assert a(None, reasoning=GOOD).scores == (2.0, -1.5)
    assert a("no.", reasoning=GOOD).category == "no_json"
    assert a('{"D1": 1, "D2": 0}', reasoning=GOOD).scores == (1.0, 0.0)
    # Out of tokens while thinking: the object is a draft.
    assert a("", reasoning=f"Try {GOOD}. But D1", finish="length").category == "truncated"


def test_content_that_is_no_text_is_empty():
    assert a([{"type": "text", "text": GOOD}]).category == "empty"


def test_two_digit_labels_are_whole():
    scores = {label: float(i) / 4 for i, label in enumerate(ELEVEN)}
    assert a(json.dumps({"scores": scores}), ELEVEN).scores == tuple(scores.values())
    listed = [{"label": int(label), "score": score} for label, score in scores.items()]
    assert a(json.dumps({"scores": listed}), ELEVEN).scores == tuple(scores.values())
    del scores["11"]
    assert a(json.dumps({"scores": scores}), ELEVEN).category == "incomplete"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r"\sigma and \pi", r"\sigma and \pi"),
        (r"\frac12 and \beta", r"\frac12 and \beta"),
        (r"\nu, \theta, \rho, \times", r"\nu, \theta, \rho, \times"),
        (r"\{x\}", r"\{x\}"),
        (r"a\nb\tc", "a\nb\tc"),
        (r"\\frac", r"\frac"),
        (r"say \"yes\" \u00e9", 'say "yes" é'),
        (r"\ud835 \uZZZZ", "\ud835 \\uZZZZ"),
    ],
)
def test_latex_in_a_reason_keeps_its_backslashes(written, kept):
    content = '{"scores": {"D1": {"reason": "' + written + '", "score": 3}, "D2": {"score": 1}}}'
    decoded = a(content)
    assert decoded.scores == (3.0, 1.0)
    assert decoded.reasons == (kept, None)


def test_repeats_are_compared_by_what_they_say():
    listed = '{"scores": [{"id": "D1", "score": 2, "reason": "x"}, {"id": "D2", "score": 0}, %s]}'
    assert a(listed % '{"id": "D1", "score": "2.0", "reason": "y"}').scores == (2.0, 0.0)
    assert a('{"scores": {"D1": 2, "D1": "2", "D2": 0}}').scores == (2.0, 0.0)
    assert a(listed % '{"id": "D1", "score": 1}').category == "schema"
    ranked = '{"scores": {"D1": 2, "D1": 3, "D2": 0}, "ranking": ["D1", "D2"]}'
    assert a(ranked).category == "schema"  # a conflict is not mended by a ranking beside it


def test_ranking_without_usable_scores():
    assert a('{"ranking": ["D2", "D1"]}').ranks == (2.0, 1.0)
    assert a('{"scores": {"D1": 99, "D2": 1}, "ranking": ["D1", "D2"]}').ranks == (1.0, 2.0)
    assert a('{"ranking": [["D1", "D2"]]}').ranks == (1.5, 1.5)
    assert a('{"ranking": ["D2"]}').category is not None
    assert a('{"ranking": ["D2", "D2"]}').category is not None
    assert a('{"ranking": ["D2", "D1"], "scores": {"D1": 1, "D2": 2}}').scores == (1.0, 2.0)


@pytest.mark.parametrize(
    "content",
    [
        '{"answers": {"D1": {"C1": 1, "C2": 0}, "D2": {"C1": 0, "C2": 0}}}',
        '{"answers": {"D1": {"C1": true, "C2": "no"}, "D2": {"C1": "No", "C2": false}}}',
        '{"D1": {"C1": "yes", "C2": 0, "reason": "on topic"}, "D2": {"C2": 0, "C1": 0}}',
        '{"results": [{"label": "D1", "C1": 1, "C2": 0},'
        ' {"label": "D2", "criteria": {"C1": 0, "C2": 0}}]}',
    ],
)
def test_criteria(content):
    assert b(content).passes == ((1, 0), (0, 0))


@pytest.mark.parametrize(
    ("content", "category"),
    [
        ('{"answers": {"D1": {"C1": 1, "C2": 0}, "D2": {"C1": 0}}}', "incomplete"),
        ('{"answers": {"D1": {"C1": 1, "C2": 0}}}', "incomplete"),
        ('{"answers": {"D1": {"C1": 1, "C2": 2}, "D2": {"C1": 0, "C2": 0}}}', "schema"),
        ('{"answers": {"D1": {"C1": 1, "C2": null}, "D2": {"C1": 0, "C2": 0}}}', "schema"),
        ('{"answers": {"D1": {"C1": 1, "C2": 0, "C3": 1}, "D2": {"C1": 0, "C2": 0}}}', "schema"),
        ('{"answers": {"D1": 1, "D2": 0}}', "schema"),
        (
            '{"D1": {"criteria": {"C1": 1, "C2": 0}, "C1": 0}, "D2": {"C1": 0, "C2": 0}}',
            "schema",
        ),
    ],
)
def test_unreadable_criteria(content, category):
    assert b(content).category == category


def test_a_criterion_may_be_named_like_a_reason():
    content = '{"answers": {"D1": {"reasoning": 1, "reason": "it argues"}}}'
    assert decode("b", Response(content), ["D1"], ["reasoning"]).passes == ((1,),)


def test_hostile_sizes():
    assert a("<think>" * 100_000).category == "empty"
    assert a("</think>" * 100_000).category == "empty"
    assert a('{"a": }' * 100_000).category == "invalid_json"
    assert a("{" * 100_000).category == "no_json"
    assert a('{"a":' * 100_000).category == "invalid_json"
    assert a('{"a":' * 100_000 + "1" + "}" * 100_000).category == "invalid_json"
    assert a('{"a": "' + "x" * 5_000_000 + '"}').category == "schema"
    assert a('"' * 100_000).category == "no_json"


numbers = st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 3))
damage = st.lists(
    st.tuples(
        st.sampled_from(["cut", "drop", "swap", "insert"]), st.floats(0, 1), st.text(max_size=3)
    ),
    max_size=4,
)


@settings(max_examples=1500, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=5), damage, st.sampled_from(["stop", "length", None]))
def test_damaged_answers_never_raise_or_invent(values, wounds, finish):
    labels = tuple(f"D{i + 1}" for i in range(len(values)))
    text = damaged(json.dumps({"scores": dict(zip(labels, values, strict=True))}), wounds)
    decoded = decode("a", Response(text, None, finish), labels)
    assert (decoded.category is None) == (decoded.scores is not None or decoded.ranks is not None)
    written = numbers_in(text) if decoded.scores else ()
    for score in decoded.scores or ():
        assert -5 <= score <= 5
        assert any(math.isclose(score, number) for number in written)


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 1)] * 2), min_size=1, max_size=4), damage)
def test_damaged_criteria_never_raise_or_invent(rows, wounds):
    labels = tuple(f"D{i + 1}" for i in range(len(rows)))
    answers = {
        label: dict(zip(RUBRIC, row, strict=True)) for label, row in zip(labels, rows, strict=True)
    }
    text = damaged(json.dumps({"answers": answers}), wounds)
    decoded = decode("b", Response(text), labels, RUBRIC)
    assert (decoded.category is None) == (decoded.passes is not None)
    if decoded.passes:
        assert [len(row) for row in decoded.passes] == [2] * len(labels)
        values = text.replace("C1", "").replace("D1", "")
        assert sum(map(sum, decoded.passes)) <= sum(map(values.count, ("1", "yes", "true")))


def damaged(text, wounds):
    for kind, place, extra in wounds:
        at = int(place * len(text))
        if kind == "cut":
            text = text[:at]
        elif kind == "drop":
            text = text[:at] + text[at + 1 :]
        elif kind == "swap":
            text = text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]
        else:
            text = text[:at] + extra + text[at:]
    return text


def numbers_in(text):
    """Every number that starts anywhere in the text."""
    found = set()
    for start in range(len(text)):
        for end in range(start + 1, min(start + 14, len(text)) + 1):
            try:
                found.add(float(text[start:end]))
            except ValueError:
                continue
    return found


@settings(max_examples=1500, deadline=None)
@given(st.text(st.sampled_from('{}[]",:\\D12 nulltrue-.eE<think>/`'), max_size=80))
def test_noise_never_raises(text):
    for stage in ("a", "b"):
        decoded = decode(stage, Response(text), TWO, RUBRIC)
        assert decoded.category or decoded.scores or decoded.ranks or decoded.passes
