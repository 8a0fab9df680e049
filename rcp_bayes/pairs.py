"""Pairwise preferences of Stage A windows, added up per query (Sections 3.1 and C.2).

A window of w documents holds w(w-1)/2 preferences. A scored window gives the soft preferences
``p = sigmoid(s_i - s_k)``, each of weight 2/w, because w scores fix only w - 1 differences. A
window known by its ranking alone gives hard preferences of weight 1: p is 1, or 1/2 for equal
ranks.

The Bradley-Terry likelihood sees them only through the total weight of each pair and the soft wins
of each document: with ``p_ki = 1 - p_ik`` the weighted cross-entropy of a query is

    sum_{i<k} W_ik log(exp(theta_i) + exp(theta_k)) - sum_i b_i theta_i,
    W_ik = sum of weights of the pair,  b_i = sum over its pairs of weight times p_ik.

So every window is read once, and a few queries at a time: dense matrices for 14,514 queries of 150
documents would take 2.6 GB each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import expit

from rcp_bayes.errors import InputError
from rcp_bayes.windows import Windows

# Pairs expanded at once: about 50 MB of indices and preferences, whatever the widths.
_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Contestants:
    """The documents that stand in at least one Stage A window, numbered within their query.

    Attributes
    ----------
    document : (N,) int64
        Index into the documents of the universe, ascending.
    offset : (Q + 1,) int64
        The contestants of query ``j`` are ``offset[j]:offset[j + 1]`` of `document`.
    local : (D,) int64
        Number of each document of the universe among the contestants of its query; -1 without a
        window.
    n_components : (Q,) int64
        Connected components of the comparison graph of each query. The likelihood compares only
        documents of one component; between components the ridge alone places them. A document
        that met no other is a component of its own.
    """

    document: np.ndarray
    offset: np.ndarray
    local: np.ndarray
    n_components: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """Contestants of each query, (Q,) int64."""
        return np.diff(self.offset)


@dataclass(frozen=True)
class PairMatrices:
    """Sufficient statistics of B queries, padded with zeros to n documents each.

    Attributes
    ----------
    weight : (B, n, n) float64
        Total weight of each pair: symmetric, zero on the diagonal.
    wins : (B, n) float64
        Soft wins b_i of each document.
    size : (B,) int64
        Documents of each query; the rest of its row is padding.
    """

    weight: np.ndarray
    wins: np.ndarray
    size: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Total weight W of the pairs of each query, (B,): each pair's two preferences add to 1."""
        return self.wins.sum(axis=1)

    @property
    def present(self) -> np.ndarray:
        """(B, n) bool: False in the padding."""
        return np.arange(self.wins.shape[1]) < self.size[:, None]


def find_contestants(universe_offset: np.ndarray, windows: Windows) -> Contestants:
    """Number the documents that have a window, and find what their comparisons connect.

    Parameters
    ----------
    universe_offset : (Q + 1,) int
        `Universe.offset`.
    windows : Windows

    Raises
    ------
    InputError
        If a window holds a document of another query, or lacks a score (scored windows) or a rank
        (ranking-only windows).
    """
    universe_offset = np.asarray(universe_offset, dtype=np.int64)
    n_queries, n_documents = len(universe_offset) - 1, int(universe_offset[-1])
    _check(universe_offset, windows)
    shown = np.zeros(n_documents, dtype=bool)
    shown[windows.document] = True
    before = np.concatenate([[0], np.cumsum(shown)])
    offset = before[universe_offset]
    start = np.repeat(offset[:-1], np.diff(universe_offset))
    local = np.where(shown, before[:-1] - start, -1)

    # Documents and windows as the two sides of one graph: linear in the entries, where the pairs
    # are quadratic. The CSR rows after the windows' own are the documents, without edges of theirs.
    n_nodes = windows.n_windows + n_documents
    row_end = np.concatenate([windows.offset, np.full(n_documents, windows.offset[-1])])
    graph = csr_array(
        (np.ones(len(windows.document), np.int8), windows.document + windows.n_windows, row_end),
        shape=(n_nodes, n_nodes),
    )
    _, component = connected_components(graph, directed=False)
    component = component[windows.n_windows :][shown]
    # No component spans queries, so the first contestant seen of each one stands for it.
    first = np.unique(component, return_index=True)[1]
    owner = np.searchsorted(offset, first, side="right") - 1
    return Contestants(
        document=np.flatnonzero(shown),
        offset=offset,
        local=local,
        n_components=np.bincount(owner, minlength=n_queries),
    )


def pair_matrices(
    windows: Windows, contestants: Contestants, queries: np.ndarray, n: int | None = None
) -> PairMatrices:
    """Add up the preferences of some queries.

    Parameters
    ----------
    windows : Windows
    contestants : Contestants
        From `find_contestants` for the same windows.
    queries : (B,) int
        The queries wanted, in the order wanted.
    n : int, optional
        Documents to pad to, by default the most that one of these queries has.

    Notes
    -----
    Memory is that of the result, 8 B n^2 bytes, a second matrix of the same size, and a fixed
    amount for pairs in flight.
    """
    queries = np.asarray(queries, dtype=np.int64)
    size = contestants.size[queries]
    if n is None:
        n = int(size.max(initial=1))
    weight = np.zeros(len(queries) * n * n)
    wins = np.zeros(len(queries) * n)

    first = np.searchsorted(windows.query, queries, side="left")
    count = np.searchsorted(windows.query, queries, side="right") - first
    slot = np.repeat(np.arange(len(queries)), count)
    window = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
    width, scored = windows.size[window], windows.scored[window]
    for w in np.unique(width[width > 1]):
        upper, lower = np.triu_indices(int(w), 1)
        step = max(1, _PAIRS_AT_ONCE // len(upper))
        for soft in (True, False):
            chosen = np.flatnonzero((width == w) & (scored == soft))
            for part in (chosen[at : at + step] for at in range(0, len(chosen), step)):
                entry = windows.offset[window[part]][:, None] + np.arange(w)
                row = slot[part][:, None] * n + contestants.local[windows.document[entry]]
                i, k = row[:, upper].ravel(), row[:, lower].ravel()
                value = (windows.score if soft else windows.rank)[entry]
                share = (_soft if soft else _hard)(value[:, upper], value[:, lower]).ravel()
                pair_weight = 2.0 / w if soft else 1.0
                np.add.at(weight, i * n + k % n, pair_weight)
                np.add.at(wins, i, pair_weight * share)
                np.add.at(wins, k, pair_weight * (1.0 - share))
    matrix = weight.reshape(len(queries), n, n)
    return PairMatrices(
        weight=matrix + matrix.swapaxes(1, 2), wins=wins.reshape(len(queries), n), size=size
    )


def _soft(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return expit(first - second)


def _hard(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first < second) + 0.5 * (first == second)


def _check(universe_offset: np.ndarray, windows: Windows) -> None:
    size = windows.size
    query = np.repeat(windows.query, size)
    stray = (windows.document < universe_offset[query]) | (
        windows.document >= universe_offset[query + 1]
    )
    value = np.where(np.repeat(windows.scored, size), windows.score, windows.rank)
    for bad, what in (
        (stray, "holds a document of another query"),
        (~np.isfinite(value), "lacks the score or the rank of a document"),
    ):
        if bad.any():
            window = np.searchsorted(windows.offset, int(bad.argmax()), side="right") - 1
            raise InputError(
                f"Stage A window {window} {what}",
                source="windows",
                remedy="build windows with rcp_bayes.observations.observe",
            )
