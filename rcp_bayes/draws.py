"""Draws of gains, and what they say about scores: per query, per dataset, and their mean.

Two uncertainties are kept apart everywhere. *Labels*: what the draws of the gains leave open about
these very queries. *Labels and queries* (``total``): on top of it the queries are a sample, by
Rubin's Bayesian bootstrap (weights Dirichlet(1, …, 1) over the queries of each dataset, drawn anew
for every resample and shared by all systems, so that differences stay paired).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rcp_bayes.align import Query
from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.metrics import TopK, ndcg_of_lists
from rcp_bayes.tables import MEAN

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 2000  # as in Section B.3
SEED = 0
# Doubles in one piece of work over draws: 32 MB, of which a few copies live at a time.
_CHUNK = 4_000_000


@dataclass(frozen=True, eq=False)
class GainDraws:
    """Posterior draws of the gain of Eq. 4.

    Attributes
    ----------
    gain : array (S, D)
        Row s is one joint draw of all gains, float32 or float64, the chains one after another.
        Column d is row d of the fit's ``labels``; what it holds for a document whose ``gain`` is
        NaN there does not matter. It is read a few rows at a time, by ``gain[start:stop]``, so an
        array on disk (a memory map, an HDF5 variable) serves as well.
    """

    gain: Any

    @property
    def n_draws(self) -> int:
        return int(self.gain.shape[0])

    def require(self, n_labels: int) -> None:
        """Refuse draws that are not of these labels, or too few to have a spread."""
        if len(self.gain.shape) != 2 or self.gain.shape[1] != n_labels or self.n_draws < 2:
            raise InputError(
                f"{n_labels} labels and at least 2 draws do not go with draws of shape"
                f" {tuple(self.gain.shape)}",
                source="draws",
                remedy="labels and draws must be of one fit, the labels' rows in their first order",
            )


def ndcg_draws(
    draws: GainDraws,
    rows: np.ndarray,
    known: np.ndarray,
    top: TopK,
    query_of_list: np.ndarray,
    offset: np.ndarray,
    k: int,
) -> np.ndarray:
    """nDCG@k of every list in every draw, each with the ideal ranking of its own draw.

    Parameters
    ----------
    rows : int array (D',)
        Label row of each document that has part, documents of query j at ``offset[j]:offset[j+1]``.
    known : bool array (D',)
        Those that have a gain; the others count 0.
    top, query_of_list, offset, k
        As in `metrics.ndcg_of_lists`.

    Returns
    -------
    float64 array (S, L)
        NaN in all draws of a list that is undefined in any.

    Raises
    ------
    InputError
        A draw that is negative or not finite.
    """
    out = np.empty((draws.n_draws, len(query_of_list)))
    whole = np.array_equal(rows, np.arange(draws.gain.shape[1]))
    step = max(1, _CHUNK // max(1, len(rows), len(top.item)))
    for start in range(0, len(out), step):
        part = np.asarray(draws.gain[start : start + step])
        if not whole:
            part = np.take(part, rows, axis=1)
        if not known.all():
            part = np.where(known, part, 0)
        if part.size and not (part.min() >= 0 and part.max() < np.inf):  # NaN fails both
            raise InputError(
                "a gain is negative or not finite",
                source="draws",
                remedy="run `fit` again; please report it if it comes back",
            )
        out[start : start + step] = ndcg_of_lists(part, top, query_of_list, offset, k)
    out[:, np.isnan(out).any(axis=0)] = np.nan
    return out


@dataclass(frozen=True, eq=False)
class ScoreDraws:
    """Per-query scores as draws.

    Attributes
    ----------
    metric : str
    systems : tuple of str, length M
    queries : tuple of (dataset, query_id), length Q
    score : float64 array (S, M, Q)
        NaN where undefined, and where a system ranks no query of the dataset.
    """

    metric: str
    systems: tuple[str, ...]
    queries: tuple[Query, ...]
    score: np.ndarray

    def label_means(self) -> dict[str, np.ndarray]:
        """Draws of every dataset's mean score, (S, M), and of ``mean``: label uncertainty alone."""
        return _with_mean(
            {name: self.score[:, :, at].mean(axis=2) for name, at in self.homes().items()}
        )

    def total_means(self, seed: int = SEED, resamples: int = RESAMPLES) -> dict[str, np.ndarray]:
        """The same with the queries resampled, (B, M): every draw serves equally often.

        B is the least multiple of S that is at least `resamples`.
        """
        rng = np.random.default_rng(seed)
        repeats = -(-resamples // len(self.score))
        return _with_mean(
            {
                name: bayesian_bootstrap(self.score[:, :, at], repeats, rng)
                for name, at in self.homes().items()
            }
        )

    def homes(self) -> dict[str, np.ndarray]:
        """Indices of each dataset's queries that are defined; datasets without any stay away."""
        defined = ~np.isnan(self.score[0]).all(axis=0)
        found: dict[str, list[int]] = {}
        for j, (dataset, _) in enumerate(self.queries):
            if defined[j]:
                found.setdefault(dataset, []).append(j)
        return {name: np.array(at) for name, at in found.items()}


def bayesian_bootstrap(score: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Weighted means over queries: (S, M, Q) to (S * repeats, M), weights Dirichlet(1, …, 1)."""
    n_draws, n_systems, n_queries = score.shape
    out = np.empty((n_draws, repeats, n_systems))
    step = max(1, _CHUNK // (n_queries * (repeats + n_systems)))
    for start in range(0, n_draws, step):
        part = score[start : start + step]
        weight = rng.standard_exponential((len(part), repeats, n_queries))
        weight /= weight.sum(axis=2, keepdims=True)
        out[start : start + step] = weight @ part.transpose(0, 2, 1)
    return out.reshape(-1, n_systems)


def quantile_band(values: np.ndarray, interval: float) -> tuple[np.ndarray, np.ndarray]:
    """Equal-tailed bounds over the first axis; NaN where a value is."""
    tail = (1.0 - interval) / 2.0
    lo, hi = np.quantile(np.ascontiguousarray(values.T), [tail, 1.0 - tail], axis=-1)
    return lo.T, hi.T


def check_interval(interval: float) -> None:
    if not 0.0 < interval < 1.0:
        raise UsageError(f"interval is {interval:g}, but a level lies between 0 and 1, e.g. 0.95")


def add_intervals(
    per_query: pd.DataFrame, board: pd.DataFrame, draws: ScoreDraws, interval: float
) -> None:
    """Give both tables of a `Scores` their interval columns, in place; NaN for other metrics.

    The rows of `per_query` that are of the draws' metric stand system by system, in the order of
    `draws`.
    """
    rows = per_query["metric"].to_numpy() == draws.metric
    place = {query: j for j, query in enumerate(draws.queries)}
    at = {system: m for m, system in enumerate(draws.systems)}
    mine = per_query[rows]
    system = np.array([at[name] for name in mine["system"]], dtype=np.int64)
    query = np.array(
        [place[key] for key in zip(mine["dataset"], mine["query_id"], strict=True)], dtype=np.int64
    )
    values = draws.score[:, system, query]
    lo, hi = quantile_band(values, interval)
    for name, column in (("sd", values.std(axis=0, ddof=1)), ("lo", lo), ("hi", hi)):
        per_query[name] = np.nan
        per_query.loc[rows, name] = column
    columns = ("sd", "lo", "hi", "total_lo", "total_hi")
    found = _summaries(draws.label_means(), draws.total_means(), draws.systems, interval)
    nothing = (np.nan,) * len(columns)
    lines = [
        found.get((dataset, name), nothing) if metric == draws.metric else nothing
        for dataset, name, metric in zip(
            board["dataset"], board["system"], board["metric"], strict=True
        )
    ]
    board[list(columns)] = np.array(lines, dtype=np.float64).reshape(-1, len(columns))


def _summaries(
    labels: Mapping[str, np.ndarray],
    total: Mapping[str, np.ndarray],
    systems: Sequence[str],
    interval: float,
) -> dict[tuple[str, str], tuple[float, ...]]:
    found = {}
    for dataset, means in labels.items():
        numbers = np.stack(
            [
                means.std(axis=0, ddof=1),
                *quantile_band(means, interval),
                *quantile_band(total[dataset], interval),
            ]
        )
        for m, system in enumerate(systems):
            found[dataset, system] = tuple(numbers[:, m].tolist())
    return found


def _with_mean(by_dataset: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With the unweighted mean over datasets; a system without one of them has none (NaN)."""
    if not by_dataset:
        return {}
    return {**by_dataset, MEAN: np.mean(list(by_dataset.values()), axis=0)}
