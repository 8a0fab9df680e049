"""Preliminary fits of one query that steer its schedule (Section C.2): Bradley-Terry and Rasch.

`schedule.Rate` describes what a rating takes and gives. Judging imports no model; these two are
handed to it by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcp_bayes.observations import Windows
from rcp_bayes.schedule import Answer

_ABILITY_SD = 3.0  # logits; wide, it only keeps the estimates of all-pass and all-fail finite


def rate_a(documents: Sequence[str], answers: Sequence[Answer]) -> np.ndarray:
    """Bradley-Terry scores of one query, (n,) logits; NaN for a document without a valid window."""
    from rcp_bayes.inference.bradley_terry import fit_bradley_terry

    place = {name: i for i, name in enumerate(documents)}
    sizes = [len(answer.window.documents) for answer in answers]
    entries = [place[name] for answer in answers for name in answer.window.documents]
    missing = float("nan")
    score = [s for a, w in zip(answers, sizes, strict=True) for s in a.scores or [missing] * w]
    rank = [r for a, w in zip(answers, sizes, strict=True) for r in a.ranks or [missing] * w]
    n_windows = len(answers)
    windows = Windows(
        offset=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        query=np.zeros(n_windows, dtype=np.int32),
        document=np.array(entries, dtype=np.int32),
        score=np.array(score, dtype=np.float64),
        rank=np.array(rank, dtype=np.float64),
        scored=np.array([answer.scores is not None for answer in answers], dtype=bool),
        position=np.full(len(entries), -1, dtype=np.int32),
        phase=np.full(n_windows, -1, dtype=np.int32),
        judge=np.full(n_windows, -1, dtype=np.int32),
        phases=(),
        judges=(),
    )
    return fit_bradley_terry(np.array([0, len(documents)], dtype=np.int64), windows).theta


def rate_b(documents: Sequence[str], answers: Sequence[Answer]) -> np.ndarray:
    """Rasch abilities of one query, (n,) logits; NaN for a document without a valid answer."""
    place = {name: i for i, name in enumerate(documents)}
    rows = [place[name] for answer in answers for name in answer.window.documents]
    marks = np.array([mark for answer in answers for mark in answer.passes or ()], dtype=np.int64)
    n_placements = np.bincount(rows, minlength=len(documents))
    passes = np.zeros((len(documents), marks.shape[1]), dtype=np.int64)
    np.add.at(passes, rows, marks)
    return rasch_abilities(n_placements, passes)


def rasch_abilities(n_placements: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """Posterior mode of the Rasch model P(pass) = sigmoid(ability_i - difficulty_c).

    Abilities have independent N(0, 3²) priors, difficulties none beyond a ridge of 1e-4.

    Parameters
    ----------
    n_placements : (n,) int
        Answers of each document.
    passes : (n, C) int
        How many of them passed each criterion.

    Returns
    -------
    (n,) float64
        Abilities, logits; NaN without an answer. Newton on the concave log posterior, damped,
        until the largest gradient is below 1e-8.
    """
    seen = n_placements > 0
    n, passed = n_placements[seen, None].astype(float), passes[seen].astype(float)
    documents, criteria = passed.shape
    precision = np.concatenate([np.full(documents, _ABILITY_SD**-2), np.full(criteria, 1e-4)])

    def value(x: np.ndarray) -> float:
        logit = x[:documents, None] - x[documents:]
        return float((passed * logit - n * np.logaddexp(0, logit)).sum() - precision @ x**2 / 2)

    x = np.zeros(documents + criteria)
    for _ in range(100):
        p = 1 / (1 + np.exp(x[documents:] - x[:documents, None]))
        residual, weight = passed - n * p, n * p * (1 - p)
        gradient = np.concatenate([residual.sum(1), -residual.sum(0)]) - precision * x
        if np.abs(gradient).max(initial=0.0) < 1e-8:
            break
        information = np.diag(np.concatenate([weight.sum(1), weight.sum(0)]) + precision)
        information[:documents, documents:] = -weight
        information[documents:, :documents] = -weight.T
        step, here = np.linalg.solve(information, gradient), value(x)
        while value(x + step) < here and np.abs(step).max() > 1e-12:
            step = step / 2
        x = x + step
    abilities = np.full(len(n_placements), np.nan)
    abilities[seen] = x[:documents]
    return abilities
