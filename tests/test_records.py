"""Checked tables: ids as text, missing values, ranges, repeated keys; from frames in memory."""

import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcp_bayes import coding
from rcp_bayes.errors import InputError, JudgeError, RcpError, UsageError
from rcp_bayes.records import Judgments
from rcp_bayes.tables import require_overlap


def stage_a(**columns) -> pd.DataFrame:
    """Two windows of two documents; keyword columns replace or add."""
    base = {
        "query_id": ["q1"] * 4,
        "window_id": ["w1", "w1", "w2", "w2"],
        "doc_id": ["a", "b", "a", "c"],
        "score": [1.0, -1.0, 0.5, 2.0],
    }
    return pd.DataFrame({k: v for k, v in (base | columns).items() if v is not None})


def stage_b(**columns) -> pd.DataFrame:
    base = {
        "query_id": ["q1"] * 3,
        "window_id": ["v1", "v1", "v2"],
        "doc_id": ["a", "b", "a"],
        "C1": [1, 0, 1],
        "C2": [0, 0, 1],
    }
    return pd.DataFrame({k: v for k, v in (base | columns).items() if v is not None})


def refusal(a=None, b=None, **named) -> str:
    with pytest.raises(InputError) as caught:
        Judgments.from_frames(a, b, **named)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------------------ errors


def test_error_is_one_line_with_place_and_remedy():
    error = InputError("is\nodd", source="f.csv", row=3, column="score", remedy="fix it")
    assert str(error) == "f.csv: row 3, column score: is odd; fix it"
    assert str(InputError("odd")) == "odd"
    assert str(InputError("odd", source="r.txt", line=7)) == "r.txt: line 7: odd"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and (again.row, again.column) == (3, "score")


def test_exit_codes_of_the_contract():
    assert (UsageError.exit_code, InputError.exit_code, JudgeError.exit_code) == (2, 3, 4)
    assert issubclass(InputError, ValueError) and issubclass(InputError, RcpError)


# --------------------------------------------------------------------------------------------- ids


def test_canonical_judgments():
    judgments = Judgments.from_frames(stage_a(), stage_b())
    assert judgments.criteria == ("C1", "C2")
    assert judgments.counts == {
        "stage_a": {"rows": 4, "folded": 0},
        "stage_b": {"rows": 3, "folded": 0},
    }
    a = judgments.stage_a
    assert a.column_names == [
        "dataset", "query_id", "window_id", "doc_id", "score", "rank",
        "phase", "judge", "position", "invalid",
    ]  # fmt: skip
    assert a["dataset"].to_pylist() == ["default"] * 4
    assert a["rank"].null_count == 4
    assert judgments.stage_b["C1"].to_pylist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, "Int32", object])
def test_whole_number_ids_are_their_decimal_text(dtype):
    frame = stage_a(doc_id=pd.Series([42, 7, 42, 0], dtype=dtype))
    table = Judgments.from_frames(frame, stage_b(doc_id=["42", "042", "7"])).stage_a
    assert table["doc_id"].to_pylist() == ["42", "7", "42", "0"]


def test_ids_of_both_kinds_in_one_column():
    frame = stage_a(doc_id=pd.Series([42, "042", "42", 2**70], dtype=object))
    table = Judgments.from_frames(frame, None).stage_a
    assert table["doc_id"].to_pylist() == ["42", "042", "42", str(2**70)]


@pytest.mark.parametrize("kind", ["category", "str", "object", "bytes"])
def test_text_ids_stay_verbatim(kind):
    ids = ["0071", "71", "NA", " nan"]
    values = pd.Series(ids, dtype="object" if kind == "bytes" else kind)
    frame = pa.Table.from_pandas(stage_a(doc_id=values))
    if kind == "bytes":
        column = frame["doc_id"].cast(pa.binary())
        frame = frame.set_column(frame.column_names.index("doc_id"), "doc_id", column)
    assert Judgments.from_frames(frame, None).stage_a["doc_id"].to_pylist() == ids


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([1.0, 2.0, 1.0, 3.0], 1),
        (pd.Series(["a", 1.0, "a", "b"], dtype=object), 2),
        ([True, False, True, True], 1),
        (pd.Series(["a", True, "a", "b"], dtype=object), 2),
        (pd.Series([["a"], ["b"], ["a"], ["c"]], dtype=object), 1),
        (pd.Series([None, "b", "a", "c"], dtype=object), 1),
        (pd.Series(["a", "", "a", "c"], dtype=object), 2),
        (pd.Series(["a", "b", np.nan, "c"], dtype="str"), 3),
        (pd.Series(["a", "b", "a", "\ud800"], dtype=object), 4),
    ],
)
def test_ids_that_are_not_text_are_refused_with_their_row(values, row):
    text = refusal(stage_a(doc_id=values))
    assert text.startswith(f"stage_a: row {row}, column doc_id: ")


def test_float_ids_say_what_to_do():
    text = refusal(stage_a(doc_id=[1.0, 2.0, 1.0, 3.0]))
    assert "id 1.0 is not text" in text and "whole numbers" in text and "decimals" in text


def test_a_dictionary_that_names_a_value_twice_is_one_id():
    codes = pa.array([0, 1, 2, 3], pa.int8())
    doubled = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b", "a", "c"]))
    frame = pa.Table.from_pandas(stage_a(doc_id=None)).append_column("doc_id", doubled)
    a = Judgments.from_frames(frame, None).stage_a
    assert a["doc_id"].to_pylist() == ["a", "b", "a", "c"]
    values = a["doc_id"].chunk(0)
    assert values.indices[0] == values.indices[2] and len(values.dictionary) == 3


def test_missing_dataset_is_default():
    frame = stage_a(dataset=["x", None, None, "x"])
    table = Judgments.from_frames(frame, None).stage_a
    assert table["dataset"].to_pylist() == ["x", "default", "default", "x"]


# ----------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("missing", [None, np.nan])
def test_null_and_nan_are_missing(missing):
    a = Judgments.from_frames(stage_a(score=[1.0, missing, 2.0, -5.0]), None).stage_a
    assert a["score"].to_pylist() == [1.0, None, 2.0, -5.0]


@pytest.mark.parametrize(
    ("values", "row", "problem"),
    [
        ([1.0, np.inf, 0.0, 0.0], 2, "infinite"),
        ([1.0, 0.0, -np.inf, 0.0], 3, "infinite"),
        ([1.0, 0.0, 5.0001, 0.0], 3, "outside [-5, 5]"),
        ([-9.0, 7.0, 0.0, 0.0], 1, "value -9 is outside [-5, 5]"),
        ([0.0, 0.0, 0.0, 9.2e124], 4, "outside [-5, 5]"),
        (["1", "two", "3", "4"], 2, "'two' is not a number"),
        (["1", "inf", "3", "4"], 2, "infinite"),
        (["1", "1e999", "3", "4"], 2, "infinite"),
        (["1", "0x1", "3", "4"], 2, "not a number"),
        ([True, False, True, True], 1, "True is not a number"),
        (pd.Series([1, True, 0, 0], dtype=object), 2, "not a number"),
    ],
)
def test_scores_out_of_place_are_refused(values, row, problem):
    text = refusal(stage_a(score=values))
    assert text.startswith(f"stage_a: row {row}, column score: ")
    assert problem in text


def test_scores_at_the_ends_and_as_text_or_decimals():
    texts = pd.Series(["5", "-5.0", "+1e-1", "nan"])
    a = Judgments.from_frames(stage_a(score=texts), None).stage_a
    assert a["score"].to_pylist() == [5.0, -5.0, 0.1, None]
    decimals = pd.Series([Decimal("1.5"), Decimal("-2"), None, Decimal("0")], dtype=object)
    a = Judgments.from_frames(stage_a(score=decimals), None).stage_a
    assert a["score"].to_pylist() == [1.5, -2.0, None, 0.0]


def test_rank_starts_at_one_and_position_is_a_whole_number():
    assert "row 2, column rank: value 0 is below 1" in refusal(stage_a(rank=[1, 0, 1, 2]))
    assert "row 3, column position" in refusal(stage_a(position=[0, 1, 0.5, 1]))
    a = Judgments.from_frames(stage_a(position=[0, 1, np.nan, 1.0]), None).stage_a
    assert a["position"].to_pylist() == [0, 1, None, 1]


@pytest.mark.parametrize("values", [[1, 0, 1], [True, False, True], [1.0, 0.0, 1.0],
                                    ["1", "0.0", "True"]])  # fmt: skip
def test_criterion_values(values):
    b = Judgments.from_frames(None, stage_b(C1=values)).stage_b
    assert b["C1"].to_pylist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([1, 2, 0], 2),
        ([0.5, 1, 0], 1),
        ([1, 0, -1], 3),
        (["1", "yes", "0"], 2),
        ([1, np.inf, 0], 2),
    ],
)
def test_criterion_values_other_than_0_and_1_are_refused(values, row):
    assert refusal(None, stage_b(C2=values)).startswith(f"stage_b: row {row}, column C2: ")


def test_a_null_answer_stays_null():
    b = Judgments.from_frames(None, stage_b(C1=[1, None, np.nan])).stage_b
    assert b["C1"].to_pylist() == [1, None, None]


def test_invalid_holds_a_category_not_a_truth_value():
    assert "column invalid: value True is not text" in refusal(stage_a(invalid=[True] * 4))
    a = Judgments.from_frames(stage_a(invalid=[np.nan] * 4), None).stage_a
    assert a["invalid"].null_count == 4


# ----------------------------------------------------------------------------------------- columns


def test_missing_columns_are_named_with_those_that_are_there():
    text = refusal(stage_a(window_id=None))
    assert text == (
        "stage_a: column 'window_id' is missing; there are 'query_id', 'doc_id', 'score'"
    )
    assert "'score' and 'rank' are both missing" in refusal(stage_a(score=None))
    assert "no criterion column" in refusal(None, stage_b(C1=None, C2=None))


def test_no_rows():
    assert refusal(stage_a().head(0)).startswith("stage_a: no rows")
    assert "neither stage_a" in refusal(None, None)


def test_a_column_that_stands_twice():
    frame = stage_a()
    frame.insert(0, "doc", frame["doc_id"])
    frame.columns = ["doc_id", *frame.columns[1:]]
    assert "column doc_id: the column stands twice" in refusal(frame)


def test_criteria_are_all_other_columns_in_order_or_those_named():
    frame = stage_b(C3=[1, 1, 1], phase=["random"] * 3)
    frame["__index_level_0__"] = [5, 6, 7]
    assert Judgments.from_frames(None, frame).criteria == ("C1", "C2", "C3")
    named = Judgments.from_frames(None, frame.assign(reason="text"), criteria=["C3", "C1"])
    assert named.criteria == ("C3", "C1")
    assert named.stage_b.column_names[-2:] == ["C3", "C1"]
    assert "criterion 'C9' is not there; there are C1, C2" in refusal(
        None, stage_b(), criteria=["C9"]
    )
    assert "named twice" in refusal(None, stage_b(), criteria=["C1", "C1"])
    assert "row 1, column reason" in refusal(None, frame.assign(reason="text"))


# -------------------------------------------------------------------------------------------- keys


def test_identical_rows_fold_and_are_counted():
    frame = pd.concat([stage_a(), stage_a().iloc[[1, 1, 3]]])
    judgments = Judgments.from_frames(frame, None)
    assert judgments.counts["stage_a"] == {"rows": 7, "folded": 3}
    assert judgments.stage_a["doc_id"].to_pylist() == ["a", "b", "a", "c"]


def test_identical_rows_with_missing_values_fold():
    frame = stage_a(score=[1.0, None, 0.5, 2.0])
    judgments = Judgments.from_frames(pd.concat([frame, frame]), None)
    assert judgments.counts["stage_a"] == {"rows": 8, "folded": 4}


def test_one_key_with_other_content_names_both():
    frame = pd.concat([stage_a(), stage_a(score=[1.0, 3.0, 0.5, 2.0])], ignore_index=True)
    text = refusal(frame)
    assert text.startswith("stage_a: row 6: query_id 'q1', window_id 'w1', doc_id 'b' stands twice")
    assert "first score -1.0 (row 2), then score 3.0" in text
    text = refusal(None, pd.concat([stage_b(), stage_b(C2=[0, None, 1])], ignore_index=True))
    assert "first C2 0 (row 2), then C2 None" in text


def test_one_window_answered_by_two_judges_is_two_windows():
    both = pd.concat([stage_a(judge="x"), stage_a(judge="y", score=[0.0, 0.0, 0.0, 0.0])])
    assert Judgments.from_frames(both, None).stage_a.num_rows == 8


def test_stages_that_share_no_query_name_an_id_of_each():
    text = refusal(stage_a(), stage_b(query_id=["q1.0"] * 3))
    assert "share no query" in text and "'q1'" in text and "'q1.0'" in text
    text = refusal(stage_a(dataset="x"), stage_b(dataset="y"))
    assert "'x/q1'" in text and "'y/q1'" in text


def test_overlap_by_query_alone_where_one_side_names_no_dataset():
    left = pd.DataFrame({"dataset": ["x"], "query_id": ["q"]})
    require_overlap(left, pd.DataFrame({"dataset": ["default"], "query_id": ["q"]}), "a", "b")
    with pytest.raises(InputError, match="share no query"):
        require_overlap(left, pd.DataFrame({"dataset": ["y"], "query_id": ["q"]}), "a", "b")


def test_digest_follows_the_content():
    one, same = Judgments.from_frames(stage_a(), None), Judgments.from_frames(stage_a(), None)
    other = Judgments.from_frames(stage_a(score=[1.0, -1.0, 0.5, 2.5]), None)
    assert one.digest == same.digest != other.digest
    assert Judgments.from_frames(stage_a(), stage_b()).digest != one.digest


def test_input_frames_are_left_alone():
    a, b = stage_a(doc_id=[1, 2, 1, 3]), stage_b()
    before = a.copy(), b.copy()
    Judgments.from_frames(a, b)
    pd.testing.assert_frame_equal(a, before[0])
    pd.testing.assert_frame_equal(b, before[1])


# ----------------------------------------------------------------------------------------- kernels

codes = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2), st.integers(0, 2)), max_size=40)


@given(codes, st.booleans())
def test_combined_keys_are_equal_exactly_where_rows_are(rows, huge):
    columns = [np.array(c, np.int64) for c in zip(*rows, strict=True)] if rows else []
    if not columns:
        return
    # Sizes far above the codes force the renumbering that avoids overflow.
    sizes = [2**40] * 3 if huge else [4, 3, 3]
    keys = coding.combine_keys(columns, sizes)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert (keys[i] == keys[j]) == (a == b)


@given(st.lists(st.integers(0, 5), max_size=40))
def test_numbering_and_repeats_against_plain_python(values):
    keys = np.array(values, np.int64)
    order = list(dict.fromkeys(values))
    numbered, uniques = coding.first_seen(keys)
    assert uniques.tolist() == order
    assert numbered.tolist() == [order.index(v) for v in values]
    later, first = coding.repeated_rows(keys)
    expected = [(i, values.index(v)) for i, v in enumerate(values) if values.index(v) < i]
    assert list(zip(later.tolist(), first.tolist(), strict=True)) == expected
