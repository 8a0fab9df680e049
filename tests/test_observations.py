"""Judgments as indexed arrays: order, validity, counts, sufficient statistics, judges, pools."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcp_bayes.errors import InputError
from rcp_bayes.io import read_judgments
from rcp_bayes.observations import Observations, observe
from rcp_bayes.records import Judgments

NAN = float("nan")


def rows(*entries, columns) -> pd.DataFrame:
    return pd.DataFrame(entries, columns=columns)


A_COLUMNS = ["query_id", "window_id", "doc_id", "score", "rank", "phase", "position", "invalid"]


def mixed() -> pd.DataFrame:
    """One window of every kind."""
    return rows(
        ("q2", "soft", "b", 1.0, NAN, "random", 0, None),
        ("q2", "soft", "a", -2.0, NAN, "random", 1, None),
        ("q1", "hard", "x", NAN, 2, "random", 0, None),
        ("q1", "hard", "y", NAN, 1, "random", 1, None),
        ("q1", "part", "x", 1.0, 1, "adaptive", 0, None),
        ("q1", "part", "z", NAN, 2, "adaptive", 1, None),
        ("q1", "ranks", "x", NAN, 1, None, 0, None),
        ("q1", "ranks", "z", NAN, NAN, None, 1, None),
        ("q1", "none", "x", NAN, NAN, "adaptive", 0, None),
        ("q1", "none", "y", NAN, NAN, "adaptive", 1, None),
        ("q2", "one", "c", 0.5, NAN, "adaptive", NAN, None),
        ("q2", "cut", "a", NAN, NAN, "random", 0, "truncated"),
        ("q2", "cut", "d", NAN, NAN, "random", 1, "truncated"),
        ("q2", "odd", "a", 1.0, 1, "random", 0, None),
        ("q2", "odd", "b", 2.0, 2, "random", 1, "schema"),
        columns=A_COLUMNS,
    )


def mixed_b() -> pd.DataFrame:
    return rows(
        ("q1", "v1", "x", 1, 0, None),
        ("q1", "v1", "y", 1, 1, None),
        ("q1", "v2", "x", 0, 0, None),
        ("q1", "v2", "w", 1, None, None),
        ("q2", "v1", "a", None, None, "refused"),
        ("q2", "v1", "e", None, None, "refused"),
        ("q3", "v1", "g", 1, 1, None),
        columns=["query_id", "window_id", "doc_id", "C1", "C2", "invalid"],
    )


def ids(observed: Observations, documents: np.ndarray) -> list[str]:
    universe = observed.universe
    return [
        f"{q}/{d}"
        for q, d in zip(
            universe.query_id[universe.query[documents]], universe.doc_id[documents], strict=True
        )
    ]


def test_validity_of_windows():
    observed = observe(Judgments.from_frames(mixed(), None))
    windows = observed.windows
    # By query in order of first appearance (q2, q1), then by first appearance of the window.
    assert windows.offset.tolist() == [0, 2, 3, 5]
    assert ids(observed, windows.document) == ["q2/b", "q2/a", "q2/c", "q1/x", "q1/y"]
    assert windows.query.tolist() == [0, 0, 1]
    assert windows.scored.tolist() == [True, True, False]
    np.testing.assert_array_equal(windows.score, [1.0, -2.0, 0.5, NAN, NAN])
    np.testing.assert_array_equal(windows.rank, [NAN, NAN, NAN, 2, 1])
    assert windows.position.tolist() == [0, 1, -1, 0, 1]
    assert [windows.phases[code] for code in windows.phase] == ["random", "adaptive", "random"]
    assert windows.judge.tolist() == [-1] * 3 and windows.judges == ()
    assert windows.size.tolist() == [2, 1, 2] and windows.n_windows == 3
    assert observed.n_invalid_a.tolist() == [2, 3]
    counts = observed.counts["stage_a"]
    assert counts == {
        "rows": 15,
        "folded": 0,
        "rows_of_other_judges": 0,
        "judges": ["(unnamed)"],
        "windows": 8,
        "valid_windows": {"random": 2, "adaptive": 1},
        "invalid_windows": 5,
        "invalid_by_phase": {
            "(unnamed)": {"partial_ranks": 1},
            "random": {"truncated": 1, "schema": 1},
            "adaptive": {"partial_scores": 1, "no_answer": 1},
        },
        "soft_windows": 2,
        "hard_windows": 1,
        "single_document_windows": 1,
    }


def test_answers_of_stage_b():
    observed = observe(Judgments.from_frames(mixed(), mixed_b()))
    placements = observed.placements
    assert ids(observed, placements.document) == ["q1/x", "q1/y", "q1/x", "q3/g"]
    assert placements.answers.dtype == np.int8
    assert placements.answers.tolist() == [[1, 0], [1, 1], [0, 0], [1, 1]]
    assert placements.window.tolist() == [0, 0, 1, 2] and placements.n_windows == 3
    assert placements.criteria == observed.criteria == ("C1", "C2")
    assert observed.n_invalid_b.tolist() == [1, 0, 0]
    counts = observed.counts["stage_b"]
    assert counts["placements"] == 4
    assert counts["null_placements"] == 1 and counts["null_answers"] == {"C2": 1}
    assert counts["invalid_by_phase"] == {"(unnamed)": {"refused": 1}}


def test_universe_statistics_and_coverage():
    observed = observe(Judgments.from_frames(mixed(), mixed_b()))
    universe = observed.universe
    assert universe.query_id.tolist() == ["q2", "q1", "q3"]
    assert universe.dataset.tolist() == ["default"] * 3
    assert universe.offset.tolist() == [0, 5, 9, 10]
    assert universe.doc_id.tolist() == ["b", "a", "c", "d", "e", "x", "y", "z", "w", "g"]
    assert universe.query.tolist() == [0] * 5 + [1] * 4 + [2]
    assert universe.pool_position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0]
    assert observed.n_windows.tolist() == [1, 1, 1, 0, 0, 1, 1, 0, 0, 0]
    assert observed.n_placements.tolist() == [0, 0, 0, 0, 0, 2, 1, 0, 0, 1]
    assert observed.passes.tolist() == [[0, 0]] * 5 + [[1, 0], [1, 1], [0, 0], [0, 0], [1, 1]]
    counts = {k: v for k, v in observed.counts.items() if not k.startswith("stage")}
    assert counts == {
        "queries": 3,
        "queries_stage_a_only": 1,
        "queries_stage_b_only": 1,
        "queries_without_answers": 0,
        "documents": 10,
        "documents_without_window": 1,
        "documents_without_placement": 3,
        "documents_without_answers": 4,
    }


def test_one_stage_alone():
    only_a = observe(Judgments.from_frames(mixed(), None))
    assert only_a.placements is None and only_a.passes.shape == (only_a.universe.n_documents, 0)
    only_b = observe(Judgments.from_frames(None, mixed_b()))
    assert only_b.windows is None and only_b.n_windows.tolist() == [0] * 6


def test_windows_without_a_valid_one_are_refused():
    frame = mixed().query("window_id in ['cut', 'odd', 'none']")
    with pytest.raises(InputError, match="none of the 3 windows of stage_a is valid") as caught:
        observe(Judgments.from_frames(frame, None))
    assert "no_answer, schema, truncated" in str(caught.value)


def test_queries_of_one_id_in_two_datasets_are_two_queries():
    frame = pd.concat([mixed().assign(dataset="x"), mixed().assign(dataset="y")])
    observed = observe(Judgments.from_frames(frame, None))
    assert observed.universe.n_queries == 4
    assert list(zip(observed.universe.dataset, observed.universe.query_id, strict=True)) == [
        ("x", "q2"), ("x", "q1"), ("y", "q2"), ("y", "q1"),
    ]  # fmt: skip
    assert observed.windows.n_windows == 6


def test_interleaved_rows_come_out_sorted():
    """The order of the rows within a window is kept, wherever they stand in the file."""
    frame = mixed()
    expected = observe(Judgments.from_frames(frame, None))
    order = [0, 2, 13, 4, 1, 6, 3, 5, 10, 11, 7, 8, 14, 9, 12]
    observed = observe(Judgments.from_frames(frame.iloc[order], None))
    windows = observed.windows
    assert windows.offset.tolist() == expected.windows.offset.tolist()
    assert ids(observed, windows.document) == ids(expected, expected.windows.document)
    np.testing.assert_array_equal(windows.score, expected.windows.score)
    np.testing.assert_array_equal(windows.rank, expected.windows.rank)


# --------------------------------------------------------------------------------- criteria, judges


def test_criteria_in_the_order_named_and_a_null_elsewhere_does_not_count():
    judgments = Judgments.from_frames(None, mixed_b())
    observed = observe(judgments, criteria=["C1"])
    assert observed.counts["stage_b"]["placements"] == 5  # q1/w has no C2 but a C1
    swapped = observe(judgments, criteria=["C2", "C1"])
    assert swapped.passes[:, ::-1].tolist() == observe(judgments).passes.tolist()
    with pytest.raises(InputError, match="criterion 'C7' is not there; there are C1, C2"):
        observe(judgments, criteria=["C7"])
    with pytest.raises(InputError, match="named twice"):
        observe(judgments, criteria=["C1", "C1"])


def two_judges() -> Judgments:
    a = pd.concat([mixed().assign(judge="big"), mixed().assign(judge="small")])
    return Judgments.from_frames(a, mixed_b().assign(judge="panel"))


def test_several_judges_need_a_choice():
    with pytest.raises(InputError) as caught:
        observe(two_judges())
    assert "stage_a holds several judges (big, small)" in str(caught.value)
    assert "--judge NAME" in str(caught.value)
    with pytest.raises(InputError, match="no answers of judge 'other'; there are big, small, pan"):
        observe(two_judges(), judge="other")
    with pytest.raises(InputError, match="none of them is 'panel'"):
        observe(two_judges(), judge="panel")


def test_one_judge_chosen_or_all_kept():
    chosen = observe(two_judges(), judge="small")  # Stage B has one judge: nothing to choose
    assert chosen.windows.n_windows == 3 and chosen.windows.judges == ("small",)
    assert chosen.counts["stage_a"]["rows_of_other_judges"] == 15
    assert chosen.counts["stage_a"]["judges"] == ["small"]
    assert chosen.placements.judges == ("panel",)
    facets = observe(two_judges(), judges="facets")
    assert facets.windows.n_windows == 6 and facets.windows.judges == ("big", "small")
    assert Counter(facets.windows.judge.tolist()) == {0: 3, 1: 3}


def test_an_unnamed_judge_beside_a_named_one_is_another_judge():
    frame = pd.concat([mixed().assign(judge="m"), mixed().assign(judge=None)])
    with pytest.raises(InputError, match=r"several judges \(m, \(unnamed\)\)"):
        observe(Judgments.from_frames(frame, None))


# -------------------------------------------------------------------------------------------- pools


def pool(*pairs, dataset=None) -> pd.DataFrame:
    frame = pd.DataFrame(pairs, columns=["query_id", "doc_id"])
    return frame if dataset is None else frame.assign(dataset=dataset)


def test_pool_order():
    order = pool(("q1", "z"), ("q1", "never"), ("q1", "x"), ("q0", "k"), ("q2", "c"), ("q2", "a"))
    observed = observe(Judgments.from_frames(mixed(), mixed_b()), pool_order=order)
    universe = observed.universe
    assert universe.query_id.tolist() == ["q1", "q2", "q3"]
    assert universe.doc_id.tolist() == ["z", "x", "y", "w", "c", "a", "b", "d", "e", "g"]
    assert universe.pool_position.tolist() == [0, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    assert observed.windows.query.tolist() == [0, 1, 1]
    assert observed.counts["pool"] == {
        "queries_not_judged": 1,
        "documents_not_judged": 2,
        "documents_outside_pool": 6,
    }


def test_pool_without_dataset_belongs_to_the_only_one():
    judgments = Judgments.from_frames(mixed().assign(dataset="nq"), None)
    for order in (pool(("q1", "z")), pool(("q1", "z"), dataset="nq")):
        observed = observe(judgments, pool_order=order)
        assert observed.universe.query_id.tolist() == ["q1", "q2"]
        assert observed.universe.dataset.tolist() == ["nq", "nq"]
    with pytest.raises(InputError, match="share no query"):
        observe(judgments, pool_order=pool(("q1", "z"), dataset="other"))


# ------------------------------------------------------------------------- against plain Python


def reference(a: pd.DataFrame, b: pd.DataFrame) -> dict:
    """What `observe` is to give, by dictionaries and loops."""
    out = {"windows": [], "shown": Counter(), "placed": Counter(), "passed": Counter(),
           "bad_a": Counter(), "bad_b": Counter(), "documents": {}}  # fmt: skip
    for frame in (a, b):
        for row in frame.itertuples():
            out["documents"].setdefault(row.query_id, {})[row.doc_id] = None
    windows = {}
    for row in a.drop_duplicates().itertuples():
        windows.setdefault((row.query_id, row.window_id), []).append(row)
    for query in out["documents"]:
        for (of, _), shown in windows.items():
            if of != query:
                continue
            scored = [r for r in shown if r.score == r.score]
            ranked = [r for r in shown if r.rank == r.rank]
            soft = len(scored) == len(shown)
            hard = not scored and len(ranked) == len(shown)
            if any(isinstance(r.invalid, str) for r in shown) or not (soft or hard):
                out["bad_a"][query] += 1
                continue
            out["windows"].append((query, soft, [(r.doc_id, r.score, r.rank) for r in shown]))
            out["shown"].update((query, r.doc_id) for r in shown)
    windows = {}
    for row in b.drop_duplicates().itertuples():
        windows.setdefault((row.query_id, row.window_id), []).append(row)
    for (query, _), shown in windows.items():
        if any(isinstance(r.invalid, str) for r in shown):
            out["bad_b"][query] += 1
            continue
        for r in shown:
            if r.C1 == r.C1 and r.C2 == r.C2:
                out["placed"][query, r.doc_id] += 1
                out["passed"][query, r.doc_id, 0] += int(r.C1)
                out["passed"][query, r.doc_id, 1] += int(r.C2)
    return out


number = st.sampled_from([NAN, 1.0, 2.0, 3.0])
bit = st.sampled_from([0.0, 1.0, 1.0, NAN])
flag = st.sampled_from([None] * 12 + ["schema"])
name = st.sampled_from
row_a = st.tuples(name("pq"), name("123"), name("abcd"), number, number, flag)
row_b = st.tuples(name("pq"), name("12"), name("abcde"), bit, bit, flag)


@given(
    st.lists(row_a, min_size=1, max_size=30, unique_by=lambda r: r[:3]),
    st.lists(row_b, min_size=1, max_size=20, unique_by=lambda r: r[:3]),
    st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_against_plain_python(a, b, repeats):
    first = [("p", "0", "a", 1.0, NAN, None), ("p", "0", "b", 2.0, NAN, None)]  # one valid window
    a = pd.DataFrame([*first, *a, *a[:repeats]], columns=[*A_COLUMNS[:5], "invalid"])
    b = pd.DataFrame(
        [("p", "0", "a", 1.0, 0.0, None), *b, *b[:repeats]],
        columns=["query_id", "window_id", "doc_id", "C1", "C2", "invalid"],
    )
    expected = reference(a, b)
    observed = observe(Judgments.from_frames(a, b))
    universe, windows = observed.universe, observed.windows
    assert universe.query_id.tolist() == list(expected["documents"])
    queries = [str(universe.query_id[q]) for q in universe.query]
    keys = list(zip(queries, universe.doc_id.tolist(), strict=True))
    assert keys == [(q, d) for q, found in expected["documents"].items() for d in found]

    got = [
        (
            str(universe.query_id[windows.query[w]]),
            bool(windows.scored[w]),
            [
                (str(universe.doc_id[windows.document[r]]), windows.score[r], windows.rank[r])
                for r in range(windows.offset[w], windows.offset[w + 1])
            ],
        )
        for w in range(windows.n_windows)
    ]
    assert repr(got).replace("np.float64(", "").replace(")", "") == (
        repr(expected["windows"]).replace(")", "")
    )
    assert observed.n_windows.tolist() == [expected["shown"][key] for key in keys]
    assert observed.n_placements.tolist() == [expected["placed"][key] for key in keys]
    assert observed.passes.tolist() == [
        [expected["passed"][*key, c] for c in range(2)] for key in keys
    ]
    order = universe.query_id.tolist()
    assert observed.n_invalid_a.tolist() == [expected["bad_a"][q] for q in order]
    assert observed.n_invalid_b.tolist() == [expected["bad_b"][q] for q in order]
    assert observed.counts["stage_a"]["folded"] == len(a) - len(a.drop_duplicates())


def test_real_judgments(shared_data):
    """Numbers counted from the Parquet files with pandas."""
    for name, n_queries in (("dl19", 43), ("dl21", 27)):
        folder = shared_data / name / "judgments"
        a = pd.read_parquet(folder / "stage_a.parquet")
        b = pd.read_parquet(folder / "stage_b.parquet")
        observed = observe(read_judgments(folder), criteria=["U1", "E5"])
        assert observed.windows.n_windows == len(a) // 2
        assert not observed.windows.scored.any()
        assert observed.counts["stage_a"]["hard_windows"] == len(a) // 2
        assert observed.universe.n_queries == n_queries
        both = pd.concat([a, b])[["query_id", "doc_id"]].drop_duplicates()
        assert observed.universe.n_documents == len(both)
        assert observed.counts["documents_without_window"] == len(
            b[~pd.MultiIndex.from_frame(b[["query_id", "doc_id"]]).isin(
                pd.MultiIndex.from_frame(a[["query_id", "doc_id"]]))]
        )  # fmt: skip
        assert observed.passes.sum(axis=0).tolist() == [b["U1"].sum(), b["E5"].sum()]
        assert observed.n_windows.sum() == len(a)
