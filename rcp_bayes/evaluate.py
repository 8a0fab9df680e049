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
from typing import TYPE_CHECKING, Any, Literal, get_args

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
from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.gain import GAIN_SHAPES, GainShape, shaped_gain
from rcp_bayes.metrics import RankedLists, TieRule, TopK, ndcg_of_lists, rank_lists, top_k
from rcp_bayes.records import CANDIDATES, EXCLUDED, QRELS, RUNS
from rcp_bayes.scores import Notes, Scores, tabulate

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from rcp_bayes.fitfolder import Fit

ProtocolName = Literal["plain", "trec", "nanobeir", "bright", "vidore", "trecdl"]
Metric = Literal["rcp_ndcg", "qrel_ndcg", "count_ndcg", "raw_bt_ndcg"]
METRICS: tuple[Metric, ...] = get_args(Metric)


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
) -> Scores:
    """Score runs by the labels of a fit, by qrels, or both.

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
    rule = _check_options(fit, qrels, k, protocol, pool_order, unjudged, qrel_gain, gain_shape)
    chosen = _metrics(metrics, fit, qrels)
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
    removed = _Removed(queries, vocabulary, coded.get("excluded"), drop_identical_ids)

    spaces: dict[str, _Space] = {}
    gains: dict[Metric, np.ndarray] = {}
    without_gain = np.zeros(len(queries), dtype=bool)
    if fit is not None:
        spaces["labels"], label_gains, calibrated = _label_gains(
            fit, coded["labels"], len(queries), removed, gain_shape
        )
        gains |= label_gains
        without_gain = ~calibrated
    if qrels is not None:
        grades = tables["qrels"]["grade"].to_numpy()
        spaces["qrels"], gains["qrel_ndcg"] = _qrel_gains(
            grades, coded["qrels"], len(queries), removed, qrel_gain
        )
    if fit is None and pool_order is not None:
        spaces["labels"] = _Space.of(coded["pool"], len(queries), removed)

    systems, system = _systems(tables["runs"])
    lists = _Lists.of(coded["runs"], system, len(systems), len(queries))
    score_of_row = tables["runs"]["score"].to_numpy()
    kept = ~removed.of(coded["runs"]) & (coded["runs"].query >= 0)
    notes.excluded(int((~kept & (coded["runs"].query >= 0)).sum()))
    if rule.judged_pool:
        kept &= spaces["labels"].locate(coded["runs"].key) >= 0
        if fit is None:
            notes.add(f"protocol {protocol}: without a fit, --pool is the judged pool")
    rows = np.flatnonzero(kept)
    ranked = rank_lists(
        lists.of_row[rows],
        score_of_row[rows],
        lists.n,
        tie_key=_tie_key(rule, coded, vocabulary, fit, notes, rows),
        single_precision=rule.ties == "id_descending",
    )
    ranked = RankedLists(ranked.offset, rows[ranked.row], ranked.first)

    results: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    head = top_k(ranked, k)
    for metric in chosen:
        space = spaces["qrels" if metric == "qrel_ndcg" else "labels"]
        judged = np.append(~np.isnan(gains[metric]), False)  # the last for position -1
        top = space.on_items(head, coded["runs"].key)
        share = _judged_share(top, judged)
        if unjudged == "condense":
            left = ranked.keep(judged[space.locate(coded["runs"].key)])
            top = space.on_items(top_k(left, k), coded["runs"].key)
        # A query without a positive gain has an ideal of 0, and NaN for its nDCG.
        values = ndcg_of_lists(np.nan_to_num(gains[metric]), top, lists.query, space.offset, k)
        shape = (len(systems), len(queries))
        results[metric] = values.reshape(shape), share.reshape(shape)
    return tabulate(
        queries,
        systems,
        results,
        ranked_rows=lists.ranked,
        without_gain=without_gain,
        notes=notes,
        settings={
            "protocol": protocol,
            "k": k,
            "unjudged": unjudged,
            "qrel_gain": qrel_gain,
            "gain_shape": gain_shape,
            "drop_identical_ids": drop_identical_ids,
        },
    )


@dataclass(frozen=True)
class _Removed:
    """Documents that leave ranking and ideal: listed ones, and those with their query's own id."""

    queries: list[Query]
    vocabulary: pa.Array
    listed: Rows | None
    identical: bool

    def of(self, rows: Rows) -> np.ndarray:
        out = np.zeros(len(rows.key), dtype=bool)
        if self.listed is not None:
            out |= np.isin(rows.key, self.listed.key[self.listed.query >= 0])
        if self.identical:
            place = {text: code for code, text in enumerate(self.vocabulary.to_pylist())}
            own = np.array([place.get(query, -1) for _, query in self.queries], dtype=np.int64)
            out |= (own[rows.query] == rows.document) & (rows.query >= 0)
        return out


@dataclass(frozen=True)
class _Space:
    """The documents that a metric has gains for, grouped by query.

    Attributes
    ----------
    row : int64 array (D,)
        Row of each document in its table.
    offset : int64 array (Q + 1,)
    index : pandas Index of key
    """

    row: np.ndarray
    offset: np.ndarray
    index: pd.Index

    @classmethod
    def of(cls, rows: Rows, n_queries: int, removed: _Removed) -> _Space:
        import pandas as pd

        row = np.flatnonzero((rows.query >= 0) & ~removed.of(rows))
        row = row[np.argsort(rows.query[row], kind="stable")]
        counts = np.bincount(rows.query[row], minlength=n_queries)
        offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return cls(row, offset, pd.Index(rows.key[row]))

    def locate(self, key: np.ndarray) -> np.ndarray:
        """Position of each key among the documents, -1 where it is not one."""
        return self.index.get_indexer(key)  # type: ignore[arg-type]

    def on_items(self, top: TopK, key: np.ndarray) -> TopK:
        """The same weights on documents of this space in place of rows of the runs."""
        return replace(top, item=self.locate(key[top.item]))


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


def _label_gains(
    fit: Fit, rows: Rows, n_queries: int, removed: _Removed, shape: GainShape
) -> tuple[_Space, dict[Metric, np.ndarray], np.ndarray]:
    """The label metrics' gains, NaN where a document has none; and which queries (Q,) have any.

    A query without any gain is scored by none of the three, so that they compare on the same ones.
    """
    labels = fit.labels
    everything = _Space.of(rows, n_queries, replace(removed, listed=None, identical=False))
    space = _Space.of(rows, n_queries, removed)
    kept = everything.locate(space.index.to_numpy())

    def column(name: str) -> np.ndarray:
        return labels[name].to_numpy(dtype=np.float64, na_value=np.nan)[everything.row]

    def shaped(ability: np.ndarray) -> np.ndarray:
        return np.asarray(
            shaped_gain(
                ability, fit.items.gamma, fit.items.beta, shape=shape, offset=everything.offset
            )
        )

    gain = column("gain") if shape == "rcp" else shaped(column("theta"))
    query = np.repeat(np.arange(n_queries), np.diff(everything.offset))
    calibrated = np.bincount(query, weights=~np.isnan(gain), minlength=n_queries) > 0
    found: dict[Metric, np.ndarray] = {
        "rcp_ndcg": gain,
        "count_ndcg": np.where(calibrated[query], column("pass_share"), np.nan),
        "raw_bt_ndcg": np.where(calibrated[query], shaped(column("bt")), np.nan),
    }
    return space, {metric: values[kept] for metric, values in found.items()}, calibrated


def _qrel_gains(
    grade: np.ndarray, rows: Rows, n_queries: int, removed: _Removed, kind: str
) -> tuple[_Space, np.ndarray]:
    space = _Space.of(rows, n_queries, removed)
    gain = np.maximum(grade[space.row], 0.0)
    return space, np.exp2(gain) - 1.0 if kind == "exponential" else gain


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
        late = position[_row_of(coded["labels"], runs.key[rows])]
    if "pool" not in coded:
        notes.add("ties take the pool order of the labels (pool_position)")
        return late
    place = _row_of(coded["pool"], runs.key[rows])
    outside = int((place < 0).sum())
    notes.add(
        "ties take the pool order of --pool"
        + (f"; {outside} ranked documents are not in it and come last" if outside else "")
    )
    return np.where(place >= 0, place, len(coded["pool"].key) + late)


def _row_of(rows: Rows, key: np.ndarray) -> np.ndarray:
    """The table's row that has each key, -1 where none has."""
    import pandas as pd

    known = np.flatnonzero(rows.query >= 0)
    at = pd.Index(rows.key[known]).get_indexer(key)
    return np.where(at >= 0, known[at], -1)


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
    return possible if wanted is None else [m for m in METRICS if m in wanted]


def _check_options(
    fit: Fit | None,
    qrels: Any,
    k: int,
    protocol: str,
    pool_order: Any,
    unjudged: str,
    qrel_gain: str,
    gain_shape: str,
) -> Protocol:
    for name, value, known in (
        ("protocol", protocol, tuple(PROTOCOLS)),
        ("unjudged", unjudged, ("zero", "condense")),
        ("qrel_gain", qrel_gain, ("linear", "exponential")),
        ("gain_shape", gain_shape, GAIN_SHAPES),
    ):
        if value not in known:
            raise UsageError(f"unknown {name} {value!r}; known: {', '.join(known)}")
    if k < 1:
        raise UsageError(f"k is {k}, but a cutoff is at least 1")
    rule = PROTOCOLS[protocol]  # type: ignore[index]  # checked above
    if rule.judged_pool and fit is None and pool_order is None:
        raise UsageError(
            f"protocol {protocol} ranks the judged pool: give a fit or a pool, or use trec or plain"
        )
    return rule
