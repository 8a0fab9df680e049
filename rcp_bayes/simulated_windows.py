"""What a simulated judge answers in the windows of one query (numpy only, no model of the package).

Windows come from the same schedule as a real judge's. Where that schedule groups documents by a
preliminary fit, the simulation uses a rating of its own: in Stage A a document's mean score,
corrected for the company it was shown in, in Stage B its share of passed criteria so far.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from rcp_bayes.gain import pass_probability
from rcp_bayes.schedule import (
    ADAPTIVE,
    RANDOM,
    STRATIFIED,
    Schedule,
    Stream,
    adaptive_windows,
    balanced_windows,
    stratified_windows,
)

SCORE_LIMIT = 5.0
PHASES = (RANDOM, STRATIFIED, ADAPTIVE)
INVALID = ("truncated", "invalid_json", "incomplete")  # categories of windows that went wrong

FAULTS = {
    "redundant": "C2 repeats the answer of C1 in nine placements of ten",
    "reversed": "C3 is passed where it should be failed",
    "blind": "C4 is passed in three placements of ten, whatever the document",
    "extreme": "C5 lies so high that hardly a document passes",
    "two_dimensions": "C2, C4, … follow a second ability that correlates 0.5 with the first",
}
EXTREME_DIFFICULTY = 12.0
_REPEATED, _BLIND_RATE = 0.9, 0.3
SECOND_CORRELATION = 0.5
# The criteria, counted from 0, that a fault changes; a rubric must have the last of them.
FAULTY = {"redundant": 1, "reversed": 2, "blind": 3, "extreme": 4, "two_dimensions": 1}


@dataclass(frozen=True)
class Calls:
    """Answered windows of one stage of one query.

    Attributes
    ----------
    shown : (W, w) int
        Pool positions in the order shown.
    phase : (W,) int
        Index into `PHASES`.
    invalid : (W,) int
        Index into `INVALID`; -1 for a valid window.
    answers : (W, w) float or (W * w, C) int8
        Scores of Stage A; answers of Stage B, placements in the order of ``shown``. An invalid
        window has them too, as what the judge meant to say.
    """

    shown: np.ndarray
    phase: np.ndarray
    invalid: np.ndarray
    answers: np.ndarray


@dataclass(frozen=True)
class WindowJudge:
    """How answers come about; the parameters are those of `simulate`."""

    gamma: np.ndarray
    beta: np.ndarray
    noise: float
    offset_sd: float
    position_bias: float
    clip: bool
    decimals: int | None
    invalid: float
    faults: Collection[str]

    def score(self, draw: np.random.Generator, ability: np.ndarray) -> np.ndarray:
        """Scores of windows, (W, w), from the abilities shown, (W, w)."""
        size = ability.shape[1]
        place = np.linspace(0, 1, size) if size > 1 else np.array([0.5])
        score = ability - ability.mean(axis=1, keepdims=True) + self.position_bias * (0.5 - place)
        score += self.offset_sd * draw.standard_normal((len(ability), 1))
        score += self.noise * draw.standard_normal(ability.shape)
        if self.clip:
            score = np.clip(score, -SCORE_LIMIT, SCORE_LIMIT)
        return score if self.decimals is None else score.round(self.decimals)

    def answer(
        self, draw: np.random.Generator, theta: np.ndarray, second: np.ndarray
    ) -> np.ndarray:
        """Answers, (n, C) of 0 and 1, to placements of documents with these abilities, (n,)."""
        passes = draw.random((len(theta), len(self.beta))) < self._probability(theta, second)
        if "redundant" in self.faults:
            repeated = draw.random(len(theta)) < _REPEATED
            passes[:, 1] = np.where(repeated, passes[:, 0], passes[:, 1])
        return passes.astype(np.int8)

    def _probability(self, theta: np.ndarray, second: np.ndarray) -> np.ndarray:
        p = pass_probability(theta, self.gamma, self.beta)
        if "two_dimensions" in self.faults:
            p[:, 1::2] = pass_probability(second, self.gamma[1::2], self.beta[1::2])
        if "reversed" in self.faults:
            p[:, 2] = 1 - p[:, 2]
        if "blind" in self.faults:
            p[:, 3] = _BLIND_RATE
        return p

    def went_wrong(self, draw: np.random.Generator, n_windows: int) -> np.ndarray:
        """Which windows are invalid and how, (W,): an index into `INVALID`, else -1."""
        wrong = draw.random(n_windows) < self.invalid
        return np.where(wrong, draw.integers(len(INVALID), size=n_windows), -1)


def tournament(
    judge: WindowJudge,
    ability: np.ndarray,
    plan: Schedule,
    draw: np.random.Generator,
    stream: Stream,
) -> Calls:
    """Stage A of a query, batch by batch; abilities (n,) in pool order."""
    n, size = len(ability), min(plan.window, len(ability))
    shown, scores = np.empty((0, size), dtype=np.int64), np.empty((0, size))
    phase, invalid = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    rating = np.zeros(n)
    for name, calls in plan.batches("a", n):
        mirrored = plan.mirror and name != ADAPTIVE
        count = calls // 2 if mirrored else calls
        if name != RANDOM:
            valid = invalid < 0
            rating = additive_rating(shown[valid], scores[valid], rating)
        if name == RANDOM:
            chosen = balanced_windows(n, count, size, stream)
        elif name == STRATIFIED:
            chosen = stratified_windows(rating, _seen(shown, n), count, size, stream)
        else:
            chosen = adaptive_windows(rating, shown, count, size, plan.shrink)
        windows = np.array(chosen, dtype=np.int64).reshape(-1, size)
        if mirrored:
            windows = np.stack([windows, windows[:, ::-1]], axis=1).reshape(-1, size)
        shown = np.concatenate([shown, windows])
        scores = np.concatenate([scores, judge.score(draw, ability[windows])])
        phase = np.append(phase, np.full(len(windows), PHASES.index(name)))
        invalid = np.append(invalid, judge.went_wrong(draw, len(windows)))
    return Calls(shown, phase, invalid, scores)


def criterion_answers(
    judge: WindowJudge,
    theta: np.ndarray,
    second: np.ndarray,
    plan: Schedule,
    draw: np.random.Generator,
    stream: Stream,
) -> Calls:
    """Stage B of a query; calibrated abilities (n,) in pool order."""
    n, size = len(theta), min(plan.window, len(theta))
    shown = np.empty((0, size), dtype=np.int64)
    phase, invalid = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    answers = np.empty((0, len(judge.beta)), dtype=np.int8)
    for name, count in plan.batches("b", n):
        if name == RANDOM:
            chosen = balanced_windows(n, count, size, stream)
        else:
            valid = np.repeat(invalid < 0, size)
            placed, passed = shown.ravel()[valid], answers[valid].sum(axis=1)
            share = np.bincount(placed, passed, n) / np.maximum(np.bincount(placed, None, n), 1)
            chosen = stratified_windows(share, _seen(shown, n), count, size, stream)
        windows = np.array(chosen, dtype=np.int64).reshape(-1, size)
        shown = np.concatenate([shown, windows])
        placed = windows.ravel()
        answers = np.concatenate([answers, judge.answer(draw, theta[placed], second[placed])])
        phase = np.append(phase, np.full(len(windows), PHASES.index(name)))
        invalid = np.append(invalid, judge.went_wrong(draw, len(windows)))
    return Calls(shown, phase, invalid, answers)


def additive_rating(shown: np.ndarray, scores: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Least-squares ratings, (n,), in ``score = rating + window offset``, by alternating means.

    A few sweeps from the ratings of the batch before come close enough to steer a schedule.
    Documents without a score stand at 0, the mean.
    """
    n = len(start)
    seen = np.maximum(_seen(shown, n), 1)
    centred = scores - scores.mean(axis=1, keepdims=True)
    rating = start
    for _ in range(5):
        level = centred + rating[shown].mean(axis=1, keepdims=True)
        rating = np.bincount(shown.ravel(), level.ravel(), n) / seen
        rating = rating - rating.mean()
    return rating


def scaled(schedule: Schedule, fraction: float) -> Schedule:
    """The schedule with a share of its windows, every phase of both stages alike."""
    share = Fraction(fraction).limit_denominator(1000)

    def part(placements: Fraction | None) -> Fraction | None:
        return None if placements is None else placements * share

    return replace(
        schedule,
        random_a=schedule.random_a * share,
        stratified_a=schedule.stratified_a * share,
        adaptive=schedule.adaptive * share,
        total_a=part(schedule.total_a),
        random_b=schedule.random_b * share,
        stratified_b=schedule.stratified_b * share,
        total_b=part(schedule.total_b),
    )


def _seen(shown: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(shown.ravel(), minlength=n)
