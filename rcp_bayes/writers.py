"""Writers that never leave half a file under its final name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError
from rcp_bayes.files import Pathish
from rcp_bayes.tables import table_of


@contextmanager
def atomic_file(path: Pathish, mode: str = "wb") -> Iterator[IO[Any]]:
    """A file that appears under its name only once it is written whole and on disk.

    Raises
    ------
    InputError
        The place cannot be written.
    """
    where = Path(path)
    temporary = None
    encoding = None if "b" in mode else "utf-8"
    newline = None if "b" in mode else "\n"
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{where.name}.", dir=where.parent)
        with os.fdopen(handle, mode, encoding=encoding, newline=newline) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, where)
        temporary = None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be written ({reason})", source=path) from None
    finally:
        if temporary is not None:
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_table(table: pd.DataFrame | pa.Table, path: Pathish) -> None:
    """Write Parquet, CSV or JSONL, by the file's suffix; atomic.

    Raises
    ------
    InputError
        The suffix is none of these, or the place cannot be written.
    """
    where = Path(path)
    suffix = where.suffix.lower()
    arrow = table_of(table, Origin(where.name))
    if suffix in (".parquet", ".pq"):
        with atomic_file(where) as file:
            pq.write_table(arrow, file, compression="zstd")
    elif suffix == ".csv":
        plain = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c
                 for c in arrow.columns]  # fmt: skip
        with atomic_file(where) as file:
            pa_csv.write_csv(pa.Table.from_arrays(plain, names=arrow.column_names), file)
    elif suffix in (".jsonl", ".ndjson"):
        with atomic_file(where, "w") as file:
            arrow.to_pandas().to_json(
                file, orient="records", lines=True, force_ascii=False, double_precision=15
            )
    else:
        raise InputError(
            "is of an unknown format",
            source=path,
            remedy="write .parquet, .csv or .jsonl",
        )


def write_qrels(qrels: pd.DataFrame, path: Pathish) -> None:
    """Write TREC qrels, ``query 0 doc grade``; atomic."""
    grades = [f"{grade:g}" for grade in qrels["grade"]]
    zeros = ["0"] * len(grades)
    _write_trec(path, qrels, [qrels["query_id"], zeros, qrels["doc_id"], grades])


def write_runs(runs: pd.DataFrame, path: Pathish) -> None:
    """Write a TREC run, six fields a line in the frame's order, rank by its place; atomic."""
    rank = runs.groupby(["system", "query_id"], sort=False).cumcount() + 1
    scores = [repr(float(score)) for score in runs["score"]]
    fixed = ["Q0"] * len(scores)
    columns = [runs["query_id"], fixed, runs["doc_id"], rank.astype(str), scores, runs["system"]]
    _write_trec(path, runs, columns)


def _write_trec(path: Pathish, frame: pd.DataFrame, columns: Sequence[Any]) -> None:
    for name in ("query_id", "doc_id", "system"):
        if name in frame:
            bad = np.flatnonzero(frame[name].astype(str).str.contains(r"[ \t\n\r\f\v]|^$"))
            if len(bad):
                raise InputError(
                    f"id {frame[name].iloc[bad[0]]!r} is empty or holds a blank",
                    source=path,
                    row=int(bad[0]) + 1,
                    column=name,
                    remedy="TREC files cannot hold it; write Parquet",
                )
    with atomic_file(path, "w") as file:
        file.writelines(" ".join(row) + "\n" for row in zip(*columns, strict=True))
