"""Valid windows of Stage A and valid answers of Stage B, as integer arrays.

The validity rules of the contract live here: what is invalid, for which reason, and how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rcp_bayes.coding import codes_of, combine_keys, first_seen, stable_order
from rcp_bayes.errors import InputError
from rcp_bayes.universe import Universe

UNNAMED = "(unnamed)"  # how a missing judge or phase is called in counts and messages


@dataclass(frozen=True)
class Windows:
    """The valid Stage A windows, by query and then in the order of their first appearance.

    Attributes
    ----------
    offset : (W + 1,) int64
        The entries of window ``i`` are ``offset[i]:offset[i + 1]``.
    query : (W,) int32
        Query of each window, non-decreasing.
    document : (R,) int32
        Index into the documents of the universe.
    score : (R,) float64
        Judge's logit score in [-5, 5]; NaN throughout a ranking-only window.
    rank : (R,) float64
        1 is best; complete in a ranking-only window, NaN where a scored window gives none.
    scored : (W,) bool
        True: soft preferences, each pair of weight 2/w. False: hard preferences of weight 1 from
        the ranks, equal ranks half a win each (C.2).
    position : (R,) int32
        0-based place in the prompt, -1 where unknown.
    phase, judge : (W,) int32
        Codes into `phases` and `judges`, -1 where the table names none.
    phases, judges : tuple of str
    """

    offset: np.ndarray
    query: np.ndarray
    document: np.ndarray
    score: np.ndarray
    rank: np.ndarray
    scored: np.ndarray
    position: np.ndarray
    phase: np.ndarray
    judge: np.ndarray
    phases: tuple[str, ...]
    judges: tuple[str, ...]

    @property
    def n_windows(self) -> int:
        return len(self.query)

    @property
    def size(self) -> np.ndarray:
        """Documents in each window, (W,) int64."""
        return np.diff(self.offset)


@dataclass(frozen=True)
class Placements:
    """The valid Stage B answers: one row for each document in each window that showed it.

    Attributes
    ----------
    document : (P,) int32
        Index into the documents of the universe, non-decreasing in query.
    window : (P,) int32
        Index of the placement's Stage B window, 0 to `n_windows` - 1.
    answers : (P, C) int8
        0 or 1 under each criterion.
    criteria : tuple of str
    position, phase, judge : (P,) int32
        As in `Windows`, here for each placement.
    phases, judges : tuple of str
    n_windows : int
    """

    document: np.ndarray
    window: np.ndarray
    answers: np.ndarray
    criteria: tuple[str, ...]
    position: np.ndarray
    phase: np.ndarray
    judge: np.ndarray
    phases: tuple[str, ...]
    judges: tuple[str, ...]
    n_windows: int


@dataclass(frozen=True)
class _Grouping:
    """Rows of a stage by window: windows by query, then by first appearance.

    `order` sorts rows by window (None where they are), `window` and `offset` are those of the
    sorted rows, `query` is each window's; `invalid` is the code of a window's own category, -1 for
    none, into `categories`; `phase` and `judge` are the codes of a window's first row.
    """

    order: np.ndarray | None
    window: np.ndarray
    offset: np.ndarray
    query: np.ndarray
    invalid: np.ndarray
    categories: list[str]
    phase: np.ndarray
    phases: tuple[str, ...]
    judge: np.ndarray
    judges: tuple[str, ...]

    def sorted(self, values: np.ndarray) -> np.ndarray:
        return values if self.order is None else values[self.order]


def _group(table: pa.Table, document: np.ndarray, universe: Universe) -> _Grouping:
    query = universe.query[document]
    window_id, window_ids = codes_of(table.column("window_id"))
    judge, judge_names = codes_of(table.column("judge"))
    key = combine_keys(
        [query, window_id, judge], [universe.n_queries, len(window_ids), len(judge_names)]
    )
    window, uniques = first_seen(key)
    of_query = np.empty(len(uniques), np.int32)
    of_query[window] = query
    by_query = stable_order(of_query)
    if by_query is not None:
        rank = np.empty(len(by_query), np.int64)
        rank[by_query] = np.arange(len(by_query))
        window, of_query = rank[window], of_query[by_query]
    order = stable_order(window)
    if order is not None:
        window = window[order]
    offset = np.concatenate(([0], np.cumsum(np.bincount(window, minlength=len(uniques)))))

    def by_row(column: str) -> tuple[np.ndarray, tuple[str, ...]]:
        codes, names = codes_of(table.column(column))
        return (codes if order is None else codes[order]), tuple(names.to_pylist())

    first = offset[:-1]
    phase, phases = by_row("phase")
    judge, judges = by_row("judge")
    flagged, categories = by_row("invalid")
    invalid = np.full(len(uniques), -1, np.int32)
    told = np.flatnonzero(flagged >= 0)[::-1]
    invalid[window[told]] = flagged[told]  # the last assignment wins: a window's first category
    return _Grouping(
        order, window, offset, of_query, invalid, list(categories),
        phase[first], phases, judge[first], judges,
    )  # fmt: skip


def _settle_invalid(
    group: _Grouping, invalid: np.ndarray, categories: list[str], n_queries: int,
    stage: str, counts: dict[str, Any], source: str,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Count the invalid windows by phase and category; which are valid, and invalid per query."""
    valid = invalid < 0
    bad = np.flatnonzero(~valid)
    told: dict[str, dict[str, int]] = {}
    pairs, numbers = np.unique(
        np.column_stack([group.phase[bad], invalid[bad]]), axis=0, return_counts=True
    )
    for (phase, category), n in zip(pairs, numbers, strict=True):
        of_phase = told.setdefault(UNNAMED if phase < 0 else group.phases[phase], {})
        of_phase[categories[category]] = int(n)
    codes, n_valid = np.unique(group.phase[valid], return_counts=True)
    counts["windows"] = len(valid)
    counts["valid_windows"] = {
        UNNAMED if phase < 0 else group.phases[phase]: int(n)
        for phase, n in zip(codes, n_valid, strict=True)
    }
    counts["invalid_windows"] = len(bad)
    counts["invalid_by_phase"] = told
    if not valid.any():
        why = ", ".join(sorted({name for of_phase in told.values() for name in of_phase}))
        raise InputError(
            f"none of the {len(valid)} windows of {stage} is valid ({why})",
            source=source,
            remedy="see the judge's raw answers; `rcp-bayes reparse` reads them again",
        )
    return valid, np.bincount(group.query[bad], minlength=n_queries)


def build_windows(
    table: pa.Table, document: np.ndarray, universe: Universe, counts: dict[str, Any], source: str
) -> tuple[Windows, np.ndarray]:
    """Stage A: valid windows, and the number of invalid ones of each query."""
    group = _group(table, document, universe)
    score = group.sorted(_floats(table.column("score")))
    rank = group.sorted(_floats(table.column("rank")))
    size = np.diff(group.offset)
    n_scored = np.add.reduceat(np.isfinite(score), group.offset[:-1], dtype=np.int64)
    n_ranked = np.add.reduceat(np.isfinite(rank), group.offset[:-1], dtype=np.int64)

    scored = n_scored == size
    categories = [*group.categories, "partial_scores", "partial_ranks", "no_answer"]
    partial_scores, partial_ranks, no_answer = range(len(group.categories), len(categories))
    invalid = group.invalid.copy()
    open_ = (invalid < 0) & ~scored
    invalid[open_ & (n_scored > 0)] = partial_scores
    open_ &= n_scored == 0
    invalid[open_ & (n_ranked == 0)] = no_answer
    invalid[open_ & (n_ranked > 0) & (n_ranked < size)] = partial_ranks
    valid, per_query = _settle_invalid(
        group, invalid, categories, universe.n_queries, "stage_a", counts, source
    )
    counts["soft_windows"] = int((valid & scored).sum())
    counts["hard_windows"] = int((valid & ~scored).sum())
    counts["single_document_windows"] = int((valid & (size == 1)).sum())

    kept = _Rows(valid, group.window)
    phase, phases = _named(group.phase[valid], group.phases)
    judge, judges = _named(group.judge[valid], group.judges)
    return (
        Windows(
            offset=np.concatenate(([0], np.cumsum(size[valid]))),
            query=group.query[valid],
            document=kept(group.sorted(document)),
            score=kept(score),
            rank=kept(rank),
            scored=scored[valid],
            position=kept(group.sorted(_positions(table))),
            phase=phase,
            judge=judge,
            phases=phases,
            judges=judges,
        ),
        per_query,
    )


def build_placements(
    table: pa.Table, document: np.ndarray, universe: Universe, criteria: tuple[str, ...],
    counts: dict[str, Any], source: str,
) -> tuple[Placements, np.ndarray]:  # fmt: skip
    """Stage B: valid answers, and the number of invalid windows of each query."""
    group = _group(table, document, universe)
    answers = np.column_stack(
        [pc.fill_null(table.column(name), -1).to_numpy() for name in criteria]
    ).astype(np.int8, copy=False)
    answers = group.sorted(answers)
    valid, per_query = _settle_invalid(
        group, group.invalid, group.categories, universe.n_queries, "stage_b", counts, source
    )
    in_valid = valid[group.window]
    missing = (answers < 0).any(axis=1)
    keep = in_valid & ~missing
    if not keep.any():
        raise InputError(
            "every answer of stage_b has a null under some criterion",
            source=source,
            column=criteria[int((answers[in_valid] < 0).sum(axis=0).argmax())],
            remedy="name the criteria that were answered (--criteria)",
        )
    counts["placements"] = int(keep.sum())
    counts["null_placements"] = int((in_valid & missing).sum())
    counts["null_answers"] = {
        name: int(n)
        for name, n in zip(criteria, (answers[in_valid] < 0).sum(axis=0), strict=True)
        if n
    }
    number = np.cumsum(valid) - 1
    window = group.window[keep]
    phase, phases = _named(group.phase[window], group.phases)
    judge, judges = _named(group.judge[window], group.judges)
    return (
        Placements(
            document=group.sorted(document)[keep],
            window=number[window].astype(np.int32),
            answers=answers[keep],
            criteria=criteria,
            position=group.sorted(_positions(table))[keep],
            phase=phase,
            judge=judge,
            phases=phases,
            judges=judges,
            n_windows=int(valid.sum()),
        ),
        per_query,
    )


class _Rows:
    """Keeps the rows of valid windows; free where all are."""

    def __init__(self, valid: np.ndarray, window: np.ndarray) -> None:
        self.keep = None if valid.all() else valid[window]

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return values if self.keep is None else values[self.keep]


def _named(codes: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes over the names in use, in order of first appearance; -1 stays."""
    _, used = first_seen(codes[codes >= 0])
    renumber = np.full(len(names) + 1, -1, np.int32)  # the last entry answers for -1
    renumber[used] = np.arange(len(used))
    return renumber[codes], tuple(names[code] for code in used)


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy()  # a null becomes NaN


def _positions(table: pa.Table) -> np.ndarray:
    return pc.fill_null(table.column("position"), -1).to_numpy().astype(np.int32)
