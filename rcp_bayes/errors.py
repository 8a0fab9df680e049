"""Errors a caller is meant to catch, one class per exit code of the command line.

Everything else that escapes the package is a bug. The codes are those of the contract: 2 wrong
usage, 3 unusable input, 4 the judge's server could not be used.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar


class RcpError(Exception):
    """Base of the package's own errors; ``str()`` is always a single line."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


class UsageError(RcpError, ValueError):
    """A command or a function was asked for something it does not do."""

    exit_code: ClassVar[int] = 2


class InputError(RcpError, ValueError):
    """A file or a table that cannot be used as it is.

    Parameters
    ----------
    message : str
        What is wrong, with the offending value.
    source : path-like, optional
        File, folder or name of the table.
    row : int, optional
        1-based row of the table; a header does not count.
    line : int, optional
        1-based line of a text file, blank lines counted.
    column : str, optional
        Name of the column.
    remedy : str, optional
        What the reader of the message can do about it.

    Notes
    -----
    ``str()`` reads ``SOURCE: row R, column C: message; remedy``, absent parts left out.
    """

    exit_code: ClassVar[int] = 3

    def __init__(
        self,
        message: str,
        *,
        source: str | os.PathLike[str] | None = None,
        row: int | None = None,
        line: int | None = None,
        column: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.message = message
        self.source = None if source is None else os.fspath(source)
        self.row = row
        self.line = line
        self.column = column
        self.remedy = remedy
        place = ", ".join(
            part
            for part in (
                None if row is None else f"row {row}",
                None if line is None else f"line {line}",
                None if column is None else f"column {column}",
            )
            if part
        )
        text = ": ".join(part for part in (self.source, place, message) if part)
        super().__init__(f"{text}; {remedy}" if remedy else text)

    def __reduce__(self):
        # The default would call the class with the composed text alone and lose the parts.
        parts = {"source": self.source, "row": self.row, "line": self.line}
        return (_rebuild, (self.message, {**parts, "column": self.column, "remedy": self.remedy}))


def _rebuild(message: str, parts: dict[str, Any]) -> InputError:
    return InputError(message, **parts)


class JudgeError(RcpError):
    """The judge's server could not be used; what was answered so far is kept."""

    exit_code: ClassVar[int] = 4
