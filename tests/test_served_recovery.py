"""The simulated judge behind a server: the truth comes back as it does from `simulate` alone."""

import numpy as np
import pytest
from judging import ask_server, served

import rcp_bayes as rcp
from rcp_bayes.judge.embedded import write_simulated_pool
from rcp_bayes.judge.run import judge_pool
from rcp_bayes.rating import rate_a, rate_b


def errors(fit: rcp.Fit, world: rcp.World) -> dict[str, float]:
    """Root mean squared errors of gains and difficulties, largest ratio of discriminations."""
    joined = fit.labels.merge(world.truth, on=["query_id", "doc_id"], suffixes=("", "_true"))
    assert len(joined) == len(world.truth)
    gamma, beta = (np.array(world.truth_info[name]) for name in ("gamma", "beta"))
    return {
        "gain": float(np.sqrt(np.mean((joined["gain"] - joined["gain_true"]) ** 2))),
        "beta": float(np.sqrt(np.mean((fit.items.beta - beta) ** 2))),
        "gamma": float(np.abs(np.log(fit.items.gamma / gamma)).max()),
        "rank": float(joined["gain"].corr(joined["gain_true"], method="spearman")),
    }


@pytest.mark.slow
def test_a_pass_over_http_recovers_the_truth_as_the_simulation_does(tmp_path):
    """8 queries of 60 documents, full protocol, transport faults; about 1,000 calls.

    Both estimates have the same number of answers from the same distributions, so that their errors
    are two draws of one kind: the ratio of two root mean squared errors over 480 documents stays
    well within 1.5, and the few parameters of the rubric within their own sampling errors.
    """
    world = rcp.simulate(n_queries=8, pool_size=60, noise=0.5, seed=3)
    world.write(tmp_path / "world")
    write_simulated_pool(world, tmp_path / "pool")
    faults = {"rate_limit": 0.05, "error": 0.02, "drop": 0.02, "reasoning": 0.2}
    with served(truth=str(tmp_path / "world"), faults=faults) as server:
        settings = ask_server(server, model="simulated")
        done = judge_pool(
            tmp_path / "pool", tmp_path / "out", judge=settings, rate_a=rate_a, rate_b=rate_b,
            concurrency=16,
        )  # fmt: skip
    assert not any(done.exported.invalid.values())
    judged = errors(rcp.fit(rcp.read_judgments(tmp_path / "out")), world)
    alone = errors(rcp.fit(rcp.read_judgments(tmp_path / "world")), world)
    assert judged["gain"] < 1.5 * alone["gain"] and judged["rank"] > alone["rank"] - 0.02
    assert judged["beta"] < alone["beta"] + 0.15 and judged["gamma"] < alone["gamma"] + 0.15
