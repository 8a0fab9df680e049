"""One column at a time: what a reader hands over becomes the canonical type, or a clear refusal.

All checks run on whole arrays; a row is looked for only when one failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from rcp_bayes.coding import join_vocabularies
from rcp_bayes.errors import InputError

Kind = Literal["id", "word", "text", "real", "integer", "bit"]

ID = pa.dictionary(pa.int32(), pa.string())
CANONICAL: dict[str, pa.DataType] = {
    "id": ID,
    "word": ID,
    "text": pa.large_string(),
    "real": pa.float64(),
    "integer": pa.int64(),
    "bit": pa.int8(),
}

# What a text format writes where a value is missing. Ids are exempt: a document may be called "NA".
_MISSING_TEXT = pa.array(["", "nan", "null", "none", "na", "<na>"])
_MOST = 2**31 - 1
_TEXT_REMEDY = "write ids as text or as whole numbers"
_NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?)$"


@dataclass(frozen=True)
class Column:
    """Meaning of a column.

    Attributes
    ----------
    name : str
    kind : {"id", "word", "text", "real", "integer", "bit"}
        ``id``: never missing, verbatim text. ``word``: a category. ``text``: free text. ``bit``: 0
        or 1.
    required : bool
        The table is refused without the column.
    nullable : bool
        A value may be missing (null, NaN); never so for an id.
    low, high : float, optional
        Bounds of a number, both inclusive.
    aliases : tuple of str
        Other names of the same column (BEIR's, for instance); the name itself comes first.
    default : str, optional
        Stands in where the column or an id in it is missing.
    """

    name: str
    kind: Kind
    required: bool = True
    nullable: bool = False
    low: float | None = None
    high: float | None = None
    aliases: tuple[str, ...] = ()
    default: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Origin:
    """Where rows come from, so that a message can point at them.

    Attributes
    ----------
    name : str
        File or table.
    lines : (n,) int array, optional
        Line of each row in a text file; None where rows are counted instead.
    columns : tuple of str, optional
        Every column that the file has, those not read included.
    """

    name: str
    lines: np.ndarray | None = None
    columns: tuple[str, ...] | None = None

    def error(
        self,
        message: str,
        *,
        row: int | None = None,
        column: str | None = None,
        remedy: str | None = None,
    ) -> InputError:
        """An `InputError` at 0-based `row`."""
        if row is not None and self.lines is not None:
            line = int(self.lines[row])
            return InputError(message, source=self.name, line=line, column=column, remedy=remedy)
        number = None if row is None else int(row) + 1
        return InputError(message, source=self.name, row=number, column=column, remedy=remedy)


def canonical_column(array: pa.ChunkedArray, column: Column, origin: Origin) -> pa.Array:
    """Cast and check one column.

    Raises
    ------
    InputError
        Naming the first row that does not fit.
    """
    whole = _one_array(array)
    _require_utf8(whole, column, origin)
    if column.kind in ("id", "word"):
        return _category(whole, column, origin)
    if column.kind == "text":
        return _text(whole, column, origin)
    return _number(whole, column, origin)


def column_of_objects(values: Any, column: Column, origin: Origin) -> pa.Array:
    """Arrow array of Python values, as a text format or an object column of pandas holds them.

    Whole numbers and text may be mixed, even in an id column: 42 and ``"42"`` are the same id.
    Values of several types become their text, which is then read as the column's kind.
    """
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        pass
    texts: list[str | None] = []
    for row, value in enumerate(values):  # rare: a column of one type never comes here
        if value is None or value is pd.NA or (isinstance(value, float) and value != value):
            texts.append(None)
            continue
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if column.kind in ("id", "word", "text") and not (isinstance(value, str) or whole):
            raise origin.error(
                f"{value!r:.80} is not text", row=row, column=column.name, remedy=_TEXT_REMEDY
            )
        text = str(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise origin.error(
                    f"{value!r:.80} is not Unicode text", row=row, column=column.name
                ) from None
        texts.append(text)
    return pa.array(texts, pa.large_string())


def _one_array(array: pa.ChunkedArray) -> pa.Array:
    if pt.is_dictionary(array.type) and array.num_chunks > 1:
        array = array.unify_dictionaries()
    whole = array.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # no chunk at all, or more text than one array holds
        whole = pa.concat_arrays(whole.cast(_wide(whole.type)).chunks or [pa.array([], whole.type)])
    return whole


def _require_utf8(array: pa.Array, column: Column, origin: Origin) -> None:
    """Refuse text that is not UTF-8, which Parquet does not check when it is written or read."""
    coded = pt.is_dictionary(array.type)
    texts = array.dictionary if coded else array
    if not _is_text(texts.type):
        return
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        bad = [i for i, raw in enumerate(texts.cast(pa.large_binary())) if not _is_utf8(raw)]
        row = _where(pc.is_in(array.indices.cast(pa.int64()), pa.array(bad))) if coded else bad[0]
        if row is not None:
            raise origin.error(
                "bytes that are not UTF-8 text",
                row=row,
                column=column.name,
                remedy="write the text again as UTF-8",
            ) from None


def _is_utf8(raw: pa.Scalar) -> bool:
    try:
        (raw.as_py() or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if pt.is_string(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind)


def _where(mask: pa.Array) -> int | None:
    """First row at which a boolean array is true."""
    found = np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
    return int(found[0]) if len(found) else None


def _category(array: pa.Array, column: Column, origin: Origin) -> pa.Array:
    if pt.is_dictionary(array.type):
        values = array.dictionary
        if not _is_text(values.type) or values.null_count:
            return _category(array.cast(array.type.value_type), column, origin)
        # A dictionary may name a value twice or hold another string type.
        (translation,), vocabulary = join_vocabularies([values])
        indices = array.indices.cast(pa.int32())
        if len(vocabulary) < len(values):
            indices = pc.take(pa.array(translation), indices)
        coded = pa.DictionaryArray.from_arrays(indices, vocabulary)
    elif pt.is_null(array.type):
        coded = pa.nulls(len(array), ID)
    elif _is_text(array.type):
        coded = _encode(array)
    elif pt.is_integer(array.type):
        coded = _encode(array.cast(pa.string()))
    elif _is_bytes(array.type):
        try:
            coded = _encode(array.cast(pa.binary()).cast(pa.string()))
        except pa.ArrowInvalid:
            raise origin.error("bytes that are not UTF-8 text", column=column.name) from None
    else:
        coded = _refuse_category(array, column, origin)
    return _check_category(coded, column, origin)


def _encode(array: pa.Array) -> pa.DictionaryArray:
    coded = array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        coded.indices.cast(pa.int32()), coded.dictionary.cast(pa.string())
    )


def _refuse_category(array: pa.Array, column: Column, origin: Origin) -> pa.Array:
    """Numbers with a fraction, truth values, lists: only a column without any value passes."""
    if pt.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    row = _where(pc.is_valid(array))
    if row is None:
        return pa.nulls(len(array), ID)
    value = array[row].as_py()
    if column.kind == "id":
        remedy = _TEXT_REMEDY
        if pt.is_floating(array.type):
            remedy += " (a missing value turns pandas integers into decimals)"
        raise origin.error(f"id {value!r} is not text", row=row, column=column.name, remedy=remedy)
    raise origin.error(
        f"value {value!r} is not text", row=row, column=column.name, remedy="write a name or null"
    )


def _check_category(coded: pa.DictionaryArray, column: Column, origin: Origin) -> pa.Array:
    empty = pc.index(coded.dictionary, "").as_py()
    if empty >= 0:
        blank = pc.equal(coded.indices, empty)
        coded = pa.DictionaryArray.from_arrays(
            pc.if_else(blank, pa.scalar(None, pa.int32()), coded.indices), coded.dictionary
        )
    if coded.null_count and column.kind == "id":
        if column.default is None:
            raise origin.error(
                "an id is missing",
                row=_where(pc.is_null(coded)),
                column=column.name,
                remedy="fill it in or drop the row",
            )
        (own, extra), vocabulary = join_vocabularies([coded.dictionary, pa.array([column.default])])
        indices = pc.fill_null(pc.take(pa.array(own), coded.indices), int(extra[0]))
        coded = pa.DictionaryArray.from_arrays(indices, vocabulary)
    return coded


def missing_words(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text column in which what text formats write for a missing value is null."""
    blank = pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(array)), value_set=_MISSING_TEXT)
    return pc.if_else(blank, pa.scalar(None, array.type), array)


def _text(array: pa.Array, column: Column, origin: Origin) -> pa.Array:
    if pt.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if not (_is_text(array.type) or pt.is_null(array.type)):
        raise origin.error(f"holds {array.type}, not text", row=0, column=column.name)
    if array.null_count and not column.nullable:
        raise origin.error("the text is missing", row=_where(pc.is_null(array)), column=column.name)
    return array.cast(pa.large_string())


def _number(array: pa.Array, column: Column, origin: Origin) -> pa.Array:
    if pt.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if _is_text(array.type):
        array = _parse(array, column, origin)
    elif pt.is_boolean(array.type) and column.kind == "bit":
        array = array.cast(pa.int8())
    elif not (
        pt.is_integer(array.type)
        or pt.is_floating(array.type)
        or pt.is_decimal(array.type)
        or pt.is_null(array.type)
    ):
        row = _where(pc.is_valid(array))
        if row is not None:
            value = array[row].as_py()
            raise _wrong(origin, column, row, f"{value!r:.80} is not a number")
        array = pa.nulls(len(array))
    if not pt.is_integer(array.type) or column.kind == "real" or pt.is_uint64(array.type):
        array = array.cast(pa.float64(), safe=False)
        nan = pc.is_nan(array)
        if pc.any(nan).as_py():
            array = pc.if_else(nan, pa.scalar(None, pa.float64()), array)
    _check_number(array, column, origin)
    return array.cast(CANONICAL[column.kind], safe=column.kind != "real")


def _parse(array: pa.Array, column: Column, origin: Origin) -> pa.Array:
    trimmed = missing_words(pc.utf8_trim_whitespace(array))
    if column.kind == "bit":
        lower = pc.utf8_lower(trimmed)
        trimmed = pc.if_else(pc.equal(lower, "true"), "1", trimmed.cast(pa.string()))
        trimmed = pc.if_else(pc.equal(lower, "false"), "0", trimmed)
    row = _where(pc.invert(pc.match_substring_regex(trimmed, _NUMBER)))
    if row is not None:
        value = array[row].as_py()
        raise _wrong(origin, column, row, f"{value[:80]!r} is not a number")
    return trimmed.cast(pa.float64())


def _check_number(array: pa.Array, column: Column, origin: Origin) -> None:
    name = column.name
    if array.null_count and not column.nullable:
        row = _where(pc.is_null(array))
        raise origin.error("a value is missing or NaN", row=row, column=name, remedy="drop the row")
    if not len(array) or array.null_count == len(array):
        return
    if pt.is_floating(array.type):
        row = _where(pc.is_inf(array))
        if row is not None:
            raise _wrong(origin, column, row, f"value {array[row].as_py()} is infinite")
    if column.kind == "bit":
        row = _where(pc.invert(pc.or_(pc.equal(array, 0), pc.equal(array, 1))))
        if row is not None:
            raise _wrong(
                origin,
                column,
                row,
                f"criterion value {_digits(array[row].as_py())} is neither 0 nor 1",
            )
        return
    if column.kind == "integer" and pt.is_floating(array.type):
        row = _where(pc.not_equal(array, pc.floor(array)))
        if row is not None:
            raise _wrong(origin, column, row, f"value {array[row].as_py()} is not a whole number")
    extremes = pc.min_max(array)
    for bound, worst, outside in (
        (column.low, extremes["min"].as_py(), pc.less),
        (_highest(column), extremes["max"].as_py(), pc.greater),
    ):
        if bound is not None and (worst < bound if outside is pc.less else worst > bound):
            row = _where(outside(array, bound))
            value = array[row].as_py()
            raise _wrong(origin, column, row, f"value {_digits(value)} is {_range(column)}")


def _highest(column: Column) -> float | None:
    """Upper bound of a number; counts and places are held in 32 bits."""
    return _MOST if column.high is None and column.kind == "integer" else column.high


def _range(column: Column) -> str:
    low, high = column.low, _highest(column)
    if low is not None and high is not None:
        return f"outside [{_digits(low)}, {_digits(high)}]"
    return f"below {_digits(low)}" if low is not None else f"above {_digits(high)}"


def _digits(value: Any) -> str:
    """A number as short as it can be without becoming another one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _wrong(origin: Origin, column: Column, row: int | None, problem: str) -> InputError:
    """A value that the column cannot hold, with the remedy of its kind."""
    return origin.error(problem, row=row, column=column.name, remedy=_correct(column))


def _correct(column: Column) -> str:
    if column.kind == "bit":
        return "write 0, 1 or null, or name the criteria to be read (--criteria)"
    return "correct it, or write null if it is missing" if column.nullable else "correct the row"
