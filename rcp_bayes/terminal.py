"""What the commands write: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def say(*lines: str) -> None:
    """Progress and notes: to stderr."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)  # over a line of progress
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def show(*lines: str) -> None:
    """Results: to stdout."""
    print(*lines, sep="\n", flush=True)


def show_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2))


def progress() -> Callable[[str], None] | None:
    """One-line progress on stderr when a person is looking, else nothing."""
    if not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
