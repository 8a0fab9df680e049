"""Which system is better, and how sure that is: classical tests and posterior answers side by side.

The classical part (Sections B.2, B.3) takes the scores as they are: paired t-tests, sensitivity, a
query bootstrap, rank correlations of the metrics' leaderboards. Where the fit has draws, posterior
answers stand beside it: ``p_superior, p_tie, lo, hi, rank_lo, rank_hi, p_best`` know the labels'
uncertainty for these very queries, the same names after ``total_`` also that of the queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from rcp_bayes.draws import RESAMPLES, SEED, ScoreDraws, check_interval, quantile_band
from rcp_bayes.errors import UsageError
from rcp_bayes.evaluate import score
from rcp_bayes.gain_space import METRICS, Metric
from rcp_bayes.significance import bootstrap_means, holm, paired_t, rank_correlations
from rcp_bayes.tables import MEAN

if TYPE_CHECKING:
    import pandas as pd

    from rcp_bayes.fitfolder import Fit
    from rcp_bayes.scores import Scores

LEVEL = 0.05  # a test separates two systems below it (Section B.2)
TIE_ZONE = 0.005  # on a mean score: our choice
CLOSE = 0.02  # on one query: the paper's zone (for two lists at depth 5)
WITHIN = f"share_queries_within_{CLOSE}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Systems compared in pairs.

    Attributes
    ----------
    pairs : DataFrame
        One row for each dataset and pair, `a` the better of the two over all datasets:
        ``dataset, a, b, difference, p_value, separated, p_holm, n_queries, boot_lo, boot_hi``.
        `difference` is mean score a - b; `p_value` the paired t-test's (NaN with one query);
        `p_holm` adjusted for all pairs of the dataset; ``boot_lo, boot_hi`` the query bootstrap.
        With draws also ``p_superior`` (exact ties count half), ``p_tie`` (absolute difference
        within the tie zone), ``lo, hi``, their ``total_`` forms, and the expected share of queries
        on which the two are within 0.02. With several datasets, rows of dataset ``mean`` compare
        unweighted means; their test is stratified, and they have no part in the sensitivity.
    sensitivity : dict
        metric -> {dataset: share of pairs separated at 0.05, "mean": mean over datasets}; NaN
        where there is no pair to test.
    ranks : DataFrame
        ``dataset, system, score, rank, boot_lo, boot_hi``; with draws ``rank_lo, rank_hi, p_best``
        (systems that share the lead share its probability) and their ``total_`` forms.
    agreement : DataFrame
        ``dataset, metric_a, metric_b, kendall, spearman, n_systems``: leaderboards compared.
    notes : tuple of str
        Notes of the scoring, then how to read the numbers.
    settings : dict
        Those of the scores, and ``metric, tie_zone, interval, level, resamples, seed, n_tests``.
    """

    pairs: pd.DataFrame
    sensitivity: dict[str, dict[str, float]]
    ranks: pd.DataFrame
    agreement: pd.DataFrame
    notes: tuple[str, ...]
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The document of ``compare --json``; what is undefined is null."""
        return {
            **self.settings,
            "pairs": _records(self.pairs),
            "sensitivity": {
                metric: {name: _plain(share) for name, share in shares.items()}
                for metric, shares in self.sensitivity.items()
            },
            "ranks": _records(self.ranks),
            "agreement": _records(self.agreement),
            "notes": list(self.notes),
        }


def compare(
    fit: Fit | None,
    runs: pd.DataFrame,
    qrels: pd.DataFrame | None = None,
    *,
    metric: Metric = "rcp_ndcg",
    tie_zone: float = TIE_ZONE,
    interval: float = 0.95,
    seed: int = SEED,
    **scoring: Any,
) -> Comparison:
    """Score runs and compare every pair of systems.

    Parameters
    ----------
    fit, runs, qrels
        As for `score`.
    metric : str
        The metric of the pairs and ranks; the sensitivity is that of every metric at hand.
    tie_zone : float
        Two mean scores that differ by no more count as tied in ``p_tie``.
    interval : float
        Level of all intervals.
    seed : int
        Of the bootstraps.
    **scoring
        Options of `score`: ``k``, ``protocol``, ….

    Raises
    ------
    InputError, UsageError
        As `score`; a metric that the inputs do not allow, a zone or level out of range.
    """
    _check(metric, tie_zone, interval)
    scores = score(fit, runs, qrels, interval=interval, **scoring)
    return compare_scores(scores, metric=metric, tie_zone=tie_zone, interval=interval, seed=seed)


def compare_scores(
    scores: Scores,
    *,
    metric: Metric = "rcp_ndcg",
    tie_zone: float = TIE_ZONE,
    interval: float = 0.95,
    seed: int = SEED,
) -> Comparison:
    """`compare` for runs that are scored already."""
    import pandas as pd

    _check(metric, tie_zone, interval)
    tables = {
        name: _Table.of(scores, name) for name in METRICS if name in set(scores.per_query["metric"])
    }
    if metric not in tables:
        raise UsageError(f"{metric} needs {'qrels' if metric == 'qrel_ndcg' else 'a fit'}")
    table = tables[metric]
    draws = scores.draws if scores.draws is not None and scores.draws.metric == metric else None
    posterior = None if draws is None else _Posterior.of(draws, table, seed)
    boot = table.bootstrap(seed)
    pairs, ranks = [], []
    for dataset in table.places():
        systems = table.systems_of(dataset)
        block = _classical(table, dataset, systems, boot[dataset], interval)
        board = _board(table, dataset, systems, boot[dataset], interval)
        if posterior is not None:
            block |= posterior.pairs(dataset, systems, tie_zone, interval)
            board |= posterior.ranks(dataset, systems, interval)
        pairs.append(pd.DataFrame(block))
        ranks.append(pd.DataFrame(board).sort_values("rank", kind="stable"))
    frame = pd.concat(pairs, ignore_index=True)
    frame = frame.astype(dict.fromkeys(("dataset", "a", "b"), "str") | {"separated": bool})
    n_tests = int(frame["p_value"].notna().sum())
    settings = scores.settings | {
        "metric": metric,
        "tie_zone": tie_zone,
        "interval": interval,
        "level": LEVEL,
        "resamples": RESAMPLES,
        "seed": seed,
        "n_tests": n_tests,
    }
    return Comparison(
        frame,
        {name: _sensitivity(each) for name, each in tables.items()},
        pd.concat(ranks, ignore_index=True).astype({"dataset": "str", "system": "str"}),
        _agreement(scores, list(tables)),
        (*scores.notes, *_notes(frame, table, draws is not None, settings)),
        settings,
    )


# -------------------------------------------------------------------------------- classical part


@dataclass(frozen=True, eq=False)
class _Table:
    """One metric's scores: systems, best first, by the queries for which it is defined."""

    systems: tuple[str, ...]
    datasets: tuple[str, ...]
    home: np.ndarray  # (Q,) index into datasets
    score: np.ndarray  # (M, Q); NaN where a system ranks no query of the dataset

    @classmethod
    def of(cls, scores: Scores, metric: str) -> _Table:
        import pandas as pd

        rows = scores.per_query[scores.per_query["metric"] == metric].dropna(subset="score")
        board = scores.leaderboard[scores.leaderboard["metric"] == metric]
        whole = board.loc[board["dataset"] == MEAN, "system"]
        names = tuple(dict.fromkeys([*whole, *board["system"]]))
        datasets = tuple(rows["dataset"].drop_duplicates())
        system = pd.Index(names).get_indexer(rows["system"])
        query, keys = pd.MultiIndex.from_frame(rows[["dataset", "query_id"]]).factorize()
        matrix = np.full((len(names), len(keys)), np.nan)
        matrix[system, query] = rows["score"].to_numpy()
        home = pd.Index(datasets).get_indexer([dataset for dataset, _ in keys])
        return cls(names, datasets, home, matrix)

    def places(self) -> list[str]:
        """Datasets, and their mean where there are several."""
        return [*([MEAN] if len(self.datasets) > 1 else []), *self.datasets]

    def columns(self, dataset: str) -> np.ndarray:
        if dataset == MEAN:
            return np.arange(len(self.home))
        return np.flatnonzero(self.home == self.datasets.index(dataset))

    def systems_of(self, dataset: str) -> np.ndarray:
        """Systems that are scored there: on all queries, as a query left out scores 0."""
        return np.flatnonzero(~np.isnan(self.score[:, self.columns(dataset)]).any(axis=1))

    def means(self, dataset: str) -> np.ndarray:
        """Mean score of every system, (M,)."""
        if dataset == MEAN:
            return np.mean([self.means(name) for name in self.datasets], axis=0)
        return self.score[:, self.columns(dataset)].mean(axis=1)

    def differences(self, dataset: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        at = self.columns(dataset)
        return self.score[np.ix_(a, at)] - self.score[np.ix_(b, at)]

    def bootstrap(self, seed: int) -> dict[str, np.ndarray]:
        """Resampled means of every system, (resamples, M): stratified by dataset."""
        rng = np.random.default_rng(seed)
        found = {}
        for dataset in self.datasets:
            scores = self.score[:, self.columns(dataset)]
            found[dataset] = bootstrap_means(scores, RESAMPLES, rng)
        if len(found) > 1:
            found[MEAN] = np.mean(list(found.values()), axis=0)
        return found


def _pairs_of(systems: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(list(combinations(systems.tolist(), 2)), dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _pieces(a: np.ndarray, b: np.ndarray, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs in portions of about 32 MB when each takes `width` doubles."""
    step = max(1, 4_000_000 // max(1, width))
    for start in range(0, len(a), step):
        yield a[start : start + step], b[start : start + step]


def _p_values(table: _Table, dataset: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    strata = table.home[table.columns(dataset)]
    parts = [
        paired_t(table.differences(dataset, i, j), strata) for i, j in _pieces(a, b, len(strata))
    ]
    return np.concatenate([np.empty(0), *parts])


def _classical(
    table: _Table, dataset: str, systems: np.ndarray, boot: np.ndarray, interval: float
) -> dict[str, Any]:
    a, b = _pairs_of(systems)
    p = _p_values(table, dataset, a, b)
    means = table.means(dataset)
    lo, hi = _band_of_pairs(boot, a, b, interval)
    return {
        "dataset": [dataset] * len(a),
        "a": [table.systems[i] for i in a],
        "b": [table.systems[j] for j in b],
        "difference": means[a] - means[b],
        "p_value": p,
        "separated": p < LEVEL,
        "p_holm": holm(p),
        "n_queries": np.full(len(a), len(table.columns(dataset))),
        "boot_lo": lo,
        "boot_hi": hi,
    }


def _band_of_pairs(
    means: np.ndarray, a: np.ndarray, b: np.ndarray, interval: float
) -> tuple[np.ndarray, np.ndarray]:
    """Quantile bounds of differences of resampled or drawn means (B, M), each (P,)."""
    bands = [
        quantile_band(means[:, i] - means[:, j], interval) for i, j in _pieces(a, b, len(means))
    ]
    empty = np.empty(0)
    return (
        np.concatenate([empty, *(lo for lo, _ in bands)]),
        np.concatenate([empty, *(hi for _, hi in bands)]),
    )


def _board(
    table: _Table, dataset: str, systems: np.ndarray, boot: np.ndarray, interval: float
) -> dict[str, Any]:
    means = table.means(dataset)[systems]
    lo, hi = quantile_band(boot[:, systems], interval)
    return {
        "dataset": [dataset] * len(systems),
        "system": [table.systems[m] for m in systems],
        "score": means,
        "rank": _ranks(means[None])[0],
        "boot_lo": lo,
        "boot_hi": hi,
    }


def _sensitivity(table: _Table) -> dict[str, float]:
    shares = {}
    for dataset in table.datasets:
        p = _p_values(table, dataset, *_pairs_of(table.systems_of(dataset)))
        tested = p[~np.isnan(p)]
        shares[dataset] = float((tested < LEVEL).mean()) if len(tested) else math.nan
    known = [share for share in shares.values() if not math.isnan(share)]
    return {**shares, MEAN: float(np.mean(known)) if known else math.nan}


def _agreement(scores: Scores, metrics: list[str]) -> pd.DataFrame:
    import pandas as pd

    board = scores.leaderboard
    wide = board.pivot(index=["dataset", "system"], columns="metric", values="score")
    several = board["dataset"].nunique() > 2
    rows = []
    for dataset in board["dataset"].drop_duplicates():
        if dataset == MEAN and not several:
            continue
        part = wide.loc[dataset]
        for first, second in combinations(metrics, 2):
            x, y = (part[name].to_numpy(dtype=np.float64) for name in (first, second))
            both = int((~(np.isnan(x) | np.isnan(y))).sum())
            rows.append((dataset, first, second, *rank_correlations(x, y), both))
    names = ["dataset", "metric_a", "metric_b", "kendall", "spearman", "n_systems"]
    return pd.DataFrame(rows, columns=names)


# -------------------------------------------------------------------------------- posterior part


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Draws in the order of a table's systems and queries."""

    table: _Table
    score: np.ndarray  # (S, M', Q'), as drawn
    system: np.ndarray  # (M,) place of the table's systems among the drawn
    homes: dict[str, np.ndarray]
    means: dict[str, dict[str, np.ndarray]]  # "" and "total_" -> dataset -> (draws, M)

    @classmethod
    def of(cls, draws: ScoreDraws, table: _Table, seed: int) -> _Posterior:
        place = {name: m for m, name in enumerate(draws.systems)}
        system = np.array([place[name] for name in table.systems], dtype=np.int64)
        means = {"": draws.label_means(), "total_": draws.total_means(seed)}
        ordered = {
            kind: {name: values[:, system] for name, values in found.items()}
            for kind, found in means.items()
        }
        return cls(table, draws.score, system, draws.homes(), ordered)

    def pairs(
        self, dataset: str, systems: np.ndarray, tie_zone: float, interval: float
    ) -> dict[str, np.ndarray]:
        a, b = _pairs_of(systems)
        found: dict[str, np.ndarray] = {}
        for kind, means in self.means.items():
            drawn = means[dataset]
            superior, tie = [np.empty(0)], [np.empty(0)]
            for i, j in _pieces(a, b, len(drawn)):
                d = drawn[:, i] - drawn[:, j]
                superior.append((d > 0).mean(axis=0) + (d == 0).mean(axis=0) / 2)
                tie.append((np.abs(d) <= tie_zone).mean(axis=0))
            lo, hi = _band_of_pairs(drawn, a, b, interval)
            names = ("p_superior", "p_tie", "lo", "hi")
            columns = (np.concatenate(superior), np.concatenate(tie), lo, hi)
            found |= {kind + name: x for name, x in zip(names, columns, strict=True)}
        return found | {WITHIN: self._within(dataset, a, b)}

    def _within(self, dataset: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Expected share of queries on which two systems are close, (P,); mean over datasets."""
        if dataset == MEAN:
            return np.mean([self._within(name, a, b) for name in self.table.datasets], axis=0)
        # One system's draws as one row, so that a pair is one pass over contiguous memory.
        drawn = self.score[:, self.system][:, :, self.homes[dataset]].transpose(1, 0, 2)
        drawn = np.ascontiguousarray(drawn).reshape(len(self.system), -1)
        share = [
            np.count_nonzero(np.abs(drawn[i] - drawn[j]) <= CLOSE)
            for i, j in zip(a.tolist(), b.tolist(), strict=True)
        ]
        return np.array(share, dtype=np.float64) / drawn.shape[1]

    def ranks(self, dataset: str, systems: np.ndarray, interval: float) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for kind, means in self.means.items():
            rank = _ranks(means[dataset][:, systems])
            tail = (1.0 - interval) / 2.0
            lo, hi = np.quantile(rank, [tail, 1.0 - tail], axis=0, method="inverted_cdf")
            best = rank == 1
            found |= {
                f"{kind}rank_lo": lo,
                f"{kind}rank_hi": hi,
                f"{kind}p_best": (best / best.sum(axis=1, keepdims=True)).mean(axis=0),
            }
        return found


def _ranks(means: np.ndarray) -> np.ndarray:
    """Ranks within each row, 1 the highest; equal scores share the better rank."""
    return np.stack(
        [(means > means[:, [m]]).sum(axis=1) + 1 for m in range(means.shape[1])], axis=1
    )


# ------------------------------------------------------------------------------------ the report


def _notes(
    pairs: pd.DataFrame, table: _Table, posterior: bool, settings: dict[str, Any]
) -> list[str]:
    notes = []
    single = [name for name in table.datasets if len(table.columns(name)) < 2]
    if len(table.systems) < 2:
        notes.append("one system: nothing to compare it with")
    elif single:
        notes.append(f"one query in {', '.join(single)}: no paired test there")
    n = settings["n_tests"]
    if n > 1:
        separated = int(pairs["separated"].sum())
        kept = int((pairs["p_holm"] < LEVEL).sum())
        notes.append(
            f"{n} tests at {LEVEL}: about {LEVEL * n:.1f} would separate if no two systems"
            f" differed; {separated} do, {kept} after Holm's correction for the pairs of a dataset"
            " (p_holm)"
        )
    if not posterior and settings["metric"] == "rcp_ndcg":
        notes.append("the fit has no draws: how sure the labels are is in none of these numbers")
    return notes


def _check(metric: str, tie_zone: float, interval: float) -> None:
    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}; known: {', '.join(METRICS)}")
    if not 0.0 <= tie_zone < math.inf:
        raise UsageError(f"the tie zone is {tie_zone:g}, but it is a difference of at least 0")
    check_interval(interval)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(name): _plain(value) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
