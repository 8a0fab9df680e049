"""score() against trec_eval's printed values, ir_measures, a slow scorer of our own, by hand."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.evaluate import METRICS, PROTOCOLS, score
from rcp_bayes.gain import gain, shaped_gain
from rcp_bayes.items import Items, load_items
from rcp_bayes.rubric import Criterion

ITEMS = load_items("nanobeir-qwen3.5-397b")


def frame(text, columns):
    """A table from lines of words; what looks like a number in a number column becomes one."""
    rows = [line.split() for line in text.strip().splitlines()]
    table = pd.DataFrame(rows, columns=columns.split())
    for name in ("score", "grade"):
        if name in table:
            table[name] = table[name].astype(float)
    return table


def runs_of(text):
    return frame(text, "system query_id doc_id score")


def qrels_of(text):
    return frame(text, "query_id doc_id grade")


def fit_of(rows, *, queries=None, items=ITEMS, dataset="default"):
    """A fit from (query, doc, bt, tau, alpha, pass_share); None is missing."""
    labels = pd.DataFrame(rows, columns=["query_id", "doc_id", "bt", "tau", "alpha", "pass_share"])
    labels = labels.astype(dict.fromkeys(("bt", "tau", "alpha", "pass_share"), float))
    labels.insert(0, "dataset", dataset)
    theta = labels.pop("tau") * labels["bt"] + labels.pop("alpha")
    labels["theta"], labels["gain"] = theta, gain(theta.to_numpy(), items.gamma, items.beta)
    labels["pool_position"] = labels.groupby(["dataset", "query_id"]).cumcount()
    known = labels[["dataset", "query_id"]].drop_duplicates()
    queries = known if queries is None else queries
    queries = queries.reset_index(drop=True)
    return SimpleNamespace(labels=labels, queries=queries, items=items, draws=None)


def value(scores, metric="qrel_ndcg", system=None, query=None):
    table = scores.per_query
    table = table[table["metric"] == metric]
    if system is not None:
        table = table[table["system"] == system]
    if query is not None:
        table = table[table["query_id"] == query]
    (found,) = table["score"]
    return found


def board(scores, metric, system, dataset="mean"):
    table = scores.leaderboard
    row = table[
        (table["metric"] == metric) & (table["system"] == system) & (table["dataset"] == dataset)
    ]
    assert len(row) == 1
    return row.iloc[0]


# ------------------------------------------------------------------------ printed by trec_eval


@pytest.mark.parametrize(("folder", "n"), [("dl19", 129), ("dl21", 1701)])
def test_every_value_that_trec_eval_printed(shared_data, folder, n):
    runs = pd.read_parquet(shared_data / folder / "runs.parquet")
    qrels = pd.read_csv(
        shared_data / folder / "qrels.txt",
        sep=r"\s+",
        names=["query_id", "zero", "doc_id", "grade"],
        dtype={"query_id": str, "doc_id": str},
    )
    printed = pd.read_csv(
        shared_data / folder / "trec_eval_ndcg_cut_10.csv", dtype={"topic": str}
    ).rename(columns={"runid": "system", "topic": "query_id"})
    scores = score(None, runs, qrels, protocol="trec")
    both = scores.per_query.merge(printed, on=["system", "query_id"], validate="1:1")
    assert len(both) == n
    ours = [f"{x:.4f}" for x in both["score"]]
    assert ours == [f"{x:.4f}" for x in both["ndcg_cut_10"]]
    # trec_eval's own mean over queries, where it is printed
    means = printed[printed["query_id"] == "average"].set_index("system")["ndcg_cut_10"]
    for system in set(means.index) & set(runs["system"]):
        assert f"{board(scores, 'qrel_ndcg', system)['score']:.4f}" == f"{means[system]:.4f}"


def test_ir_measures_agrees_on_random_runs():
    import ir_measures

    rng = np.random.default_rng(0)
    rows = []
    for query in range(12):
        for document in rng.permutation(60)[:40]:
            rows.append((f"q{query}", f"d{document}", rng.random()))
    runs = pd.DataFrame(rows, columns=["query_id", "doc_id", "score"])
    pairs = [(f"q{q}", f"d{d}") for q in range(12) for d in rng.permutation(60)[:20]]
    qrels = pd.DataFrame(pairs, columns=["query_id", "doc_id"])
    qrels["grade"] = rng.integers(0, 4, len(qrels)).astype(float)
    for k in (1, 5, 10, 100):
        ours = score(None, runs, qrels, k=k).per_query.set_index("query_id")["score"]
        theirs = ir_measures.iter_calc(
            [ir_measures.nDCG @ k],
            qrels.assign(relevance=qrels["grade"].astype(int)),
            runs,
        )
        for entry in theirs:
            assert ours[entry.query_id] == pytest.approx(entry.value, abs=1e-9)


# ------------------------------------------------------------------- a slow scorer, by the contract


def slow_scores(labels, runs, qrels, metric, *, k, protocol, excluded, unjudged, identical):
    """Per (system, query): the contract's table read aloud, one list at a time."""
    gains = {}
    if metric == "qrel_ndcg":
        for row in qrels.itertuples():
            gains.setdefault(row.query_id, {})[row.doc_id] = max(row.grade, 0.0)
    else:
        column = {"rcp_ndcg": "gain", "count_ndcg": "pass_share", "raw_bt_ndcg": "raw"}[metric]
        for row in labels.itertuples():
            gains.setdefault(row.query_id, {})[row.doc_id] = getattr(row, column)
    pool = labels.groupby("query_id")["doc_id"].agg(list).to_dict()
    found = {}
    for (system, query), part in runs.groupby(["system", "query_id"]):
        gone = excluded.get(query, set()) | ({query} if identical else set())
        of = {d: g for d, g in gains.get(query, {}).items() if d not in gone}
        known = {d: g for d, g in of.items() if not math.isnan(g)}
        ranked = [
            (row.score, row.doc_id)
            for row in part.itertuples()
            if row.doc_id not in gone
            and (protocol in ("plain", "trec", "bright") or row.doc_id in pool[query])
            and (unjudged == "zero" or row.doc_id in known)
        ]
        if protocol in ("trec", "nanobeir", "bright"):
            ranked.sort(key=lambda e: (np.float32(e[0]), e[1].encode()), reverse=True)
        elif protocol == "trecdl":
            ranked.sort(key=lambda e: (-e[0], pool[query].index(e[1])))
        else:
            ranked.sort(key=lambda e: -e[0])
        credit = [known.get(d, 0.0) for _, d in ranked]
        if protocol in ("plain", "vidore"):
            levels = [s for s, _ in ranked]
            credit = [
                np.mean([c for c, s in zip(credit, levels, strict=True) if s == level])
                for level in levels
            ]
        dcg = sum(g / math.log2(r + 2) for r, g in enumerate(credit[:k]))
        best = sorted(known.values(), reverse=True)[:k]
        ideal = sum(g / math.log2(r + 2) for r, g in enumerate(best))
        found[system, query] = dcg / ideal if ideal else math.nan
    return found


def random_world(seed):
    rng = np.random.default_rng(seed)
    queries = [f"q{q}" for q in range(6)]
    documents = [f"d{d}" for d in range(30)] + queries
    rows = []
    for query in queries:
        tau, alpha = rng.uniform(0.5, 2), rng.normal(-2)
        for doc in rng.permutation(documents)[: rng.integers(5, 25)]:
            bt, share = rng.normal(), rng.integers(0, 6) / 5
            bt, share = (bt, share) if rng.random() < 0.9 else (None, None)
            rows.append((query, doc, bt, tau, alpha, share))
    fit = fit_of(rows)
    labels = fit.labels.copy()
    labels["raw"] = gain(labels["bt"].to_numpy(), ITEMS.gamma, ITEMS.beta)
    runs = [
        (system, query, doc, rng.integers(0, 4) + rng.choice([0.0, 1e-9]))
        for system in ("a", "b", "c")
        for query in queries
        for doc in rng.permutation(documents)[: rng.integers(1, 30)]
    ]
    runs = pd.DataFrame(runs, columns=["system", "query_id", "doc_id", "score"])
    graded = [(q, d, rng.integers(-2, 4)) for q in queries for d in documents if rng.random() < 0.5]
    qrels = pd.DataFrame(graded, columns=["query_id", "doc_id", "grade"])
    excluded = {q: set(rng.permutation(documents)[:3]) for q in queries[:4]}
    return fit, labels, runs, qrels, excluded


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("unjudged", ["zero", "condense"])
def test_every_protocol_equals_the_slow_scorer(protocol, unjudged):
    for seed, k, identical in ((1, 10, False), (2, 3, True), (3, 1, False)):
        fit, labels, runs, qrels, excluded = random_world(seed)
        shown = pd.DataFrame(
            [(q, d) for q, gone in excluded.items() for d in gone], columns=["query_id", "doc_id"]
        )
        shuffled = runs.sample(frac=1, random_state=seed)
        scores = score(
            fit,
            shuffled,
            qrels,
            k=k,
            protocol=protocol,
            excluded=shown,
            unjudged=unjudged,
            drop_identical_ids=identical,
        )
        for metric in METRICS:
            slow = slow_scores(
                labels,
                runs,
                qrels,
                metric,
                k=k,
                protocol=protocol,
                excluded=excluded,
                unjudged=unjudged,
                identical=identical,
            )
            ours = scores.per_query[scores.per_query["metric"] == metric]
            ours = {(r.system, r.query_id): r.score for r in ours.itertuples()}
            assert set(slow) <= set(ours)
            for key, expected in slow.items():
                np.testing.assert_allclose(
                    ours[key], expected, rtol=1e-10, err_msg=f"{metric}{key}"
                )


# ------------------------------------------------------------------------------- hard inputs


def test_ten_ties():
    runs = runs_of("\n".join(f"s q d{i} 0.5" for i in range(1, 11)))
    qrels = qrels_of("q d10 1")
    assert round(value(score(None, runs, qrels, protocol="trec")), 5) == 0.30103
    assert value(score(None, runs, qrels, protocol="trec", k=5)) == 0.0
    mean_discount = sum(1 / math.log2(r + 1) for r in range(1, 11)) / 10
    assert value(score(None, runs, qrels)) == pytest.approx(mean_discount, rel=1e-14)


def test_negative_grades_count_zero():
    runs = runs_of("s q x 2\ns q y 1")
    assert round(value(score(None, runs, qrels_of("q x -1\nq y 2"))), 5) == 0.63093
    scores = score(None, runs, qrels_of("q x -2"))
    assert math.isnan(value(scores))
    row = board(scores, "qrel_ndcg", "s")
    assert row["n_queries"] == 0 and math.isnan(row["score"]) and pd.isna(row["rank"])
    assert any("no positive grade" in note and ": q" in note for note in scores.notes)
    document = json.loads(json.dumps(scores.to_json(), allow_nan=False))
    assert document["leaderboard"][0]["score"] is None
    assert document["leaderboard"][0]["rank"] is None


def test_a_query_missing_from_the_run_scores_zero():
    runs = runs_of("s q1 a 1\ns q1 b 0\nt q1 a 1\nt q2 a 1")
    scores = score(None, runs, qrels_of("q1 a 1\nq2 a 1"))
    row = board(scores, "qrel_ndcg", "s")
    assert row["score"] == 0.5 and row["n_queries"] == 2
    assert value(scores, system="s", query="q2") == 0.0
    assert board(scores, "qrel_ndcg", "t")["score"] == 1.0
    assert any("s ranks 1 of 2 labelled queries" in note and "q2" in note for note in scores.notes)
    assert row["judged_at_k"] == 0.5  # of the list that is there


def test_no_query_in_common():
    with pytest.raises(InputError, match=r"no query in common with the qrels.*q1.*q1\.0"):
        score(None, runs_of("s q1 a 1"), qrels_of("q1.0 a 1"))
    fit = fit_of([("q1", "a", 1.0, 1, 0, 0.5)])
    with pytest.raises(InputError, match="qrels: column query_id: no query in common"):
        score(fit, runs_of("s q1 a 1"), qrels_of("x a 1"))


def test_a_document_twice_is_refused():
    with pytest.raises(InputError) as caught:
        score(None, runs_of("s q a 1\ns q a 1"), qrels_of("q a 1"))
    assert "runs" in str(caught.value) and "'q'" in str(caught.value) and "'a'" in str(caught.value)


def test_unusable_scores_are_refused_with_their_row():
    for bad in (np.nan, np.inf):
        runs = runs_of("s q a 1\ns q b 1").assign(score=[1.0, bad])
        with pytest.raises(InputError, match=r"runs: row 2, column score"):
            score(None, runs, qrels_of("q a 1"))


def test_qrels_that_contradict_themselves():
    runs = runs_of("s q a 1")
    folded = score(None, runs, qrels_of("q a 1\nq a 1"))
    assert value(folded) == 1.0
    with pytest.raises(InputError, match=r"1\.0.*2\.0"):
        score(None, runs, qrels_of("q a 1\nq a 2"))


def test_ids_are_text():
    runs = pd.DataFrame({"query_id": [42], "doc_id": [7], "score": [1.0]})
    assert value(score(None, runs, qrels_of("42 7 1"))) == 1.0
    assert value(score(None, runs, qrels_of("42 07 1\n42 8 1"))) == 0.0
    with pytest.raises(InputError, match="no query in common"):
        score(None, runs, qrels_of("042 7 1"))


# ----------------------------------------------------------------------------------- the labels


ROWS = [
    # query, document, bt, tau, alpha, pass share
    ("q1", "a", 2.0, 1.5, -1.0, 0.8),
    ("q1", "b", 0.0, 1.5, -1.0, 0.4),
    ("q1", "c", -2.0, 1.5, -1.0, 0.0),
    ("q2", "a", 1.0, 0.5, 1.0, 1.0),
    ("q2", "d", -1.0, 0.5, 1.0, 0.6),
]


def test_gains_of_the_four_metrics_by_hand():
    fit = fit_of(ROWS)
    runs = runs_of("s q1 b 3\ns q1 a 2\ns q1 zz 1\ns q2 d 2\ns q2 a 1")
    qrels = qrels_of("q1 a 2\nq1 b 1\nq2 a 1")
    scores = score(fit, runs, qrels)

    def by_hand(ranked, pool):
        def dcg(values):
            return sum(g / math.log2(r + 2) for r, g in enumerate(values))

        return dcg(ranked) / dcg(sorted(pool, reverse=True))

    def g(theta):
        return float(gain(theta, ITEMS.gamma, ITEMS.beta))

    expected = {
        "rcp_ndcg": by_hand([g(-1.0), g(2.0)], [g(2.0), g(-1.0), g(-4.0)]),
        "raw_bt_ndcg": by_hand([g(0.0), g(2.0)], [g(2.0), g(0.0), g(-2.0)]),
        "count_ndcg": by_hand([0.4, 0.8], [0.8, 0.4, 0.0]),
        "qrel_ndcg": by_hand([1, 2], [2, 1]),
    }
    for metric, number in expected.items():
        assert value(scores, metric, query="q1") == pytest.approx(number, rel=1e-13)
    exponential = score(fit, runs, qrels, qrel_gain="exponential")
    number = by_hand([1, 3], [3, 1])
    assert value(exponential, "qrel_ndcg", query="q1") == pytest.approx(number, rel=1e-13)
    assert [*dict.fromkeys(scores.leaderboard["metric"])] == list(METRICS)
    row = board(scores, "rcp_ndcg", "s")
    assert row["judged_at_k"] == pytest.approx((2 / 3 + 1) / 2)
    assert row["score"] == pytest.approx(
        np.mean([value(scores, "rcp_ndcg", query=q) for q in ("q1", "q2")])
    )
    assert any("judged_at_10 below 0.95" in note and "s 0.83" in note for note in scores.notes)


def test_condensed_lists():
    fit = fit_of(ROWS)
    runs = runs_of("s q1 x 3\ns q1 a 2\ns q2 a 1")
    assert value(score(fit, runs), "rcp_ndcg", query="q1") < 0.7
    scores = score(fit, runs, unjudged="condense")
    pool = gain(np.array([2.0, -1.0, -4.0]), ITEMS.gamma, ITEMS.beta)
    ideal = pool @ (1 / np.log2([2, 3, 4]))
    assert value(scores, "rcp_ndcg", query="q1") == pytest.approx(pool[0] / ideal)
    assert board(scores, "rcp_ndcg", "s")["judged_at_k"] == pytest.approx((0.5 + 1) / 2)


@pytest.mark.parametrize("shape", ["unweighted", "logistic", "c4", "clipped", "minmax"])
def test_alternative_gains(shape):
    fit = fit_of(ROWS)
    runs = runs_of("s q1 b 3\ns q1 a 2\ns q2 a 1")
    found = score(fit, runs, gain_shape=shape, excluded=frame("q1 c", "query_id doc_id"))
    theta = fit.labels["theta"].to_numpy()
    gains = shaped_gain(theta, ITEMS.gamma, ITEMS.beta, shape=shape, offset=[0, 3, 5])
    discount = 1 / np.log2([2, 3])
    expected = (gains[[1, 0]] @ discount) / (np.sort(gains[:2])[::-1] @ discount)
    assert value(found, "rcp_ndcg", query="q1") == pytest.approx(expected, rel=1e-12)


def test_a_document_without_a_window_counts_zero():
    fit = fit_of([*ROWS, ("q1", "n", None, 1.5, -1.0, None)])
    runs = runs_of("s q1 n 3\ns q1 a 2\ns q2 a 1\ns q2 d 0")
    scores = score(fit, runs, protocol="vidore")
    pool = gain(np.array([2.0, -1.0, -4.0]), ITEMS.gamma, ITEMS.beta)
    ideal = pool @ (1 / np.log2([2, 3, 4]))
    expected = pool[0] / math.log2(3) / ideal
    assert value(scores, "rcp_ndcg", query="q1") == pytest.approx(expected)
    assert board(scores, "rcp_ndcg", "s")["judged_at_k"] == pytest.approx(0.75)


def test_a_query_without_gains_is_reported_and_never_scored():
    rows = [*ROWS, ("q3", "a", 1.0, None, None, None), ("q3", "b", -1.0, None, None, None)]
    scores = score(fit_of(rows), runs_of("s q1 a 1\ns q2 a 1\ns q3 a 1"), qrels_of("q3 a 1"))
    for metric in ("rcp_ndcg", "count_ndcg", "raw_bt_ndcg"):
        assert math.isnan(value(scores, metric, query="q3"))
        assert board(scores, metric, "s")["n_queries"] == 2
    assert value(scores, "qrel_ndcg", query="q3") == 1.0
    assert board(scores, "qrel_ndcg", "s")["n_queries"] == 1
    (note,) = [note for note in scores.notes if "no gains" in note]
    assert note.startswith("1 of 3 queries") and note.endswith(": q3")
    (note,) = [note for note in scores.notes if "no positive grade" in note]
    assert "2 of 3" in note and "q1, q2" in note


def test_count_without_a_passed_criterion_is_undefined():
    rows = [("q1", "a", 1.0, 1, -9, 0.0), ("q1", "b", -1.0, 1, -9, 0.0)]
    scores = score(fit_of(rows), runs_of("s q1 a 1"))
    assert math.isnan(value(scores, "count_ndcg"))
    assert 0 < value(scores, "rcp_ndcg") < 1
    assert any("count_ndcg undefined" in note for note in scores.notes)


def test_excluded_and_identical_ids_leave_ranking_and_ideal():
    fit = fit_of([*ROWS, ("q1", "q1", 5.0, 1.5, -1.0, 1.0)])
    runs = runs_of("s q1 q1 9\ns q1 a 8\ns q1 b 7\ns q2 a 2\ns q2 d 1")
    qrels = qrels_of("q1 q1 3\nq1 b 1\nq2 a 1")
    for protocol in ("plain", "trec", "nanobeir", "bright", "vidore"):
        by_list = score(
            fit, runs, qrels, protocol=protocol, excluded=frame("q1 q1\nq1 c", "query_id doc_id")
        )
        by_id = score(
            fit,
            runs,
            qrels,
            protocol=protocol,
            excluded=frame("q1 c", "query_id doc_id"),
            drop_identical_ids=True,
        )
        assert value(by_list, "rcp_ndcg", query="q1") == pytest.approx(1.0)
        assert value(by_list, "qrel_ndcg", query="q1") == pytest.approx(1 / math.log2(3))
        pd.testing.assert_frame_equal(by_list.per_query, by_id.per_query)
        assert any("excluded documents left" in note for note in by_list.notes)
    kept = score(fit, runs, qrels)
    assert value(kept, "qrel_ndcg", query="q1") > 0.9
    none = score(fit, runs, qrels, excluded=pd.DataFrame(columns=["query_id", "doc_id"]))
    pd.testing.assert_frame_equal(none.per_query, kept.per_query)


def test_pool_order_breaks_ties_under_trecdl():
    fit = fit_of(ROWS)
    runs = runs_of("s q1 c 1\ns q1 a 1\ns q1 zz 1\ns q2 d 1\ns q2 a 1")
    scores = score(fit, runs, protocol="trecdl")
    full = gain(np.array([2.0, -1.0, -4.0]), ITEMS.gamma, ITEMS.beta)
    ideal = full @ (1 / np.log2([2, 3, 4]))
    assert value(scores, "rcp_ndcg", query="q1") == pytest.approx(
        (full[0] + full[2] / math.log2(3)) / ideal
    )
    assert any("pool_position" in note for note in scores.notes)
    # A pool in the other order, with a query and a document that the fit does not have.
    pool = frame("q9 c\nq1 c\nq1 new\nq1 a\nq9 a\nq1 b\nq2 d", "query_id doc_id")
    scores = score(fit, runs, protocol="trecdl", pool_order=pool)
    assert value(scores, "rcp_ndcg", query="q1") == pytest.approx(
        (full[2] + full[0] / math.log2(3)) / ideal
    )
    (note,) = [note for note in scores.notes if "--pool" in note]
    assert "1 ranked documents are not in it" in note  # q2's a


def test_judged_pool_without_a_fit():
    runs, qrels = runs_of("s q a 3\ns q b 2"), qrels_of("q b 1")
    with pytest.raises(UsageError, match="judged pool"):
        score(None, runs, qrels, protocol="nanobeir")
    pool = frame("q b", "query_id doc_id")
    assert value(score(None, runs, qrels, protocol="nanobeir", pool_order=pool)) == 1.0
    assert value(score(None, runs, qrels)) == pytest.approx(1 / math.log2(3))


# -------------------------------------------------------------------------- datasets and systems


def two_datasets():
    first = fit_of(ROWS, dataset="one")
    second = fit_of([("p1", "a", 1.0, 1, 0, 0.5), ("p1", "b", -1.0, 1, 0, 0.2)], dataset="two")
    labels = pd.concat([first.labels, second.labels], ignore_index=True)
    queries = pd.concat([first.queries, second.queries], ignore_index=True)
    return SimpleNamespace(labels=labels, queries=queries, items=ITEMS, draws=None)


def test_mean_is_unweighted_over_datasets():
    fit = two_datasets()
    runs = runs_of("s q1 b 2\ns q1 a 1\ns q2 d 1\ns p1 a 1\nt q1 a 1\nt q2 a 1\nt p1 b 1")
    scores = score(fit, runs)  # runs name no dataset: they join on the query id
    for system in ("s", "t"):
        one, two = (board(scores, "rcp_ndcg", system, d)["score"] for d in ("one", "two"))
        q1, q2 = (value(scores, "rcp_ndcg", system, q) for q in ("q1", "q2"))
        assert one == pytest.approx((q1 + q2) / 2)
        row = board(scores, "rcp_ndcg", system)
        assert row["score"] == pytest.approx((one + two) / 2)
        assert row["n_queries"] == 3
    ranks = scores.leaderboard.query("metric == 'rcp_ndcg' and dataset == 'two'")
    assert ranks[["system", "rank"]].to_numpy().tolist() == [["s", 1], ["t", 2]]
    assert list(dict.fromkeys(scores.leaderboard["dataset"])) == ["one", "two", "mean"]
    assert set(scores.per_query["dataset"]) == {"one", "two"}
    assert list(scores.per_query.columns) == [
        "dataset",
        "query_id",
        "system",
        "metric",
        "k",
        "score",
    ]
    named = runs.assign(dataset=np.where(runs["query_id"] == "p1", "two", "one"))
    pd.testing.assert_frame_equal(score(fit, named).per_query, scores.per_query)


def test_an_ambiguous_query_id_needs_a_dataset():
    fit = two_datasets()
    fit.labels.loc[fit.labels["query_id"] == "p1", "query_id"] = "q1"
    fit.queries.loc[fit.queries["query_id"] == "p1", "query_id"] = "q1"
    runs = runs_of("s q1 a 2\ns q1 b 1")
    with pytest.raises(InputError, match=r"'q1' stands in datasets one, two; add a dataset column"):
        score(fit, runs)
    assert score(fit, runs_of("s q2 a 1"))  # its own query id is not ambiguous
    both = pd.concat([runs.assign(dataset="two"), runs.assign(dataset="one")])
    scores = score(fit, both)
    assert set(scores.per_query["dataset"]) == {"one", "two"}


def test_qrels_without_datasets_join_named_runs():
    runs = runs_of("s q1 a 1\ns p1 b 1").assign(dataset=["one", "two"])
    scores = score(None, runs, qrels_of("q1 a 1\np1 a 1"))
    assert board(scores, "qrel_ndcg", "s", "one")["score"] == 1.0
    assert board(scores, "qrel_ndcg", "s", "two")["score"] == 0.0


def test_a_dataset_that_a_run_leaves_out():
    fit = two_datasets()
    scores = score(fit, runs_of("s q1 a 1\ns q2 a 1\nt q1 a 1\nt p1 a 1"))
    means = scores.leaderboard[scores.leaderboard["dataset"] == "mean"]
    assert set(means["system"]) == {"t"}
    assert any("s ranks no query of two" in note for note in scores.notes)
    alone = score(fit, runs_of("s q1 a 1\ns q2 a 1"))
    assert board(alone, "rcp_ndcg", "s")["n_queries"] == 2
    assert any("no run ranks a query of two" in note for note in alone.notes)


def test_queries_outside_the_labels_are_left_out_and_told():
    runs = runs_of("s q1 a 1\ns q2 a 1\ns x1 a 1\nt x2 a 1")
    scores = score(fit_of(ROWS), runs, qrels_of("q1 a 1\nx3 a 1"))
    assert set(scores.per_query["query_id"]) == {"q1", "q2"}
    assert set(scores.per_query["system"]) == {"s"}
    text = "\n".join(scores.notes)
    assert "2 queries of the runs are not in the labels" in text
    assert "1 queries of the qrels are not in the labels" in text
    assert "t ranks none of the queries" in text


def test_equal_scores_share_the_better_rank():
    runs = runs_of("a q x 1\nb q x 1\nc q y 2\nc q x 1")
    scores = score(None, runs, qrels_of("q x 1"))
    assert [board(scores, "qrel_ndcg", s)["rank"] for s in "abc"] == [1, 1, 3]


def test_runs_without_a_system_and_chosen_metrics():
    runs = runs_of("s q1 a 1\ns q2 a 1").drop(columns="system")
    scores = score(fit_of(ROWS), runs, metrics=["count_ndcg", "rcp_ndcg"])
    assert set(scores.per_query["system"]) == {"run"}
    assert list(dict.fromkeys(scores.per_query["metric"])) == ["rcp_ndcg", "count_ndcg"]


def test_input_frames_are_left_alone():
    fit, _, runs, qrels, _ = random_world(5)
    before = [table.copy() for table in (fit.labels, fit.queries, runs, qrels)]
    score(fit, runs, qrels)
    for table, copy in zip((fit.labels, fit.queries, runs, qrels), before, strict=True):
        pd.testing.assert_frame_equal(table, copy)


def test_row_order_of_a_table_changes_nothing():
    fit, _, runs, qrels, _ = random_world(6)
    whole = score(fit, runs, qrels)
    mixed = SimpleNamespace(
        labels=fit.labels.sample(frac=1, random_state=1),
        queries=fit.queries,
        items=fit.items,
        draws=None,
    )
    again = score(mixed, runs, qrels.sample(frac=1, random_state=1))
    keys = ["metric", "system", "query_id"]
    left, right = (s.per_query.sort_values(keys)["score"].to_numpy() for s in (whole, again))
    np.testing.assert_allclose(left, right, rtol=1e-12)


def test_wrong_usage():
    fit, runs, qrels = fit_of(ROWS), runs_of("s q1 a 1"), qrels_of("q1 a 1")
    for options, message in (
        ({"protocol": "msmarco"}, "unknown protocol 'msmarco'; known: plain, trec"),
        ({"unjudged": "drop"}, "unknown unjudged"),
        ({"qrel_gain": "log"}, "unknown qrel_gain"),
        ({"gain_shape": "square"}, "unknown gain_shape"),
        ({"k": 0}, "cutoff"),
        ({"metrics": ["map"]}, "unknown metric 'map'"),
    ):
        with pytest.raises(UsageError, match=message):
            score(fit, runs, qrels, **options)
    with pytest.raises(UsageError, match="qrel_ndcg needs qrels"):
        score(fit, runs, metrics=["qrel_ndcg"])
    with pytest.raises(UsageError, match="rcp_ndcg needs a fit"):
        score(None, runs, qrels, metrics=["rcp_ndcg"])
    with pytest.raises(UsageError, match="needs a fit, or qrels"):
        score(None, runs)
    short = Items((Criterion("A"),), [1.0], [0.0])
    with pytest.raises(UsageError, match="fourth criterion"):
        score(fit_of(ROWS, items=short), runs, gain_shape="c4")
    with pytest.raises(InputError, match="'mean'"):
        score(fit_of(ROWS, dataset="mean"), runs)
