"""Labels and runs to per-query scores and a leaderboard, under the contract's protocols.

Four metrics, all nDCG@k (Eq. 1) and different in the gain alone: ``rcp_ndcg`` takes the calibrated
gain (Eq. 4), ``qrel_ndcg`` the human grades, ``count_ndcg`` the pass share (Eq. 5), ``raw_bt_ndcg``
the gain of the uncalibrated, centred Bradley-Terry score (Section B.1).

What is undefined is null and named in the notes, never a zero: qrel-nDCG of a query without a
positive grade, and the label metrics of a query whose documents have no gain. What a run leaves out
is a zero, and named as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rcp_bayes.align import (
    Query,
    Rows,
    checked,
    code_tables,
    distinct_queries,
    join_datasets,
    sort_descending,
)
from rcp_bayes.draws import check_interval, ndcg_draws
from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.gain import GAIN_SHAPES, GainShape
from rcp_bayes.gain_space import (
    METRICS,
    GainSpace,
    Metric,
    Removed,
    label_gains,
    qrel_gains,
    row_of,
)
from rcp_bayes.metrics import RankedLists, TieRule, TopK, ndcg_of_lists, rank_lists, top_k
from rcp_bayes.records import CANDIDATES, EXCLUDED, QRELS, RUNS
from rcp_bayes.scores import Notes, Scores, tabulate

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from rcp_bayes.fitfolder import Fit

ProtocolName = Literal["plain", "trec", "nanobeir", "bright", "vidore", "trecdl"]


@dataclass(frozen=True)
class Protocol:
    """How a run is read: its ties, and whether only the judged pool is ranked."""

    ties: TieRule
    judged_pool: bool


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "plain": Protocol("group_mean", judged_pool=False),
    "trec": Protocol("id_descending", judged_pool=False),
    "nanobeir": Protocol("id_descending", judged_pool=True),
    "bright": Protocol("id_descending", judged_pool=False),
    "vidore": Protocol("group_mean", judged_pool=True),
    "trecdl": Protocol("pool_order", judged_pool=True),
}

_LABELS = replace(CANDIDATES, name="labels", repeats="refuse")


def score(
    fit: Fit | None,
    runs: pd.DataFrame,
    qrels: pd.DataFrame | None = None,
    *,
    k: int = 10,
    protocol: ProtocolName = "plain",
    pool_order: pd.DataFrame | None = None,
    excluded: pd.DataFrame | None = None,
    drop_identical_ids: bool = False,
    unjudged: Literal["zero", "condense"] = "zero",
    qrel_gain: Literal["linear", "exponential"] = "linear",
    gain_shape: GainShape = "rcp",
    metrics: Sequence[Metric] | None = None,
    interval: float = 0.95,
) -> Scores:
    """Score runs by the labels of a fit, by qrels, or both.

    Where the fit has draws of the gains, ``rcp_ndcg`` is their posterior mean, with intervals: the
    ranking is the run's, the ideal ranking is taken anew in each draw.

    Parameters
    ----------
    fit : Fit or None
        Labels; without it qrel-nDCG alone.
    runs : DataFrame
        ``query_id, doc_id, score``, optionally ``dataset, system``.
    qrels : DataFrame, optional
        ``query_id, doc_id, grade``, optionally ``dataset``. Negative grades count as 0. With a fit,
        its queries alone are scored.
    k : int
        Cutoff.
    protocol : str
        One of `PROTOCOLS`: ties, and whether documents outside the judged pool (the labels) are
        ranked.
    pool_order : DataFrame, optional
        ``query_id, doc_id`` in pool order; breaks ties under ``trecdl``, where otherwise the
        labels' ``pool_position`` does. Without a fit it stands in for the judged pool.
    excluded : DataFrame, optional
        ``query_id, doc_id`` that leave every ranking and every ideal.
    drop_identical_ids : bool
        Do the same with a document whose id is the query's.
    unjudged : {"zero", "condense"}
        Ranked documents without a gain (for qrel-nDCG: without a grade) count 0, or leave the list
        and let the others move up.
    qrel_gain : {"linear", "exponential"}
        The grade itself, or 2^grade - 1.
    gain_shape : str
        Gain of the label metrics but Count: Eq. 4, or an alternative of Section E.5 (`GainShape`).
    metrics : sequence of str, optional
        Default: all that the inputs allow.
    interval : float
        Level of the equal-tailed intervals, where the fit has draws.

    Returns
    -------
    Scores
        ``per_query``, ``leaderboard``, ``notes``. A labelled query that a run does not rank scores
        0; a dataset of which a run ranks no query is not scored for that run. ``judged_at_k`` is
        the share of the top k that has a gain (for qrel-nDCG: a grade), before condensing.

    Raises
    ------
    InputError
        Tables that cannot be used, or share no query.
    UsageError
        Options that do not fit each other.
    """
    rule = _check_options(
        (fit, runs, qrels), k, protocol, pool_order, unjudged, qrel_gain, gain_shape
    )
    chosen = _metrics(metrics, fit, qrels)
    check_interval(interval)
    notes = Notes()
    tables = {"runs": checked(runs, RUNS, "runs")}
    if fit is not None:
        tables["labels"] = checked(fit.labels[["dataset", "query_id", "doc_id"]], _LABELS, "labels")
    if qrels is not None:
        tables["qrels"] = checked(qrels, QRELS, "qrels")
    if excluded is not None and len(excluded):
        tables["excluded"] = checked(excluded, EXCLUDED, "excluded")
    if pool_order is not None:
        tables["pool"] = checked(pool_order, CANDIDATES, "pool")

    queries = _reference(fit, tables)
    coded, vocabulary = code_tables(queries, tables)
    _check_overlap(queries, coded, notes)
    removed = Removed(queries, vocabulary, coded.get("excluded"), drop_identical_ids)

    spaces: dict[str, GainSpace] = {}
    gains: dict[Metric, np.ndarray] = {}
    calibrated = np.ones(len(queries), dtype=bool)
    if fit is not None:
        spaces["labels"], of_labels, calibrated = label_gains(
            fit, coded["labels"], len(queries), removed, gain_shape
        )
        gains |= of_labels
    elif pool_order is not None:
        spaces["labels"] = GainSpace.of(coded["pool"], len(queries), removed)
        if rule.judged_pool:
            notes.add("without a fit, the documents of --pool are ranked as the judged pool")
    if qrels is not None:
        grades = tables["qrels"]["grade"].to_numpy()
        spaces["qrels"], gains["qrel_ndcg"] = qrel_gains(
            grades, coded["qrels"], len(queries), removed, qrel_gain
        )

    key = coded["runs"].key
    systems, system = _systems(tables["runs"])
    lists = _Lists.of(coded["runs"], system, len(systems), len(queries))
    rows = _ranked_rows(rule, coded["runs"], removed, spaces.get("labels"), notes)
    ranked = rank_lists(
        lists.of_row[rows],
        tables["runs"]["score"].to_numpy()[rows],
        lists.n,
        tie_key=_tie_key(rule, coded, vocabulary, fit, notes, rows),
        single_precision=rule.ties == "id_descending",
    )
    ranked = RankedLists(ranked.offset, rows[ranked.row], ranked.first)
    head = top_k(ranked, k)
    draws, of_draws = None if fit is None else fit.draws, None
    if draws is not None and gain_shape != "rcp":
        notes.add(f"the draws are of the gain of Eq. 4: no intervals for gain shape {gain_shape}")
        draws = None
    results: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for metric in chosen:
        space = spaces["qrels" if metric == "qrel_ndcg" else "labels"]
        judged = np.append(~np.isnan(gains[metric]), False)  # the last for position -1
        top = space.on_items(head, key)
        share = _judged_share(top, judged)
        if unjudged == "condense":
            left = ranked.keep(judged[space.locate(key)])
            top = space.on_items(top_k(left, k), key)
        # A query without a positive gain has an ideal of 0, and NaN for its nDCG.
        if metric == "rcp_ndcg" and draws is not None:
            draws.require(tables["labels"].num_rows)
            known = judged[:-1]
            of_draws = ndcg_draws(draws, space.row, known, top, lists.query, space.offset, k)
            values = of_draws.mean(axis=0)
        else:
            values = ndcg_of_lists(np.nan_to_num(gains[metric]), top, lists.query, space.offset, k)
        results[metric] = values.reshape(lists.ranked.shape), share.reshape(lists.ranked.shape)
    return tabulate(
        queries,
        systems,
        results,
        ranked_rows=lists.ranked,
        without_gain=~calibrated,
        notes=notes,
        settings={
            "protocol": protocol,
            "k": k,
            "unjudged": unjudged,
            "qrel_gain": qrel_gain,
            "gain_shape": gain_shape,
            "drop_identical_ids": drop_identical_ids,
        },
        draws=None if of_draws is None else of_draws.reshape(-1, *lists.ranked.shape),
        interval=interval,
    )


@dataclass(frozen=True)
class _Lists:
    """Every (system, query) as a list, numbered ``system * Q + query``."""

    of_row: np.ndarray
    query: np.ndarray
    ranked: np.ndarray  # (S, Q) rows that the run has for the query

    @property
    def n(self) -> int:
        return len(self.query)

    @classmethod
    def of(cls, runs: Rows, system: np.ndarray, n_systems: int, n_queries: int) -> _Lists:
        of_row = system * n_queries + runs.query
        known = of_row[runs.query >= 0]
        ranked = np.bincount(known, minlength=n_systems * n_queries)
        query = np.tile(np.arange(n_queries), n_systems)
        return cls(of_row, query, ranked.reshape(n_systems, n_queries))


def _ranked_rows(
    rule: Protocol, runs: Rows, removed: Removed, pool: GainSpace | None, notes: Notes
) -> np.ndarray:
    """Rows of the runs that are ranked: a known query, not removed, in the pool if need be."""
    known, gone = runs.query >= 0, removed.of(runs)
    notes.excluded(int((known & gone).sum()))
    kept = known & ~gone
    if rule.judged_pool and pool is not None:
        kept &= pool.locate(runs.key) >= 0
    return np.flatnonzero(kept)


def _judged_share(top: TopK, judged: np.ndarray) -> np.ndarray:
    """Share of each list's top k that has a gain, (L,); NaN where the list is empty.

    `judged` is (D + 1,), False at the end for the position -1.
    """
    n_lists = len(top.offset) - 1
    list_of = np.repeat(np.arange(n_lists), np.diff(top.offset))
    places = np.bincount(list_of, weights=top.share, minlength=n_lists)
    with_gain = np.bincount(list_of, weights=top.share * judged[top.item], minlength=n_lists)
    return with_gain / np.where(places > 0, places, np.nan)


def _tie_key(
    rule: Protocol,
    coded: dict[str, Rows],
    vocabulary: pa.Array,
    fit: Fit | None,
    notes: Notes,
    rows: np.ndarray,
) -> np.ndarray | None:
    """What breaks ties among the runs' `rows`, smallest first; None where groups share a mean."""
    if rule.ties == "group_mean":
        return None
    runs = coded["runs"]
    if rule.ties == "id_descending":
        return sort_descending(vocabulary)[runs.document[rows]]
    late = np.zeros(len(rows), dtype=np.int64)
    if fit is not None:
        position = fit.labels["pool_position"].to_numpy(dtype=np.int64)
        late = position[row_of(coded["labels"], runs.key[rows])]
    if "pool" not in coded:
        notes.add("ties take the pool order of the labels (pool_position)")
        return late
    place = row_of(coded["pool"], runs.key[rows])
    outside = int((place < 0).sum())
    notes.add(
        "ties take the pool order of --pool"
        + (f"; {outside} ranked documents are not in it and come last" if outside else "")
    )
    return np.where(place >= 0, place, len(coded["pool"].key) + late)


def _systems(runs: pa.Table) -> tuple[list[str], np.ndarray]:
    """Names of the systems in order of appearance, and each row's index into them."""
    from rcp_bayes.coding import codes_of, first_seen

    if "system" not in runs.column_names:
        return ["run"], np.zeros(runs.num_rows, dtype=np.int64)
    codes, names = codes_of(runs["system"])
    system, used = first_seen(codes)
    texts = names.to_pylist()
    return [texts[code] for code in used], system.astype(np.int64)


def _reference(fit: Fit | None, tables: dict[str, pa.Table]) -> list[Query]:
    """The queries to score: the fit's, else those of the qrels."""
    if fit is not None:
        names = fit.queries[["dataset", "query_id"]].astype("str")
        return list(zip(names["dataset"], names["query_id"], strict=True))
    queries, _ = distinct_queries(tables["qrels"])
    runs, _ = distinct_queries(tables["runs"])
    return join_datasets(queries, runs, "qrels")


def _check_overlap(queries: list[Query], coded: dict[str, Rows], notes: Notes) -> None:
    """Refuse runs or qrels that share no query with the reference; note what they have besides."""
    known = "labels" if "labels" in coded else "qrels"
    for name in ("runs", "qrels"):
        if name not in coded:
            continue
        rows = coded[name]
        if (rows.query < 0).all():
            ids = ["/".join(query) for query in (rows.strangers[0], queries[0])]
            raise InputError(
                f"no query in common with the {known}: here {ids[0]!r}, there {ids[1]!r}",
                source=name,
                column="query_id",
                remedy="ids are compared as text, exactly as written",
            )
        notes.strangers(name, known, rows.strangers)


def _metrics(
    wanted: Sequence[Metric] | None, fit: Fit | None, qrels: pd.DataFrame | None
) -> list[Metric]:
    possible = [m for m in METRICS if (qrels if m == "qrel_ndcg" else fit) is not None]
    for metric in wanted or ():
        if metric not in METRICS:
            raise UsageError(f"unknown metric {metric!r}; known: {', '.join(METRICS)}")
        if metric not in possible:
            raise UsageError(f"{metric} needs {'qrels' if metric == 'qrel_ndcg' else 'a fit'}")
    if not possible:
        raise UsageError("scoring needs a fit, or qrels, or both")
    if wanted is not None and not wanted:
        raise UsageError(f"no metric is named; known: {', '.join(METRICS)}")
    return possible if wanted is None else [m for m in METRICS if m in wanted]


def _check_options(
    inputs: tuple[Any, Any, Any],
    k: int,
    protocol: str,
    pool_order: Any,
    unjudged: str,
    qrel_gain: str,
    gain_shape: str,
) -> Protocol:
    """The protocol's rule, once `inputs` (fit, runs, qrels) and options are of their kinds."""
    if any(isinstance(given, str | Path) for given in inputs):
        raise UsageError("score takes what read_fit, read_runs and read_qrels give, not paths")
    for name, value, known in (
        ("protocol", protocol, tuple(PROTOCOLS)),
        ("unjudged", unjudged, ("zero", "condense")),
        ("qrel_gain", qrel_gain, ("linear", "exponential")),
        ("gain_shape", gain_shape, GAIN_SHAPES),
    ):
        if value not in known:
            raise UsageError(f"unknown {name} {value!r}; known: {', '.join(known)}")
    if not isinstance(k, int | np.integer) or k < 1:
        raise UsageError(f"k is {k!r}, but a cutoff is a whole number of at least 1")
    rule = PROTOCOLS[protocol]  # type: ignore[index]  # checked above
    if rule.judged_pool and inputs[0] is None and pool_order is None:
        raise UsageError(
            f"protocol {protocol} ranks the judged pool: give a fit or a pool, or use trec or plain"
        )
    return rule
