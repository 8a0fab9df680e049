"""Bytes of a file as raw tables: Parquet, CSV, JSONL and TREC text, each also gzipped.

What comes out is unchecked; `rcp_bayes.tables` checks it. Ids are never type-inferred: CSV and TREC
columns stay text here.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import itertools
import json
import operator
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rcp_bayes.columns import Column, Origin, column_of_objects, missing_words
from rcp_bayes.errors import InputError
from rcp_bayes.tables import Part, Schema

_JSON_CHUNK = 50_000  # lines parsed at once, so that Python objects of a whole file never coexist
TABLE_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".jsonl", ".ndjson")
Wanted = Callable[[str], bool]
Pathish = str | os.PathLike[str]


@dataclass(frozen=True)
class Content:
    """A file's bytes, decompressed.

    Attributes
    ----------
    name : str
        Path as given, for messages.
    stem, suffix : str
        File name in two, without ``.gz``; the suffix is lower case and empty where it is none that
        the package knows, so that a run called ``input.bm25`` keeps its whole name.
    data : bytes
    sha256 : str
        Of the file as it lies on disk.
    """

    name: str
    stem: str
    suffix: str
    data: bytes
    sha256: str


def read_content(path: Pathish) -> Content:
    """Read a file whole.

    Raises
    ------
    InputError
        It is not there, a folder, unreadable, or called ``.gz`` without being gzip.
    """
    where = Path(path)
    try:
        data = where.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", source=path) from None
    except IsADirectoryError:
        raise InputError("is a folder, not a file", source=path, remedy="name a file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read ({reason})", source=path) from None
    digest = hashlib.sha256(data).hexdigest()
    name = os.fsencode(where.name).decode("utf-8", "replace")  # a system may be called by it
    if name.lower().endswith(".gz"):
        name = name[:-3]
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"is not a whole gzip file ({error})",
                source=path,
                remedy="compress it again, or drop .gz from its name if it is not compressed",
            ) from None
    stem, suffix = os.path.splitext(name)
    if suffix.lower() not in (*TABLE_SUFFIXES, ".txt", ".trec", ".run", ".qrels", ".qrel"):
        stem, suffix = name, ""
    return Content(os.fspath(path), stem, suffix.lower(), data, digest)


def read_parts(
    content: Content,
    schema: Schema,
    *,
    wanted: Wanted | None = None,
    trec: Mapping[int, tuple[str | None, ...]] | None = None,
) -> list[Part]:
    """Raw tables of one file, of which together the rows stand in file order.

    Parameters
    ----------
    content : Content
    schema : Schema
        Tells ids from free text; its columns are read, others not.
    wanted : callable, optional
        Further columns to read, by name.
    trec : mapping, optional
        Meaning of the fields of a TREC line, by their number; None: the file is a table always.

    Raises
    ------
    InputError
        The file is damaged or of another format; the line is named where it is known.
    """

    def take(name: str) -> bool:
        return schema.reads(name) or (wanted is not None and wanted(name))

    if content.suffix in (".parquet", ".pq"):
        return [_parquet(content, schema, take)]
    if content.suffix in (".jsonl", ".ndjson"):
        return _jsonl(content, schema, take)
    if content.suffix == ".csv":
        return [_csv(content, schema, take, ",")]
    if trec is None:
        if content.suffix == ".tsv":
            return [_csv(content, schema, take, "\t")]
        raise InputError(
            "is of an unknown format",
            source=content.name,
            remedy=f"known are {', '.join(TABLE_SUFFIXES)}, each also with .gz",
        )
    head = content.data[:10_000].split(b"\n", 1)[0].decode("utf-8-sig", "replace").strip()
    fields = set(head.split("\t"))
    if all(fields.intersection(c.names) for c in schema.columns if c.required):
        return [_csv(content, schema, take, "\t")]  # BEIR: tabs and a header
    return [_trec(content, schema, trec)]


def _one_line(error: Exception) -> str:
    """First sentence of a library's message, without its advice to programmers."""
    return " ".join(str(error).split()).split(" (", 1)[0][:200].rstrip(". ")


def _parquet(content: Content, schema: Schema, take: Wanted) -> Part:
    origin = Origin(content.name)
    try:
        file = pq.ParquetFile(pa.BufferReader(content.data), pre_buffer=False)
        arrow = file.schema_arrow
        names = [name for name in arrow.names if take(name)]
        coded = [
            field.name
            for field in arrow
            if schema.kind(field.name) in ("id", "word")
            and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
        ]
        if coded:  # ids stay dictionary-encoded: codes are read, not text
            file = pq.ParquetFile(
                pa.BufferReader(content.data), read_dictionary=coded, pre_buffer=False
            )
        return file.read(columns=names), Origin(content.name, columns=tuple(arrow.names))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise origin.error(
            f"is not a whole Parquet file ({_one_line(error)})", remedy="write or copy it again"
        ) from None


def _is_blank(content: Content) -> bool:
    return not content.data.removeprefix(codecs.BOM_UTF8).strip()


def _csv(content: Content, schema: Schema, take: Wanted, delimiter: str) -> Part:
    origin = Origin(content.name)
    if _is_blank(content):
        return pa.table({}), origin
    try:
        text = io.TextIOWrapper(io.BytesIO(content.data), "utf-8-sig", newline="")
        header = next(csv.reader(text, delimiter=delimiter))
        twice = next((name for name in header if take(name) and header.count(name) > 1), None)
        if twice is not None:
            raise origin.error("the column stands twice", column=twice, remedy="rename one of them")
        origin = Origin(content.name, columns=tuple(header))
        names = [name for name in header if take(name)] or header[:1]
        if not any(map(str.strip, text)):  # Arrow refuses a header that no line end follows
            return pa.table({name: pa.array([], pa.string()) for name in names}), origin
        table = pa_csv.read_csv(
            pa.BufferReader(content.data),
            # One block: a row may be longer than any block size one could choose.
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=min(len(content.data) + 1, 2**31 - 2)
            ),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=names,
                column_types={name: pa.string() for name in names},
                strings_can_be_null=False,
            ),
        )
    except (UnicodeDecodeError, pa.ArrowException, csv.Error) as error:
        _refuse_encoding(content)
        found = re.search(r"Row #(\d+): (.*)", str(error), re.DOTALL)
        if not found:
            raise origin.error(f"is not a CSV file ({_one_line(error)})") from None
        problem = " ".join(found[2].split())[:200]
        raise origin.error(problem, row=int(found[1]) - 2, remedy="quote or correct it") from None
    for i, name in enumerate(names):
        if schema.kind(name) == "word":
            table = table.set_column(i, name, missing_words(table.column(i)))
    return table, origin


def _refuse_encoding(content: Content) -> None:
    """Raise where the text is not UTF-8, naming the line."""
    try:
        content.data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{content.data[error.start]:02x} is not UTF-8 text",
            source=content.name,
            line=content.data.count(b"\n", 0, error.start) + 1,
            remedy="save the file as UTF-8",
        ) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)!r} stands twice")
    return row


def _jsonl(content: Content, schema: Schema, take: Wanted) -> list[Part]:
    _refuse_encoding(content)
    texts = content.data.decode("utf-8-sig").split("\n")
    numbers = np.flatnonzero(np.fromiter(map(bool, map(str.strip, texts)), bool, len(texts)))
    chunks: list[tuple[dict[str, pa.Array], np.ndarray]] = []
    there: dict[str, None] = {}
    names: dict[str, None] = {}
    for start in range(0, len(numbers), _JSON_CHUNK):
        lines = numbers[start : start + _JSON_CHUNK]
        rows = _json_rows([texts[i] for i in lines], lines + 1, content.name)
        origin = Origin(content.name, lines + 1)
        keys = dict.fromkeys(itertools.chain.from_iterable(rows))
        found = [name for name in keys if take(name)] or list(keys)[:1]
        there.update(keys)
        names.update(dict.fromkeys(found))
        arrays = {}
        for name in found:
            column = Column(name, schema.kind(name))
            arrays[name] = column_of_objects(
                list(map(operator.methodcaller("get", name), rows)), column, origin
            )
        chunks.append((arrays, lines + 1))
    return [
        (
            pa.table({n: arrays.get(n, pa.nulls(len(lines))) for n in names}),
            Origin(content.name, lines, tuple(there)),
        )
        for arrays, lines in chunks
    ]


def _json_rows(texts: list[str], lines: np.ndarray, name: str) -> list[dict[str, Any]]:
    """One object a line, all parsed in one call; a bad line is looked for only if that fails."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique_keys)
    try:
        rows = decoder.decode("[" + ",".join(texts) + "]")
        if len(rows) == len(texts) and set(map(type, rows)) <= {dict}:
            return rows
    except (ValueError, RecursionError):
        pass
    for text, line in zip(texts, lines, strict=True):
        problem = "is not a JSON object"
        try:
            if isinstance(decoder.decode(text.strip()), dict):
                continue
        except (ValueError, RecursionError) as error:
            problem += f" ({_one_line(error)})"
        raise InputError(
            problem, source=name, line=int(line), remedy="a JSONL file has one object on each line"
        )
    raise InputError("lines do not hold one JSON object each", source=name)


def _trec(content: Content, schema: Schema, trec: Mapping[int, tuple[str | None, ...]]) -> Part:
    if _is_blank(content):
        return pa.table({}), Origin(content.name)
    try:
        lines = pa_csv.read_csv(
            pa.BufferReader(content.data),
            read_options=pa_csv.ReadOptions(column_names=["line"], block_size=1 << 24),
            parse_options=pa_csv.ParseOptions(
                delimiter="\x1f", quote_char=False, ignore_empty_lines=False
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types={"line": pa.string()}, strings_can_be_null=False
            ),
        ).column("line")
    except pa.ArrowException as error:
        _refuse_encoding(content)
        raise InputError(
            f"cannot be read as TREC {schema.name} ({_one_line(error)})", source=content.name
        ) from None
    trimmed = pc.ascii_trim_whitespace(lines)
    filled = pc.not_equal(trimmed, "")
    numbers = np.flatnonzero(filled.to_numpy()) + 1
    origin = Origin(content.name, numbers)
    fields = pc.ascii_split_whitespace(trimmed.filter(filled))
    n_fields = pc.list_value_length(fields).to_numpy()
    width = int(n_fields[0]) if n_fields[0] in trec else min(trec, key=lambda n: (n != 6, n))
    bad = np.flatnonzero(n_fields != width)
    if len(bad):
        raise origin.error(
            f"{n_fields[bad[0]]} fields where {_wanted_fields(schema, trec)}",
            row=int(bad[0]),
            remedy="separate them by blanks or tabs; an id cannot hold a blank",
        )
    columns = {}
    for i, name in enumerate(trec[width]):
        if name is not None:
            picked = [
                chunk.flatten().take(pa.array(np.arange(i, len(chunk) * width, width)))
                for chunk in fields.chunks
            ]
            columns[name] = pa.chunked_array(picked, pa.string())
    return pa.table(columns), origin


def _wanted_fields(schema: Schema, trec: Mapping[int, tuple[str | None, ...]]) -> str:
    return f"TREC {schema.name} have {' or '.join(map(str, sorted(trec, reverse=True)))}"
