"""Worlds of known truth: judgments, runs and qrels whose parameters are known (numpy only).

No model of the package is used here, so that what recovers the truth is independent of what made
it. The windows come from the same schedule as a real judge's, steered by a rating of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rcp_bayes.gain import gain, pass_probability
from rcp_bayes.schedule import (
    FULL,
    Schedule,
    Stream,
    adaptive_windows,
    balanced_windows,
    stratified_windows,
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
_ALPHA_MEAN, _ALPHA_SD, _ABILITY_SD = -5.6, 1.5, 2.1
_SCORE_LIMIT = 5.0
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
            The place cannot be written.
        """
        from rcp_bayes.fitfolder import prepare_folder
        from rcp_bayes.io import atomic_file, write_qrels, write_table

        folder = prepare_folder(path)
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
    pool_size: int = 150,
    noise: float = 0.5,
    seed: int = 42,
    n_datasets: int = 1,
    position_bias: float = 0.0,
    offset_sd: float = 0.5,
    clip: bool = True,
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
    n_queries, pool_size : int
        Queries in all, documents per query.
    noise : float
        Standard deviation of the judge's scores, logits.
    seed : int
        Every query has a stream of its own: more queries do not change the earlier ones.
    n_datasets : int
        Queries are dealt to this many datasets; one is named ``default``.
    position_bias : float
        Logits that the first place of a window gains over the last.
    offset_sd : float
        Standard deviation of a window's common offset, logits.
    clip : bool
        Keep scores within [-5, 5]. Unclipped scores are for study; readers refuse them.
    schedule : Schedule
        Windows of both stages.
    schedule_fraction : float
        Share of the schedule's windows, in (0, 1]; both stages, every phase alike.
    qrels : {"graded", "binary"}
        Grades 0 to 3, or 0 and 1.

    Raises
    ------
    ValueError
        A setting outside its range.
    """
    import pandas as pd

    if min(n_queries, pool_size, n_datasets) < 1 or not 0 < schedule_fraction <= 1:
        raise ValueError("queries, pool and datasets are at least 1, the fraction is in (0, 1]")
    if not (np.isfinite(noise) and noise >= 0 and offset_sd >= 0):
        raise ValueError("noise is a finite standard deviation of at least 0, in logits")
    gamma, beta = _criteria()
    judge = _Judge(noise, position_bias, offset_sd, clip, gamma, beta)
    plan = _scaled(schedule, schedule_fraction)
    parts: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("a", "b", "runs", "qrels", "truth")
    }
    for j in range(n_queries):
        dataset = "default" if n_datasets == 1 else f"sim-{j % n_datasets + 1}"
        query = f"q{j + 1:04d}"
        draw = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(j,)))
        truth = _pool(draw, query, pool_size, gamma, beta)
        names = {"dataset": dataset, "query_id": query}
        stream = Stream(seed, "simulate", dataset, query)
        parts["truth"].append(names | truth)
        parts["a"].append(names | _stage_a(judge, draw, stream, plan, truth))
        parts["b"].append(names | _stage_b(judge, draw, stream, plan, truth))
        parts["runs"].append(names | _runs(draw, truth))
        parts["qrels"].append(names | _grades(draw, truth, _GRADE_THRESHOLDS[qrels]))
    frames = {
        name: pd.concat([pd.DataFrame(part) for part in rows], ignore_index=True)
        for name, rows in parts.items()
    }
    info = {
        "criteria": list(_names(beta)),
        "gamma": gamma.tolist(),
        "beta": beta.tolist(),
        "noise": noise,
        "seed": seed,
        "position_bias": position_bias,
        "offset_sd": offset_sd,
        "clip": clip,
        "schedule_fraction": schedule_fraction,
        "systems": SYSTEMS,
    }
    return World(frames["a"], frames["b"], frames["runs"], frames["qrels"], frames["truth"], info)


def _criteria() -> tuple[np.ndarray, np.ndarray]:
    """The printed parameters, moved onto the constraints that rounding misses a little."""
    gamma, beta = np.array(GAMMA), np.array(BETA)
    return gamma * len(gamma) / gamma.sum(), beta - beta.mean()


def _names(beta: np.ndarray) -> tuple[str, ...]:
    return tuple(f"C{c + 1}" for c in range(len(beta)))


def _scaled(schedule: Schedule, fraction: float) -> Schedule:
    """The schedule with a share of its windows."""
    share = Fraction(fraction).limit_denominator(1000)

    def part(placements: Fraction | None) -> Any:
        return None if placements is None else placements * share

    return replace(
        schedule,
        random_a=part(schedule.random_a),
        stratified_a=part(schedule.stratified_a),
        adaptive=part(schedule.adaptive),
        total_a=part(schedule.total_a),
        random_b=part(schedule.random_b),
        stratified_b=part(schedule.stratified_b),
        total_b=part(schedule.total_b),
    )


@dataclass(frozen=True)
class _Judge:
    noise: float
    position_bias: float
    offset_sd: float
    clip: bool
    gamma: np.ndarray
    beta: np.ndarray

    def score(self, draw: np.random.Generator, ability: np.ndarray) -> np.ndarray:
        """Scores of windows, (W, w), from the abilities shown, (W, w)."""
        place = np.linspace(0, 1, ability.shape[1]) if ability.shape[1] > 1 else np.array([0.5])
        mood = draw.normal(0, self.offset_sd, (len(ability), 1))
        centred = ability - ability.mean(axis=1, keepdims=True)
        score = centred + mood + self.position_bias * (0.5 - place)
        score = score + draw.normal(0, self.noise, ability.shape)
        return np.clip(score, -_SCORE_LIMIT, _SCORE_LIMIT) if self.clip else score

    def answer(self, draw: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        """Answers, (n, C) of 0 and 1, to placements of documents with these abilities, (n,)."""
        probability = pass_probability(theta, self.gamma, self.beta)
        return (draw.random(probability.shape) < probability).astype(np.int8)


def _pool(
    draw: np.random.Generator, query: str, n: int, gamma: np.ndarray, beta: np.ndarray
) -> dict[str, Any]:
    """One query's truth, in pool order: the ranking of a first stage that knows a little of it."""
    tau = float(np.exp(draw.normal(_LOG_TAU_MEAN, _LOG_TAU_SD)))
    alpha = float(draw.normal(_ALPHA_MEAN, _ALPHA_SD))
    ability = draw.gumbel(0, _ABILITY_SD * np.sqrt(6) / np.pi, n)  # standard deviation _ABILITY_SD
    ability = ability - ability.mean()
    ability = ability[np.argsort(-(ability + draw.normal(0, 2 * _ABILITY_SD, n)), kind="stable")]
    theta = tau * ability + alpha
    return {
        "doc_id": [f"{query}-d{i + 1:03d}" for i in range(n)],
        "ability": ability,
        "tau": tau,
        "alpha": alpha,
        "theta": theta,
        "gain": np.asarray(gain(theta, gamma, beta)),
    }


def _stage_a(
    judge: _Judge, draw: np.random.Generator, stream: Stream, plan: Schedule, truth: dict[str, Any]
) -> dict[str, Any]:
    """The tournament of one query, phase by phase."""
    ability: np.ndarray = truth["ability"]
    n, size = len(ability), min(plan.window, len(ability))
    shown = np.empty((0, size), dtype=np.int64)
    scores, phases = np.empty((0, size)), []
    for phase, calls in plan.batches("a", n):
        count = calls // 2 if plan.mirror and phase != "adaptive" else calls
        if phase == "random":
            chosen = balanced_windows(n, count, size, stream)
        elif phase == "stratified":
            seen = np.bincount(shown.ravel(), minlength=n)
            chosen = stratified_windows(_rating(n, shown, scores), seen, count, size, stream)
        else:
            chosen = adaptive_windows(_rating(n, shown, scores), shown, count, size, plan.shrink)
        windows = np.array(chosen, dtype=np.int64).reshape(-1, size)
        if plan.mirror and phase != "adaptive":
            windows = np.stack([windows, windows[:, ::-1]], axis=1).reshape(-1, size)
        shown = np.concatenate([shown, windows])
        scores = np.concatenate([scores, judge.score(draw, ability[windows])])
        phases += [phase] * len(windows)
    return _window_rows(truth, shown, phases, "a") | {"score": scores.ravel()}


def _stage_b(
    judge: _Judge, draw: np.random.Generator, stream: Stream, plan: Schedule, truth: dict[str, Any]
) -> dict[str, Any]:
    """The criterion answers of one query; the pass share so far groups the second half."""
    theta: np.ndarray = truth["theta"]
    n, size = len(theta), min(plan.window, len(theta))
    shown = np.empty((0, size), dtype=np.int64)
    answers, phases = np.empty((0, len(judge.beta)), dtype=np.int8), []
    for phase, count in plan.batches("b", n):
        if phase == "random":
            chosen = balanced_windows(n, count, size, stream)
        else:
            seen = np.bincount(shown.ravel(), minlength=n)
            passes = np.bincount(shown.ravel(), weights=answers.sum(axis=1), minlength=n)
            chosen = stratified_windows(passes / np.maximum(seen, 1), seen, count, size, stream)
        windows = np.array(chosen, dtype=np.int64).reshape(-1, size)
        shown = np.concatenate([shown, windows])
        answers = np.concatenate([answers, judge.answer(draw, theta[windows.ravel()])])
        phases += [phase] * len(windows)
    columns = {name: answers[:, c] for c, name in enumerate(_names(judge.beta))}
    return _window_rows(truth, shown, phases, "b") | columns


def _window_rows(
    truth: dict[str, Any], shown: np.ndarray, phases: Sequence[str], stage: str
) -> dict[str, Any]:
    """Columns that both stages share, a row per document in a window."""
    n_windows, size = shown.shape
    ids = np.array([f"{stage}{i:04d}" for i in range(n_windows)], dtype=object)
    return {
        "window_id": np.repeat(ids, size),
        "phase": np.repeat(np.array(phases, dtype=object), size),
        "judge": "simulated",
        "position": np.tile(np.arange(size), n_windows),
        "doc_id": np.array(truth["doc_id"], dtype=object)[shown.ravel()],
    }


def _rating(n: int, shown: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Additive rating, (n,): a document's mean score, corrected for its windows' mean rating."""
    seen = np.maximum(np.bincount(shown.ravel(), minlength=n), 1)
    centred = scores - scores.mean(axis=1, keepdims=True)
    rating = np.zeros(n)
    for _ in range(10):  # the correction shrinks by more than half each time
        level = centred + rating[shown].mean(axis=1, keepdims=True)
        rating = np.bincount(shown.ravel(), weights=level.ravel(), minlength=n) / seen
        rating = rating - rating.mean()
    return rating


def _runs(draw: np.random.Generator, truth: dict[str, Any]) -> dict[str, Any]:
    """Every system's scores of one pool: the ability seen through the system's noise."""
    ability = truth["ability"]
    scores = [ability + draw.normal(0, noise, len(ability)) for noise in SYSTEMS.values()]
    return {
        "doc_id": truth["doc_id"] * len(SYSTEMS),
        "score": np.concatenate(scores),
        "system": np.repeat(np.array(list(SYSTEMS), dtype=object), len(ability)),
    }


def _grades(
    draw: np.random.Generator, truth: dict[str, Any], thresholds: tuple[float, ...]
) -> dict[str, Any]:
    """Grades of an annotator who reads half of the pool and errs by a logit."""
    theta = truth["theta"]
    graded = np.flatnonzero(draw.random(len(theta)) < 0.5)
    graded = graded if len(graded) else np.array([0])
    perceived = theta[graded] + draw.normal(0, 1, len(graded))
    return {
        "doc_id": [truth["doc_id"][i] for i in graded],
        "grade": np.searchsorted(thresholds, perceived).astype(np.int64),
    }
