"""compare() against scipy, hand counts, closed forms; degenerate inputs; the JSON contract."""

import json
import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_draws import one_draw, world

import rcp_bayes as rcp
from rcp_bayes.cli import main
from rcp_bayes.comparison import WITHIN, compare, compare_scores
from rcp_bayes.draws import GainDraws
from rcp_bayes.errors import UsageError
from rcp_bayes.evaluate import score
from rcp_bayes.fitfolder import Fit
from rcp_bayes.render_compare import comparison_text
from rcp_bayes.significance import bootstrap_means, holm, paired_t, rank_correlations


def row(found, dataset, a, b):
    """The pair's row, turned so that the difference is a - b."""
    table = found.pairs[found.pairs["dataset"] == dataset]
    match = table[(table["a"] == a) & (table["b"] == b)]
    if len(match):
        return match.iloc[0]
    (line,) = table[(table["a"] == b) & (table["b"] == a)].to_dict("records")
    for name in ("", "total_"):
        if name + "lo" in line:
            line[name + "lo"], line[name + "hi"] = -line[name + "hi"], -line[name + "lo"]
            line[name + "p_superior"] = 1 - line[name + "p_superior"]
    line["boot_lo"], line["boot_hi"] = -line["boot_hi"], -line["boot_lo"]
    return line | {"difference": -line["difference"]}


def drawn_means(scores, dataset):
    """Draws of a dataset's means by a plain loop, system -> (S,)."""
    draws = scores.draws
    if dataset == "mean":
        names = dict.fromkeys(name for name, _ in draws.queries)
        parts = [drawn_means(scores, name) for name in names]
        return {s: np.mean([part[s] for part in parts], axis=0) for s in draws.systems}
    found = {}
    for m, system in enumerate(draws.systems):
        columns = [
            draws.score[:, m, j] for j, (name, _) in enumerate(draws.queries) if name == dataset
        ]
        found[system] = np.mean(columns, axis=0)
    return found


# ------------------------------------------------------------------------------- classical tests


def test_paired_t_is_scipys():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 17)), rng.normal(0.3, 1, size=(4, 17))
    expected = [stats.ttest_rel(a, b).pvalue for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(paired_t(x - y), expected, rtol=1e-10)
    x[1, 3] = y[2, 5] = np.nan  # a pair is compared where both are defined
    expected = [stats.ttest_rel(a, b, nan_policy="omit").pvalue for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(paired_t(x - y), expected, rtol=1e-10)


def test_stratified_t_is_welchs_test_in_the_case_that_both_cover():
    # Two strata: the mean of x's mean and of -y's mean is half of Welch's difference.
    rng = np.random.default_rng(1)
    x, y = rng.normal(0.5, 1, 12), rng.normal(0, 3, 30)
    strata = np.repeat([0, 1], [12, 30])
    (p,) = paired_t(np.concatenate([x, -y])[None], strata)
    assert p == pytest.approx(stats.ttest_ind(x, y, equal_var=False).pvalue, rel=1e-10)


def test_t_of_degenerate_differences():
    same, constant, one = np.zeros(5), np.full(5, 0.25), [0.3, *[np.nan] * 4]
    p = paired_t(np.array([same, constant, one, [np.nan] * 5, same + 1e-16]))
    assert p[0] == 1.0 and p[1] == 0.0 and np.isnan(p[2:4]).all() and p[4] == 1.0


def test_t_keeps_its_level():
    # 4,000 pairs of equal systems: 5% separate, give or take 4 standard errors (1.4%).
    p = paired_t(np.random.default_rng(2).normal(size=(4000, 50)))
    assert (p < 0.05).mean() == pytest.approx(0.05, abs=0.014)


def test_holm_by_hand():
    p = np.array([0.01, 0.04, np.nan, 0.03, 0.5])
    np.testing.assert_allclose(holm(p), [0.04, 0.09, np.nan, 0.09, 0.5])
    assert len(holm(np.empty(0))) == 0


def test_bootstrap_is_normal_for_many_queries():
    # Percentile bounds of 400 queries: mean ± 1.96 s / sqrt(n). Quantiles of 2,000 resamples have
    # a standard error of 6% of the bootstrap sd; 0.25 sd allows four.
    x = np.random.default_rng(3).normal(0.4, 0.2, (2, 400))
    means = bootstrap_means(x, 2000, np.random.default_rng(4))
    sd = x.std(axis=1) / np.sqrt(400)
    lo, hi = np.quantile(means, [0.025, 0.975], axis=0)
    np.testing.assert_array_less(np.abs(lo - (x.mean(axis=1) - 1.96 * sd)), 0.25 * sd)
    np.testing.assert_array_less(np.abs(hi - (x.mean(axis=1) + 1.96 * sd)), 0.25 * sd)
    # Systems share their resamples: a shifted copy differs by the shift in each.
    shifted = bootstrap_means(np.stack([x[0], x[0] + 1]), 50, np.random.default_rng(5))
    np.testing.assert_allclose(shifted[:, 1] - shifted[:, 0], 1.0)


def test_rank_correlations():
    a, b = np.array([0.9, 0.8, 0.7, np.nan, 0.1]), np.array([0.5, 0.6, 0.4, 0.2, 0.1])
    kendall, spearman = rank_correlations(a, b)
    assert kendall == pytest.approx(4 / 6) and spearman == pytest.approx(0.8)
    assert all(math.isnan(x) for x in rank_correlations(a[:1], b[:1]))
    assert all(math.isnan(x) for x in rank_correlations(np.ones(3), b[:3]))


# ------------------------------------------------------------------------------------ comparison


@pytest.fixture(scope="module")
def compared():
    fit, runs = world(21, queries=9, pool=20)
    scores = score(fit, runs)
    return fit, runs, scores, compare_scores(scores, tie_zone=0.03, interval=0.9)


def test_pairs_are_the_tests_of_the_scores(compared):
    _, _, scores, found = compared
    assert len(found.pairs) == 9  # three pairs in two datasets and in their mean
    for metric, shares in found.sensitivity.items():
        table = scores.per_query[scores.per_query["metric"] == metric]
        separated = {}
        for dataset in ("one", "two"):
            wide = table[table["dataset"] == dataset].pivot(
                index="query_id", columns="system", values="score"
            )
            p = {}
            for a, b in combinations("abc", 2):
                p[a, b] = stats.ttest_rel(wide[a], wide[b]).pvalue
                if metric == "rcp_ndcg":
                    line = row(found, dataset, a, b)
                    assert line["p_value"] == pytest.approx(p[a, b], rel=1e-9)
                    assert line["difference"] == pytest.approx((wide[a] - wide[b]).mean())
                    assert line["n_queries"] == 9
                    assert line["boot_lo"] < line["difference"] < line["boot_hi"]
            separated[dataset] = np.mean([x < 0.05 for x in p.values()])
        expected = {**separated, "mean": np.mean(list(separated.values()))}
        assert shares == pytest.approx(expected)


def test_posterior_answers_by_counting(compared):
    _, _, scores, found = compared
    for dataset in ("one", "two", "mean"):
        means = drawn_means(scores, dataset)
        for a, b in combinations("abc", 2):
            d, line = means[a] - means[b], row(found, dataset, a, b)
            assert line["difference"] == pytest.approx(d.mean(), abs=1e-12)
            assert line["p_superior"] == pytest.approx(np.mean(d > 0), abs=1e-12)
            assert line["p_tie"] == pytest.approx(np.mean(np.abs(d) <= 0.03), abs=1e-12)
            bounds = [line["lo"], line["hi"]]
            assert bounds == pytest.approx(np.quantile(d, [0.05, 0.95]), abs=1e-12)
            # Nine queries: their sampling widens what the labels alone leave open.
            assert line["total_hi"] - line["total_lo"] > line["hi"] - line["lo"]
        ranks = found.ranks[found.ranks["dataset"] == dataset].set_index("system")
        stacked = np.stack([means[s] for s in "abc"], axis=1)
        order = np.argsort(np.argsort(-stacked, axis=1), axis=1) + 1
        for m, system in enumerate("abc"):
            assert ranks.loc[system, "p_best"] == pytest.approx(np.mean(order[:, m] == 1))
            counts = np.sort(order[:, m])  # the 2nd and 38th of 40 bound the middle 90%
            assert ranks.loc[system, "rank_lo"] == counts[1]
            assert ranks.loc[system, "rank_hi"] == counts[37]
        assert ranks["p_best"].sum() == pytest.approx(1)
        assert ranks["total_p_best"].sum() == pytest.approx(1)
        assert sorted(ranks["rank"]) == [1, 2, 3]


def test_share_of_close_queries_by_counting(compared):
    _, _, scores, found = compared
    draws = scores.draws
    shares = {}
    for dataset in ("one", "two"):
        at = [j for j, (name, _) in enumerate(draws.queries) if name == dataset]
        d = draws.score[:, 0, at] - draws.score[:, 2, at]
        shares[dataset] = np.mean(np.abs(d) <= 0.02)
        names = draws.systems[0], draws.systems[2]
        assert row(found, dataset, *names)[WITHIN] == pytest.approx(shares[dataset])
    assert row(found, "mean", *names)[WITHIN] == pytest.approx(np.mean(list(shares.values())))


def test_json_contract(compared):
    *_, found = compared
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"metric", "k", "pairs", "sensitivity", "interval", "tie_zone"} <= set(document)
    classical = {"dataset", "a", "b", "difference", "p_value", "separated", "p_holm"}
    posterior = {"p_superior", "p_tie", "lo", "hi", "share_queries_within_0.02"}
    for line in document["pairs"]:
        assert classical | posterior <= set(line)
        assert isinstance(line["separated"], bool)
    assert document["sensitivity"]["rcp_ndcg"].keys() == {"one", "two", "mean"}
    assert document["interval"] == 0.9 and document["tie_zone"] == 0.03
    assert document["n_tests"] == 9 and any("9 tests at 0.05" in n for n in document["notes"])


def test_without_draws_only_the_classical_answers():
    fit, runs = world(22)
    found = compare(one_draw(fit, 0), runs)
    assert not {"p_superior", "p_tie", "lo", "hi", WITHIN} & set(found.pairs)
    assert "p_best" not in found.ranks
    assert any("no draws" in note for note in found.notes)
    text = comparison_text(found)
    assert "P(best)" not in text and "bootstrap 95%" in text


def test_another_metric_has_no_posterior_answers():
    fit, runs = world(23)
    found = compare(fit, runs, metric="count_ndcg")
    assert found.settings["metric"] == "count_ndcg" and "p_superior" not in found.pairs
    wide = score(fit, runs).leaderboard.pivot(
        index=["dataset", "system"], columns="metric", values="score"
    )
    kendall = stats.kendalltau(
        wide.loc["mean", "rcp_ndcg"], wide.loc["mean", "count_ndcg"]
    ).statistic
    line = found.agreement.query("dataset == 'mean' and metric_b == 'count_ndcg'").iloc[0]
    assert line["metric_a"] == "rcp_ndcg" and line["kendall"] == pytest.approx(kendall)


def test_identical_systems_tie_in_every_answer():
    fit, runs = world(24, datasets=("only",))
    twin = runs[runs["system"] == "a"].assign(system="twin")
    found = compare(fit, pd.concat([runs, twin]))
    assert set(found.pairs["dataset"]) == {"only"}  # one dataset: its mean is no other row
    line = row(found, "only", "a", "twin")
    assert line["p_value"] == 1.0 and not line["separated"] and line["difference"] == 0
    assert line["p_superior"] == 0.5 and line["p_tie"] == 1.0 and line["lo"] == line["hi"] == 0
    assert line[WITHIN] == 1.0
    ranks = found.ranks.set_index("system")
    assert ranks.loc["a", "rank"] == ranks.loc["twin", "rank"]
    assert ranks.loc["a", "p_best"] == ranks.loc["twin", "p_best"]
    assert ranks["p_best"].sum() == pytest.approx(1)


def test_one_system_and_one_query():
    fit, runs = world(25, datasets=("only",))
    found = compare(fit, runs[runs["system"] == "a"])
    assert len(found.pairs) == 0 and len(found.ranks) == 1
    assert found.ranks.loc[0, "p_best"] == 1 and found.ranks.loc[0, "rank_hi"] == 1
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["pairs"] == [] and document["sensitivity"]["rcp_ndcg"]["mean"] is None
    assert any("one system" in note for note in found.notes)
    assert "a" in comparison_text(found)

    fit, runs = world(26, queries=1, datasets=("only",))
    found = compare(fit, runs)
    assert found.pairs["p_value"].isna().all() and not found.pairs["separated"].any()
    assert found.pairs["p_superior"].between(0, 1).all()
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["pairs"][0]["p_value"] is None and document["n_tests"] == 0
    assert any("no paired test" in note for note in found.notes)
    assert comparison_text(found, notes=True)


def test_a_system_that_leaves_a_dataset_out_is_compared_where_it_is():
    fit, runs = world(27)
    runs = runs[(runs["system"] != "c") | (runs["dataset"] == "one")]
    found = compare(fit, runs)
    assert found.pairs.groupby("dataset").size().to_dict() == {"one": 3, "two": 1, "mean": 1}
    assert found.ranks.groupby("dataset").size().to_dict() == {"one": 3, "two": 2, "mean": 2}
    assert found.pairs["p_superior"].notna().all() and found.ranks["total_p_best"].notna().all()


def test_qrels_alone_and_wrong_usage():
    fit, runs = world(28)
    qrels = fit.labels[["dataset", "query_id", "doc_id"]].assign(grade=1.0)
    qrels["grade"] = (np.arange(len(qrels)) % 3).astype(float)
    found = compare(None, runs, qrels, metric="qrel_ndcg", k=5)
    assert found.settings["k"] == 5 and set(found.sensitivity) == {"qrel_ndcg"}
    assert len(found.agreement) == 0
    for options, message in (
        ({}, "rcp_ndcg needs a fit"),
        ({"metric": "map"}, "unknown metric 'map'"),
        ({"tie_zone": -1}, "tie zone"),
        ({"tie_zone": math.nan}, "tie zone"),
        ({"interval": 95}, "between 0 and 1"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(None, runs, qrels, **options)


def test_the_seed_decides_the_resamples(compared):
    _, _, scores, first = compared
    again = compare_scores(scores, tie_zone=0.03, interval=0.9)
    pd.testing.assert_frame_equal(first.pairs, again.pairs)
    other = compare_scores(scores, tie_zone=0.03, interval=0.9, seed=1)
    assert (other.pairs["boot_lo"] != first.pairs["boot_lo"]).any()
    assert (other.pairs["total_lo"] != first.pairs["total_lo"]).any()
    pd.testing.assert_series_equal(other.pairs["lo"], first.pairs["lo"])


def test_the_text_holds_every_system_pair_and_level(compared):
    *_, found = compared
    text = comparison_text(found, notes=True)
    for line in found.pairs[found.pairs["dataset"] == "mean"].to_dict("records"):
        assert f"{line['difference']:+.4f}" in text and f"{line['p_superior']:.3f}" in text
    for part in ("labels 90%", "labels+queries 90%", "P(≤0.03)", "sensitivity", "Kendall"):
        assert part in text


def test_superiority_means_what_it_says():
    # Two systems that rank two documents the other way round: a is better wherever gain x > y.
    n, runs = 4000, [("q", "x", 2.0, "a"), ("q", "y", 1.0, "a")]
    runs += [("q", "y", 2.0, "b"), ("q", "x", 1.0, "b")]
    runs = pd.DataFrame(runs, columns=["query_id", "doc_id", "score", "system"])
    fit, _ = world(29, datasets=("only",))
    labels = fit.labels.iloc[:2].assign(
        dataset="default", query_id="q", doc_id=["x", "y"], gain=[0.5, 0.4], bt=0.0, theta=0.0
    )
    queries = pd.DataFrame({"dataset": ["default"], "query_id": ["q"]})
    rng = np.random.default_rng(30)
    gain = np.stack([rng.beta(5, 5, n), rng.beta(4, 6, n)], axis=1)
    found = compare(Fit(labels, queries, fit.items, {}, GainDraws(gain)), runs)
    assert row(found, "default", "a", "b")["p_superior"] == np.mean(gain[:, 0] > gain[:, 1])


def test_the_command(tmp_path, capsys):
    folder = str(tmp_path)
    argv = ["simulate", "--out", folder, "--queries", "5", "--pool", "16", "--seed", "3"]
    assert main(argv) == 0
    assert main(["fit", folder, "--out", f"{folder}/fit"]) == 0
    capsys.readouterr()
    runs = ["--runs", f"{folder}/runs.parquet", "--qrels", f"{folder}/qrels.txt"]
    argv = ["compare", f"{folder}/fit", *runs, "--k", "5", "--interval", "0.9"]
    assert main([*argv, "--json", "--tie-zone", "0.01", "--out", f"{folder}/each.parquet"]) == 0
    document = json.loads(capsys.readouterr().out)
    fit = rcp.read_fit(f"{folder}/fit")
    qrels = rcp.read_qrels(f"{folder}/qrels.txt")
    same = compare(
        fit, rcp.read_runs([f"{folder}/runs.parquet"]), qrels, k=5, interval=0.9, tie_zone=0.01
    )
    assert document == json.loads(json.dumps(same.to_json()))
    assert (tmp_path / "each.parquet").exists()
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "rcp_ndcg@5" in out and "bootstrap 90%" in out and "tests at 0.05" in err
    assert main(["compare", *runs]) == 0  # without a fit: qrel-nDCG
    assert "qrel_ndcg@10" in capsys.readouterr().out
    assert main([*argv, "--interval", "90"]) == 2
    assert "between 0 and 1" in capsys.readouterr().err
