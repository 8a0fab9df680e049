"""The gain against its definition, the paper's printed values and the paper's propositions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit

from rcp_bayes.errors import UsageError
from rcp_bayes.gain import (
    GAIN_SHAPES,
    gain,
    information,
    logistic,
    pass_probability,
    shaped_gain,
)
from rcp_bayes.items import load_items

GAMMA = np.array([1.17, 1.05, 0.94, 1.16, 0.69])
BETA = np.array([-2.57, -2.00, -0.25, 0.71, 4.12])

slopes = st.floats(0.1, 4.0)
difficulties = st.floats(-6.0, 6.0)
criteria = st.lists(st.tuples(slopes, difficulties), min_size=1, max_size=6)


def split(items):
    gamma, beta = np.array(items).T
    return gamma, beta


def test_gain_is_the_weighted_mean_of_pass_probabilities():
    theta = np.linspace(-12, 12, 41)
    passes = expit(GAMMA * (theta[:, None] - BETA))
    np.testing.assert_allclose(pass_probability(theta, GAMMA, BETA), passes, rtol=1e-14)
    np.testing.assert_allclose(gain(theta, GAMMA, BETA), passes @ GAMMA / GAMMA.sum(), rtol=1e-13)
    expected = (GAMMA**2 * passes * expit(-GAMMA * (theta[:, None] - BETA))).sum(axis=1)
    np.testing.assert_allclose(information(theta, GAMMA, BETA), expected, rtol=1e-13)


def test_paper_values_on_nanobeir():
    """Section 3.4: the gain is 0.22 at C1's difficulty and 0.69 at C4's."""
    items = load_items("nanobeir-qwen3.5-397b")
    found = gain(items.beta[[0, 3]], items.gamma, items.beta)
    assert [f"{value:.2f}" for value in found] == ["0.22", "0.69"]


@given(criteria, st.floats(-30, 30))
def test_lemma_i1_range_and_slope(items, theta):
    gamma, beta = split(items)
    value = gain(theta, gamma, beta)
    assert 0.0 < value < 1.0 or theta > beta.max()  # rounds to 1.0 far above every criterion
    assert 0.0 < value <= 1.0
    # The slope by central difference: error h^2/6 * |g'''| <= 1e-8 * 4^3, plus rounding 1e-16/h.
    h = 1e-4
    slope = (gain(theta + h, gamma, beta) - gain(theta - h, gamma, beta)) / (2 * h)
    np.testing.assert_allclose(slope, information(theta, gamma, beta) / gamma.sum(), atol=2e-7)


@given(criteria)
def test_lemma_i1_limits_and_order(items):
    gamma, beta = split(items)
    theta = np.linspace(-20, 20, 81)
    values = gain(theta, gamma, beta)
    assert np.all(np.diff(values) >= 0)
    assert np.all(np.diff(values)[values[1:] < 0.999] > 0)
    assert gain(-1e3, gamma, beta) < 1e-12
    assert gain(1e3, gamma, beta) == pytest.approx(1.0, abs=1e-12)


@given(criteria, st.integers(1, 9), st.data())
@settings(max_examples=60)
def test_proposition_i3_counting_is_rubric_only_scoring(items, n, data):
    """The gain at the maximum-likelihood ability is the weighted pass share, found by a root."""
    gamma, beta = split(items)
    passes = np.array([data.draw(st.integers(0, n)) for _ in gamma])
    share = gamma @ passes / (n * gamma.sum())
    if passes.sum() == 0 or passes.sum() == n * len(gamma):
        extreme = -1e6 if passes.sum() == 0 else 1e6
        assert gain(extreme, gamma, beta) == pytest.approx(share, abs=1e-12)
        return

    def score(theta):  # derivative of log L, term by term, not through the gain
        probability = expit(gamma * (theta - beta))
        return np.sum(gamma * (passes - n * probability))

    ability = brentq(score, -500, 500, xtol=1e-13)
    assert gain(ability, gamma, beta) == pytest.approx(share, abs=1e-9)


@given(criteria, st.floats(0.2, 5.0), st.floats(-5.0, 5.0), st.floats(-8, 8))
def test_proposition_i2_same_gains_on_any_axis(items, a, b, theta):
    gamma, beta = split(items)
    moved = gain(a * theta + b, gamma / a, a * beta + b)
    assert moved == pytest.approx(gain(theta, gamma, beta), abs=1e-9)


def test_logistic_keeps_its_digits_in_both_tails():
    x = np.array([-1e308, -690.0, -40.0, -1.0, 0.0, 1.0, 40.0, 1e308])
    np.testing.assert_allclose(logistic(x)[1:], expit(x)[1:], rtol=1e-14)
    assert 0 < logistic(x)[0] < 1e-300
    single = logistic(np.float32([-1e38, -5, 5, 1e38]))
    assert single.dtype == np.float32 and single[0] > 0
    np.testing.assert_allclose(single[1:3], expit([-5.0, 5.0]), rtol=1e-6)


def test_draws_of_abilities_and_criteria():
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(4, 7))
    gamma = rng.uniform(0.5, 2, size=(4, 3))
    beta = rng.normal(size=(4, 3))
    for function in (gain, information, pass_probability):
        rows = [function(theta[d], gamma[d], beta[d]) for d in range(4)]
        np.testing.assert_allclose(function(theta, gamma, beta), rows, rtol=1e-14)
    for shape in GAIN_SHAPES:
        if shape != "c4":
            offset = [0, 3, 3, 7]
            rows = [
                shaped_gain(theta[d], gamma[d], beta[d], shape=shape, offset=offset)
                for d in range(4)
            ]
            found = shaped_gain(theta, gamma, beta, shape=shape, offset=offset)
            np.testing.assert_allclose(found, rows, rtol=1e-14)


@pytest.mark.parametrize("shape", GAIN_SHAPES)
def test_jax_agrees_with_numpy(shape):
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(2)
    theta, offset = rng.normal(size=9) * 4, np.array([0, 4, 9])
    expected = shaped_gain(theta, GAMMA, BETA, shape=shape, offset=offset)
    with jax.enable_x64(True):
        found = shaped_gain(jnp.asarray(theta), GAMMA, BETA, shape=shape, offset=offset)
        assert isinstance(found, jax.Array)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_gradient_in_jax_is_the_information():
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        theta = jnp.linspace(-9.0, 9.0, 19)  # holds 0, where a careless logistic loses its slope
        slope = jax.vmap(jax.grad(lambda t: gain(t, GAMMA, BETA)))(theta)
        np.testing.assert_allclose(
            slope, information(np.asarray(theta), GAMMA, BETA) / GAMMA.sum(), rtol=1e-12
        )


def test_alternative_shapes():
    theta = np.array([-9.0, -1.0, 3.0, 12.0, 0.5])
    by_name = {
        shape: shaped_gain(theta, GAMMA, BETA, shape=shape, offset=[0, 4, 5])
        for shape in GAIN_SHAPES
    }
    np.testing.assert_allclose(
        by_name["unweighted"], expit(GAMMA * (theta[:, None] - BETA)).mean(axis=1), rtol=1e-13
    )
    np.testing.assert_allclose(by_name["logistic"], expit(theta), rtol=1e-14)
    np.testing.assert_allclose(by_name["c4"], expit(1.16 * (theta - 0.71)), rtol=1e-14)
    low, high = -2.57 - 2 / 1.17, 4.12 + 2 / 0.69
    np.testing.assert_allclose(
        by_name["clipped"], np.clip((theta - low) / (high - low), 0, 1), rtol=1e-14
    )
    np.testing.assert_allclose(by_name["minmax"], [0, 8 / 21, 12 / 21, 1, 1], rtol=1e-14)


def test_missing_abilities_stay_missing():
    theta = np.array([np.nan, 1.0, 3.0, np.nan, np.nan])
    for shape in GAIN_SHAPES:
        found = shaped_gain(theta, GAMMA, BETA, shape=shape, offset=[0, 3, 5])
        assert np.isnan(found).tolist() == np.isnan(theta).tolist()
    minmax = shaped_gain(theta, GAMMA, BETA, shape="minmax", offset=[0, 3, 5])
    assert minmax[1:3].tolist() == [0.0, 1.0]


def test_discrimination_and_difficulty_form():
    """Discrimination 2 with intercept 1 is difficulty -0.5."""
    probability = pass_probability(np.array([0.3]), np.array([2.0]), np.array([-0.5]))
    assert probability[0, 0] == pytest.approx(expit(2.0 * 0.3 + 1.0), rel=1e-14)


def test_refused_shapes():
    with pytest.raises(UsageError, match="unknown gain shape 'square'"):
        shaped_gain(0.0, GAMMA, BETA, shape="square")
    with pytest.raises(UsageError, match="fourth criterion"):
        shaped_gain(0.0, GAMMA[:3], BETA[:3], shape="c4")
    with pytest.raises(UsageError, match="offsets"):
        shaped_gain(0.0, GAMMA, BETA, shape="minmax")
