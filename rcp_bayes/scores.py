"""What scoring gives: the per-query table, the leaderboard, and notes on what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rcp_bayes.align import Query
from rcp_bayes.draws import RESAMPLES, SEED, ScoreDraws, add_intervals
from rcp_bayes.errors import InputError
from rcp_bayes.tables import DEFAULT_DATASET, MEAN

if TYPE_CHECKING:
    import pandas as pd

GOOD_JUDGED = 0.95  # below it unjudged documents may decide a comparison (a warning, not a rule)
_NUMBERS = ("score", "judged_at_k", "sd", "lo", "hi", "total_lo", "total_hi")
_NAMED = 5  # ids that a note names before it only counts


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of runs.

    Attributes
    ----------
    per_query : DataFrame
        ``dataset, query_id, system, metric, k, score``; the score is NaN where it is undefined.
        After a posterior fit also ``sd, lo, hi`` (NaN but for ``rcp_ndcg``), and the score of
        ``rcp_ndcg`` is the posterior mean of the nDCG.
    leaderboard : DataFrame
        ``dataset, system, metric, score, rank, n_queries, judged_at_k``. A score is the mean over
        the ``n_queries`` for which it is defined. Dataset ``mean`` is the unweighted mean over the
        datasets, of systems that are scored on all of them. Equal scores share the better rank.
        After a posterior fit also ``sd, lo, hi`` (label uncertainty, for these queries) and
        ``total_lo, total_hi`` (labels, and the queries as a sample).
    notes : tuple of str
        What was left out, undefined or unjudged, and which pool order broke ties.
    settings : dict
        ``protocol, k, unjudged, qrel_gain, gain_shape, drop_identical_ids``; after a posterior fit
        also ``interval, n_draws, resamples, seed`` and what the estimate is.
    draws : ScoreDraws or None
        The draws of ``rcp_ndcg``.
    """

    per_query: pd.DataFrame
    leaderboard: pd.DataFrame
    notes: tuple[str, ...]
    settings: dict[str, Any]
    draws: ScoreDraws | None = None

    @property
    def protocol(self) -> str:
        return self.settings["protocol"]

    @property
    def k(self) -> int:
        return self.settings["k"]

    def to_json(self) -> dict[str, Any]:
        """The document of ``score --json``; what is undefined is null."""
        rows = self.leaderboard.to_dict("records")
        for row in rows:
            row["rank"] = None if math.isnan(row["score"]) else int(row["rank"])
            row |= {name: _null(row[name]) for name in _NUMBERS if name in row}
        return {**self.settings, "leaderboard": rows, "notes": list(self.notes)}


@dataclass
class Notes:
    """Collects what a reader of the scores has to know, one line each."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append(line)

    def excluded(self, n_rows: int) -> None:
        if n_rows:
            self.add(f"excluded documents left rankings and ideals ({n_rows} ranked rows)")

    def strangers(self, table: str, known: str, queries: Sequence[Query]) -> None:
        """Queries of a table that the reference does not have."""
        if queries:
            self.add(f"{len(queries)} queries of the {table} are not in the {known}, left out")


def tabulate(
    queries: Sequence[Query],
    systems: Sequence[str],
    results: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    ranked_rows: np.ndarray,
    without_gain: np.ndarray,
    notes: Notes,
    settings: dict[str, Any],
    draws: np.ndarray | None = None,
    interval: float = 0.95,
) -> Scores:
    """Frames and notes from score matrices.

    Parameters
    ----------
    queries : sequence of (dataset, query_id), length Q
    systems : sequence of str, length S
    results : dict
        Metric -> (score, judged share), each ``(S, Q)`` and NaN where undefined.
    ranked_rows : int array (S, Q)
        Rows that each run has for each query.
    without_gain : bool array (Q,)
        Queries in which no document has a gain: the label metrics do not score them.
    draws : array (draws, S, Q), optional
        Draws of ``rcp_ndcg``; taken over, not copied.
    interval : float
        Level of their intervals.
    """
    datasets = list(dict.fromkeys(dataset for dataset, _ in queries))
    if MEAN in datasets:
        raise InputError("a dataset cannot be called 'mean'", remedy="rename it")
    home = np.array([datasets.index(dataset) for dataset, _ in queries])
    # A dataset counts for a system that ranks any of its queries.
    active = np.stack([ranked_rows[:, home == d].any(axis=1) for d in range(len(datasets))], axis=1)
    grid = active[:, home]
    _note_absent(notes, datasets, systems, active)
    scored = {metric: ~np.isnan(score).all(axis=0) for metric, (score, _) in results.items()}
    _note_undefined(notes, queries, scored, grid.any(axis=0), without_gain)
    any_scored = np.any(list(scored.values()), axis=0)
    _note_unranked(notes, queries, systems, ranked_rows, grid & any_scored)
    board = _leaderboard(datasets, home, systems, results, active)
    _note_judged(notes, board, settings)
    per_query = _per_query(queries, systems, results, grid, settings["k"])
    found = None
    if draws is not None:
        draws[:, ~grid] = np.nan
        found = ScoreDraws("rcp_ndcg", tuple(systems), tuple(queries), draws)
        add_intervals(per_query, board, found, interval)
        settings = settings | {
            "interval": interval,
            "n_draws": len(draws),
            "resamples": RESAMPLES,
            "seed": SEED,
            "rcp_ndcg_estimate": "posterior mean",
        }
        _note_single_queries(notes, found)
    return Scores(per_query, board, tuple(notes.lines), settings, found)


def _per_query(
    queries: Sequence[Query],
    systems: Sequence[str],
    results: Mapping[str, tuple[np.ndarray, np.ndarray]],
    grid: np.ndarray,
    k: int,
) -> pd.DataFrame:
    import pandas as pd

    system, query = np.nonzero(grid)
    n = len(results)

    def column(texts: Iterable[str], codes: np.ndarray) -> Any:
        return pd.array(list(texts), dtype="str").take(codes)

    return pd.DataFrame(
        {
            "dataset": column((dataset for dataset, _ in queries), np.tile(query, n)),
            "query_id": column((query_id for _, query_id in queries), np.tile(query, n)),
            "system": column(systems, np.tile(system, n)),
            "metric": column(results, np.repeat(np.arange(n), len(query))),
            "k": k,
            "score": np.concatenate([score[grid] for score, _ in results.values()]),
        }
    )


def _leaderboard(
    datasets: Sequence[str],
    home: np.ndarray,
    systems: Sequence[str],
    results: Mapping[str, tuple[np.ndarray, np.ndarray]],
    active: np.ndarray,
) -> pd.DataFrame:
    import pandas as pd

    blocks = []
    for metric, (score, judged) in results.items():
        defined = ~np.isnan(score)
        counts = np.stack([defined[:, home == d].sum(axis=1) for d in range(len(datasets))], axis=1)
        means = np.stack([_mean(score[:, home == d], axis=1) for d in range(len(datasets))], axis=1)
        shares = np.stack(
            [
                _mean(np.where(defined, judged, np.nan)[:, home == d], axis=1)
                for d in range(len(datasets))
            ],
            axis=1,
        )
        used = [d for d in range(len(datasets)) if active[:, d].any()]
        for d in used:
            rows = np.flatnonzero(active[:, d])
            blocks.append(
                _block(
                    datasets[d],
                    metric,
                    systems,
                    rows,
                    means[rows, d],
                    counts[rows, d],
                    shares[rows, d],
                )
            )
        # A dataset in which a metric is defined for no query has no part in its mean.
        with_values = [d for d in used if counts[:, d].any()]
        whole = np.flatnonzero(active[:, used].all(axis=1))
        mean = means[np.ix_(whole, with_values)].mean(axis=1) if with_values else np.nan * whole
        share = _mean(shares[np.ix_(whole, with_values)], axis=1)
        blocks.append(
            _block(
                MEAN, metric, systems, whole, mean, counts[np.ix_(whole, used)].sum(axis=1), share
            )
        )
    board = pd.concat([block for block in blocks if len(block)], ignore_index=True)
    order = {name: at for at, name in enumerate([*datasets, MEAN])}
    return board.sort_values(
        "dataset", key=lambda names: names.map(order), kind="stable"
    ).reset_index(drop=True)


def _block(
    dataset: str,
    metric: str,
    systems: Sequence[str],
    rows: np.ndarray,
    score: np.ndarray,
    counts: np.ndarray,
    judged: np.ndarray,
) -> pd.DataFrame:
    """Leaderboard rows of one dataset and metric, best first."""
    import pandas as pd

    order = np.argsort(-score, kind="stable")  # NaN last
    frame = pd.DataFrame(
        {
            "dataset": dataset,
            "system": [systems[s] for s in rows[order].tolist()],
            "metric": metric,
            "score": score[order],
            "rank": pd.Series(score[order]).rank(ascending=False, method="min").astype("Int64"),
            "n_queries": counts[order].astype(np.int64),
            "judged_at_k": judged[order],
        }
    )
    return frame.astype({"dataset": "str", "system": "str", "metric": "str"})


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean over what is not NaN; NaN where nothing is left."""
    defined = ~np.isnan(values)
    n = defined.sum(axis=axis)
    return np.where(defined, values, 0.0).sum(axis=axis) / np.where(n > 0, n, np.nan)


def _note_absent(
    notes: Notes, datasets: Sequence[str], systems: Sequence[str], active: np.ndarray
) -> None:
    nobody = [name for d, name in enumerate(datasets) if not active[:, d].any()]
    if nobody:
        notes.add(f"no run ranks a query of {_names(nobody)}: left out")
    used = active.any(axis=0)
    for s, system in enumerate(systems):
        absent = [name for d, name in enumerate(datasets) if used[d] and not active[s, d]]
        if not active[s].any():
            notes.add(f"{system} ranks none of the queries: left out")
        elif absent:
            notes.add(f"{system} ranks no query of {_names(absent)}: not scored there, no mean")


def _note_undefined(
    notes: Notes,
    queries: Sequence[Query],
    scored: Mapping[str, np.ndarray],
    used: np.ndarray,
    without_gain: np.ndarray,
) -> None:
    """Queries that a metric cannot score, metrics with the same ones on one line."""
    at = np.flatnonzero(used & without_gain)
    if len(at):
        notes.add(
            f"{len(at)} of {int(used.sum())} queries have no gains (no answers of one stage) and"
            f" are not scored by the labels: {_queries(queries, at)}"
        )
    groups: dict[tuple[bytes, str], list[str]] = {}
    for metric, defined in scored.items():
        missing, reason = used & ~defined, "no positive grade"
        if metric != "qrel_ndcg":
            missing, reason = missing & ~without_gain, "no gain above 0"
        if missing.any():
            groups.setdefault((missing.tobytes(), reason), []).append(metric)
    for (mask, reason), metrics in groups.items():
        at = np.flatnonzero(np.frombuffer(mask, dtype=bool))
        notes.add(
            f"{', '.join(metrics)} undefined where a query has {reason}, {len(at)} of"
            f" {int(used.sum())} queries, left out of the mean: {_queries(queries, at)}"
        )


def _note_unranked(
    notes: Notes,
    queries: Sequence[Query],
    systems: Sequence[str],
    ranked_rows: np.ndarray,
    scored: np.ndarray,
) -> None:
    for s, system in enumerate(systems):
        at = np.flatnonzero(scored[s] & (ranked_rows[s] == 0))
        if len(at):
            n = int(scored[s].sum())
            notes.add(
                f"{system} ranks {n - len(at)} of {n} labelled queries, the others score 0:"
                f" {_queries(queries, at)}"
            )


def _note_single_queries(notes: Notes, draws: ScoreDraws) -> None:
    single = [name for name, at in draws.homes().items() if len(at) == 1]
    if single:
        notes.add(
            f"one query in {_names(single)}: total_lo and total_hi cannot know how queries vary"
        )


def _note_judged(notes: Notes, board: pd.DataFrame, settings: Mapping[str, Any]) -> None:
    """Systems with too many unjudged documents at the top, metrics that agree on one line."""
    low = board[(board["judged_at_k"] < GOOD_JUDGED) & (board["dataset"] != MEAN)]
    several = board["dataset"].nunique() > 2
    groups: dict[tuple[str, str], list[str]] = {}
    for (metric, dataset), part in low.groupby(["metric", "dataset"], sort=False):
        systems = ", ".join(
            f"{system} {share:.2f}"
            for system, share in sorted(zip(part["system"], part["judged_at_k"], strict=True))
        )
        groups.setdefault((f" in {dataset}" if several else "", systems), []).append(str(metric))
    remedy = (
        "unjudged documents count 0 (unjudged=condense leaves them out)"
        if settings["unjudged"] == "zero"
        else "unjudged documents left the lists"
    )
    for (where, systems), metrics in groups.items():
        notes.add(
            f"judged_at_{settings['k']} below {GOOD_JUDGED}{where} for {', '.join(metrics)}:"
            f" {systems}; {remedy}"
        )


def _queries(queries: Sequence[Query], at: np.ndarray) -> str:
    """Some of the queries by name; the dataset only where it is named."""
    return _names(
        [
            q if dataset == DEFAULT_DATASET else f"{dataset}/{q}"
            for dataset, q in (queries[j] for j in at)
        ]
    )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _null(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
