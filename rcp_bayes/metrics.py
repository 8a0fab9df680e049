"""nDCG@k (Eq. 1) over arrays: many ranked lists at once, one set of gains or a draw of each.

A ranking depends on the run alone, so it is worked out once: `rank_lists` sorts every list, `top_k`
turns the sorted lists into weights on documents, and `dcg` is then a weighted sum of gains over any
leading (draw) shape. `ndcg` does all of it for a single list.

Gains are finite and at least 0; nDCG lies in [0, 1] and is NaN where the ideal DCG is 0, because no
ranking of such a query is better than another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

TieRule = Literal["group_mean", "id_descending", "pool_order"]
"""What becomes of documents that a run scores equally.

- ``group_mean``: each takes the mean gain of its tied group, which is the mean over all orders of
  the group; a group that the cutoff divides counts with the ranks above the cutoff.
- ``id_descending``: document ids in descending byte order, on scores held as 32-bit floats: what
  trec_eval prints.
- ``pool_order``: the order of the candidate pool.
"""

# Doubles in one piece of work over draws: 64 MB, so that no array of draws is held twice.
_CHUNK = 8_000_000


@dataclass(frozen=True)
class RankedLists:
    """Rows of a run in rank order.

    Attributes
    ----------
    offset : int64 array (L + 1,)
        Rows of list l are ``offset[l]:offset[l + 1]``; a list may be empty.
    row : int64 array (N,)
        Indices of the rows given, best first within each list.
    first : bool array (N,)
        True where a group of tied rows starts. Where a rule broke the ties, everywhere.
    """

    offset: np.ndarray
    row: np.ndarray
    first: np.ndarray

    def keep(self, rows: np.ndarray) -> RankedLists:
        """The lists without the rows where the mask `rows` is False; the others move up."""
        kept = rows[self.row]
        group = np.cumsum(self.first)[kept]
        offset = np.concatenate(([0], np.cumsum(kept)))[self.offset]
        first = np.ones(len(group), dtype=bool)
        first[1:] = group[1:] != group[:-1]
        return RankedLists(offset, self.row[kept], first)


@dataclass(frozen=True)
class TopK:
    """Documents at the head of each list, with what they weigh.

    Attributes
    ----------
    offset : int64 array (L + 1,)
        Entries of list l are ``offset[l]:offset[l + 1]``.
    item : int64 array (N,)
        Index into the gains; -1 for a document without a gain, which counts 0.
    weight : float64 array (N,)
        Discount 1 / log2(rank + 1), averaged over the places that a tied group covers.
    share : float64 array (N,)
        Expected number of places in the top k: 1, or less in a tied group that the cutoff divides.
    """

    offset: np.ndarray
    item: np.ndarray
    weight: np.ndarray
    share: np.ndarray


def rank_lists(
    list_of: np.ndarray,
    score: np.ndarray,
    n_lists: int,
    *,
    tie_key: np.ndarray | None = None,
    single_precision: bool = False,
) -> RankedLists:
    """Sort many lists at once, highest score first.

    Parameters
    ----------
    list_of : int array (N,)
        List of each row, 0 to ``n_lists - 1``.
    score : float array (N,)
        Finite scores.
    tie_key : int array (N,), optional
        Breaks ties, smallest first. Without it, tied rows form a group.
    single_precision : bool
        Compare scores as 32-bit floats, as trec_eval does.
    """
    if single_precision:
        with np.errstate(over="ignore"):  # beyond 3e38 trec_eval has infinity, too
            score = score.astype(np.float32)
    keys = (-score, list_of) if tie_key is None else (tie_key, -score, list_of)
    row = np.lexsort(keys)
    offset = np.concatenate(([0], np.cumsum(np.bincount(list_of, minlength=n_lists))))
    first = np.ones(len(row), dtype=bool)
    if tie_key is None:
        ordered, lists = score[row], list_of[row]
        first[1:] = (ordered[1:] != ordered[:-1]) | (lists[1:] != lists[:-1])
    return RankedLists(offset.astype(np.int64), row, first)


def top_k(ranked: RankedLists, k: int) -> TopK:
    """Weights of the rows that reach the top k; ``item`` holds the row's index."""
    if k < 1:
        raise ValueError(f"k is {k}, but a cutoff is at least 1")
    sizes = np.diff(ranked.offset)
    k = min(k, int(sizes.max(initial=1)))  # places that no list has need no discount
    place = np.arange(len(ranked.row)) - np.repeat(ranked.offset[:-1], sizes)
    start = np.flatnonzero(ranked.first)
    length = np.diff(start, append=len(ranked.row))
    # A group covers places begin … end - 1, of which those under k count.
    begin = np.minimum(place[start], k)
    end = np.minimum(place[start] + length, k)
    area = np.concatenate(([0.0], np.cumsum(discounts(k))))
    single = length == 1  # its discount itself, not a difference of sums
    weight = np.where(single, discounts(k)[np.minimum(begin, k - 1)], area[end] - area[begin])
    share = (end - begin) / length
    weight = np.where(end > begin, weight / length, 0.0)
    reach = np.repeat(end > begin, length)
    return TopK(
        np.concatenate(([0], np.cumsum(reach)))[ranked.offset],
        ranked.row[reach],
        np.repeat(weight, length)[reach],
        np.repeat(share, length)[reach],
    )


def discounts(k: int) -> np.ndarray:
    """1 / log2(rank + 1) for ranks 1 … k."""
    return 1.0 / np.log2(np.arange(2, k + 2))


def dcg(gains: np.ndarray, top: TopK) -> np.ndarray:
    """DCG@k of every list: ``(..., D)`` gains to ``(..., L)``."""
    known = top.item >= 0
    list_of = np.repeat(np.arange(len(top.offset) - 1), np.diff(top.offset))[known]
    item, weight = top.item[known], top.weight[known]
    total = np.zeros((*gains.shape[:-1], len(top.offset) - 1))
    if not len(item):
        return total
    start = np.flatnonzero(np.diff(list_of, prepend=-1))
    for part, out in _draws(gains, total, len(item)):
        out[:, list_of[start]] = np.add.reduceat(part[:, item] * weight, start, axis=1)
    return total


def ideal_dcg(gains: np.ndarray, offset: np.ndarray, k: int) -> np.ndarray:
    """DCG@k of every query's own best order: ``(..., D)`` gains to ``(..., Q)``.

    Documents of query j are ``offset[j]:offset[j + 1]``. Each draw has its own ideal.
    """
    sizes = np.diff(offset)
    ideal = np.zeros((*gains.shape[:-1], len(sizes)))
    discount = discounts(min(k, int(sizes.max(initial=1))))
    # Queries of like size are padded to one width, so that memory follows the documents.
    octave = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    for level in np.unique(octave[sizes > 0]):
        queries = np.flatnonzero((octave == level) & (sizes > 0))
        width = int(sizes[queries].max())
        depth = min(k, width)
        place = np.arange(width)
        real = place < sizes[queries, None]
        source = (offset[queries, None] + place)[real]
        for part, out in _draws(gains, ideal, real.size):
            # In the gains' own precision: to sort 32-bit draws costs half, and changes no value.
            padded = np.zeros((len(part), *real.shape), dtype=part.dtype)
            padded[:, real] = part[:, source]
            if depth < width:
                padded = np.partition(padded, width - depth, axis=-1)[..., width - depth :]
            best = np.sort(padded, axis=-1)[..., ::-1]
            out[:, queries] = (best * discount[:depth]).sum(axis=-1)
    return ideal


def ndcg_of_lists(
    gains: np.ndarray, top: TopK, query_of_list: np.ndarray, offset: np.ndarray, k: int
) -> np.ndarray:
    """nDCG@k of every list, ``(..., L)``; NaN where the list's query has no positive gain."""
    ideal = ideal_dcg(gains, offset, k)[..., query_of_list]
    ratio = dcg(gains, top) / np.where(ideal > 0, ideal, np.nan)
    # The best order, summed in another order, may end an ulp above 1.
    return np.where((ratio > 1) & (ratio < 1 + 1e-12), 1.0, ratio)


def ndcg(
    gains: Any,
    scores: Any,
    k: int = 10,
    *,
    tie_key: Any = None,
    single_precision: bool = False,
) -> np.ndarray:
    """nDCG@k of one ranking of one query's documents.

    Parameters
    ----------
    gains : array (..., D)
        Finite gains of at least 0 of the query's documents, or draws of them.
    scores : array (D,)
        The run's scores; NaN for a document that the run does not rank.
    k : int
        Cutoff.
    tie_key, single_precision
        As in `rank_lists`. Without `tie_key` a tied group takes its mean gain.

    Returns
    -------
    float64 array (...)
        In [0, 1]; NaN where every gain is 0.

    Raises
    ------
    ValueError
        Gains that are negative or not finite, an infinite score, shapes that do not match.

    Examples
    --------
    >>> float(ndcg([1.0, 0.0], [0.5, 0.5], k=2).round(3))  # tied: half of each order
    0.815
    """
    gains, scores = np.asarray(gains, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if gains.shape[-1:] != scores.shape:
        raise ValueError(f"gains {gains.shape} and scores {scores.shape} differ in documents")
    if not (np.isfinite(gains).all() and (gains >= 0).all()):
        raise ValueError("gains must be finite and at least 0")
    if np.isinf(scores).any():
        raise ValueError("scores must be finite, or NaN where a document is not ranked")
    ranked = np.flatnonzero(~np.isnan(scores))
    key = None if tie_key is None else np.asarray(tie_key)[ranked]
    one_list = np.zeros(len(ranked), dtype=np.int64)
    lists = rank_lists(one_list, scores[ranked], 1, tie_key=key, single_precision=single_precision)
    top = top_k(lists, k)
    top = TopK(top.offset, ranked[top.item], top.weight, top.share)
    span = np.array([0, len(scores)])
    return ndcg_of_lists(gains, top, np.zeros(1, dtype=np.int64), span, k)[..., 0]


def _draws(
    gains: np.ndarray, out: np.ndarray, per_draw: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pieces of (gains, out), draws first, in which `per_draw` doubles a draw fit the budget."""
    flat = gains.reshape(-1, gains.shape[-1])
    view = out.reshape(-1, out.shape[-1])  # a view: `out` is ours and contiguous
    step = max(1, _CHUNK // max(1, per_draw))
    for start in range(0, len(flat), step):
        yield flat[start : start + step], view[start : start + step]
