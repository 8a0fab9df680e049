"""Integer codes for ids: the few array kernels that tables and observations share.

Judgments come sorted by query and window almost always, so rows are first cut into runs of equal
keys; only the runs are hashed. Nothing here makes a Python object per row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_KEY_LIMIT = 2**62


def codes_of(array: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Codes (n,) int32 and dictionary of a dictionary-encoded column; a null has code -1."""
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if isinstance(whole, pa.ChunkedArray):  # an empty chunked array stays chunked
        return np.empty(0, np.int32), pa.array([], array.type.value_type)
    indices = whole.indices
    if indices.null_count == len(indices):
        return np.full(len(indices), -1, np.int32), whole.dictionary
    if indices.null_count:
        indices = pc.fill_null(indices, -1)
    return indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False), whole.dictionary


def join_vocabularies(
    dictionaries: Sequence[pa.Array],
) -> tuple[list[np.ndarray], pa.Array]:
    """One vocabulary over several dictionaries.

    Returns
    -------
    translations : list of (len(dictionary),) int32
        ``translations[i][code]`` is the joint code of ``code`` in dictionary ``i``.
    vocabulary : pa.Array
        The distinct values in order of first appearance.
    """
    joined = pa.concat_arrays([d.cast(pa.string()) for d in dictionaries]).dictionary_encode()
    codes = joined.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    bounds = np.cumsum([0, *(len(d) for d in dictionaries)])
    return (
        [codes[lo:hi] for lo, hi in itertools.pairwise(bounds)],
        joined.dictionary,
    )


def combine_keys(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """One int64 key for each row, equal exactly where all columns are.

    Parameters
    ----------
    columns : sequence of (n,) integer arrays
        Codes from -1 (missing) to size - 1.
    sizes : sequence of int
        Number of codes in each column.
    """
    key = np.zeros(len(columns[0]), np.int64)
    span = 1
    for codes, size in zip(columns, sizes, strict=True):
        if not len(codes) or (size < 2 and codes.min() == codes.max()):
            continue  # one value throughout tells no rows apart
        if span * (size + 1) > _KEY_LIMIT:  # renumber what is there before it overflows
            key, uniques = first_seen(key)
            span = len(uniques)
        key *= size + 1
        key += codes
        key += 1
        span *= size + 1
    return key


def runs(keys: np.ndarray) -> np.ndarray:
    """First index of every run of equal neighbours, (n_runs,) int64."""
    if not len(keys):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def first_seen(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct keys in order of first appearance.

    Returns
    -------
    codes : (n,) int64
    uniques : (n_distinct,) array
    """
    starts = runs(keys)
    if len(starts) > 0.5 * len(keys):  # hardly any runs: cutting them would only cost
        return pd.factorize(keys)
    codes, uniques = pd.factorize(keys[starts])
    return np.repeat(codes, np.diff(starts, append=len(keys))), uniques


def repeated_rows(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose key was seen before, and the row that had it first.

    Returns
    -------
    later, first : (m,) int64
        Ascending in `later`; both empty where all keys differ.
    """
    if pd.Index(keys).is_unique:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    codes, uniques = first_seen(keys)
    origin = np.full(len(uniques), -1, np.int64)
    order = np.arange(len(keys))
    origin[codes[::-1]] = order[::-1]  # the last assignment wins: the first row
    later = np.flatnonzero(origin[codes] != order)
    return later, origin[codes[later]]


def stable_order(codes: np.ndarray) -> np.ndarray | None:
    """Permutation that sorts codes and keeps ties in place; None where they are sorted already."""
    if np.all(codes[1:] >= codes[:-1]):
        return None
    return np.argsort(codes, kind="stable")
