"""Simulated worlds hold what they promise, in the format of the contract."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import rcp_bayes as rcp
from rcp_bayes.gain import gain, pass_probability
from rcp_bayes.schedule import FULL
from rcp_bayes.simulation import SYSTEMS

KEYS = ["dataset", "query_id", "doc_id"]


@pytest.fixture(scope="module")
def world():
    return rcp.simulate(n_queries=12, pool_size=150, seed=9)


def test_papers_counts(world):
    per_query = world.stage_a.groupby("query_id")["window_id"].nunique()
    assert (per_query == 216).all()
    phases = world.stage_a.groupby("phase")["window_id"].nunique()
    assert phases.to_dict() == {"random": 106, "stratified": 54, "adaptive": 56}
    assert (world.stage_b.groupby("query_id")["window_id"].nunique() == 100).all()
    for table in (world.stage_a, world.stage_b):
        assert (table.groupby(["query_id", "window_id"]).size() == 10).all()
        assert not table.duplicated(["query_id", "window_id", "doc_id"]).any()
        assert table.groupby("query_id")["doc_id"].nunique().eq(150).all()


def test_truth_is_consistent(world):
    truth, info = world.truth, world.truth_info
    gamma, beta = np.array(info["gamma"]), np.array(info["beta"])
    assert abs(gamma.sum() - 5) < 1e-12 and abs(beta.mean()) < 1e-12
    theta = truth["tau"] * truth["ability"] + truth["alpha"]
    np.testing.assert_allclose(truth["theta"], theta, atol=1e-12)
    np.testing.assert_allclose(truth["gain"], gain(theta.to_numpy(), gamma, beta), atol=1e-12)
    assert truth.groupby("query_id")["ability"].mean().abs().max() < 1e-12


def test_pool_looks_like_nanobeir():
    truth = rcp.simulate(n_queries=150, pool_size=40, schedule=replace(FULL, mirror=False)).truth
    below, above = (truth["theta"] < -2.57).mean(), (truth["theta"] >= 0.71).mean()
    assert 0.74 < below < 0.86  # the paper: 79.3%
    assert 0.03 < above < 0.09  # the paper: 5.1%
    queries = truth.drop_duplicates("query_id")
    low, high = queries["tau"].quantile([0.05, 0.95])
    assert 2.3 < high / low < 4.3  # the paper: 3.2
    # Five standard errors of the mean of 150 offsets.
    assert queries["alpha"].mean() == pytest.approx(-5.6, abs=5 * 1.5 / np.sqrt(150))


def test_scores_are_ability_plus_noise(world):
    table = world.stage_a.merge(world.truth, on=KEYS)
    inside = table.groupby(["query_id", "window_id"])["score"].transform(
        lambda s: s.abs().max() < 5
    )
    table = table[inside]
    error = table["score"] - table["ability"]
    error -= error.groupby([table["query_id"], table["window_id"]]).transform("mean")
    # Centring takes one of ten degrees of freedom; leaving clipped windows out hardly matters.
    assert np.sqrt((error**2).mean() * 10 / 9) == pytest.approx(0.5, rel=0.02)
    assert world.stage_a["score"].between(-5, 5).all()


def test_answers_follow_the_2pl(world):
    table = world.stage_b.merge(world.truth, on=KEYS)
    info = world.truth_info
    p = pass_probability(table["theta"].to_numpy(), np.array(info["gamma"]), np.array(info["beta"]))
    for c, name in enumerate(info["criteria"]):
        error = (table[name] - p[:, c]).sum() / np.sqrt((p[:, c] * (1 - p[:, c])).sum())
        assert abs(error) < 4  # standard errors


def test_position_bias_shows():
    biased = rcp.simulate(n_queries=6, pool_size=60, position_bias=1.0, seed=2)
    table = biased.stage_a.merge(biased.truth, on=KEYS)
    error = table["score"] - table["ability"]
    error -= error.groupby([table["query_id"], table["window_id"]]).transform("mean")
    slope = np.polyfit(table["position"] / 9, error, 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.1)


def test_better_systems_rank_better(world):
    truth = world.truth.set_index(KEYS)["ability"]
    runs = world.runs.join(truth, on=KEYS)
    quality = runs.groupby("system").apply(lambda g: g["score"].corr(g["ability"]))
    assert quality[list(SYSTEMS)].is_monotonic_decreasing


def test_same_seed_same_world_and_streams_are_per_query(world):
    again = rcp.simulate(n_queries=12, pool_size=150, seed=9)
    pd.testing.assert_frame_equal(again.stage_a, world.stage_a)
    fewer = rcp.simulate(n_queries=3, pool_size=150, seed=9)
    first = world.stage_b[world.stage_b["query_id"].isin(["q0001", "q0002", "q0003"])]
    pd.testing.assert_frame_equal(fewer.stage_b, first.reset_index(drop=True))
    other = rcp.simulate(n_queries=3, pool_size=150, seed=10)
    assert not other.truth["ability"].equals(fewer.truth["ability"])


@pytest.mark.parametrize("n", [1, 2, 7, 10, 11])
def test_small_pools(n):
    small = rcp.simulate(n_queries=2, pool_size=n)
    for table in (small.stage_a, small.stage_b):
        assert table.groupby("query_id")["doc_id"].nunique().eq(n).all()
    found = rcp.fit(rcp.Judgments.from_frames(small.stage_a, small.stage_b))
    assert np.isfinite(found.labels["gain"]).all()


def test_a_share_of_the_schedule():
    half = rcp.simulate(n_queries=2, pool_size=150, schedule_fraction=0.5)
    per_query = half.stage_a.groupby("query_id")["window_id"].nunique()
    assert per_query.between(104, 110).all()  # 108 but for rounding each phase
    assert half.stage_b.groupby("query_id")["window_id"].nunique().eq(50).all()


def test_folder_is_the_contract(world, tmp_path):
    world.write(tmp_path)
    names = {"stage_a.parquet", "stage_b.parquet", "runs.parquet", "qrels.txt", "truth.parquet"}
    assert {path.name for path in tmp_path.iterdir()} == names | {"truth.json"}
    info = json.loads((tmp_path / "truth.json").read_text())
    assert {"criteria", "gamma", "beta", "noise", "seed"} <= set(info)
    truth = pd.read_parquet(tmp_path / "truth.parquet")
    columns = ["dataset", "query_id", "doc_id", "ability", "tau", "alpha", "theta", "gain"]
    assert list(truth.columns) == columns
    assert len(rcp.read_runs(tmp_path / "runs.parquet")) == len(world.runs)
    assert len(rcp.read_qrels(tmp_path / "qrels.txt")) == len(world.qrels)


def test_several_datasets(tmp_path):
    rcp.simulate(n_queries=6, pool_size=12, n_datasets=3).write(tmp_path)
    found = rcp.fit(tmp_path)
    scores = rcp.score(found, rcp.read_runs(tmp_path / "runs.parquet"))
    board = scores.leaderboard.query("metric == 'rcp_ndcg'").pivot(
        index="system", columns="dataset", values="score"
    )
    expected = board[["sim-1", "sim-2", "sim-3"]].mean(axis=1)
    np.testing.assert_allclose(board["mean"], expected, atol=1e-12)


@pytest.mark.parametrize(
    "setting",
    [{"n_queries": 0}, {"pool_size": 0}, {"noise": float("nan")}, {"schedule_fraction": 0}],
)
def test_settings_out_of_range(setting):
    with pytest.raises(ValueError):
        rcp.simulate(**setting)


def test_fit_recovers_the_truth(world):
    found = rcp.fit(rcp.Judgments.from_frames(world.stage_a, world.stage_b))
    both = found.labels.merge(world.truth, on=KEYS, suffixes=("", "_true"))
    error = both["gain"] - both["gain_true"]
    # Judge noise of 0.5 and 12 queries: measured 0.02; a wrong link gives above 0.1.
    assert np.sqrt((error**2).mean()) < 0.04
    assert both["theta"].corr(both["theta_true"]) > 0.98
    np.testing.assert_allclose(found.items.gamma, world.truth_info["gamma"], atol=0.25)
    np.testing.assert_allclose(found.items.beta, world.truth_info["beta"], atol=1.0)
