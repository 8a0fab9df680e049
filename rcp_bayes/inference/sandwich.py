"""Uncertainty of Bradley-Terry scores from how much windows disagree.

The pairwise loss is no likelihood: soft labels carry no binomial noise, and the pairs of one window
share the judge's mood and each document's noise. Its curvature is therefore not the uncertainty of
its minimum. The sandwich

    V = H^-1 (sum_w g_w g_w') H^-1

with the gradients g_w of whole windows is. At the minimum the gradients are too small, since every
window has pulled the scores its way; each is corrected for its own leverage, ``(I - H_w
H^-1)^-1 g_w`` (the delete-one-window jackknife), and the sum by (W - 1) / W.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rcp_bayes.models.bradley_terry import RIDGE
from rcp_bayes.windows import Windows

_LARGEST_LEVERAGE = 0.98
"""A window that alone holds a document has leverage 1: deleted, it would leave no score."""


@dataclass(frozen=True)
class _Pulls:
    """Windows of one size: documents (W, w), gradients (W, w) and Hessians (W, w, w)."""

    query: np.ndarray
    document: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    weight: np.ndarray


def sandwich_roots(
    offset: np.ndarray, windows: Windows, theta: np.ndarray, *, ridge: float = RIDGE
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Query, its scored documents (n,), and R (W, n) with ``V = R' R``, query by query.

    Parameters
    ----------
    offset : (Q + 1,) int
        `Universe.offset`.
    windows : Windows
    theta : (D,)
        Bradley-Terry MAP (`rcp_bayes.inference.bradley_terry.fit_bradley_terry`), NaN without.
    ridge : float
        That of the fit.
    """
    pulls = [_pulls(windows, size, theta) for size in np.unique(windows.size) if size > 1]
    for j in range(len(offset) - 1):
        documents = np.arange(offset[j], offset[j + 1])
        documents = documents[np.isfinite(theta[documents])]
        mine = [_of_query(pull, j) for pull in pulls]
        mine = [pull for pull in mine if len(pull.query)]
        if len(documents) and mine:
            yield j, documents, _root(documents, mine, ridge)


def sandwich_covariance(
    offset: np.ndarray, windows: Windows, theta: np.ndarray, *, ridge: float = RIDGE
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Documents (n,) and covariance (n, n) of each query that has pairs."""
    roots = sandwich_roots(offset, windows, theta, ridge=ridge)
    return [(documents, root.T @ root) for _, documents, root in roots]


def sandwich_draws(
    offset: np.ndarray,
    windows: Windows,
    theta: np.ndarray,
    n_draws: int,
    generator: np.random.Generator,
    *,
    ridge: float = RIDGE,
) -> np.ndarray:
    """Normal draws (S, D) of the scores; those of documents without pairs do not vary."""
    draws = np.broadcast_to(theta, (n_draws, len(theta))).copy()
    for _, documents, root in sandwich_roots(offset, windows, theta, ridge=ridge):
        draws[:, documents] += generator.standard_normal((n_draws, len(root))) @ root
    return draws


def _of_query(pull: _Pulls, query: int) -> _Pulls:
    at = slice(*np.searchsorted(pull.query, [query, query + 1]))
    return _Pulls(
        pull.query[at], pull.document[at], pull.gradient[at], pull.hessian[at], pull.weight[at]
    )


def _root(documents: np.ndarray, pulls: list[_Pulls], ridge: float) -> np.ndarray:
    n, first = len(documents), documents[0]
    local = np.full(documents[-1] - first + 1, -1)
    local[documents - first] = np.arange(n)
    hessian, total = np.zeros((n, n)), 0.0
    for pull in pulls:
        at = local[pull.document - first]
        np.add.at(hessian, (at[:, :, None], at[:, None, :]), pull.hessian)
        total += pull.weight.sum()
    # The fit's objective is the mean over pairs plus the ridge; this is the sum.
    hessian[np.diag_indices(n)] += ridge * total
    inverse = np.linalg.inv(hessian)
    n_windows = sum(len(pull.query) for pull in pulls)
    gradients = np.zeros((n_windows, n))
    row = 0
    for pull in pulls:
        at = local[pull.document - first]
        leverage = pull.hessian @ inverse[at[:, :, None], at[:, None, :]]
        rest = np.eye(at.shape[1]) - _LARGEST_LEVERAGE * leverage
        corrected = np.linalg.solve(rest, pull.gradient[:, :, None])[:, :, 0]
        rows = np.arange(row, row + len(at))
        gradients[rows[:, None], at] = corrected
        row += len(at)
    return np.sqrt((n_windows - 1) / n_windows) * gradients @ inverse


def _pulls(windows: Windows, size: int, theta: np.ndarray) -> _Pulls:
    """Gradients and Hessians of the windows of one size in their documents' scores."""
    chosen = np.flatnonzero(windows.size == size)
    entry = windows.offset[chosen][:, None] + np.arange(size)
    document = windows.document[entry]
    score, rank = windows.score[entry], windows.rank[entry]
    soft = windows.scored[chosen][:, None, None]
    with np.errstate(invalid="ignore"):
        hard = 0.5 * (1.0 + np.sign(rank[:, None, :] - rank[:, :, None]))
    gap = np.where(soft, score[:, :, None] - score[:, None, :], 0.0)
    preferred = np.where(soft, 1.0 / (1.0 + np.exp(-gap)), hard)
    weight = np.where(soft, 2.0 / size, 1.0) * (1.0 - np.eye(size))
    ability = theta[document]
    expected = 1.0 / (1.0 + np.exp(ability[:, None, :] - ability[:, :, None]))
    gradient = (weight * (np.nan_to_num(preferred) - expected)).sum(axis=2)
    slope = weight * expected * (1.0 - expected)
    hessian = -slope
    diagonal = np.arange(size)
    hessian[:, diagonal, diagonal] += slope.sum(axis=2)
    return _Pulls(windows.query[chosen], document, gradient, hessian, weight.sum(axis=(1, 2)) / 2.0)
