"""`rcp-bayes demo`: text to leaderboard by an embedded judge, then a world whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rcp_bayes.calibrate import fit
from rcp_bayes.evaluate import score
from rcp_bayes.fitfolder import Fit, write_fit
from rcp_bayes.io import read_judgments, read_pool, read_qrels, read_runs, write_table
from rcp_bayes.judge.embedded import LexicalJudge
from rcp_bayes.judge.run import judge_pool
from rcp_bayes.pool import plain_rankers
from rcp_bayes.rating import rate_a, rate_b
from rcp_bayes.render import fit_summary, leaderboard_text
from rcp_bayes.simulation import World, simulate

if TYPE_CHECKING:
    import pandas as pd

TEXT_POOL = Path(__file__).parent / "data" / "pool"
QUERIES, POOL, NOISE, SEED = 30, 80, 0.5, 42
Say = Callable[[str], None]


def run(out: Path, *, say: Say = lambda text: None) -> list[str]:
    """Both halves of the demo; everything is left in `out`.

    Returns the blocks of text that the command prints.
    """
    return [*judge_text(out / "text", say), "", *recover_truth(out / "simulated", say)]


def judge_text(out: Path, say: Say) -> list[str]:
    """Judge the small shipped pool with the lexical judge, fit, and score three plain rankers."""
    say("judging 8 queries x 30 passages with the lexical judge (a stand-in, not an LLM)")
    judged = judge_pool(
        TEXT_POOL, out / "judgments", judge=LexicalJudge(), rate_a=rate_a, rate_b=rate_b
    )
    say("fitting")
    result = fit(out / "judgments", pool=TEXT_POOL)
    write_fit(result, out / "fit")
    pool = read_pool(TEXT_POOL)
    scores = score(result, plain_rankers(pool), pool.qrels, protocol="nanobeir")
    write_table(scores.per_query, out / "scores.parquet")
    windows = ", ".join(f"{n} stage {stage}" for stage, n in judged.windows.items())
    return [
        f"From text to a leaderboard: {windows} windows, answered by the lexical judge",
        "",
        leaderboard_text(scores),
        "",
        f"judgments, labels and scores are in {out}",
    ]


def recover_truth(out: Path, say: Say) -> list[str]:
    """Simulate a judged suite, fit it, score its systems, and hold the estimates to the truth."""
    say(f"simulating {QUERIES} queries x {POOL} documents, judge noise {NOISE} logits")
    world = simulate(n_queries=QUERIES, pool_size=POOL, noise=NOISE, seed=SEED)
    judgments = out / "judgments"
    world.write(judgments)
    say("fitting Bradley-Terry scores and the 2PL calibration")
    result = fit(read_judgments(judgments))
    write_fit(result, out / "fit")
    runs, qrels = read_runs([judgments / "runs.parquet"]), read_qrels(judgments / "qrels.txt")
    scores = score(result, runs, qrels)
    write_table(scores.per_query, out / "scores.parquet")
    figure = draw(result, world, out / "criteria.png")
    return [
        "A simulated suite, whose truth is known",
        "",
        fit_summary(result),
        "",
        leaderboard_text(scores),
        "",
        recovered(result, world),
        "",
        f"judgments, labels, scores and {figure.name} are in {out}",
    ]


def joined_with_truth(result: Fit, world: World) -> pd.DataFrame:
    """One row per document: its labels beside the truth (columns `true_theta`, `true_gain`, …)."""
    keys = ["dataset", "query_id", "doc_id"]
    truth = world.truth.rename(columns=lambda name: name if name in keys else f"true_{name}")
    per_query = result.queries[["dataset", "query_id", "tau", "alpha"]]
    return result.labels.merge(per_query, on=keys[:2]).merge(truth, on=keys, validate="1:1")


def recovered(result: Fit, world: World) -> str:
    """A table of estimates against the truth: bias and root mean square error."""
    documents = joined_with_truth(result, world)
    queries = documents.drop_duplicates(["dataset", "query_id"])
    gamma, beta = np.array(world.truth_info["gamma"]), np.array(world.truth_info["beta"])
    rows = [
        ("gain", documents["gain"], documents["true_gain"]),
        ("ability (theta)", documents["theta"], documents["true_theta"]),
        ("scale (tau)", queries["tau"], queries["true_tau"]),
        ("offset (alpha)", queries["alpha"], queries["true_alpha"]),
        ("discrimination (gamma)", result.items.gamma, gamma),
        ("difficulty (beta)", result.items.beta, beta),
    ]
    lines = ["Recovered against the simulated truth", f"{'':24}{'n':>7}{'bias':>9}{'RMSE':>9}"]
    for name, estimate, truth in rows:
        error = np.asarray(estimate) - np.asarray(truth)
        root = np.sqrt(np.mean(error**2))
        lines.append(f"{name:24}{len(error):>7}{np.mean(error):>+9.3f}{root:>9.3f}")
    lines += [
        "",
        "The plug-in estimate stretches tau: the ridge of the Bradley-Terry fit and judge noise",
    ]
    lines += [
        "shrink the tournament's scores. Gains hardly notice, since the calibration undoes it."
    ]
    return "\n".join(lines)


def draw(result: Fit, world: World, path: Path) -> Path:
    """The demo's figure: criterion curves over the pool, and recovered against true gains."""
    from rcp_bayes import plots

    documents = joined_with_truth(result, world)
    passes = documents[[f"passes_{criterion.id}" for criterion in result.items.criteria]]
    with plots.style():
        figure, axes = plots.new_figure(plots.PAGE, 3.4, ncols=2, width_ratios=[1.5, 1])
        plots.criterion_curves(
            axes[0],
            result.items,
            documents["theta"].to_numpy(),
            pass_rates=list(passes.sum() / documents["n_placements"].sum()),
        )
        plots.recovery(
            axes[1],
            documents["true_gain"].to_numpy(),
            documents["gain"].to_numpy(),
            quantity="gain",
        )
        return plots.save(figure, path)
