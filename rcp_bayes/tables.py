"""From what a reader hands over to a checked table.

A raw table (any types, any order, further columns) goes in; a canonical table comes out: the
schema's columns in the schema's order, ids and words dictionary-encoded text, missing values null.
Rows that repeat a key are folded where identical, refused where not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from rcp_bayes.coding import codes_of, combine_keys, repeated_rows
from rcp_bayes.columns import CANONICAL, Column, Kind, Origin, canonical_column, column_of_objects
from rcp_bayes.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_DATASET = "default"
MEAN = "mean"  # in results, the unweighted mean over datasets


@dataclass(frozen=True)
class Schema:
    """Columns of a table and what makes a row of it unique.

    Attributes
    ----------
    name : str
        Used in messages where no file is known.
    columns : tuple of Column
    key : tuple of str
        Columns that identify a row.
    one_of : tuple of str
        At least one of these optional columns must be there.
    repeats : {"fold", "refuse"}
        Whether a row identical to an earlier one is folded into it.
    sparse : bool
        Absent optional columns stay absent; otherwise they are added, all missing.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    one_of: tuple[str, ...] = ()
    repeats: Literal["fold", "refuse"] = "fold"
    sparse: bool = False

    def reads(self, name: str) -> bool:
        """Whether a column of a file, by its name there, belongs to the table."""
        return any(name in column.names for column in self.columns)

    def kind(self, name: str) -> Kind:
        """Kind of a file's column; further columns are criteria."""
        return next((c.kind for c in self.columns if name in c.names), "bit")


Part = tuple[pa.Table, Origin]


def canonical(table: pa.Table, schema: Schema, origin: Origin) -> pa.Table:
    """The schema's columns of one file, cast and checked.

    Raises
    ------
    InputError
        A column is missing or stands twice, or a value does not fit; file, row and column named.
    """
    names = table.column_names
    found = {column.name: _find(names, column, origin) for column in schema.columns}
    for column in schema.columns:
        if column.required and found[column.name] is None:
            there = origin.columns or names
            raise origin.error(
                f"column {column.name!r} is missing",
                remedy=f"there are {', '.join(map(repr, there)) or 'none'}",
            )
    if schema.one_of and not any(found[name] for name in schema.one_of):
        wanted = " and ".join(map(repr, schema.one_of))
        raise origin.error(
            f"columns {wanted} are both missing", remedy="at least one of them is needed"
        )
    columns: dict[str, pa.Array] = {}
    for column in schema.columns:
        actual = found[column.name]
        if actual is not None:
            columns[column.name] = canonical_column(
                table.column(actual), replace(column, name=actual), origin
            )
        elif column.default is not None:
            columns[column.name] = constant(column.default, table.num_rows)
        elif not schema.sparse:
            columns[column.name] = pa.nulls(table.num_rows, CANONICAL[column.kind])
    return pa.table(columns)


def _find(names: list[str], column: Column, origin: Origin) -> str | None:
    """Name under which a file holds a column."""
    for name in column.names:
        if names.count(name) > 1:
            raise origin.error("the column stands twice", column=name, remedy="rename one of them")
        if name in names:
            return name
    return None


def constant(value: str, n: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([value]))


def unite(parts: Sequence[Part], schema: Schema) -> tuple[pa.Table, int]:
    """Canonical tables of several files as one, repeated rows settled.

    Returns
    -------
    table : pa.Table
        Rows in the order of the files.
    folded : int
        Rows that were identical, in every column of the schema, to an earlier one.

    Raises
    ------
    InputError
        No rows at all; or one key with different content, both contents named.
    """
    read = [(canonical(table, schema, origin), origin) for table, origin in parts if table.num_rows]
    if not read:
        name = parts[0][1].name if parts else schema.name
        raise InputError("no rows", source=name, remedy="there is nothing to read in it")
    table = read[0][0]
    if len(read) > 1:
        table = pa.concat_tables([t for t, _ in read], promote_options="default")
        table = table.unify_dictionaries().combine_chunks()
    keys = combine_keys(*_code_columns(table, schema.key))
    later, first = repeated_rows(keys)
    if not len(later):
        return table, 0
    origins = [origin for _, origin in read]
    starts = np.cumsum([0, *(t.num_rows for t, _ in read)])
    if schema.repeats == "refuse":
        _refuse_repeat(table, schema, origins, starts, int(first[0]), int(later[0]))
    same = np.ones(len(later), bool)
    for name in table.column_names:
        same &= _equal_rows(table.column(name), first, later)
    if not same.all():
        clash = int(np.flatnonzero(~same)[0])
        _refuse_repeat(table, schema, origins, starts, int(first[clash]), int(later[clash]))
    keep = np.ones(table.num_rows, bool)
    keep[later] = False
    return table.filter(pa.array(keep)), len(later)


def _code_columns(table: pa.Table, names: Sequence[str]) -> tuple[list[np.ndarray], list[int]]:
    coded = [codes_of(table.column(name)) for name in names if name in table.column_names]
    return [codes for codes, _ in coded], [len(values) for _, values in coded]


def _equal_rows(column: pa.ChunkedArray, first: np.ndarray, later: np.ndarray) -> np.ndarray:
    if pt.is_dictionary(column.type):
        codes, _ = codes_of(column)
        return codes[first] == codes[later]
    a, b = column.take(pa.array(first)), column.take(pa.array(later))
    equal = np.asarray(pc.fill_null(pc.equal(a, b), False))
    return equal | (np.asarray(a.is_null()) & np.asarray(b.is_null()))


def _refuse_repeat(
    table: pa.Table,
    schema: Schema,
    origins: list[Origin],
    starts: np.ndarray,
    first: int,
    later: int,
) -> None:
    """Raise for a key that stands twice, naming both places and what differs."""
    rows = table.take([first, later]).to_pylist()
    key = ", ".join(
        f"{name} {rows[0][name]!r}"
        for name in schema.key
        if rows[0].get(name) is not None and not (name == "dataset" and rows[0][name] == "default")
    )
    other = [name for name in table.column_names if rows[0][name] != rows[1][name]]
    contents = [", ".join(f"{name} {row[name]!r:.60}" for name in other) for row in rows]
    parts = [int(np.searchsorted(starts, row, side="right")) - 1 for row in (first, later)]
    place = origins[parts[0]].error("", row=first - int(starts[parts[0]]))
    at = f"row {place.row}" if place.line is None else f"line {place.line}"
    if origins[parts[0]].name != origins[parts[1]].name:
        at += f" of {place.source}"
    told = f"; first {contents[0]} ({at}), then {contents[1]}" if other else f", first in {at}"
    raise origins[parts[1]].error(
        f"{key} stands twice{told}",
        row=later - int(starts[parts[1]]),
        remedy="keep one of the two rows",
    )


def table_of(
    frame: pd.DataFrame | pa.Table, origin: Origin, schema: Schema | None = None
) -> pa.Table:
    """Arrow table of a frame, column by column, so that a message can name the column.

    The schema tells how a column that mixes types is meant; without one it must be text.
    """
    if isinstance(frame, pa.Table):
        return frame
    columns = [
        column_of_objects(
            frame.iloc[:, i],
            Column(str(name), "text" if schema is None else schema.kind(str(name))),
            origin,
        )
        for i, name in enumerate(frame.columns)
    ]
    return pa.Table.from_arrays(
        [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns],
        names=[str(name) for name in frame.columns],
    )


def table_digest(table: pa.Table) -> str:
    """SHA-256 of a table's Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def require_overlap(
    left: pa.Table | pd.DataFrame,
    right: pa.Table | pd.DataFrame,
    left_name: str,
    right_name: str,
    *,
    source: str | None = None,
) -> None:
    """Refuse two tables that share no query.

    Queries are compared by ``(dataset, query_id)``; by ``query_id`` alone where one side knows
    only the dataset ``default``, since runs and qrels rarely name a dataset.

    Raises
    ------
    InputError
        Naming an example id of each.
    """
    a, b = _query_keys(left), _query_keys(right)
    blank = any({d for d, _ in keys} == {DEFAULT_DATASET} for keys in (a, b))
    if blank:  # compare by query alone
        a_ids, b_ids = {("", q) for _, q in a}, {("", q) for _, q in b}
    else:
        a_ids, b_ids = set(a), set(b)
    if a_ids.isdisjoint(b_ids):
        (da, qa), (db, qb) = a[0], b[0]
        ids = (repr(qa), repr(qb)) if blank else (repr(f"{da}/{qa}"), repr(f"{db}/{qb}"))
        raise InputError(
            f"{left_name} and {right_name} share no query"
            f" ({left_name} has {ids[0]}, {right_name} has {ids[1]})",
            source=source,
            remedy="ids are compared as text, exactly as written",
        )


def _query_keys(table: pa.Table | pd.DataFrame) -> list[tuple[str, str]]:
    """Distinct ``(dataset, query_id)`` in order of first appearance."""
    if not isinstance(table, pa.Table):
        pairs = table[["dataset", "query_id"]].drop_duplicates()
        return list(zip(pairs["dataset"].astype(str), pairs["query_id"].astype(str), strict=True))
    pairs = table.select(["dataset", "query_id"]).group_by(["dataset", "query_id"]).aggregate([])
    return list(zip(pairs["dataset"].to_pylist(), pairs["query_id"].to_pylist(), strict=True))
