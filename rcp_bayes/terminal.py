"""What the commands write: results to stdout, everything else to stderr.

Either stream may be closed, full, or of an encoding that lacks a character: none of it may cost a
result that was worked out, or end in a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from rcp_bayes.errors import InputError


def say(*lines: str) -> None:
    """Progress and notes: to stderr."""
    if sys.stderr is None:  # closed by the caller
        return
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)  # over a line of progress
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def show(*lines: str) -> None:
    """Results: to stdout; a character that its encoding lacks is escaped.

    Raises
    ------
    InputError
        The stream takes nothing more, as on a full disk.
    BrokenPipeError
        Its reader has gone.
    """
    if sys.stdout is None:
        return
    text, encoding = "\n".join(lines), sys.stdout.encoding or "utf-8"
    if not _fits(text):
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python would write what it still holds at exit, and fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(
            f"cannot be written ({error.strerror})", source="standard output"
        ) from None


def show_json(document: dict[str, Any]) -> None:
    """One JSON document, in plain ASCII where stdout's encoding lacks a character; see `show`."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    show(text if _fits(text) else json.dumps(document, allow_nan=False, indent=2))


def present(found: Any, text: Callable[[], str], *, as_json: bool) -> None:
    """Something with `notes` and `to_json()`: notes to stderr, the rest in the form asked for."""
    for note in found.notes:
        say(f"note: {note}")
    if as_json:
        show_json(found.to_json())
    else:
        show(text())


def _fits(text: str) -> bool:
    """Whether stdout can encode a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def progress() -> Callable[[str], None] | None:
    """One-line progress on stderr when a person is looking, else nothing."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
