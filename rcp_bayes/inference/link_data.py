"""What goes into a calibration: checked before the fit, and what it cannot tell, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rcp_bayes.errors import InputError

_NAMED = 5
"""Names that a warning lists before it says how many more there are."""


class LinkData(NamedTuple):
    """Documents (D,) of a calibration as arrays: see `rcp_bayes.inference.map.fit_two_pl`."""

    ability: np.ndarray
    query: np.ndarray
    n_placements: np.ndarray
    passes: np.ndarray


def checked_data(
    ability: Any, query: Any, n_placements: Any, passes: Any, n_queries: int
) -> LinkData:
    """The inputs as arrays, counts as float64.

    Raises
    ------
    InputError
        Arrays that do not fit together; a number that is not finite or not possible, with its
        (1-based) document and column; no response at all.
    """
    ability = np.asarray(ability, dtype=np.float64)
    query, placed = np.asarray(query), np.asarray(n_placements, dtype=np.float64)
    counts = np.asarray(passes, dtype=np.float64)
    lengths = [array.shape[:1] for array in (query, placed, counts)]
    if ability.ndim != 1 or any(length != ability.shape for length in lengths):
        shapes = ", ".join(str(array.shape) for array in (ability, query, placed, counts))
        raise InputError(
            f"ability, query, n_placements and passes have the shapes {shapes}",
            remedy="give one entry, and one row of passes, for every document",
        )
    if counts.ndim != 2 or counts.shape[1] == 0:
        raise InputError("passes need a column for each of one or more criteria")
    _refuse("ability", ability, ~np.isfinite(ability), "is not a finite number")
    impossible = ~((query >= 0) & (query < n_queries) & (query == np.floor(query)))
    _refuse("query", query, impossible, f"is not a query from 0 to {n_queries - 1}")
    _refuse("n_placements", placed, ~_is_count(placed), "is not a count")
    for c, column in enumerate(counts.T):
        impossible = ~_is_count(column) | (column > placed)
        _refuse(f"passes[{c}]", column, impossible, "is not a count of at most n_placements")
    if not placed.sum():
        raise InputError("there is no Stage B response to calibrate with")
    return LinkData(ability, query.astype(np.int64), placed, counts)


def checked_items(items: tuple[Any, Any], n_criteria: int) -> tuple[np.ndarray, np.ndarray]:
    """Criterion parameters to hold, (C,) each; any scale, and sums other than C, are accepted."""
    gamma, beta = (np.asarray(parameter, dtype=np.float64) for parameter in items)
    if gamma.shape != (n_criteria,) or beta.shape != (n_criteria,):
        raise InputError(
            f"{gamma.size} discriminations and {beta.size} difficulties are held"
            f" for {n_criteria} criteria"
        )
    if not (np.isfinite(gamma).all() and np.isfinite(beta).all() and (gamma > 0.0).all()):
        raise InputError("held discriminations must be positive, and held difficulties finite")
    return gamma, beta


def untold(
    data: LinkData,
    n_queries: int,
    criterion_names: Sequence[str] | None,
    query_names: Sequence[str] | None,
) -> tuple[str, ...]:
    """Warnings of what the answers leave to the priors, each ending in a name in parentheses."""
    answered = data.n_placements > 0
    ability, query, placed, passes = (array[answered] for array in data)
    n_criteria = passes.shape[1]
    documents = np.bincount(query, minlength=n_queries)
    answers = n_criteria * np.bincount(query, weights=placed, minlength=n_queries)
    passed = np.bincount(query, weights=passes.sum(axis=1), minlength=n_queries)
    # Whether any document's score differs from that of its query's first.
    first = np.zeros(n_queries)
    first[query[::-1]] = ability[::-1]
    spread = np.bincount(query, weights=ability != first[query], minlength=n_queries) > 0
    total = passes.sum(axis=0)

    criteria = _named("criterion", n_criteria) if criterion_names is None else criterion_names
    queries = _named("query", n_queries) if query_names is None else query_names
    easy, hard = total == placed.sum(), total == 0
    some = answers > 0
    found = [
        _warning(criteria, easy, "passed by every response", "difficulty", "always_passed"),
        _warning(criteria, hard, "passed by no response", "difficulty", "never_passed"),
        _warning(queries, ~some, "without a response", "scale and offset", "no_response"),
        _warning(queries, some & (passed == answers), "passing everything", "level", "all_passed"),
        _warning(queries, some & (passed == 0), "failing everything", "level", "all_failed"),
        _warning(queries, documents == 1, "of one document", "scale", "one_document"),
        _warning(queries, (documents > 1) & ~spread, "of one Stage A score", "scale", "one_score"),
    ]
    return tuple(text for text in found if text)


def _named(what: str, count: int) -> list[str]:
    return [f"{what} {k}" for k in range(count)]


def _warning(
    names: Sequence[str], flags: np.ndarray, what: str, guessed: str, identifier: str
) -> str:
    """One line, such as "criterion 0 passed by every response: only the prior ..."; or nothing."""
    flagged = np.flatnonzero(flags)
    if not len(flagged):
        return ""
    listed = ", ".join(str(names[k]) for k in flagged[:_NAMED])
    more = f" and {len(flagged) - _NAMED} more" if len(flagged) > _NAMED else ""
    return f"{listed}{more}: {what}, so that only the prior bounds the {guessed} ({identifier})"


def _is_count(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 0.0) & (values == np.floor(values))


def _refuse(column: str, values: np.ndarray, bad: np.ndarray, problem: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"{values[row]:g} {problem}", row=row + 1, column=column)
