"""Do intervals cover the truth? Known worlds, every way to treat Stage A, every quantity reported.

For each regime (judge noise x share of the schedule, and optionally position bias or unclipped
scores) and each model the table shows the error of the gains and the coverage of equal-tailed
intervals of calibrated abilities, gains, RCP-nDCG@10 per query and system, its differences between
neighbouring systems, and the leaderboard's means; with the standard error over worlds in
parentheses. Coverage at other levels, and by system, follows below the table.

Full form: ``--worlds 200`` (hours on two cores). The default is a small form of the same.

``joint`` and ``cut`` take Stage A by the score model, ``fixed`` by Bradley-Terry scores, and
``cut-bt`` by these with the window-clustered sandwich.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

import rcp_bayes as rcp
from rcp_bayes.inference.bradley_terry import fit_bradley_terry
from rcp_bayes.inference.cut import cut_draws, fixed_draws, stage_a_draws
from rcp_bayes.inference.joint_data import joint_data
from rcp_bayes.inference.joint_map import fit_joint
from rcp_bayes.inference.laplace import laplace_draws
from rcp_bayes.inference.posterior import Posterior
from rcp_bayes.metrics import RankedLists, dcg, ideal_dcg, rank_lists, top_k
from rcp_bayes.models.priors import HIERARCHICAL, WEAK
from rcp_bayes.observations import Observations, observe
from rcp_bayes.simulation import World

LEVELS = (0.5, 0.8, 0.9, 0.95)
HEADLINE = 0.9
PRIORS = {"weak": WEAK, "hierarchical": HIERARCHICAL}


def posterior(model: str, prior: str, observed: Observations, n_draws: int, seed: int) -> Posterior:
    """Draws of one model."""
    chosen = PRIORS[prior]
    if model == "joint":
        return laplace_draws(fit_joint(joint_data(observed), chosen), n_draws, seed=seed)
    theta = None
    if model in ("fixed", "cut-bt"):
        theta = fit_bradley_terry(observed.universe.offset, observed.windows).theta
    if model == "fixed":
        return fixed_draws(observed, theta, n_draws, prior=chosen, seed=seed)
    scored = model == "cut"
    abilities = stage_a_draws(observed, scored=scored, theta=theta, prior=chosen, seed=seed)
    return cut_draws(observed, abilities, n_draws, prior=chosen, seed=seed)


def ndcg(gains: np.ndarray, ranked: RankedLists, offset: np.ndarray, n_systems: int) -> np.ndarray:
    """nDCG@10 (..., systems, queries); lists are systems' queries, one system after the other."""
    found = dcg(gains, top_k(ranked, 10)).reshape(*gains.shape[:-1], n_systems, -1)
    return found / ideal_dcg(gains, offset, 10)[..., None, :]


def lists_of(world: World, observed: Observations) -> tuple[RankedLists, list[str]]:
    """Every system's ranking of every pool, over the universe's documents."""
    systems = list(world.truth_info["systems"])
    wide = world.runs.pivot(index="doc_id", columns="system", values="score")
    scores = wide.loc[observed.universe.doc_id, systems].to_numpy().T
    n_systems, n_documents = scores.shape
    n_queries = observed.universe.n_queries
    list_of = np.arange(n_systems)[:, None] * n_queries + observed.universe.query
    ranked = rank_lists(list_of.ravel(), scores.ravel(), n_systems * n_queries)
    return RankedLists(ranked.offset, ranked.row % n_documents, ranked.first), systems


def covered(draws: np.ndarray, truth: np.ndarray, level: float) -> np.ndarray:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return (low <= truth) & (truth <= high)


def assess(found: Posterior, world: World, observed: Observations) -> dict[str, float]:
    """Coverage of everything in one world, at every level, by name."""
    truth = world.truth.set_index("doc_id").loc[observed.universe.doc_id]
    true_gain = truth["gain"].to_numpy()
    offset = observed.universe.offset
    ranked, systems = lists_of(world, observed)
    gains = found.gain()
    scores = ndcg(gains, ranked, offset, len(systems))
    true_scores = ndcg(true_gain, ranked, offset, len(systems))
    first = offset[:-1]
    pairs = {
        "theta": (found.theta, truth["theta"].to_numpy()),
        "gain": (gains, true_gain),
        "nDCG": (scores, true_scores),
        "difference": (-np.diff(scores, axis=1), -np.diff(true_scores, axis=0)),
        "mean": (scores.mean(axis=-1), true_scores.mean(axis=-1)),
        "mean diff.": (
            -np.diff(scores.mean(axis=-1), axis=1),
            -np.diff(true_scores.mean(axis=-1), axis=0),
        ),
        "tau": (found.tau, truth["tau"].to_numpy()[first]),
        "alpha": (found.alpha, truth["alpha"].to_numpy()[first]),
        "beta": (found.beta, np.array(world.truth_info["beta"])),
    }
    result = {}
    for name, (draws, true) in pairs.items():
        for level in LEVELS:
            inside = covered(draws, true, level)
            result[f"{name} {level:g}"] = float(inside.mean())
            if name == "nDCG":
                for s, system in enumerate(systems):
                    result[f"{system} {level:g}"] = float(inside[s].mean())
    result["gain error"] = float(np.sqrt(np.mean((gains.mean(axis=0) - true_gain) ** 2)))
    result["nDCG bias"] = float((scores.mean(axis=0) - true_scores).mean())
    return result


def show(title: str, rows: dict[str, list[dict[str, float]]], columns: list[str]) -> None:
    """A table of means over worlds, with their standard errors."""
    print(f"\n{title}")
    width = max(len(name) for name in rows) + 2
    print(" " * width + "".join(f"{column:>18}" for column in columns))
    for name, worlds in rows.items():
        cells = []
        for column in columns:
            values = np.array([world[column] for world in worlds])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            cells.append(f"{values.mean():.3f} ({error:.3f})".rjust(18))
        print(f"{name:<{width}}" + "".join(cells), flush=True)


def picture(path: str, regimes: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Coverage against level, one panel per quantity, one line per model and regime."""
    import matplotlib.pyplot as plt

    names = ("gain", "nDCG", "difference")
    figure, axes = plt.subplots(1, len(names), figsize=(12, 4), sharey=True, layout="constrained")
    for axis, name in zip(axes, names, strict=True):
        axis.plot([0.4, 1], [0.4, 1], color="0.7", lw=1)
        for regime, models in regimes.items():
            for model, worlds in models.items():
                mean = [np.mean([w[f"{name} {level:g}"] for w in worlds]) for level in LEVELS]
                axis.plot(LEVELS, mean, marker="o", ms=3, label=f"{model}, {regime}")
        axis.set(title=name, xlabel="level of the interval")
    axes[0].set_ylabel("share that holds the truth")
    axes[-1].legend(fontsize=6)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=4)
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--pool", type=int, default=100)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0])
    parser.add_argument("--fraction", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--position-bias", type=float, default=0.0)
    parser.add_argument("--no-clip", action="store_true")
    parser.add_argument(
        "--models",
        nargs="+",
        default=["fixed:weak", "cut:weak", "joint:weak", "joint:hierarchical"],
        help="model:prior, models fixed, cut, cut-bt, joint, priors weak and hierarchical",
    )
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--figure", help="where to save the picture")
    options = parser.parse_args()
    regimes = {}
    for fraction in options.fraction:
        for noise in options.noise:
            rows: dict[str, list[dict[str, float]]] = defaultdict(list)
            started = time.perf_counter()
            for seed in range(options.worlds):
                world = rcp.simulate(
                    n_queries=options.queries,
                    pool_size=options.pool,
                    noise=noise,
                    seed=1000 + seed,
                    schedule_fraction=fraction,
                    position_bias=options.position_bias,
                    clip=not options.no_clip,
                )
                observed = observe(rcp.Judgments.from_frames(world.stage_a, world.stage_b))
                for name in options.models:
                    model, prior = name.split(":")
                    drawn = posterior(model, prior, observed, options.draws, seed)
                    rows[name].append(assess(drawn, world, observed))
            regime = f"noise {noise:g}, {fraction:.0%} of the schedule"
            regimes[regime] = dict(rows)
            names = ["theta", "gain", "nDCG", "difference", "mean", "mean diff.", "tau", "alpha"]
            at = f" {HEADLINE:g}"
            show(
                f"{regime}, {options.worlds} worlds, {time.perf_counter() - started:.0f} s",
                rows,
                ["gain error", "nDCG bias", *(name + at for name in [*names, "beta"])],
            )
            systems = [name + at for name in world.truth_info["systems"]]
            show("nDCG by system", rows, systems)
            levels = [f"{name} {level:g}" for name in ("gain", "nDCG") for level in LEVELS]
            show("other levels", rows, levels)
    if options.figure:
        picture(options.figure, regimes)


if __name__ == "__main__":
    main()
