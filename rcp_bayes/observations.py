"""Integer-indexed observations: what the models see of the judgments.

Ids become indices once, here; everything downstream works on arrays. Documents are grouped by
query, windows and their entries are grouped by query too, so that a query is a slice everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Universe:
    """Every document that a judge was shown, grouped by query.

    Queries and documents stand in pool order where a pool is known, else in the order of their
    first appearance in the judgments (Stage A rows, then Stage B rows).

    Attributes
    ----------
    dataset, query_id : (Q,) object arrays of str
    offset : (Q + 1,) int64
        The documents of query ``j`` are ``offset[j]:offset[j + 1]``.
    doc_id : (D,) object array of str
    query : (D,) int32
        Query of each document, non-decreasing.
    pool_position : (D,) int32
        0-based place within the query's pool. Where the pool holds documents that were never shown,
        the positions have gaps.
    """

    dataset: np.ndarray
    query_id: np.ndarray
    offset: np.ndarray
    doc_id: np.ndarray
    query: np.ndarray
    pool_position: np.ndarray

    @property
    def n_queries(self) -> int:
        return len(self.query_id)

    @property
    def n_documents(self) -> int:
        return len(self.doc_id)


@dataclass(frozen=True)
class Windows:
    """The valid Stage A windows, by query and then in the order of their first appearance.

    Attributes
    ----------
    offset : (W + 1,) int64
        The entries of window ``i`` are ``offset[i]:offset[i + 1]``.
    query : (W,) int32
        Query of each window, non-decreasing.
    document : (R,) int32
        Index into the documents of the universe.
    score : (R,) float64
        Judge's logit score in [-5, 5]; NaN throughout a ranking-only window.
    rank : (R,) float64
        1 is best; complete in a ranking-only window, NaN where a scored window gives none.
    scored : (W,) bool
        True: soft preferences, each pair of weight 2/w. False: hard preferences of weight 1 from
        the ranks, equal ranks half a win each (C.2).
    position : (R,) int32
        0-based place in the prompt, -1 where unknown.
    phase, judge : (W,) int32
        Codes into `phases` and `judges`, -1 where the table names none.
    phases, judges : tuple of str
    """

    offset: np.ndarray
    query: np.ndarray
    document: np.ndarray
    score: np.ndarray
    rank: np.ndarray
    scored: np.ndarray
    position: np.ndarray
    phase: np.ndarray
    judge: np.ndarray
    phases: tuple[str, ...]
    judges: tuple[str, ...]

    @property
    def n_windows(self) -> int:
        return len(self.query)

    @property
    def size(self) -> np.ndarray:
        """Documents in each window, (W,) int64."""
        return np.diff(self.offset)


@dataclass(frozen=True)
class Placements:
    """The valid Stage B answers: one row for each document in each window that showed it.

    Attributes
    ----------
    document : (P,) int32
        Index into the documents of the universe, non-decreasing in query.
    window : (P,) int32
        Index of the placement's Stage B window, 0 to `n_windows` - 1.
    answers : (P, C) int8
        0 or 1 under each criterion.
    criteria : tuple of str
    position, phase, judge : (P,) int32
        As in `Windows`, here for each placement.
    phases, judges : tuple of str
    n_windows : int
    """

    document: np.ndarray
    window: np.ndarray
    answers: np.ndarray
    criteria: tuple[str, ...]
    position: np.ndarray
    phase: np.ndarray
    judge: np.ndarray
    phases: tuple[str, ...]
    judges: tuple[str, ...]
    n_windows: int


@dataclass(frozen=True)
class Observations:
    """Universe, windows and placements of one judgments folder, with its sufficient statistics.

    Attributes
    ----------
    universe : Universe
    windows : Windows or None
        None where the judgments have no Stage A.
    placements : Placements or None
        None where the judgments have no Stage B.
    counts : dict
        Everything read, folded, dropped or invalid, ready for ``fit.json``.
    n_invalid_a, n_invalid_b : (Q,) int64
        Invalid windows of each query.
    n_windows : (D,) int64
        Valid Stage A windows that showed the document.
    n_placements : (D,) int64
        Valid Stage B answers of the document.
    passes : (D, C) int64
        How many of them passed each criterion; C = 0 without Stage B.
    """

    universe: Universe
    windows: Windows | None
    placements: Placements | None
    counts: dict[str, Any]
    n_invalid_a: np.ndarray
    n_invalid_b: np.ndarray
    n_windows: np.ndarray
    n_placements: np.ndarray
    passes: np.ndarray

    @property
    def criteria(self) -> tuple[str, ...]:
        return () if self.placements is None else self.placements.criteria
