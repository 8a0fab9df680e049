"""Readers of the contract's inputs; the writers of `rcp_bayes.writers` are found here too.

Frames that come out have text ids (pandas' ``str``), one row for each row of the file in file
order, and in ``frame.attrs`` the ``counts`` (rows read, identical rows folded) and ``sources``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError
from rcp_bayes.files import Pathish, read_content, read_parts
from rcp_bayes.records import (
    CANDIDATES,
    CORPUS,
    EXCLUDED,
    QRELS,
    QUERIES,
    RUNS,
    STAGE_A,
    STAGE_B,
    Judgments,
    Source,
)
from rcp_bayes.tables import DEFAULT_DATASET, Part, Schema, constant, unite
from rcp_bayes.writers import atomic_file, write_qrels, write_runs, write_table

__all__ = [
    "PoolFolder",
    "atomic_file",
    "frame_of",
    "read_candidates",
    "read_corpus",
    "read_excluded",
    "read_judgments",
    "read_pool",
    "read_pool_order",
    "read_qrels",
    "read_queries",
    "read_runs",
    "read_table",
    "write_qrels",
    "write_runs",
    "write_table",
]

_RUN_LINE = ("query_id", None, "doc_id", None, "score", "system")
_TREC_RUN = {6: _RUN_LINE}
_TREC_QRELS = {4: ("query_id", None, "doc_id", "grade")}
# Lists of documents: a run, qrels, or the two ids alone.
_TREC_PAIRS = {
    6: ("query_id", None, "doc_id", None, None, None),
    4: ("query_id", None, "doc_id", None),
    2: ("query_id", "doc_id"),
}
_TABLE_SUFFIX = r"(?i:(\.parquet|\.pq|\.csv|\.tsv|\.jsonl|\.ndjson)(\.gz)?)"


def read_judgments(path: Pathish, *, criteria: Sequence[str] | None = None) -> Judgments:
    """Read a judgments folder.

    Parameters
    ----------
    path : path
        Folder with ``stage_a.*`` and ``stage_b.*``, one or both, as Parquet, CSV or JSONL, each in
        one file or several (``stage_a.parquet, stage_a-2.csv.gz``).
    criteria : sequence of str, optional
        Criteria to read, in this order. Default: every column of Stage B that the contract does not
        name, in file order.

    Raises
    ------
    InputError
        Naming file, row, column and remedy.
    """
    folder = Path(path)
    if not os.path.isdir(folder):  # unlike Path.is_dir, no error for a name that cannot be
        problem = "is a file, not a folder" if os.path.exists(folder) else "no such folder"
        raise InputError(problem, source=path, remedy="name the folder that holds stage_a.*")
    parts: dict[str, list[Part]] = {}
    sources = []
    for schema in (STAGE_A, STAGE_B):
        found = parts[schema.name] = []
        for file in _tables_in(folder, schema.name):
            content = read_content(file)
            read = read_parts(content, schema, wanted=_criterion(criteria, schema))
            found.extend(read or [(pa.table({}), Origin(content.name))])
            rows = sum(table.num_rows for table, _ in read)
            sources.append(Source(schema.name, file.name, rows, content.sha256))
    return Judgments.from_parts(
        parts["stage_a"],
        parts["stage_b"],
        criteria=criteria,
        sources=sources,
        source=os.fspath(path),
    )


def _criterion(criteria: Sequence[str] | None, schema: Schema) -> Callable[[str], bool] | None:
    if schema is not STAGE_B:
        return None
    return (lambda name: True) if criteria is None else set(criteria).__contains__


def _tables_in(folder: Path, stem: str) -> list[Path]:
    """Files of a table by name; a part's number sorts as a number."""
    try:
        names = [
            name
            for name in os.listdir(folder)
            if re.fullmatch(stem + r"([._-].*)?" + _TABLE_SUFFIX, name)
        ]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=folder) from None

    for name in names:  # to open a pipe in a folder would wait for ever
        if _is_pipe(folder / name):
            raise InputError("is a pipe, not a file", source=folder / name, remedy="save it first")

    def natural(name: str) -> list[tuple[int, str]]:
        part = re.sub(_TABLE_SUFFIX + "$", "", name)
        return [(int(p), "") if p.isdecimal() else (0, p) for p in re.split(r"(\d+)", part)]

    return [folder / name for name in sorted(names, key=natural)]


def _is_pipe(path: Path) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def read_runs(paths: Pathish | Sequence[Pathish], *, dataset: str | None = None) -> pd.DataFrame:
    """Read ranked lists.

    Parameters
    ----------
    paths : path or sequence of paths
        TREC runs (six fields; the tag is the system), or Parquet, CSV or JSONL with ``query_id,
        doc_id, score`` and perhaps ``system`` (else the file's name) and ``dataset``. Further
        columns are not read.
    dataset : str, optional
        Stands in where a file names none.

    Returns
    -------
    pd.DataFrame
        ``dataset, query_id, doc_id, score, system``, rows in the order of the files: a stable sort
        by score leaves ties in file order.

    Raises
    ------
    InputError
        A score is missing, NaN or infinite, or a document stands twice for one query of a system.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not files:
        raise InputError("no run file was named")
    return _frame(files, RUNS, trec=_TREC_RUN, dataset=dataset, system=True)


def read_qrels(paths: Pathish | Sequence[Pathish], *, dataset: str | None = None) -> pd.DataFrame:
    """Read relevance grades.

    Parameters
    ----------
    paths : path or sequence of paths
        TREC qrels (``query 0 doc grade``), BEIR tsv with its header, or Parquet, CSV or JSONL with
        ``query_id, doc_id, grade``.
    dataset : str, optional
        Stands in where a file names none.

    Returns
    -------
    pd.DataFrame
        ``dataset, query_id, doc_id, grade``; grade is float64, negative grades as they are.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return _frame(files, QRELS, trec=_TREC_QRELS, dataset=dataset)


def read_candidates(path: Pathish) -> pd.DataFrame:
    """Candidates of a pool, ``dataset, query_id, doc_id`` in pool order (the order of the file)."""
    return _frame([path], CANDIDATES, trec=_TREC_PAIRS)


def read_excluded(path: Pathish) -> pd.DataFrame:
    """Documents to leave out of rankings and ideals: ``dataset, query_id, doc_id``."""
    return _frame([path], EXCLUDED, trec=_TREC_PAIRS)


def read_queries(path: Pathish) -> pd.DataFrame:
    """Texts of queries: ``dataset, query_id, text, instruction`` (missing where there is none)."""
    return _frame([path], QUERIES)


def read_corpus(path: Pathish) -> pd.DataFrame:
    """Texts of documents: ``dataset, doc_id, title, text``."""
    return _frame([path], CORPUS)


def read_table(path: Pathish, schema: Schema) -> pa.Table:
    """One file under one schema, as a canonical table.

    Raises
    ------
    InputError
        Naming file, row, column and remedy.
    """
    content = read_content(path)
    parts = read_parts(content, schema)
    return unite(parts or [(pa.table({}), Origin(content.name))], schema)[0]


def _frame(
    paths: Sequence[Pathish],
    schema: Schema,
    *,
    trec: Mapping[int, tuple[str | None, ...]] | None = None,
    dataset: str | None = None,
    system: bool = False,
) -> pd.DataFrame:
    parts: list[Part] = []
    sources = []
    for path in paths:
        content = read_content(path)
        read = read_parts(content, schema, trec=trec)
        rows = sum(table.num_rows for table, _ in read)
        sources.append(Source(schema.name, content.name, rows, content.sha256))
        if not rows:
            raise InputError("no rows", source=path, remedy="there is nothing to read in it")
        for table, origin in read:
            if dataset is not None:
                table = _add(table, "dataset", dataset)
            if system and "model" not in table.column_names:
                table = _add(table, "system", content.stem)
            parts.append((table, origin))
    table, folded = unite(parts, schema)
    frame = frame_of(table)
    frame.attrs["counts"] = {"rows": table.num_rows + folded, "folded": folded}
    frame.attrs["sources"] = [asdict(source) for source in sources]
    return frame


def _add(table: pa.Table, name: str, value: str) -> pa.Table:
    if name in table.column_names:
        return table
    return table.append_column(name, constant(value, table.num_rows))


def frame_of(table: pa.Table) -> pd.DataFrame:
    """A canonical table as a frame, its ids and words as ``str`` columns."""
    plain = {
        name: column.cast(pa.large_string()) if pa.types.is_dictionary(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(plain).to_pandas()


@dataclass(frozen=True)
class PoolFolder:
    """What is to be judged, as frames; `excluded` and `qrels` are None where the pool has none.

    Attributes
    ----------
    queries : ``dataset, query_id, text, instruction``
    corpus : ``dataset, doc_id, title, text``
    candidates : ``dataset, query_id, doc_id``, in pool order
    excluded : ``dataset, query_id, doc_id``
    qrels : ``dataset, query_id, doc_id, grade``
    """

    queries: pd.DataFrame
    corpus: pd.DataFrame
    candidates: pd.DataFrame
    excluded: pd.DataFrame | None
    qrels: pd.DataFrame | None


def read_pool(path: Pathish) -> PoolFolder:
    """Read a pool folder; every candidate must have the text of its query and its document.

    Raises
    ------
    InputError
        A file is missing or unreadable, or a candidate has no text.
    """
    pool = PoolFolder(
        queries=read_queries(_pool_file(path, "queries")),
        corpus=read_corpus(_pool_file(path, "corpus")),
        candidates=read_candidates(_pool_file(path, "candidates")),
        excluded=_maybe(read_excluded, _pool_file(path, "excluded", required=False)),
        qrels=_maybe(read_qrels, _pool_file(path, "qrels", required=False)),
    )
    for name, texts in (("query_id", pool.queries), ("doc_id", pool.corpus)):
        keys = ["dataset", name]
        if set(texts["dataset"]) == {DEFAULT_DATASET}:  # BEIR texts name no dataset
            keys = [name]
        wanted = pd.MultiIndex.from_frame(pool.candidates[keys])
        known = wanted.isin(pd.MultiIndex.from_frame(texts[keys]))
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            file = "queries" if name == "query_id" else "corpus"
            raise InputError(
                f"{name} {pool.candidates[name].iloc[row]!r} has no text in {file}.jsonl",
                source=_pool_file(path, "candidates"),
                row=row + 1,
                column=name,
                remedy="add its text or drop the row",
            )
    return pool


def read_pool_order(path: Pathish) -> pd.DataFrame:
    """Candidates of a pool folder, or of a candidates file itself, in pool order."""
    return read_candidates(_pool_file(path, "candidates") if os.path.isdir(path) else path)


def read_pool_excluded(path: Pathish) -> pd.DataFrame | None:
    """The exclusions of a pool folder: ``dataset, query_id, doc_id``; None where it has none."""
    if not os.path.isdir(path):
        return None  # candidates alone
    return _maybe(read_excluded, _pool_file(path, "excluded", required=False))


def _maybe(read: Callable[[Path], pd.DataFrame], path: Path | None) -> pd.DataFrame | None:
    return None if path is None else read(path)


def _pool_file(path: Pathish, stem: str, *, required: bool = True) -> Any:
    """The one file of a pool with this name, None where an optional one is not there."""
    folder = Path(path)
    if not os.path.isdir(folder):
        raise InputError("no such folder", source=path, remedy="name a pool folder")
    pattern = stem + r"(\.parquet|\.pq|\.csv|\.tsv|\.jsonl|\.ndjson|\.trec|\.txt)(\.gz)?"
    names = sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))
    if len(names) > 1:
        raise InputError(
            f"{names[0]} and {names[1]} are both there", source=path, remedy="keep one of them"
        )
    if names:
        return folder / names[0]
    if required:
        raise InputError(f"{stem}.* is missing", source=path, remedy="a pool folder needs it")
    return None
