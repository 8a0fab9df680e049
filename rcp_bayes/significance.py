"""Classical answers from per-query scores (Sections B.2, B.3): no posterior, no model of labels."""

from __future__ import annotations

import numpy as np

# Differences below it are rounding: the same list scored in another order of summation.
_ROUNDING = 1e-12
# Counts in one piece of work over resamples: 32 MB.
_CHUNK = 4_000_000


def paired_t(differences: np.ndarray, strata: np.ndarray | None = None) -> np.ndarray:
    """Two-sided p-values that mean differences are zero.

    Parameters
    ----------
    differences : float array (P, n)
        Differences of two systems' scores per query, one pair a row; NaN where undefined.
    strata : int array (n,), optional
        Dataset of each query, 0, 1, …. The tested mean is then the unweighted mean over datasets,
        its variance the sum of theirs, its degrees of freedom Welch-Satterthwaite's. Without it,
        or with one stratum, it is the paired t-test.

    Returns
    -------
    float array (P,)
        1 where all differences are zero; NaN where a stratum has under two queries that count.
    """
    from scipy.special import stdtr

    n_pairs, n = differences.shape
    strata = np.zeros(n, dtype=np.int64) if strata is None else strata
    mean, variance, spread = np.zeros(n_pairs), np.zeros(n_pairs), np.zeros(n_pairs)
    enough, same = np.full(n_pairs, n > 0), np.full(n_pairs, n > 0)
    levels = np.unique(strata)
    for level in levels:
        part = differences[:, strata == level]
        defined = ~np.isnan(part)
        count = defined.sum(axis=1)
        part = np.where(defined, part, 0.0)
        centre = part.sum(axis=1) / np.maximum(count, 1)
        squares = (np.where(defined, part - centre[:, None], 0.0) ** 2).sum(axis=1)
        error = squares / np.maximum(count - 1, 1) / np.maximum(count, 1)
        mean += centre
        variance += error
        spread += error**2 / np.maximum(count - 1, 1)
        enough &= count > 1
        same &= (np.abs(part) <= _ROUNDING).all(axis=1) & (count > 0)
    flat = variance == 0  # constant differences: t is infinite
    freedom = np.where(flat, 1.0, variance**2 / np.where(flat, 1.0, spread))
    t = np.where(flat, np.inf, np.abs(mean) / np.sqrt(np.where(flat, 1.0, variance)))
    p = np.where(enough, 2.0 * stdtr(freedom, -t), np.nan)
    return np.where(same, 1.0, p)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values within one family; NaN stays and is not counted."""
    adjusted = np.full(len(p), np.nan)
    at = np.flatnonzero(~np.isnan(p))
    order = at[np.argsort(p[at], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return adjusted


def bootstrap_means(scores: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means over queries that are drawn with replacement, the query as the cluster.

    Parameters
    ----------
    scores : float array (M, n)
        Systems by queries of one stratum, without NaN. All systems share a resample.

    Returns
    -------
    float array (resamples, M)
    """
    n = scores.shape[1]
    out = np.empty((resamples, len(scores)))
    step = max(1, _CHUNK // n)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = rng.multinomial(n, np.full(n, 1.0 / n), size=size)
        out[start : start + size] = drawn @ scores.T / n
    return out


def rank_correlations(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Kendall's tau-b and Spearman's rho of two metrics' scores of the same systems.

    NaN where fewer than two systems have both, or a metric scores all alike.
    """
    from scipy.stats import kendalltau, spearmanr

    both = ~(np.isnan(a) | np.isnan(b))
    a, b = a[both], b[both]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan, np.nan
    return float(kendalltau(a, b).statistic), float(spearmanr(a, b).statistic)
