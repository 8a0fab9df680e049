"""Stage A windows for tests, and the definition of their objective without any aggregation."""

import numpy as np
from scipy.special import expit

from rcp_bayes.windows import Windows


def build(*windows):
    """`Windows` from (query, documents, scores or None, ranks or None), sorted by query."""
    windows = sorted(windows, key=lambda window: window[0])
    size = [len(documents) for _, documents, _, _ in windows]
    n_entries, n_windows = sum(size), len(windows)

    def column(which):
        parts = [
            np.full(w, np.nan) if window[which] is None else np.asarray(window[which], float)
            for window, w in zip(windows, size, strict=True)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    return Windows(
        offset=np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
        query=np.array([window[0] for window in windows], dtype=np.int32),
        document=np.array([d for window in windows for d in window[1]], dtype=np.int32),
        score=column(2),
        rank=column(3),
        scored=np.array([window[2] is not None for window in windows], dtype=bool),
        position=np.full(n_entries, -1, np.int32),
        phase=np.full(n_windows, -1, np.int32),
        judge=np.full(n_windows, -1, np.int32),
        phases=(),
        judges=(),
    )


def beats(query, winner, loser, times=1):
    """`times` ranking-only windows of two documents."""
    return [(query, (winner, loser), None, (1, 2))] * times


def random_windows(rng, query, documents, n_windows, *, largest=6, share_hard=0.3):
    """Windows of 1 to `largest` of the documents, some known by a ranking with ties."""
    made = []
    for _ in range(n_windows):
        w = int(rng.integers(1, min(largest, len(documents)) + 1))
        shown = rng.permutation(documents)[:w]
        if rng.random() < share_hard:
            made.append((query, shown, None, rng.integers(1, w + 1, w)))
        else:
            made.append((query, shown, np.round(rng.normal(0, 2, w), 1), None))
    return made


def pairs_of(windows, query):
    """Every preference of a query as (i, k, weight, p), one by one as in C.2."""
    pairs = []
    for at in np.flatnonzero(windows.query == query):
        entries = range(windows.offset[at], windows.offset[at + 1])
        w = len(entries)
        for a in entries:
            for b in range(a + 1, windows.offset[at + 1]):
                if windows.scored[at]:
                    weight, p = 2 / w, 1 / (1 + np.exp(windows.score[b] - windows.score[a]))
                else:
                    weight = 1.0
                    p = 0.5 + 0.5 * np.sign(windows.rank[b] - windows.rank[a])
                pairs.append((windows.document[a], windows.document[b], weight, p))
    return pairs


def objective(theta, windows, query, ridge=1e-4):
    """Objective of one query and its gradient; `theta` covers the universe, NaN not allowed."""
    i, k, weight, p = (np.array(column) for column in zip(*pairs_of(windows, query), strict=True))
    i, k = i.astype(int), k.astype(int)
    own = np.unique(windows.document[np.repeat(windows.query, windows.size) == query])
    d = theta[i] - theta[k]
    cross_entropy = p * np.logaddexp(0, -d) + (1 - p) * np.logaddexp(0, d)
    value = np.sum(weight * cross_entropy) / weight.sum() + ridge / 2 * np.sum(theta[own] ** 2)
    gradient = np.zeros(len(theta))
    gradient[own] = ridge * theta[own]
    residual = weight * (expit(d) - p) / weight.sum()
    np.add.at(gradient, i, residual)
    np.add.at(gradient, k, -residual)
    return value, gradient
