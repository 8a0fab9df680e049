"""Integer-indexed observations: what the models see of the judgments.

Ids become indices once, here; everything downstream works on arrays. Documents are grouped by
query, windows and their entries are grouped by query too, so that a query is a slice everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rcp_bayes.coding import codes_of, combine_keys, first_seen, stable_order
from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError
from rcp_bayes.records import CANDIDATES, Judgments
from rcp_bayes.tables import DEFAULT_DATASET, constant, require_overlap, table_of, unite
from rcp_bayes.universe import Universe, build_universe

if TYPE_CHECKING:
    import pandas as pd


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
class Observations:
    """Universe, windows and placements of one judgments folder, with its sufficient statistics.

    Attributes
    ----------
    universe : Universe
    windows : Windows or None
        None where the judgments have no Stage A.
    placements : Placements or None
        None where the judgments have no Stage B.
    counts : dict
        Everything read, folded, dropped or invalid, ready for ``fit.json``.
    n_invalid_a, n_invalid_b : (Q,) int64
        Invalid windows of each query.
    n_windows : (D,) int64
        Valid Stage A windows that showed the document.
    n_placements : (D,) int64
        Valid Stage B answers of the document.
    passes : (D, C) int64
        How many of them passed each criterion; C = 0 without Stage B.
    """

    universe: Universe
    windows: Windows | None
    placements: Placements | None
    counts: dict[str, Any]
    n_invalid_a: np.ndarray
    n_invalid_b: np.ndarray
    n_windows: np.ndarray
    n_placements: np.ndarray
    passes: np.ndarray

    @property
    def criteria(self) -> tuple[str, ...]:
        return () if self.placements is None else self.placements.criteria


UNNAMED = "(unnamed)"  # how a missing judge or phase is called in counts and messages


def observe(
    judgments: Judgments,
    *,
    criteria: Sequence[str] | None = None,
    judge: str | None = None,
    judges: Literal["single", "facets"] = "single",
    pool_order: pd.DataFrame | None = None,
) -> Observations:
    """Index judgments: which windows and answers are valid, and what they say.

    A Stage A window with a score for each of its documents is soft; one with ranks for all and
    scores for none is hard; any other is invalid, as is a window whose `invalid` is set. A Stage B
    answer with a null under any of the criteria is dropped whole. Everything dropped is counted.

    Parameters
    ----------
    judgments : Judgments
    criteria : sequence of str, optional
        Criteria to use, in this order. Default: all of the judgments.
    judge : str, optional
        The judge to use in a stage that holds several; a stage with one judge is used as it is.
    judges : {"single", "facets"}
        ``facets`` keeps the answers of all judges, each with its code.
    pool_order : DataFrame, optional
        ``dataset, query_id, doc_id`` in pool order.

    Returns
    -------
    Observations

    Raises
    ------
    InputError
        Several judges and no choice among them, an unknown judge or criterion, a stage without any
        valid window, or a pool that shares no query with the judgments.
    """
    stages: dict[str, pa.Table] = {}
    counts: dict[str, Any] = {}
    if judge is not None:
        _require_judge(judgments, judge)
    for name, table in (("stage_a", judgments.stage_a), ("stage_b", judgments.stage_b)):
        if table is not None:
            counts[name] = dict(judgments.counts.get(name, {}))
            stages[name] = _of_judge(table, name, judge, judges, judgments.source, counts[name])
    criteria = _choose_criteria(judgments, criteria)
    pool = None if pool_order is None else _pool_table(pool_order, stages)
    universe, documents = build_universe(list(stages.values()), pool)
    rows = dict(zip(stages, documents, strict=True))

    n_queries, n_documents = universe.n_queries, universe.n_documents
    windows = placements = None
    invalid = {"stage_a": np.zeros(n_queries, np.int64), "stage_b": np.zeros(n_queries, np.int64)}
    n_windows = n_placements = np.zeros(n_documents, np.int64)
    passes = np.zeros((n_documents, len(criteria)), np.int64)
    if "stage_a" in stages:
        windows, invalid["stage_a"] = _windows(
            stages["stage_a"], rows["stage_a"], universe, counts["stage_a"], judgments.source
        )
        n_windows = np.bincount(windows.document, minlength=n_documents)
    if "stage_b" in stages:
        placements, invalid["stage_b"] = _placements(
            stages["stage_b"], rows["stage_b"], universe, criteria, counts["stage_b"],
            judgments.source,
        )  # fmt: skip
        n_placements = np.bincount(placements.document, minlength=n_documents)
        passes = np.column_stack(
            [
                np.bincount(placements.document, weights=answer, minlength=n_documents)
                for answer in placements.answers.T
            ]
        ).astype(np.int64)
    counts |= _coverage(universe, n_windows, n_placements)
    if pool is not None:
        counts["pool"] = _pool_counts(universe, pool)
    return Observations(
        universe, windows, placements, counts, invalid["stage_a"], invalid["stage_b"],
        n_windows, n_placements, passes,
    )  # fmt: skip


def _judge_names(table: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Code of each row's judge and the names of those present; a missing name counts as one."""
    codes, names = codes_of(table.column("judge"))
    codes, used = first_seen(codes)
    return codes, [UNNAMED if code < 0 else names[int(code)].as_py() for code in used]


def _require_judge(judgments: Judgments, judge: str) -> None:
    there = [
        name
        for table in (judgments.stage_a, judgments.stage_b)
        if table is not None
        for name in _judge_names(table)[1]
    ]
    if judge not in there:
        raise InputError(
            f"no answers of judge {judge!r}",
            source=judgments.source,
            remedy=f"there are {', '.join(dict.fromkeys(there))}",
        )


def _of_judge(
    table: pa.Table, stage: str, judge: str | None, judges: str, source: str, counts: dict[str, Any]
) -> pa.Table:
    """The rows of the chosen judge."""
    codes, names = _judge_names(table)
    counts["rows_of_other_judges"] = 0
    counts["judges"] = names
    if len(names) == 1 or judges == "facets":
        return table
    if judge is None or judge not in names:
        chosen = "no choice among them" if judge is None else f"none of them is {judge!r}"
        raise InputError(
            f"{stage} holds several judges ({', '.join(names)}) and {chosen}",
            source=source,
            column="judge",
            remedy="choose one with --judge NAME, or fit them together with --judges facets",
        )
    mine = codes == names.index(judge)
    counts["rows_of_other_judges"] = int(len(mine) - mine.sum())
    counts["judges"] = [judge]
    return table.filter(pa.array(mine))


def _choose_criteria(judgments: Judgments, named: Sequence[str] | None) -> tuple[str, ...]:
    if named is None or judgments.stage_b is None:
        return judgments.criteria
    unknown = [name for name in named if name not in judgments.criteria]
    if unknown:
        raise InputError(
            f"criterion {unknown[0]!r} is not there",
            source=judgments.source,
            remedy=f"there are {', '.join(judgments.criteria)}",
        )
    if len(set(named)) < len(named):
        raise InputError("a criterion is named twice", remedy="name each once")
    return tuple(named)


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


def _windows(
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


def _placements(
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


def _coverage(
    universe: Universe, n_windows: np.ndarray, n_placements: np.ndarray
) -> dict[str, int]:
    """How many queries and documents have answers of which stage."""
    a = np.bincount(universe.query[n_windows > 0], minlength=universe.n_queries) > 0
    b = np.bincount(universe.query[n_placements > 0], minlength=universe.n_queries) > 0
    shown, placed = n_windows > 0, n_placements > 0
    return {
        "queries": universe.n_queries,
        "queries_stage_a_only": int((a & ~b).sum()),
        "queries_stage_b_only": int((b & ~a).sum()),
        "queries_without_answers": int((~a & ~b).sum()),
        "documents": universe.n_documents,
        "documents_without_window": int((placed & ~shown).sum()),
        "documents_without_placement": int((shown & ~placed).sum()),
        "documents_without_answers": int((~shown & ~placed).sum()),
    }


def _pool_table(pool_order: pd.DataFrame, stages: dict[str, pa.Table]) -> pa.Table:
    """Candidates in canonical form; a pool that names no dataset takes the judgments' only one."""
    origin = Origin("pool order")
    pool, _ = unite([(table_of(pool_order, origin, CANDIDATES), origin)], CANDIDATES)
    judged = {
        name for table in stages.values() for name in table.column("dataset").unique().to_pylist()
    }
    if set(pool.column("dataset").unique().to_pylist()) == {DEFAULT_DATASET} and len(judged) == 1:
        pool = pool.set_column(0, "dataset", constant(judged.pop(), pool.num_rows))
    for table in stages.values():
        require_overlap(pool, table, "the pool", "the judgments")
    return pool


def _pool_counts(universe: Universe, pool: pa.Table) -> dict[str, int]:
    sizes = pool.group_by(["dataset", "query_id"]).aggregate([([], "count_all")])
    size = dict(
        zip(
            zip(sizes["dataset"].to_pylist(), sizes["query_id"].to_pylist(), strict=True),
            sizes["count_all"].to_pylist(),
            strict=True,
        )
    )
    judged = list(zip(universe.dataset, universe.query_id, strict=True))
    n_pool = np.array([size.get(key, 0) for key in judged])
    inside = int((universe.pool_position < n_pool[universe.query]).sum())
    return {
        "queries_not_judged": len(set(size) - set(judged)),
        "documents_not_judged": pool.num_rows - inside,
        "documents_outside_pool": universe.n_documents - inside,
    }
