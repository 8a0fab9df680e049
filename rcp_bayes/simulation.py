"""Worlds of known truth: judgments, runs and qrels whose parameters are known (numpy only).

No model of the package is used here, so that what recovers the truth is independent of what made
it. `simulated_windows` holds what the judge does in a window, `simulated_tables` the tables.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rcp_bayes.errors import UsageError
from rcp_bayes.gain import gain
from rcp_bayes.schedule import FULL, Schedule, Stream
from rcp_bayes.simulated_tables import Names, qrels_frame, runs_frame, stage_frame
from rcp_bayes.simulated_windows import (
    EXTREME_DIFFICULTY,
    FAULTS,
    FAULTY,
    SECOND_CORRELATION,
    WindowJudge,
    criterion_answers,
    scaled,
    tournament,
)

if TYPE_CHECKING:
    import pandas as pd

# Table 7, NanoBEIR under Qwen3.5-397B; moved onto the constraints in `_criteria`.
GAMMA = (1.17, 1.05, 0.94, 1.16, 0.69)
BETA = (-2.57, -2.00, -0.25, 0.71, 4.12)
# log tau: the 5th and 95th percentiles of Table 7 are 0.86 and 2.72.
_LOG_TAU_MEAN, _LOG_TAU_SD = 0.425, 0.35
# With these, about 79% of the pool lies below C1 and 5% above C4, as on NanoBEIR (Section 3.4),
# and the mean offset is near the paper's -5.64.
_ALPHA_MEAN, _ALPHA_SD, ABILITY_SD = -5.6, 1.5, 2.1
# Noise of each system's ranking, in logits of ability: the first is the best.
SYSTEMS = {"sharp": 0.5, "good": 1.0, "fair": 1.7, "plain": 2.5, "weak": 4.0}
_GRADE_THRESHOLDS = {"graded": (-1.0, 0.7, 2.5), "binary": (0.7,)}  # calibrated ability, logits


@dataclass(frozen=True)
class World:
    """What a judge answered in a simulated suite, and the truth behind it.

    Attributes
    ----------
    stage_a : DataFrame
        ``dataset, query_id, window_id, phase, judge, position, doc_id, score``.
    stage_b : DataFrame
        ``dataset, query_id, window_id, phase, judge, position, doc_id`` and one column a criterion.
    runs : DataFrame
        ``dataset, query_id, doc_id, score, system``: every system ranks every pool.
    qrels : DataFrame
        ``dataset, query_id, doc_id, grade``: a noisy annotator's grades of half of the documents.
    truth : DataFrame
        ``dataset, query_id, doc_id, ability, tau, alpha, theta, gain``, in pool order. `ability` is
        on the tournament's scale, mean 0 within a query; ``theta = tau * ability + alpha`` (Eq. 3).
    truth_info : dict
        ``criteria, gamma, beta, noise, seed`` and the other settings.
    """

    stage_a: pd.DataFrame
    stage_b: pd.DataFrame
    runs: pd.DataFrame
    qrels: pd.DataFrame
    truth: pd.DataFrame
    truth_info: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """Write the folder of the contract: judgments, ``runs.parquet``, ``qrels.txt``, the truth.

        TREC qrels have no dataset, so that a world of several datasets writes ``qrels.parquet``.

        Raises
        ------
        InputError
            The place cannot be written, or holds other judgments or a fit.
        """
        from rcp_bayes.errors import InputError
        from rcp_bayes.fitfolder import prepare_folder
        from rcp_bayes.io import atomic_file, write_qrels, write_table

        folder = prepare_folder(path)
        if not (folder / "truth.json").exists():
            held = {"stage_a.parquet", "stage_b.parquet", "fit.json", "judge.sqlite"}
            there = sorted(held & {entry.name for entry in folder.iterdir()})
            if there:
                raise InputError(
                    f"holds {', '.join(there)}, which is not a simulated world's",
                    source=path,
                    remedy="name another folder, so that nothing is overwritten",
                )
        for name in ("stage_a", "stage_b", "runs", "truth"):
            write_table(getattr(self, name), folder / f"{name}.parquet")
        if self.qrels["dataset"].nunique() > 1:
            write_table(self.qrels, folder / "qrels.parquet")
        else:
            write_qrels(self.qrels, folder / "qrels.txt")
        with atomic_file(folder / "truth.json", "w") as file:
            json.dump(self.truth_info, file, indent=2, allow_nan=False)


def simulate(
    *,
    n_queries: int = 50,
    pool_size: int | Sequence[int] = 150,
    noise: float = 0.5,
    seed: int = 42,
    n_datasets: int = 1,
    position_bias: float = 0.0,
    offset_sd: float = 0.5,
    clip: bool = True,
    decimals: int | None = None,
    invalid: float = 0.0,
    link_bend: float = 0.0,
    ability_sd: float = ABILITY_SD,
    faults: Collection[str] = (),
    gamma: Sequence[float] = GAMMA,
    beta: Sequence[float] = BETA,
    systems: Mapping[str, float] = SYSTEMS,
    schedule: Schedule = FULL,
    schedule_fraction: float = 1.0,
    qrels: Literal["graded", "binary"] = "graded",
) -> World:
    """Simulate a judged suite.

    A query has a scale tau (log-normal) and an offset alpha (normal) as spread in Table 7, and a
    pool whose abilities are skewed to the right: most documents far below the easiest criterion, a
    few above the fourth. In a Stage A window the judge gives document i the score

        s = ability_i - m + b + position_bias * (1/2 - place) + N(0, noise^2),

    where m is the window's mean ability, b ~ N(0, offset_sd^2) the judge's mood in this window and
    ``place`` runs from 0 (first) to 1 (last); scores are clipped to [-5, 5]. Stage B answers are
    drawn from the 2PL (Eq. 2). Windows follow the paper's schedule for the pool's size; stratified
    and adaptive windows of Stage A are steered by an additive rating (documents' mean score,
    corrected for the company they were shown in), those of Stage B by the pass share so far.

    Parameters
    ----------
    n_queries : int
        Queries in all.
    pool_size : int or sequence of n_queries ints
        Documents per query.
    noise : float
        Standard deviation of the judge's scores, logits.
    seed : int
        Every query has streams of its own for truth, Stage A, Stage B, runs and qrels: more
        queries do not change the earlier ones, and worlds that differ in their judge or schedule
        only share truth, runs and qrels.
    n_datasets : int
        Queries are dealt to this many datasets; one is named ``default``.
    position_bias : float
        Logits that the first place of a window gains over the last.
    offset_sd : float
        Standard deviation of a window's common offset, logits.
    clip : bool
        Keep scores within [-5, 5]. Unclipped scores are for study; readers refuse them.
    decimals : int, optional
        Round scores to so many decimals, as a judge writes them.
    invalid : float
        Share of windows of both stages, in [0, 1), that have no usable answer; the tables then
        have a column ``invalid`` and nulls in those windows.
    link_bend : float
        With b its value, ``theta = tau * sinh(b * ability) / b + alpha``: above 0 the ends of the
        tournament's scale are compressed, below 0 (inverse curve, ``asinh(-b x) / -b``) stretched;
        0 is the paper's affine link.
    ability_sd : float
        Standard deviation of abilities within a query, logits of the tournament.
    faults : collection of str
        Keys of `simulated_windows.FAULTS`, which says what each plants in Stage B. The truth
        stays that of the rubric without the fault, except for the difficulty under ``extreme``.
    gamma, beta : sequence of C floats
        Criterion parameters, multiplied and shifted onto the constraints (sum C, mean 0). Offsets
        move by the same shift, so that the criteria keep their place in the pool.
    systems : mapping of name to float
        Systems and the noise of their rankings, logits of ability.
    schedule : Schedule
        Windows of both stages.
    schedule_fraction : float
        Share of the schedule's windows, in (0, 1]; both stages, every phase alike. Stage B still
        shows every document once; Stage A does so for the default schedule at 150 documents down
        to a fifth.
    qrels : {"graded", "binary"}
        Grades 0 to 3, or 0 and 1.

    Raises
    ------
    UsageError
        A setting outside its range.
    """
    pools = np.asarray(pool_size)
    sizes: list[int] = pools.tolist() if pools.ndim else [pools.item()] * n_queries
    if n_datasets < 1 or n_queries < 1 or len(sizes) != n_queries or min(sizes) < 1:
        raise UsageError("queries, pools and datasets are at least 1, with one pool size per query")
    if not (0 < schedule_fraction <= 1 and 0 <= invalid < 1):
        raise UsageError("the schedule's fraction is in (0, 1], the invalid share in [0, 1)")
    if not (isinstance(seed, int | np.integer) and seed >= 0):
        raise UsageError(f"the seed is a whole number of at least 0, not {seed!r}")
    spreads = [noise, offset_sd, ability_sd, *systems.values()]
    if not (np.all(np.isfinite(spreads)) and min(spreads) >= 0):
        raise UsageError(
            "noise and spreads are finite standard deviations of at least 0, in logits"
        )
    discrimination, difficulty, shift = _criteria(gamma, beta, faults)
    judge = WindowJudge(
        discrimination, difficulty, noise, offset_sd, position_bias, clip, decimals, invalid, faults
    )
    plan = scaled(schedule, schedule_fraction)
    truths, stage_a, stage_b, scores, grades = [], [], [], [], []
    for j, n in enumerate(sizes):
        draw = _streams(seed, j)
        truth = _pool(draw[0], n, ability_sd, link_bend, shift)
        second = _second_dimension(draw[5], truth, ability_sd)
        windows = [Stream(seed, "simulate", j, stage) for stage in ("a", "b")]
        truths.append(truth)
        stage_a.append(tournament(judge, truth["ability"], plan, draw[1], windows[0]))
        stage_b.append(criterion_answers(judge, truth["theta"], second, plan, draw[2], windows[1]))
        blur = draw[3].normal(size=(len(systems), n)) * np.array([*systems.values()])[:, None]
        scores.append(truth["ability"] + blur)
        grades.append(_grades(draw[4], truth["theta"], _GRADE_THRESHOLDS[qrels]))
    names = Names.of(sizes, n_datasets)
    theta = np.concatenate([truth["theta"] for truth in truths])
    columns = {name: np.concatenate([truth[name] for truth in truths]) for name in truths[0]}
    columns["gain"] = np.asarray(gain(theta, discrimination, difficulty))
    criteria = [f"C{c + 1}" for c in range(len(difficulty))]
    info = {
        "criteria": criteria,
        "gamma": discrimination.tolist(),
        "beta": difficulty.tolist(),
        "noise": noise,
        "seed": seed,
        "position_bias": position_bias,
        "offset_sd": offset_sd,
        "clip": clip,
        "decimals": decimals,
        "invalid": invalid,
        "link_bend": link_bend,
        "ability_sd": ability_sd,
        "faults": sorted(faults),
        "schedule_fraction": schedule_fraction,
        "systems": dict(systems),
    }
    return World(
        stage_a=stage_frame(names, "a", stage_a, ["score"], invalid > 0),
        stage_b=stage_frame(names, "b", stage_b, criteria, invalid > 0),
        runs=runs_frame(names, scores, list(systems)),
        qrels=qrels_frame(names, grades),
        truth=names.frame(np.arange(names.offset[-1])).assign(**columns),
        truth_info=info,
    )


def _streams(seed: int, query: int) -> list[np.random.Generator]:
    """Independent streams of one query, one for each purpose."""
    root = np.random.SeedSequence(seed, spawn_key=(query,))
    return [np.random.default_rng(child) for child in root.spawn(6)]


def _criteria(
    gamma: Sequence[float], beta: Sequence[float], faults: Collection[str]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Parameters on the constraints, and by how much the difficulties were moved down."""
    discrimination, difficulty = np.array(gamma, dtype=float), np.array(beta, dtype=float)
    if discrimination.ndim != 1 or discrimination.shape != difficulty.shape or not len(gamma):
        raise UsageError("gamma and beta hold one number per criterion")
    if not (np.isfinite(difficulty).all() and np.isfinite(discrimination).all()):
        raise UsageError("gamma and beta are finite")
    if discrimination.min() <= 0:
        raise UsageError("discriminations are above 0")
    for fault in faults:
        if fault not in FAULTS:
            raise UsageError(f"unknown fault {fault!r}; known: {', '.join(FAULTS)}")
        if FAULTY[fault] >= len(difficulty):
            raise UsageError(f"fault {fault!r} needs {FAULTY[fault] + 1} criteria")
    if "extreme" in faults:
        difficulty[FAULTY["extreme"]] = EXTREME_DIFFICULTY
    shift = float(difficulty.mean())
    return discrimination * len(difficulty) / discrimination.sum(), difficulty - shift, shift


def _pool(
    draw: np.random.Generator, n: int, ability_sd: float, bend: float, shift: float
) -> dict[str, np.ndarray]:
    """One query's truth, in pool order: the ranking of a first stage that knows a little of it."""
    tau = np.exp(draw.normal(_LOG_TAU_MEAN, _LOG_TAU_SD))
    alpha = draw.normal(_ALPHA_MEAN, _ALPHA_SD) - shift
    ability = _skewed(draw, n, ability_sd)
    first_stage = ability + draw.normal(0, 2 * ability_sd, n)
    ability = ability[np.argsort(-first_stage, kind="stable")]
    theta = tau * _bent(ability, bend) + alpha
    return {
        "ability": ability,
        "tau": np.full(n, tau),
        "alpha": np.full(n, alpha),
        "theta": theta,
    }


def _skewed(draw: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Abilities of mean 0: a Gumbel's long right tail, of standard deviation ``spread``."""
    ability = draw.gumbel(0, spread * np.sqrt(6) / np.pi, n)
    return ability - ability.mean()


def _bent(ability: np.ndarray, bend: float) -> np.ndarray:
    if bend == 0:
        return ability
    curve = np.sinh if bend > 0 else np.arcsinh
    return curve(abs(bend) * ability) / abs(bend)


def _second_dimension(
    draw: np.random.Generator, truth: dict[str, np.ndarray], ability_sd: float
) -> np.ndarray:
    """Calibrated second ability of each document, (n,), as alike in spread as the first."""
    other = _skewed(draw, len(truth["ability"]), ability_sd)
    r = SECOND_CORRELATION
    return truth["tau"] * (r * truth["ability"] + np.sqrt(1 - r**2) * other) + truth["alpha"]


def _grades(
    draw: np.random.Generator, theta: np.ndarray, thresholds: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Documents and grades of an annotator who reads half of the pool and errs by a logit."""
    graded = np.flatnonzero(draw.random(len(theta)) < 0.5)
    graded = graded if len(graded) else np.array([0])
    perceived = theta[graded] + draw.normal(0, 1, len(graded))
    return graded, np.searchsorted(thresholds, perceived).astype(np.int64)
