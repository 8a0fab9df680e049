"""Which documents were judged, under which query, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rcp_bayes.coding import codes_of, combine_keys, first_seen, join_vocabularies, stable_order


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
        the positions have gaps; a shown document that the pool lacks stands after the pool.
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


def build_universe(
    stages: Sequence[pa.Table], pool: pa.Table | None
) -> tuple[Universe, list[np.ndarray]]:
    """Number the judged queries and documents.

    Parameters
    ----------
    stages : sequence of pa.Table
        Canonical judgments of each stage.
    pool : pa.Table, optional
        Canonical candidates, in pool order.

    Returns
    -------
    universe : Universe
    documents : list of (n_rows,) int32
        Index of the document in each row of each stage.
    """
    tables = [*([] if pool is None else [pool]), *stages]
    lengths = [table.num_rows for table in tables]
    dataset, datasets = _joint(tables, "dataset")
    query_id, query_ids = _joint(tables, "query_id")
    doc_id, doc_ids = _joint(tables, "doc_id")
    query, queries = first_seen(combine_keys([dataset, query_id], [len(datasets), len(query_ids)]))
    document, documents = first_seen(combine_keys([query, doc_id], [len(queries), len(doc_ids)]))

    n_pool = 0 if pool is None else pool.num_rows
    row = np.empty(len(documents), np.int64)  # of all seen: any row that shows the document
    row[document] = np.arange(len(document))
    of_query = query[row]
    order = stable_order(of_query)
    order = np.arange(len(documents)) if order is None else order
    sorted_query = of_query[order]
    start = np.searchsorted(sorted_query, np.arange(len(queries)))
    position = np.arange(len(order)) - start[sorted_query]

    shown = np.zeros(len(documents), bool)
    shown[document[n_pool:]] = True
    keep = shown[order]
    order, position, sorted_query = order[keep], position[keep], sorted_query[keep]
    judged, offset = np.unique(sorted_query, return_index=True)
    index = np.full(len(documents), -1, np.int32)
    index[order] = np.arange(len(order), dtype=np.int32)
    first = row[order[offset]]
    universe = Universe(
        dataset=_values(datasets, dataset[first]),
        query_id=_values(query_ids, query_id[first]),
        offset=np.append(offset, len(order)).astype(np.int64),
        doc_id=_values(doc_ids, doc_id[row[order]]),
        query=np.searchsorted(judged, sorted_query).astype(np.int32),
        pool_position=position.astype(np.int32),
    )
    bounds = np.cumsum([0, *lengths])
    rows = [index[document[bounds[i] : bounds[i + 1]]] for i in range(len(tables))]
    return universe, rows[len(tables) - len(stages) :]


def _joint(tables: Sequence[pa.Table], name: str) -> tuple[np.ndarray, pa.Array]:
    """Codes of a column over all tables' rows, one vocabulary."""
    coded = [codes_of(table.column(name)) for table in tables]
    translations, vocabulary = join_vocabularies([values for _, values in coded])
    parts = [t[codes] for t, (codes, _) in zip(translations, coded, strict=True)]
    return np.concatenate(parts), vocabulary


def _values(vocabulary: pa.Array, codes: np.ndarray) -> np.ndarray:
    return vocabulary.take(pa.array(codes)).to_numpy(zero_copy_only=False)
