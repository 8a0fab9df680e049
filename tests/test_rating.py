"""The preliminary fits against independent optimisers and against what an order must be."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from rcp_bayes.rating import rasch_abilities, rate_a, rate_b
from rcp_bayes.schedule import Answer, PlannedWindow

POOL = ["d0", "d1", "d2", "d3", "d4"]


def answer(index, documents, stage="a", **given):
    window = PlannedWindow(stage, "random", 0, index, tuple(documents), False)
    return Answer(window, **given)


def test_rasch_is_the_mode_scipy_finds():
    rng = np.random.default_rng(5)
    n = rng.integers(1, 6, size=12)
    truth = rng.normal(size=(12, 1)) - np.array([-1.0, 0.5, 2.0])
    passes = rng.binomial(n[:, None], expit(truth))

    def loss(x):
        logit = x[:12, None] - x[12:]
        likelihood = (passes * logit - n[:, None] * np.logaddexp(0, logit)).sum()
        return -likelihood + (x[:12] ** 2).sum() / 18 + 1e-4 * (x[12:] ** 2).sum() / 2

    found = minimize(loss, np.zeros(15), method="BFGS", options={"gtol": 1e-7})
    # BFGS on finite differences is good to about 1e-5.
    np.testing.assert_allclose(rasch_abilities(n, passes), found.x[:12], atol=1e-4)


def test_rasch_orders_by_passes_and_stays_finite():
    n = np.full(4, 3)
    passes = np.array([[3, 3], [3, 1], [1, 0], [0, 0]])
    ability = rasch_abilities(n, passes)
    assert np.isfinite(ability).all()
    assert (np.diff(ability) < 0).all()


def test_document_without_answers_is_unknown():
    ability = rasch_abilities(np.array([2, 0]), np.array([[1, 1], [0, 0]]))
    assert np.isfinite(ability[0]) and np.isnan(ability[1])


def test_rate_b_counts_placements():
    answers = [
        answer(0, ["d0", "d1"], "b", passes=((1, 1), (1, 0))),
        answer(1, ["d1", "d2"], "b", passes=((1, 0), (0, 0))),
    ]
    ability = rate_b(POOL, answers)
    direct = rasch_abilities(
        np.array([1, 2, 1, 0, 0]), np.array([[1, 1], [2, 0], [0, 0], [0, 0], [0, 0]])
    )
    np.testing.assert_array_equal(ability, direct)
    assert ability[0] > ability[1] > ability[2]


def test_rate_a_two_documents_is_their_difference():
    ability = rate_a(POOL, [answer(0, ["d3", "d1"], scores=(2.0, 0.5))])
    # One pair: the ridge of 1e-4 pulls the difference of 1.5 by less than 1e-3.
    assert ability[3] - ability[1] == pytest.approx(1.5, abs=1e-3)
    assert np.isnan(ability[[0, 2, 4]]).all()


def test_rate_a_reads_rankings():
    ability = rate_a(POOL, [answer(0, ["d0", "d1", "d2"], ranks=(3.0, 1.0, 2.0))])
    assert ability[1] > ability[2] > ability[0]
