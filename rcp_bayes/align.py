"""Labels, runs and qrels brought to one set of integer codes: which rows mean the same document.

Ids compare as text, exactly. A query is a pair of dataset and query id; a table that carries only
the dataset ``default`` joins named datasets on the query id alone, where that is unambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rcp_bayes.coding import codes_of, combine_keys, first_seen, join_vocabularies
from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError
from rcp_bayes.tables import DEFAULT_DATASET, Schema, table_of, unite

if TYPE_CHECKING:
    import pandas as pd

Query = tuple[str, str]  # dataset, query id


@dataclass(frozen=True)
class Rows:
    """One table in codes.

    Attributes
    ----------
    query : int64 array (n,)
        Index of the row's query in the reference; -1 where it is not among them.
    document : int64 array (n,)
        Index into the vocabulary of document ids that all tables share.
    key : int64 array (n,)
        One number for each pair of query and document; meaningless where `query` is -1.
    strangers : list of (dataset, query_id)
        Queries of the table that the reference does not have.
    """

    query: np.ndarray
    document: np.ndarray
    key: np.ndarray
    strangers: list[Query]


def checked(frame: pd.DataFrame | pa.Table, schema: Schema, name: str) -> pa.Table:
    """The canonical table of a frame; `name` stands for it in errors.

    Raises
    ------
    InputError
        Whatever a reader refuses in a file: a missing column, a value that does not fit, a key
        twice, no rows.
    """
    origin = Origin(name)
    return unite([(table_of(frame, origin), origin)], schema)[0]


def distinct_queries(table: pa.Table) -> tuple[list[Query], np.ndarray]:
    """The queries of a table in order of first appearance, and each row's index into them."""
    dataset, datasets = codes_of(table["dataset"])
    query, ids = codes_of(table["query_id"])
    codes, keys = first_seen(combine_keys([dataset, query], [len(datasets), len(ids)]))
    # combine_keys counts from 1, and pads each column by one code.
    at, of = np.divmod(keys, len(ids) + 1)
    names, texts = datasets.to_pylist(), ids.to_pylist()
    return [(names[d - 1], texts[q - 1]) for d, q in zip(at, of, strict=True)], codes


def join_datasets(queries: Sequence[Query], reference: Sequence[Query], name: str) -> list[Query]:
    """`queries` with the reference's datasets, where they have only ``default`` and it has not.

    A query id that the reference lacks keeps ``default``.

    Raises
    ------
    InputError
        A query id stands in several datasets of the reference.
    """
    if {dataset for dataset, _ in queries} != {DEFAULT_DATASET} or any(
        dataset == DEFAULT_DATASET for dataset, _ in reference
    ):
        return list(queries)
    homes: dict[str, list[str]] = {}
    for dataset, query in reference:
        homes.setdefault(query, []).append(dataset)
    for _, query in queries:
        if len(homes.get(query, [])) > 1:
            raise InputError(
                f"query {query!r} stands in datasets {', '.join(homes[query])}",
                source=name,
                column="dataset",
                remedy="add a dataset column",
            )
    return [(homes.get(query, [DEFAULT_DATASET])[0], query) for _, query in queries]


def code_tables(
    reference: Sequence[Query], tables: Mapping[str, pa.Table]
) -> tuple[dict[str, Rows], pa.Array]:
    """Codes of every table's rows against `reference`, and the vocabulary of document ids.

    Raises
    ------
    InputError
        See `join_datasets`.
    """
    columns = [codes_of(table["doc_id"]) for table in tables.values()]
    translations, vocabulary = join_vocabularies([values for _, values in columns])
    position = {query: j for j, query in enumerate(reference)}
    rows = {}
    for (name, table), (codes, _), translation in zip(
        tables.items(), columns, translations, strict=True
    ):
        queries, of_row = distinct_queries(table)
        queries = join_datasets(queries, reference, name)
        index = np.array([position.get(query, -1) for query in queries], dtype=np.int64)
        document = translation[codes].astype(np.int64)
        query = index[of_row]
        strangers = [query for query in queries if query not in position]
        rows[name] = Rows(query, document, query * len(vocabulary) + document, strangers)
    return rows, vocabulary


def sort_descending(vocabulary: pa.Array) -> np.ndarray:
    """Place of each id in descending byte order, (n,) int64: the order of trec_eval's ties."""
    import pyarrow.compute as pc

    order = pc.sort_indices(vocabulary, sort_keys=[("", "descending")]).to_numpy()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place
