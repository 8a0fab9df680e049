"""Observations laid out for the joint model: queries in groups of one padded shape.

Only documents with a Stage A window and queries with at least one of them take part. Queries of
like size share a shape, so that a suite needs few compiled programs and little padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rcp_bayes.errors import InputError
from rcp_bayes.models.query_data import Pairs, QueryData
from rcp_bayes.models.score import PAD, ScoreWindows, score_kind
from rcp_bayes.observations import Observations
from rcp_bayes.pairs import Contestants, find_contestants, pair_matrices
from rcp_bayes.windows import Windows

# A query joins a group whose largest has at most this many times its documents: padding costs less
# than compiling another shape, which takes some ten seconds the first time.
_SPREAD, _SPREAD_SMALL, _SMALL = 1.5, 3.0, 64


@dataclass(frozen=True)
class Group:
    """Queries of one shape.

    Attributes
    ----------
    query : (G,) int
        Index among the queries that take part.
    document : (G, n) int64
        Index into the universe's documents; -1 for padding.
    data : QueryData
        With a leading axis of G queries.
    """

    query: np.ndarray
    document: np.ndarray
    data: QueryData

    @property
    def n_windows(self) -> int:
        return 0 if self.data.windows is None else self.data.windows.document.shape[1]


@dataclass(frozen=True)
class JointData:
    """All queries that take part, in groups.

    Attributes
    ----------
    groups : tuple of Group
    query : (Q,) int64
        Index into the universe's queries.
    n_criteria : int
        C.
    document_query : (D,) int32
        Query of each document of the universe.
    n_universe_queries : int
    scored : bool
        Windows enter by their scores (the score model), not as pairs.
    """

    groups: tuple[Group, ...]
    query: np.ndarray
    n_criteria: int
    document_query: np.ndarray
    n_universe_queries: int
    scored: bool

    @property
    def n_queries(self) -> int:
        return len(self.query)

    @property
    def n_documents(self) -> int:
        """Documents of the universe."""
        return len(self.document_query)

    @property
    def pivot(self) -> np.ndarray:
        """Abilities (Q,) at which levels are taken."""
        pivot = np.zeros(self.n_queries)
        for group in self.groups:
            pivot[group.query] = group.data.pivot
        return pivot

    def with_pivots(self, pivot: np.ndarray) -> JointData:
        """The same with these abilities (Q,) as pivots."""
        return self._each(lambda group: group.data._replace(pivot=pivot[group.query]))

    def without_stage_b(self) -> JointData:
        """The same without the criteria's answers."""
        return self._each(
            lambda group: group.data._replace(
                placements=np.zeros_like(group.data.placements),
                passes=np.zeros_like(group.data.passes),
            )
        )

    def _each(self, change) -> JointData:
        groups = tuple(replace(group, data=change(group)) for group in self.groups)
        return replace(self, groups=groups)


def joint_data(observed: Observations, *, scored: bool = True) -> JointData:
    """Lay out the observations.

    Parameters
    ----------
    observed : Observations
        With both stages.
    scored : bool
        Take windows by their scores; else every window, scored or ranked, as pairs.

    Raises
    ------
    InputError
        No window of the kind asked for.
    """
    windows = observed.windows
    if windows is None or (scored and not windows.scored.any()):
        raise InputError(
            "no scored Stage A window for the score model",
            remedy="use --stage-a-model bradley-terry",
        )
    used = np.flatnonzero(windows.scored) if scored else np.arange(windows.n_windows)
    entry_window = np.repeat(np.arange(windows.n_windows), windows.size)
    seen = np.zeros(observed.universe.n_documents, bool)
    seen[windows.document[np.isin(entry_window, used)]] = True
    sizes = np.bincount(observed.universe.query[seen], minlength=observed.universe.n_queries)
    query = np.flatnonzero(sizes)
    window_count = np.bincount(windows.query[used], minlength=len(sizes))
    contestants = None if scored else find_contestants(observed.universe.offset, windows)
    groups = []
    for members in _alike(sizes[query]):
        chosen = query[members]
        n = -(-int(sizes[chosen].max()) // 2) * 2
        groups.append(
            _group(observed, windows, used, members, chosen, seen, n, window_count, contestants)
        )
    return JointData(
        groups=tuple(groups),
        query=query,
        n_criteria=observed.passes.shape[1],
        document_query=observed.universe.query,
        n_universe_queries=observed.universe.n_queries,
        scored=scored,
    )


def _alike(sizes: np.ndarray) -> list[np.ndarray]:
    """Positions in groups, each of sizes not far below its largest."""
    order = np.argsort(-sizes, kind="stable")
    groups, first = [], 0
    for k in range(1, len(order) + 1):
        largest = sizes[order[first]]
        spread = _SPREAD if largest > _SMALL else _SPREAD_SMALL
        if k == len(order) or sizes[order[k]] * spread < largest:
            groups.append(np.sort(order[first:k]))
            first = k
    return groups


def _group(
    observed: Observations,
    windows: Windows,
    used: np.ndarray,
    members: np.ndarray,
    chosen: np.ndarray,
    seen: np.ndarray,
    n: int,
    window_count: np.ndarray,
    contestants: Contestants | None,
) -> Group:
    universe = observed.universe
    document = np.full((len(chosen), n), -1, dtype=np.int64)
    local = np.full(universe.n_documents, -1, dtype=np.int32)
    for row, j in enumerate(chosen):
        own = np.arange(universe.offset[j], universe.offset[j + 1])
        own = own[seen[own]]
        document[row, : len(own)] = own
        local[own] = np.arange(len(own))
    mask = document >= 0
    at = np.maximum(document, 0)
    placements = np.where(mask, observed.n_placements[at], 0).astype(np.float64)
    passes = np.where(mask[:, :, None], observed.passes[at], 0).astype(np.float64)
    row_of = np.full(universe.n_queries, -1)
    row_of[chosen] = np.arange(len(chosen))
    mine = used[row_of[windows.query[used]] >= 0]
    row = row_of[windows.query[mine]]
    score_windows = pairs = None
    if contestants is None:
        score_windows = _score_windows(windows, mine, row, local, int(window_count[chosen].max()))
    else:
        matrices = pair_matrices(windows, contestants, chosen, n)
        pairs = Pairs(matrices.weight, matrices.wins)
    data = QueryData(mask, score_windows, pairs, placements, passes, np.zeros(len(chosen)))
    return Group(members, document, data)


def _score_windows(
    windows: Windows, mine: np.ndarray, row: np.ndarray, local: np.ndarray, most: int
) -> ScoreWindows:
    """Scored windows of a group, (G, W, w); windows stand in their order."""
    n_rows = int(row.max()) + 1
    width = int(windows.size[mine].max())
    place = np.arange(len(mine)) - np.searchsorted(row, row)  # rows come sorted
    shape = (n_rows, most, width)
    document = np.zeros(shape, dtype=np.int32)
    score = np.zeros(shape)
    kind = np.full(shape, PAD, dtype=np.int8)
    size = windows.size[mine]
    which = np.repeat(np.arange(len(mine)), size)
    within = np.arange(len(which)) - np.repeat(np.cumsum(size) - size, size)
    entry = windows.offset[mine][which] + within
    at = (row[which], place[which], within)
    values = windows.score[entry]
    document[at] = local[windows.document[entry]]
    score[at] = values
    kind[at] = score_kind(values)
    return ScoreWindows(document, score, kind)
