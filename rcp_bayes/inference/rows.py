"""Documents of queries of any size, laid in rows of one width (`models.two_pl.Documents`).

Sizes are rounded up to a few, so that the program compiled for one data set serves another. What
is added has no placements and weighs nothing; a query that is added has only its prior, at whose
mode it stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rcp_bayes.models.two_pl import Documents

_WIDTHS = (8, 32)
# Looking up a row's query and storing its sums cost about as much as this many documents.
_COST_OF_ROW = 4


class Laid(NamedTuple):
    """Documents in rows, their passes (C, R, T), and the number of queries with those added."""

    documents: Documents
    passes: np.ndarray
    n_queries: int


def lay_in_rows(
    ability: np.ndarray,
    query: np.ndarray,
    n_placements: np.ndarray,
    passes: np.ndarray,
    n_queries: int,
) -> Laid:
    """Lay (D,) documents, in any order, in rows; memory is linear in D.

    Parameters
    ----------
    ability, query, n_placements : (D,)
    passes : (D, C)
    n_queries : int
    """
    order = np.argsort(query, kind="stable")
    query = query[order]
    sizes = np.bincount(query, minlength=n_queries)
    width = min(_WIDTHS, key=lambda w: int((-(-sizes // w)).sum()) * (w + _COST_OF_ROW))
    rows = -(-sizes // width)
    first_row = np.cumsum(rows) - rows
    n_rows, all_queries = _rounded(int(rows.sum())), _rounded(n_queries)

    rank = np.arange(len(query)) - (np.cumsum(sizes) - sizes)[query]
    place = first_row[query] * width + rank
    of_row = np.full(n_rows, all_queries - 1, dtype=np.int32)
    of_row[: rows.sum()] = np.repeat(np.arange(n_queries, dtype=np.int32), rows)

    def laid(values: np.ndarray) -> np.ndarray:
        table = np.zeros(n_rows * width)
        table[place] = values[order]
        return table.reshape(n_rows, width)

    documents = Documents(laid(ability), laid(n_placements), of_row)
    return Laid(documents, np.stack([laid(column) for column in passes.T]), all_queries)


def _rounded(size: int) -> int:
    """Up to a power of 2 from 8 to 64, then to one of eight sizes per doubling."""
    if size <= 64:
        return max(8, 1 << max(size - 1, 0).bit_length())
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step
