"""The score model's densities against scipy and numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import exponnorm, norm

from rcp_bayes.models.score import (
    AT_CEILING,
    AT_FLOOR,
    PAD,
    SCORE_LIMIT,
    SEEN,
    SKEW_LIMIT,
    ClippedNormal,
    Skewed,
    entry_derivatives,
    entry_log_likelihood,
    log_normal_cdf,
    log_skewed,
    mills,
    skew_bound,
    skewed_derivatives,
)


class TestNormalTail:
    def test_log_cdf_is_scipys(self):
        x = np.linspace(-60, 38, 401)
        np.testing.assert_allclose(log_normal_cdf(x), norm.logcdf(x), rtol=1e-12, atol=0)

    def test_mills_ratio_and_its_derivative(self):
        x = np.linspace(-30, 20, 101)
        np.testing.assert_allclose(mills(x), np.exp(norm.logpdf(x) - norm.logcdf(x)), rtol=1e-9)
        slope = jax.vmap(jax.grad(mills))(x)
        difference = (mills(x + 1e-5) - mills(x - 1e-5)) / 2e-5
        np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-9)

    def test_far_tails_are_finite_with_derivatives(self):
        for x in (-1e6, -40.0, 40.0, 1e6):
            for function in (log_normal_cdf, mills):
                assert np.isfinite(function(x))
                assert np.isfinite(jax.grad(function)(x))


class TestScores:
    @pytest.mark.parametrize("mean", [-8.0, -4.9, 0.3, 5.2, 9.0])
    def test_density_and_limits_sum_to_one(self, mean):
        log_sigma = np.log(0.8)

        score, step = np.linspace(-SCORE_LIMIT, SCORE_LIMIT, 20_001, retstep=True)
        density = np.exp(entry_log_likelihood(mean, score, jnp.array(SEEN), log_sigma))
        inside = trapezoid(density, dx=step)
        ends = [
            np.exp(float(entry_log_likelihood(mean, score, kind, log_sigma)))
            for score, kind in ((-SCORE_LIMIT, AT_FLOOR), (SCORE_LIMIT, AT_CEILING))
        ]
        assert inside + sum(ends) == pytest.approx(1.0, abs=1e-6)

    def test_derivatives_are_those_of_the_log_likelihood(self):
        mean = np.array([-7.0, -5.0, -1.0, 0.0, 2.0, 5.5, 12.0])
        for kind, score in ((SEEN, 1.3), (AT_FLOOR, -5.0), (AT_CEILING, 5.0), (PAD, 0.0)):

            def value(m, kind=kind, score=score):
                return entry_log_likelihood(m, score, jnp.array(kind), -0.4)

            first, second = entry_derivatives(mean, score, jnp.array(kind), -0.4)
            np.testing.assert_allclose(first, jax.vmap(jax.grad(value))(mean), atol=1e-12)
            curved = jax.vmap(jax.grad(jax.grad(value)))(mean)
            np.testing.assert_allclose(second, -curved, atol=1e-12)
            assert np.all(np.asarray(second) >= 0)

    def test_distribution_reads_the_kind_off_the_score(self):
        mean, log_sigma = np.array([-4.0, 1.0, 6.0]), np.log(0.7)
        score = np.array([-5.0, 0.2, 5.0])
        expected = [
            norm.logcdf(-5.0, mean[0], 0.7),
            norm.logpdf(0.2, 1.0, 0.7),
            norm.logsf(5.0, mean[2], 0.7),
        ]
        found = ClippedNormal(mean, log_sigma).log_prob(score)
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_drawn_scores_keep_the_limits(self):
        draws = np.asarray(
            ClippedNormal(jnp.array([-5.5, 0.0]), 0.0).sample(jax.random.key(0), (4000,))
        )
        assert np.abs(draws).max() == SCORE_LIMIT
        share = (draws[:, 0] == -SCORE_LIMIT).mean()
        # Four Monte Carlo errors.
        assert share == pytest.approx(norm.cdf(0.5), abs=4 * 0.5 / np.sqrt(4000))
        assert draws[:, 1].std() == pytest.approx(1.0, abs=4 / np.sqrt(2 * 4000))


class TestAbilities:
    @pytest.mark.parametrize("skew", [-1.2, -0.3, 0.0, 0.2, 0.8, 2.5])
    def test_moments(self, skew):
        z, step = np.linspace(-30, 30, 60_001, retstep=True)
        density = np.exp(log_skewed(z, skew))
        k = SKEW_LIMIT * np.tanh(abs(skew))
        # Below k = 0.05 the density stays that of k = 0.05.
        third = np.where(skew < 0, -1, 1) * 2 * max(k, 0.05) ** 3
        # The trapezoid rule is exact to rounding for smooth densities that vanish at the ends.
        found = [(z**power * density).sum() * step for power in range(4)]
        np.testing.assert_allclose(found, [1, 0, 1, third], atol=1e-7)

    def test_is_scipys_exponentially_modified_normal(self):
        skew = 0.9
        k = SKEW_LIMIT * np.tanh(skew)
        s = np.sqrt(1 - k**2)
        z = np.linspace(-4, 9, 50)
        expected = exponnorm.logpdf(z, k / s, loc=-k, scale=s)
        np.testing.assert_allclose(log_skewed(z, skew), expected, rtol=1e-9)

    @pytest.mark.parametrize("skew", [-0.7, 0.01, 0.6, 3.0])
    def test_derivatives_and_their_bound(self, skew):
        z = np.linspace(-6, 12, 91)
        first, second = skewed_derivatives(z, skew)
        np.testing.assert_allclose(
            first, jax.vmap(jax.grad(lambda z: log_skewed(z, skew)))(z), atol=1e-9
        )
        curved = jax.vmap(jax.grad(jax.grad(lambda z: log_skewed(z, skew))))(z)
        np.testing.assert_allclose(second, -curved, atol=1e-7)
        assert np.all(np.asarray(second) >= -1e-12)  # log-concave
        assert np.all(np.asarray(second) <= float(skew_bound(skew)) + 1e-9)

    def test_draws_have_the_stated_moments(self):
        draws = np.asarray(Skewed(1.0, np.log(2.0)).sample(jax.random.key(1), (20_000,)))
        assert draws.mean() == pytest.approx(0.0, abs=4 * 2 / np.sqrt(20_000))
        # The kurtosis of this skewness makes the sd's error about 1.6 times the normal's.
        assert draws.std() == pytest.approx(2.0, abs=4 * 1.6 * 2 / np.sqrt(2 * 20_000))
        k = SKEW_LIMIT * np.tanh(1.0)
        third = ((draws / 2) ** 3).mean()
        assert third == pytest.approx(2 * k**3, abs=0.15)
