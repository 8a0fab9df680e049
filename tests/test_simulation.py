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


def test_mirrored_windows_give_the_noise(world):
    """Two showings of one set of documents differ by noise alone, whatever the abilities."""
    table = world.stage_a[world.stage_a["phase"] == "random"]
    scores = table["score"].to_numpy().reshape(-1, 2, 10)  # a window, then its reverse
    documents = table["doc_id"].to_numpy().reshape(-1, 2, 10)
    assert (documents[:, 0] == documents[:, 1, ::-1]).all()
    inside = (np.abs(scores) < 5).all(axis=(1, 2))
    difference = (scores[:, 0] - scores[:, 1, ::-1])[inside]
    difference -= difference.mean(axis=1, keepdims=True)
    noise = np.sqrt((difference**2).sum() / (9 * len(difference)) / 2)
    # About 5,000 free differences, of which clipping removes none here: four standard errors.
    assert noise == pytest.approx(0.5, rel=4 / np.sqrt(2 * 9 * inside.sum()))


def test_judge_and_schedule_leave_the_truth_alone(world):
    other = rcp.simulate(n_queries=12, pool_size=150, seed=9, noise=2.0, schedule_fraction=0.2)
    for name in ("truth", "runs", "qrels"):
        pd.testing.assert_frame_equal(getattr(other, name), getattr(world, name))
    assert other.stage_a.groupby("query_id")["doc_id"].nunique().eq(150).all()
    # A fifth of 50 + 50 windows, but the first half shows each of 150 documents at least once.
    assert len(other.stage_b) == 12 * (15 + 10) * 10


def test_position_runs_from_zero_in_every_window(world):
    for table in (world.stage_a, world.stage_b):
        assert (table["position"].to_numpy().reshape(-1, 10) == np.arange(10)).all()


def test_pools_of_different_sizes():
    mixed = rcp.simulate(n_queries=3, pool_size=[1, 150, 11], seed=5)
    assert mixed.truth.groupby("query_id").size().tolist() == [1, 150, 11]
    alike = rcp.simulate(n_queries=2, pool_size=150, seed=5)
    for name in ("stage_a", "stage_b", "runs", "truth"):
        frames = [getattr(w, name).query("query_id == 'q0002'") for w in (mixed, alike)]
        a, b = (frame.reset_index(drop=True) for frame in frames)
        pd.testing.assert_frame_equal(a, b)


def test_scores_without_clipping_and_rounded():
    free = rcp.simulate(n_queries=3, pool_size=60, clip=False, ability_sd=4.0)
    assert free.stage_a["score"].abs().max() > 6
    written = rcp.simulate(n_queries=3, pool_size=60, ability_sd=4.0, decimals=1)
    expected = np.clip(free.stage_a["score"], -5, 5)
    # The schedule follows the scores, so that the worlds part after the random phase.
    random = (free.stage_a["phase"] == "random").to_numpy()
    assert random.sum() == 3 * 42 * 10
    np.testing.assert_array_equal(written.stage_a["score"][random], expected[random].round(1))


def test_invalid_windows_are_null_and_counted():
    broken = rcp.simulate(n_queries=4, pool_size=60, invalid=0.2, seed=3)
    judgments = rcp.Judgments.from_frames(broken.stage_a, broken.stage_b)
    found = rcp.fit(judgments)
    for table, counted in ((broken.stage_a, "n_invalid_a"), (broken.stage_b, "n_invalid_b")):
        wrong = table["invalid"].notna()
        answers = table[[c for c in table if c in ("score", *broken.truth_info["criteria"])]]
        assert (answers.isna().all(axis=1) == wrong).all()
        assert (answers.isna().any(axis=1) == wrong).all()
        windows = table[wrong].groupby("query_id")["window_id"].nunique()
        assert found.queries.set_index("query_id")[counted].to_dict() == windows.to_dict()
        n = len(table) / 10
        assert abs(wrong.sum() / 10 - 0.2 * n) < 4 * np.sqrt(0.16 * n)


@pytest.mark.parametrize("bend", [-0.3, 0.3])
def test_bent_link_keeps_the_order(bend):
    truth = rcp.simulate(n_queries=3, pool_size=60, link_bend=bend).truth
    for _, query in truth.groupby("query_id"):
        query = query.sort_values("ability")
        curve = (query["theta"] - query["alpha"]) / query["tau"]
        slope = np.diff(curve) / np.diff(query["ability"])
        assert (slope > 0).all()
        middle = np.argmin(np.abs(query["ability"].to_numpy()))
        assert slope[middle] == pytest.approx(1, abs=0.05)  # unit slope at 0
        assert (slope[-1] > 1) == (bend > 0)


def test_own_criteria_and_systems():
    own = rcp.simulate(
        n_queries=4, pool_size=20, gamma=(2.0, 1.0), beta=(-3.0, 1.0), systems={"x": 0.0}
    )
    info = own.truth_info
    assert info["criteria"] == ["C1", "C2"]
    np.testing.assert_allclose(info["gamma"], [4 / 3, 2 / 3], rtol=1e-15)
    np.testing.assert_allclose(info["beta"], [-2.0, 2.0], rtol=1e-15)
    assert list(own.stage_b.columns[-2:]) == ["C1", "C2"]
    runs = own.runs.merge(own.truth, on=KEYS)
    np.testing.assert_array_equal(runs["score"], runs["ability"])  # a system without noise
    # Criteria keep their place in the pool: offsets move with the difficulties.
    shifted = rcp.simulate(n_queries=4, pool_size=20, gamma=(2.0, 1.0), beta=(0.0, 4.0))
    np.testing.assert_allclose(own.truth["alpha"] - shifted.truth["alpha"], 3.0, atol=1e-12)


class TestFaults:
    """Each planted fault does to the answers what `FAULTS` says."""

    def world(self, *faults):
        return rcp.simulate(n_queries=10, pool_size=60, seed=4, faults=faults)

    def test_clean_world_is_the_default(self):
        default = rcp.simulate(n_queries=10, pool_size=60, seed=4)
        assert default.truth_info["faults"] == []
        pd.testing.assert_frame_equal(default.stage_b, self.world().stage_b)

    def test_redundant(self):
        table = self.world("redundant").stage_b
        # Nine of ten are copies and most documents fail both anyway.
        assert (table["C1"] == table["C2"]).mean() > 0.97
        passed = table[table["C1"] == 1]
        assert passed["C2"].mean() > 0.9

    def test_reversed(self):
        table = self.world("reversed").stage_b
        assert table["C3"].mean() > 0.85
        assert table["C3"].corr(table["C2"]) < -0.3

    def test_blind(self):
        table = self.world("blind").stage_b
        n = len(table)
        assert abs(table["C4"].mean() - 0.3) < 4 * np.sqrt(0.21 / n)
        assert abs(table["C4"].corr(table["C2"])) < 4 / np.sqrt(n)

    def test_extreme(self):
        world = self.world("extreme")
        assert world.stage_b["C5"].mean() < 0.005
        assert abs(np.mean(world.truth_info["beta"])) < 1e-12
        clean = self.world()
        # The other criteria stay where they were.
        assert world.stage_b["C1"].mean() == pytest.approx(clean.stage_b["C1"].mean(), abs=0.01)
        np.testing.assert_allclose(
            world.truth["theta"] - world.truth_info["beta"][0],
            clean.truth["theta"] - clean.truth_info["beta"][0],
            atol=1e-12,
        )

    def test_two_dimensions(self):
        world = self.world("two_dimensions")
        table = world.stage_b.merge(world.truth, on=KEYS)
        info = world.truth_info
        p = pass_probability(
            table["theta"].to_numpy(), np.array(info["gamma"]), np.array(info["beta"])
        )
        residual = table[info["criteria"]].to_numpy() - p
        correlation = np.corrcoef(residual.T)
        assert correlation[1, 3] > 0.15  # C2 and C4 share what the first ability leaves
        assert abs(correlation[0, 2]) < 4 / np.sqrt(len(table))

    @pytest.mark.parametrize("fault", ["no_such", "extreme"])
    def test_refused(self, fault):
        with pytest.raises(ValueError, match=fault):
            rcp.simulate(faults=[fault], gamma=(1.0, 1.0), beta=(-1.0, 1.0))


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
    [
        {"n_queries": 0},
        {"pool_size": 0},
        {"pool_size": [10, 10]},
        {"noise": float("nan")},
        {"noise": -1.0},
        {"schedule_fraction": 0},
        {"schedule_fraction": 1.5},
        {"invalid": 1.0},
        {"gamma": (1.0, 1.0)},
        {"gamma": (1.0, -1.0), "beta": (0.0, 1.0)},
        {"systems": {"x": -1.0}},
    ],
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
