"""Scores as draws against a plain loop; the Bayesian bootstrap against its closed form."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from rcp_bayes.draws import GainDraws, ScoreDraws, bayesian_bootstrap, quantile_band
from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.evaluate import score
from rcp_bayes.fitfolder import Fit
from rcp_bayes.items import load_items
from rcp_bayes.render import leaderboard_text

ITEMS = load_items("nanobeir-qwen3.5-397b")


def world(seed, *, queries=6, pool=12, n_draws=40, datasets=("one", "two"), dtype=np.float64):
    """A fit with draws, and runs that also rank documents without a label."""
    rng = np.random.default_rng(seed)
    rows, runs = [], []
    for dataset in datasets:
        for q in range(queries):
            for d in range(int(rng.integers(3, pool))):
                rows.append((dataset, f"{dataset}-{q}", f"d{d}", rng.random() > 0.1))
            for system in ("a", "b", "c"):
                for d in rng.permutation(pool + 2)[: rng.integers(2, pool)]:
                    runs.append((dataset, f"{dataset}-{q}", f"d{d}", rng.integers(0, 9), system))
    labels = pd.DataFrame(rows, columns=["dataset", "query_id", "doc_id", "shown"])
    shown = labels.pop("shown").to_numpy()
    gain = rng.beta(0.5, 1.5, (n_draws, len(labels))).astype(dtype)
    gain[:, ~shown] = np.nan
    labels["gain"] = gain[0] if n_draws == 1 else gain.mean(axis=0, dtype=np.float64)
    labels["bt"] = labels["theta"] = np.where(shown, 0.0, np.nan)
    labels["pass_share"] = 0.5
    labels["pool_position"] = labels.groupby(["dataset", "query_id"]).cumcount()
    known = labels[["dataset", "query_id"]].drop_duplicates().reset_index(drop=True)
    runs = pd.DataFrame(runs, columns=["dataset", "query_id", "doc_id", "score", "system"])
    runs["score"] = runs["score"].astype(float)
    return Fit(labels, known, ITEMS, {}, GainDraws(gain)), runs


def one_draw(fit, s):
    """The same fit with draw s as its only gains."""
    labels = fit.labels.assign(gain=np.asarray(fit.draws.gain[s], dtype=np.float64))
    return Fit(labels, fit.queries, fit.items, {})


OPTIONS = [
    {},
    {"protocol": "nanobeir", "k": 3},
    {"protocol": "vidore", "unjudged": "condense"},
    {"protocol": "trec", "unjudged": "condense", "k": 1},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_equal_a_loop_that_scores_each_draw_alone(options, dtype):
    fit, runs = world(1, dtype=dtype)
    gone = fit.labels[["dataset", "query_id", "doc_id"]].iloc[::9]
    scores = score(fit, runs, metrics=["rcp_ndcg"], excluded=gone, **options)
    alone = [
        score(one_draw(fit, s), runs, metrics=["rcp_ndcg"], excluded=gone, **options).per_query
        for s in range(fit.draws.n_draws)
    ]
    assert (alone[0][["query_id", "system"]] == scores.per_query[["query_id", "system"]]).all(
        axis=None
    )
    loop = np.array([each["score"] for each in alone])
    table = scores.per_query
    # Sums in another order of the same doubles.
    np.testing.assert_allclose(table["score"], loop.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(table["sd"], loop.std(axis=0, ddof=1), rtol=1e-9, atol=1e-14)
    lo, hi = np.quantile(loop, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(table["lo"], lo, rtol=1e-12)
    np.testing.assert_allclose(table["hi"], hi, rtol=1e-12)
    assert (lo < hi).any()


def test_leaderboard_intervals_are_those_of_the_draws_of_the_mean():
    fit, runs = world(2)
    scores = score(fit, runs, interval=0.8)
    per_query = [score(one_draw(fit, s), runs).leaderboard for s in range(fit.draws.n_draws)]
    board = scores.leaderboard.set_index(["dataset", "metric", "system"])
    assert {"sd", "lo", "hi", "total_lo", "total_hi"} <= set(board.columns)
    for dataset in ("one", "two", "mean"):
        for system in ("a", "b", "c"):
            key = (dataset, "rcp_ndcg", system)
            drawn = np.array(
                [each.set_index(["dataset", "metric", "system"]).loc[key, "score"]
                 for each in per_query]
            )  # fmt: skip
            row = board.loc[key]
            assert row["score"] == pytest.approx(drawn.mean(), rel=1e-12)
            assert row["sd"] == pytest.approx(drawn.std(ddof=1), rel=1e-9)
            assert [row["lo"], row["hi"]] == pytest.approx(np.quantile(drawn, [0.1, 0.9]))
            # Six queries a dataset: their sampling is far more than what the labels leave open.
            assert row["total_lo"] < row["lo"] < row["hi"] < row["total_hi"]
    others = board[board.index.get_level_values("metric") != "rcp_ndcg"]
    assert others[["sd", "lo", "hi", "total_lo", "total_hi"]].isna().all(axis=None)
    assert scores.settings["interval"] == 0.8 and scores.settings["n_draws"] == 40


def test_bayesian_bootstrap_has_the_closed_form_of_dirichlet_weights():
    # Var of a weighted mean under Dirichlet(1, …, 1): sum (x - mean)^2 / (n (n + 1)).
    rng = np.random.default_rng(3)
    x = rng.normal(size=(1, 2, 25))
    x[0, 1] += 0.5 * x[0, 0]
    n, repeats = 25, 40_000
    means = bayesian_bootstrap(x, repeats, np.random.default_rng(4))
    assert means.shape == (repeats, 2)
    deviation = x[0] - x[0].mean(axis=1, keepdims=True)
    covariance = deviation @ deviation.T / (n * (n + 1))
    error = 4 * np.sqrt(np.diag(covariance) / repeats)  # four Monte Carlo errors
    assert (np.abs(means.mean(axis=0) - x[0].mean(axis=1)) < error).all()
    # A variance from 40,000 resamples has a relative error of about 0.7%.
    np.testing.assert_allclose(np.cov(means.T), covariance, rtol=0.03)


def test_total_spread_adds_label_and_query_variance():
    # Draws x[s, q] = m[q] + e[s, q]: variances add up to O(1/n) terms.
    rng = np.random.default_rng(5)
    n, s = 200, 2000
    x = rng.normal(size=n)[None] + rng.normal(size=s)[:, None]  # one label error for all queries
    queries = tuple(("only", f"q{j}") for j in range(n))
    draws = ScoreDraws("rcp_ndcg", ("a",), queries, x[:, None, :])
    labels, total = draws.label_means(), draws.total_means()
    assert set(labels) == {"only", "mean"}
    expected = x.mean(axis=1).var() + x.var(axis=1).mean() / (n + 1)
    # 2,000 resamples: relative error of a variance 3%.
    assert total["only"].var() == pytest.approx(expected, rel=0.1)
    assert labels["only"].var() == pytest.approx(x.mean(axis=1).var(), rel=1e-12)
    assert total["mean"].shape == (2000, 1)


def test_resamples_serve_every_draw_equally():
    draws = ScoreDraws("rcp_ndcg", ("a",), (("d", "q"),), np.arange(3.0).reshape(3, 1, 1))
    total = draws.total_means(resamples=7)["d"][:, 0]
    assert sorted(np.round(total, 12).tolist()) == [0.0] * 3 + [1.0] * 3 + [2.0] * 3


def test_draws_are_read_in_pieces(monkeypatch):
    fit, runs = world(6, n_draws=30)
    whole = score(fit, runs).per_query
    rows = []

    class OnDisk:
        shape = fit.draws.gain.shape

        def __getitem__(self, at):
            part = fit.draws.gain[at]
            rows.append(len(part))
            return part

    monkeypatch.setattr("rcp_bayes.draws._CHUNK", 7 * fit.draws.gain.shape[1])
    streamed = score(Fit(fit.labels, fit.queries, fit.items, {}, GainDraws(OnDisk())), runs)
    assert sum(rows) == 30 and max(rows) <= 7
    pd.testing.assert_frame_equal(streamed.per_query, whole)


def test_without_draws_nothing_is_added():
    fit, runs = world(7)
    plain = score(one_draw(fit, 0), runs)
    assert plain.draws is None and "interval" not in plain.settings
    assert "lo" not in plain.per_query and "lo" not in plain.leaderboard


def test_json_is_strict_and_the_text_names_both_intervals():
    fit, runs = world(8)
    scores = score(fit, runs, interval=0.9)
    document = json.loads(json.dumps(scores.to_json(), allow_nan=False))
    assert document["interval"] == 0.9
    row = next(r for r in document["leaderboard"] if r["metric"] == "rcp_ndcg")
    assert row["total_lo"] < row["lo"] < row["score"] < row["hi"] < row["total_hi"]
    other = next(r for r in document["leaderboard"] if r["metric"] == "count_ndcg")
    assert other["lo"] is None
    text = leaderboard_text(scores)
    assert "labels 90%" in text and "labels+queries 90%" in text
    assert f"[{row['lo']:.4f}, {row['hi']:.4f}]" in text


def test_draws_that_do_not_fit_the_labels_are_refused():
    fit, runs = world(9)
    for gain in (fit.draws.gain[:, 1:], fit.draws.gain[:1], fit.draws.gain[0]):
        with pytest.raises(InputError, match="do not go with draws of shape"):
            score(Fit(fit.labels, fit.queries, fit.items, {}, GainDraws(gain)), runs)
    for bad in (np.nan, -0.1, np.inf):
        gain = fit.draws.gain.copy()
        gain[3, np.flatnonzero(fit.labels["gain"].notna())[5]] = bad
        with pytest.raises(InputError, match="negative or not finite"):
            score(Fit(fit.labels, fit.queries, fit.items, {}, GainDraws(gain)), runs)
    for level in (0.0, 1.0, 95, math.nan):
        with pytest.raises(UsageError, match="between 0 and 1"):
            score(fit, runs, interval=level)


def test_other_gain_shapes_have_no_draws_and_say_so():
    fit, runs = world(10)
    scores = score(fit, runs, gain_shape="c4")
    assert scores.draws is None
    assert any("no intervals for gain shape c4" in note for note in scores.notes)


def test_one_query_cannot_show_how_queries_vary():
    fit, runs = world(11, queries=1, datasets=("one",))
    scores = score(fit, runs)
    assert any("one query in one" in note for note in scores.notes)
    row = scores.leaderboard.iloc[0]
    assert row["sd"] > 0
    assert row["total_lo"] == pytest.approx(row["lo"], abs=0.1)


def test_a_query_without_gains_stays_undefined():
    fit, runs = world(12)
    first = (fit.labels["query_id"] == "one-0").to_numpy()
    labels = fit.labels.assign(gain=fit.labels["gain"].mask(first))
    labels.loc[first, "theta"] = np.nan
    scores = score(Fit(labels, fit.queries, fit.items, {}, fit.draws), runs)
    rows = scores.per_query.query("query_id == 'one-0' and metric == 'rcp_ndcg'")
    assert rows[["score", "sd", "lo", "hi"]].isna().all(axis=None)
    board = scores.leaderboard.query("dataset == 'one' and metric == 'rcp_ndcg'")
    assert (board["n_queries"] == 5).all() and board["total_hi"].notna().all()


def test_bands_are_equal_tailed():
    values = np.arange(101.0)[:, None] * [1.0, -1.0]
    lo, hi = quantile_band(values, 0.9)
    np.testing.assert_allclose([lo, hi], [[5, -95], [95, -5]])
