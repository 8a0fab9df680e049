"""The NumPyro model of the 2PL link: Eq. 7 as printed, identification, the priors, drawing."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import biject_to
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy.special import expit
from stage_b import eq7, small

from rcp_bayes.gain import gain, pass_probability
from rcp_bayes.models.two_pl import (
    Documents,
    PaperPrior,
    PassCounts,
    PositiveNormal,
    item_parameters,
    two_pl,
)

finite = st.floats(-5, 5)
positive = st.floats(0.1, 5)


def plain(world):
    """The world as rows of one document each, and its passes as the model takes them."""
    documents = Documents(
        world.ability[:, None], world.n_placements[:, None].astype(float), world.query
    )
    return documents, world.passes.T[:, :, None].astype(float)


def some_parameters(seed, n_queries, n_criteria):
    rng = np.random.default_rng(seed)
    return {
        "tau": np.exp(rng.normal(0.0, 0.5, n_queries)),
        "alpha": rng.normal(0.0, 2.0, n_queries),
        "u": rng.normal(0.0, 0.5, n_criteria),
        "v": rng.normal(0.0, 2.0, n_criteria),
    }


class TestDensity:
    def test_is_minus_eq7(self):
        world = small()
        documents, passes = plain(world)
        densities, printed = [], []
        for seed in range(5):
            at = some_parameters(seed, world.n_queries, 3)
            density, _ = log_density(
                two_pl, (documents, world.n_queries, 3), {"passes": passes}, at
            )
            densities.append(float(density))
            n_answers = world.n_placements.sum() * 3
            printed.append(-n_answers * eq7(*at.values(), world)[0])
        # Values near 1e4: float64 leaves about 1e-12 of them.
        np.testing.assert_allclose(np.diff(densities), np.diff(printed), rtol=0, atol=1e-9)

    def test_counts_are_the_single_responses(self):
        # Each response on its own, as in the sum over n of Eq. 7.
        world = small()
        at = some_parameters(3, world.n_queries, 3)
        gamma, beta = (np.asarray(a) for a in item_parameters(at["u"], at["v"]))
        single = 0.0
        for i, j in enumerate(world.query):
            z = gamma * (at["tau"][j] * world.ability[i] + at["alpha"][j] - beta)
            for c in range(3):
                responses = np.arange(world.n_placements[i]) < world.passes[i, c]
                single += np.sum(np.log(np.where(responses, expit(z[c]), expit(-z[c]))))
        documents, passes = plain(world)
        trace = numpyro.handlers.trace(numpyro.handlers.substitute(two_pl, at)).get_trace(
            documents, world.n_queries, 3, passes=passes
        )
        site = trace["passes"]
        assert float(site["fn"].log_prob(passes).sum()) == pytest.approx(single, rel=1e-12)

    @pytest.mark.parametrize("z", [-800.0, -1.0, 0.0, 1.0, 800.0])
    def test_derivatives_of_the_counts(self, z):
        # At exactly 0, where the fit starts, and where exp overflows.
        def density(z):
            return PassCounts(z, 5.0).log_prob(2.0)

        p = expit(z)
        assert jax.grad(density)(z) == pytest.approx(2.0 - 5.0 * p, rel=1e-12)
        assert jax.grad(jax.grad(density))(z) == pytest.approx(-5.0 * p * (1 - p), rel=1e-12)
        assert density(z) == pytest.approx(2.0 * z - 5.0 * np.logaddexp(0.0, z), rel=1e-12)


class TestIdentification:
    @settings(deadline=None)
    @given(
        st.lists(st.tuples(finite, finite), min_size=1, max_size=8),
        st.floats(-3, 3),
    )
    def test_constraints_hold_by_construction(self, entries, shift):
        u, v = (np.array(column) for column in zip(*entries, strict=True))
        gamma, beta = item_parameters(jnp.asarray(u), jnp.asarray(v))
        assert float(gamma.sum()) == pytest.approx(len(u), rel=0, abs=1e-12)
        assert float(beta.mean()) == pytest.approx(0.0, abs=1e-12)
        assert (np.asarray(gamma) > 0).all()
        moved = item_parameters(jnp.asarray(u + shift), jnp.asarray(v + shift))
        np.testing.assert_allclose(moved[0], gamma, rtol=1e-12)
        np.testing.assert_allclose(moved[1], beta, rtol=0, atol=1e-12)

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(positive, finite), min_size=1, max_size=4),
        st.lists(st.tuples(positive, finite), min_size=1, max_size=6),
        positive,
        finite,
    )
    def test_shift_and_stretch_change_nothing(self, queries, criteria, stretch, shift):
        # Proposition I.2: (i) probabilities and (ii) gains are those of any setting so related;
        # (iii) one of them meets the constraints.
        tau, alpha = (np.array(column) for column in zip(*queries, strict=True))
        gamma, beta = (np.array(column) for column in zip(*criteria, strict=True))
        x = np.array([-2.0, 0.3, 1.7])

        def outcome(a, b):
            theta = a * tau[:, None] * x + (a * alpha + b)[:, None]
            items = gamma / a, a * beta + b
            return pass_probability(theta.ravel(), *items), gain(theta.ravel(), *items)

        p, g = outcome(1.0, 0.0)
        for a, b in [(stretch, shift), (gamma.mean(), -gamma.mean() * beta.mean())]:
            other_p, other_g = outcome(a, b)
            np.testing.assert_allclose(other_p, p, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(other_g, g, rtol=1e-10, atol=1e-12)
        # The last is the one of (iii), and the model's constraints leave it as it is.
        identified = gamma / gamma.mean(), gamma.mean() * (beta - beta.mean())
        again = item_parameters(jnp.log(identified[0]), jnp.asarray(identified[1]))
        np.testing.assert_allclose(again[0], identified[0], rtol=1e-12)
        np.testing.assert_allclose(again[1], identified[1], rtol=0, atol=1e-12)

    def test_slope_two_with_intercept_one_is_difficulty_minus_half(self):
        theta = np.linspace(-3, 3, 7)
        slope_intercept = expit(2.0 * theta + 1.0)
        ours = pass_probability(theta, np.array([2.0]), np.array([-0.5]))[:, 0]
        np.testing.assert_allclose(ours, slope_intercept, rtol=1e-14)


class TestPrior:
    def test_scale_has_no_jacobian(self):
        # Differences of the density of tau itself, as in Eq. 7.
        prior = PaperPrior(tau_mean=1.5, tau_sd=0.7)
        tau = np.array([0.01, 0.5, 1.5, 4.0])
        density = prior.scale().log_prob(tau)
        printed = -((tau - 1.5) ** 2) / (2 * 0.7**2)
        np.testing.assert_allclose(np.diff(density), np.diff(printed), rtol=1e-12)

    def test_scale_goes_through_a_softplus(self):
        t = np.array([-30.0, -1.0, 0.0, 2.0, 40.0])
        transform = biject_to(PaperPrior().scale().support)
        np.testing.assert_allclose(transform(t), np.logaddexp(0.0, t), rtol=1e-12)

    def test_cut_normal_integrates_to_one(self):
        tau = np.linspace(1e-9, 12.0, 200_001)
        density = np.exp(PositiveNormal(1.0, 1.0).log_prob(tau))
        assert np.trapezoid(density, tau) == pytest.approx(1.0, abs=1e-8)

    def test_ridge_tightens_with_the_answers(self):
        item = PaperPrior(ridge=1e-4).item(20_000.0)
        assert float(item.scale) == pytest.approx(np.sqrt(1 / (20_000 * 1e-4)))


class TestDrawing:
    def test_without_passes_they_are_drawn(self):
        world = small()
        documents, passes = plain(world)
        draws = Predictive(two_pl, num_samples=50)(jax.random.key(1), documents, world.n_queries, 3)
        drawn = np.asarray(draws["passes"])
        assert drawn.shape == (50, *passes.shape)
        assert ((drawn >= 0) & (drawn <= documents.n_placements)).all()
        assert (draws["tau"] > 0).all()
        np.testing.assert_allclose(draws["gamma"].sum(axis=-1), 3.0, atol=1e-12)

    def test_draws_at_fixed_parameters_have_the_pass_probability(self):
        world = small()
        documents, _ = plain(world)
        at = {name: jnp.asarray(a) for name, a in some_parameters(1, world.n_queries, 3).items()}
        n_draws = 400
        fixed = {name: jnp.broadcast_to(a, (n_draws, *a.shape)) for name, a in at.items()}
        drawn = Predictive(two_pl, fixed)(jax.random.key(2), documents, world.n_queries, 3)
        theta = at["tau"][world.query] * world.ability + at["alpha"][world.query]
        p = np.asarray(pass_probability(theta, *item_parameters(at["u"], at["v"]))).T
        n = world.n_placements * n_draws
        share = np.asarray(drawn["passes"]).sum(axis=(0, 3))
        z = (share - n * p)[:, n > 0] / np.sqrt(n * p * (1 - p) + 1e-9)[:, n > 0]
        # About 200 z-scores: beyond 4.5 once in 700 runs; the key is fixed.
        assert np.abs(z).max() < 4.5

    def test_held_items_are_not_sampled(self):
        world = small()
        documents, passes = plain(world)
        items = (np.array([2.0, 1.0, 2.01]), np.array([0.0, 1.0, 3.0]))
        model = numpyro.handlers.seed(two_pl, 0)
        trace = numpyro.handlers.trace(model).get_trace(
            documents, world.n_queries, 3, items=items, passes=passes
        )
        assert "u" not in trace and "v" not in trace
        np.testing.assert_array_equal(trace["gamma"]["value"], items[0])
