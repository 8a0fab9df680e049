"""The window-clustered sandwich against refits with each window left out."""

from dataclasses import replace

import numpy as np
import pytest
from joint_worlds import world

from rcp_bayes.inference.bradley_terry import fit_bradley_terry
from rcp_bayes.inference.sandwich import sandwich_covariance, sandwich_draws
from rcp_bayes.windows import Windows


def without(windows: Windows, left_out: int) -> Windows:
    keep = np.arange(windows.n_windows) != left_out
    entries = np.repeat(keep, windows.size)
    per_entry = {
        name: getattr(windows, name)[entries] for name in ("document", "score", "rank", "position")
    }
    per_window = {
        name: getattr(windows, name)[keep] for name in ("query", "scored", "phase", "judge")
    }
    offset = np.concatenate([[0], np.cumsum(windows.size[keep])])
    return replace(windows, offset=offset, **per_entry, **per_window)


def ranked(windows: Windows) -> Windows:
    """The same windows by their ranks alone, with a tie in the first."""
    rank = np.concatenate(
        [
            np.argsort(np.argsort(-windows.score[a:b])) + 1.0
            for a, b in zip(windows.offset[:-1], windows.offset[1:], strict=True)
        ]
    )
    rank[0] = rank[1]
    return replace(
        windows,
        score=np.full(len(rank), np.nan),
        rank=rank,
        scored=np.zeros(windows.n_windows, bool),
    )


@pytest.mark.parametrize("form", [lambda windows: windows, ranked], ids=["scores", "ranks"])
def test_is_the_jackknife(form):
    """To 10% in every sd: the jackknife refits, the sandwich takes one Newton step."""
    observed, _ = world(n_queries=1, pool=(12,), noise=1.0)
    offset, windows = observed.universe.offset, form(observed.windows)
    theta = fit_bradley_terry(offset, windows).theta
    ((documents, covariance),) = sandwich_covariance(offset, windows, theta)
    refits = np.array(
        [fit_bradley_terry(offset, without(windows, w)).theta for w in range(windows.n_windows)]
    )
    scale = (windows.n_windows - 1) / windows.n_windows
    expected = np.sqrt(scale * ((refits - theta) ** 2).sum(axis=0))
    np.testing.assert_array_equal(documents, np.arange(12))
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), expected, rtol=0.1)


def test_draws_have_the_covariance():
    observed, _ = world()
    offset, windows = observed.universe.offset, observed.windows
    theta = fit_bradley_terry(offset, windows).theta
    n_draws = 4000
    draws = sandwich_draws(offset, windows, theta, n_draws, np.random.default_rng(1))
    for documents, covariance in sandwich_covariance(offset, windows, theta):
        sd = np.sqrt(np.diag(covariance))
        found = np.cov(draws[:, documents].T)
        bound = 5 / np.sqrt(n_draws) * np.outer(sd, sd) * np.sqrt(2)
        assert (np.abs(found - covariance) < bound).all()
        # Scores sum to zero, and so do their draws, up to the ridge.
        np.testing.assert_allclose(draws[:, documents].sum(axis=1), 0, atol=1e-6)


def test_a_document_seen_once_keeps_a_finite_sd():
    observed, _ = world(n_queries=1, pool=(12,), noise=1.0)
    offset, windows = observed.universe.offset, observed.windows
    for w in range(windows.n_windows - 1, -1, -1):
        entries = windows.document[windows.offset[w] : windows.offset[w + 1]]
        if 0 in entries and (windows.document == 0).sum() > 1:
            windows = without(windows, w)
    assert (windows.document == 0).sum() == 1
    theta = fit_bradley_terry(offset, windows).theta
    ((_, covariance),) = sandwich_covariance(offset, windows, theta)
    assert np.isfinite(covariance).all()
    assert covariance[0, 0] > np.median(np.diag(covariance))
