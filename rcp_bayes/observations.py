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

from rcp_bayes.coding import codes_of, first_seen
from rcp_bayes.columns import Origin
from rcp_bayes.errors import InputError
from rcp_bayes.records import CANDIDATES, Judgments
from rcp_bayes.tables import DEFAULT_DATASET, constant, require_overlap, table_of, unite
from rcp_bayes.universe import Universe, build_universe
from rcp_bayes.windows import UNNAMED, Placements, Windows, build_placements, build_windows

__all__ = ["Observations", "Placements", "Universe", "Windows", "observe"]

if TYPE_CHECKING:
    import pandas as pd


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
        windows, invalid["stage_a"] = build_windows(
            stages["stage_a"], rows["stage_a"], universe, counts["stage_a"], judgments.source
        )
        n_windows = np.bincount(windows.document, minlength=n_documents)
    if "stage_b" in stages:
        placements, invalid["stage_b"] = build_placements(
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
            remedy="choose one with --judge NAME",
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
    if len(set(named)) < len(named) or not named:
        problem = "a criterion is named twice" if named else "no criterion is named"
        raise InputError(problem, remedy="name each once")
    return tuple(named)


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
