"""Pools by reciprocal rank fusion, by hand on small cases."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcp_bayes.demo import TEXT_POOL
from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.io import read_pool
from rcp_bayes.pool import build_pool, fuse, plain_rankers


def run(system, documents, query="q", dataset="default"):
    """A run that ranks these documents in this order."""
    scores = -np.arange(len(documents), dtype=float)
    columns = {"dataset": dataset, "query_id": query, "doc_id": documents, "score": scores}
    return pd.DataFrame(columns | {"system": system})


def qrels(grades, query="q"):
    rows = [("default", query, document, float(grade)) for document, grade in grades.items()]
    return pd.DataFrame(rows, columns=["dataset", "query_id", "doc_id", "grade"])


RUNS = pd.concat([run("one", ["a", "b", "c", "d"]), run("two", ["b", "e", "a"])])


def test_fusion_by_hand():
    fused = fuse(RUNS).set_index("doc_id")["fused"]
    expected = {"a": 1 / 61 + 1 / 63, "b": 1 / 62 + 1 / 61, "c": 1 / 63, "d": 1 / 64, "e": 1 / 62}
    assert fused.to_dict() == pytest.approx(expected, abs=1e-12)
    assert fused.index.tolist() == ["b", "a", "e", "c", "d"]


def test_top_k_and_report():
    pool = build_pool(RUNS, k=3)
    assert pool.candidates["doc_id"].tolist() == ["b", "a", "e"]
    assert pool.queries.iloc[0][["size", "fused"]].tolist() == [3, 5]
    assert "1 queries, 3 candidates" in pool.report()


def test_missed_positives_replace_the_lowest():
    graded = qrels({"b": 1, "x": 1, "c": 0, "d": 2})
    pool = build_pool(RUNS, k=3, qrels=graded, keep_positives=True)
    assert pool.candidates["doc_id"].tolist() == ["b", "x", "d"]
    assert pool.queries["replaced"].tolist() == [2]


def test_more_positives_than_places():
    graded = qrels(dict.fromkeys("vwxyz", 1))
    pool = build_pool(RUNS, k=3, qrels=graded, keep_positives=True)
    assert pool.candidates["doc_id"].tolist() == ["v", "w", "x"]
    assert pool.queries[["replaced", "positives_left_out"]].iloc[0].tolist() == [3, 2]


def test_short_pool_has_room():
    pool = build_pool(RUNS, k=10, qrels=qrels({"x": 1}), keep_positives=True)
    assert pool.candidates["doc_id"].tolist() == ["b", "a", "e", "c", "d", "x"]
    assert pool.queries[["replaced", "joined"]].iloc[0].tolist() == [0, 1]


def test_judged_documents_join():
    pool = build_pool(RUNS, k=2, qrels=qrels({"x": 0, "a": 3, "y": 2}), join_judged=True)
    assert pool.candidates["doc_id"].tolist() == ["b", "a", "x", "y"]


def test_excluded_never_enter():
    gone = pd.DataFrame({"dataset": "default", "query_id": "q", "doc_id": ["b", "x"]})
    graded = qrels({"x": 1})
    pool = build_pool(RUNS, k=3, qrels=graded, keep_positives=True, excluded=gone)
    assert pool.candidates["doc_id"].tolist() == ["a", "e", "c"]


def test_queries_and_datasets_stay_apart():
    runs = pd.concat([run("one", ["a", "b"]), run("one", ["b"], dataset="other")])
    pool = build_pool(runs)
    assert pool.candidates.to_numpy().tolist() == [
        ["default", "q", "a"],
        ["default", "q", "b"],
        ["other", "q", "b"],
    ]


def test_qrels_without_datasets_join_the_runs():
    runs = run("one", ["a", "b", "c"], dataset="suite")
    gone = pd.DataFrame({"dataset": "default", "query_id": "q", "doc_id": ["a"]})
    graded = pd.concat([qrels({"x": 1, "b": 2}), qrels({"y": 1}, query="unranked")])
    pool = build_pool(runs, k=2, qrels=graded, keep_positives=True, excluded=gone)
    assert pool.candidates.to_numpy().tolist() == [["suite", "q", "b"], ["suite", "q", "x"]]
    assert pool.n_without_run == 1
    assert "1 judged queries that no run ranks" in pool.report()
    twice = pd.concat([runs, run("one", ["a"], dataset="other")])
    with pytest.raises(InputError, match="suite, other"):
        build_pool(twice, qrels=graded, keep_positives=True)


def test_equal_fused_scores_are_equal_bits():
    """Ranks 1, 3 and 7 in any order of the runs: a tie, decided by the first run."""
    places = {"x": (1, 3, 7), "y": (7, 1, 3), "z": (3, 7, 1)}
    runs = []
    for system in range(3):
        order = [f"s{system}-{rank}" for rank in range(1, 8)]
        for name, ranks in places.items():
            order[ranks[system] - 1] = name
        runs.append(run(f"s{system}", order))
    fused = fuse(pd.concat(runs))
    assert fused["doc_id"].tolist()[:3] == ["x", "z", "y"]
    assert fused["fused"].head(3).nunique() == 1


def test_bad_calls():
    with pytest.raises(UsageError):
        build_pool(RUNS, keep_positives=True)
    with pytest.raises(UsageError):
        build_pool(RUNS, k=0)
    with pytest.raises(InputError, match=r"q\.0"):
        build_pool(RUNS, qrels=qrels({"a": 1}, query="q.0"), join_judged=True)
    with pytest.raises(InputError, match="no candidate"):
        build_pool(RUNS, excluded=RUNS[["dataset", "query_id", "doc_id"]])


@settings(max_examples=25, deadline=None)  # pandas: tens of milliseconds an example
@given(st.lists(st.permutations("abcdef"), min_size=1, max_size=4))
def test_order_of_runs_decides_nothing_but_ties(orders):
    runs = [run(f"s{i}", list(order)) for i, order in enumerate(orders)]
    forward = fuse(pd.concat(runs)).set_index("doc_id")["fused"]
    backward = fuse(pd.concat(runs[::-1])).set_index("doc_id")["fused"]
    pd.testing.assert_series_equal(forward.sort_index(), backward.sort_index())
    assert forward.is_monotonic_decreasing


def test_shipped_pool():
    pool = read_pool(TEXT_POOL)
    assert pool.candidates.groupby("query_id").size().tolist() == [30] * 8
    assert pool.qrels.groupby("query_id")["grade"].max().eq(3).all()
    assert pool.corpus["text"].is_unique
    runs = plain_rankers(pool)
    assert runs["system"].unique().tolist() == ["bm25", "overlap", "shortest"]
    merged = runs.merge(pool.qrels, on=["dataset", "query_id", "doc_id"])
    quality = merged.groupby("system").apply(lambda g: g["score"].corr(g["grade"], "spearman"))
    assert quality["bm25"] > 0.4 > quality["shortest"]
