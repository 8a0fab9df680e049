"""Newton in an arrow Hessian: closed-form derivatives, the step, bounds, hostile losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from stage_b import small

from rcp_bayes.inference.arrow import CAP, ArrowNewton, ArrowSystem, Point, newton_step
from rcp_bayes.inference.link_system import link_system
from rcp_bayes.inference.rows import lay_in_rows
from rcp_bayes.models.two_pl import PaperPrior

step_of = jax.jit(newton_step, static_argnums=2)
derivatives = jax.jit(link_system, static_argnums=3)
PRIOR = PaperPrior(tau_mean=1.3, tau_sd=0.8, alpha_sd=1.7, ridge=3e-4)


def loss(flat, world, prior, items=None):
    """N C times Eq. 7 in (tau, alpha by query, then u, v), one document at a time."""
    n_queries, n_criteria = world.n_queries, world.passes.shape[1]
    own, rest = flat[: 2 * n_queries].reshape(n_queries, 2), flat[2 * n_queries :]
    tau, alpha = own[:, 0], own[:, 1]
    if items is None:
        u, v = rest[:n_criteria], rest[n_criteria:]
        gamma, beta = n_criteria * jnp.exp(u) / jnp.exp(u).sum(), v - v.mean()
        ridge = prior.ridge * world.n_placements.sum() * n_criteria * (rest @ rest) / 2
    else:
        (gamma, beta), ridge = items, 0.0
    theta = tau[world.query] * world.ability + alpha[world.query]
    z = gamma * (theta[:, None] - beta)
    entropy = world.n_placements[:, None] * jnp.logaddexp(0.0, z) - world.passes * z
    penalty = ((tau - prior.tau_mean) / prior.tau_sd) ** 2 + (alpha / prior.alpha_sd) ** 2
    return entropy.sum() + penalty.sum() / 2 + ridge


def laid(world):
    parts = world.arguments
    return lay_in_rows(*parts[:3], parts[3], world.n_queries)


def dense(system):
    """Gradient and Hessian of an arrow system as a flat vector and a square matrix."""
    n_queries, _, n_shared = system.cross.shape
    hessian = np.zeros((2 * n_queries + n_shared,) * 2)
    for j in range(n_queries):
        block = slice(2 * j, 2 * j + 2)
        hessian[block, block] = system.own[j]
        hessian[block, 2 * n_queries :] = system.cross[j]
        hessian[2 * n_queries :, block] = system.cross[j].T
    hessian[2 * n_queries :, 2 * n_queries :] = system.shared
    return np.concatenate([system.gradient_own.ravel(), system.gradient_shared]), hessian


class TestDerivatives:
    @pytest.mark.parametrize("held", [False, True])
    def test_match_automatic_differentiation(self, held):
        world = small(n_queries=5)
        items = (np.array([2.0, 1.0, 0.5]), np.array([-1.0, 0.3, 2.0])) if held else None
        rng = np.random.default_rng(4)
        table = laid(world)
        flat = rng.normal(size=10 + (0 if held else 6))
        padding = np.ones((table.n_queries - 5, 2))
        own = np.concatenate([flat[:10].reshape(5, 2), padding])
        point = Point(jnp.asarray(own), jnp.asarray(flat[10:]))
        system = derivatives(point, table.documents, table.passes, PRIOR, items)
        ours = dense(
            jax.tree.map(
                np.asarray,
                system._replace(
                    gradient_own=system.gradient_own[:5],
                    own=system.own[:5],
                    cross=system.cross[:5],
                ),
            )
        )

        def both(flat):
            return jax.grad(loss)(flat, world, PRIOR, items), jax.hessian(loss)(
                flat, world, PRIOR, items
            )

        gradient, hessian = jax.jit(both)(flat)
        # Sums of about 1,000 terms of size up to 100: float64 leaves 1e-11 or better.
        np.testing.assert_allclose(ours[0], gradient, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours[1], hessian, rtol=1e-9, atol=1e-9)

    def test_finite_where_exponentials_overflow(self):
        world = small(n_queries=5)
        table = laid(world)
        own = jnp.full((table.n_queries, 2), 900.0)
        system = link_system(Point(own, jnp.zeros(6)), table.documents, table.passes, PRIOR, None)
        assert all(np.isfinite(part).all() for part in system)


def random_system(seed, n_queries=4, n_shared=3, *, definite=True, size=0.1):
    """Gradient small enough that no cap acts."""
    rng = np.random.default_rng(seed)
    n = 2 * n_queries + n_shared
    factor = rng.normal(size=(n, 2 * n))
    matrix = factor @ factor.T / n + np.eye(n)
    own = np.array([matrix[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] for j in range(n_queries)])
    cross = matrix[: 2 * n_queries, 2 * n_queries :].reshape(n_queries, 2, n_shared) / n_queries
    shared = matrix[2 * n_queries :, 2 * n_queries :] * (1 if definite else -1)
    gradient = size * rng.normal(size=n)
    parts = (gradient[: 2 * n_queries].reshape(n_queries, 2), gradient[2 * n_queries :])
    return ArrowSystem(*(jnp.asarray(part) for part in (*parts, own, cross, shared)))


FREE = -1e6


class TestStep:
    @pytest.mark.parametrize("n_shared", [0, 3])
    def test_is_the_solution_of_the_dense_system(self, n_shared):
        system = random_system(0, n_shared=n_shared)
        gradient, hessian = dense(jax.tree.map(np.asarray, system))
        step = step_of(system, jnp.zeros((4, 2)), FREE)
        flat = np.concatenate([np.ravel(step.own), step.shared])
        np.testing.assert_allclose(flat, -np.linalg.solve(hessian, gradient), rtol=1e-10)

    def test_ends_on_the_bound_where_the_quadratic_falls_across_it(self):
        system = random_system(1, n_shared=0, size=1.0)
        free = step_of(system, jnp.zeros((4, 2)), FREE)
        room = -0.01
        step = step_of(system, jnp.zeros((4, 2)), room)
        crossing = np.asarray(free.own)[:, 0] < room
        assert 0 < crossing.sum() < 4
        assert (np.asarray(step.own)[crossing, 0] == room).all()
        for j in np.flatnonzero(crossing):
            g, h = np.asarray(system.gradient_own[j]), np.asarray(system.own[j])
            assert step.own[j, 1] == pytest.approx(-(g[1] + h[0, 1] * room) / h[1, 1])
        np.testing.assert_allclose(step.own[~crossing], free.own[~crossing], rtol=1e-12)

    def test_a_held_parameter_leaves_the_border(self):
        # Query 0 rests on its bound with the loss falling across it: as if it had one parameter.
        system = random_system(2)
        gradient_own = system.gradient_own.at[0, 0].set(5.0)
        system = system._replace(gradient_own=gradient_own)
        point = jnp.ones((4, 2)).at[0, 0].set(0.5)
        step = step_of(system, point, 0.5)
        gradient, hessian = dense(jax.tree.map(np.asarray, system))
        rest = np.arange(1, len(gradient))
        expected = -np.linalg.solve(hessian[np.ix_(rest, rest)], gradient[rest])
        flat = np.concatenate([np.ravel(step.own), step.shared])
        assert flat[0] == 0.0
        np.testing.assert_allclose(flat[1:], expected, rtol=1e-9)

    @pytest.mark.parametrize("definite", [True, False])
    @pytest.mark.parametrize("size", [0.1, 100.0])
    def test_goes_downhill_and_keeps_its_caps(self, definite, size):
        for seed in range(30):
            system = random_system(seed, definite=definite, size=size)
            step = step_of(system, jnp.zeros((4, 2)), FREE)
            slope = jnp.sum(system.gradient_own * step.own)
            slope += jnp.sum(system.gradient_shared * step.shared)
            assert slope < 0.0
            longest = max(np.abs(step.own).max(), np.abs(step.shared).max())
            assert longest <= CAP * (1 + 1e-12)


def minimise(function, own, shared, lower, max_steps=100):
    """`ArrowNewton` on any function of (own, shared) with an arrow Hessian, by autodiff."""
    own, shared = jnp.asarray(own), jnp.asarray(shared)
    n_queries = len(own)

    def flat(vector):
        return function(Point(vector[: 2 * n_queries].reshape(-1, 2), vector[2 * n_queries :]))

    def system(point):
        vector = jnp.concatenate([point.own.ravel(), point.shared])
        gradient, hessian = jax.grad(flat)(vector), jax.hessian(flat)(vector)
        first = jnp.arange(n_queries)[:, None] * 2 + jnp.arange(2)
        border = jnp.arange(2 * n_queries, len(vector))
        return ArrowSystem(
            gradient[first],
            gradient[border],
            hessian[first[:, :, None], first[:, None, :]],
            hessian[first[:, :, None], border],
            hessian[border[:, None], border],
        )

    driver = ArrowNewton(
        system, lambda p: p, lambda p: p, lower=lower, tolerance=1e-9, max_steps=max_steps
    )
    state = driver.init(Point(own, shared))
    (value, _), (_, end) = jax.jit(
        lambda s: driver.eval_and_update(lambda p: (function(p), None), s)
    )(state)
    return float(value), jax.tree.map(np.asarray, end)


class TestOptimizer:
    def test_nonconvex_border_from_far_away(self):
        # Two valleys in the shared parameter, flat far out; indefinite at the start.
        def function(point):
            a, b, s = point.own[:, 0], point.own[:, 1], point.shared[0]
            pull = jnp.log(jnp.cosh(a - s)) + jnp.log(jnp.cosh(b - 2.0)) + 0.05 * (a**2 + b**2)
            return jnp.sum(pull) + (s**2 - 4.0) ** 2 / 8

        value, end = minimise(function, np.full((3, 2), 40.0), [0.1], FREE)
        assert end.converged and end.steps < 100

        def flat(x):
            return float(function(Point(jnp.asarray(x[:6]).reshape(3, 2), jnp.asarray(x[6:]))))

        near = np.concatenate([end.params.own.ravel(), end.params.shared])
        found = minimize(flat, near, method="BFGS", options={"gtol": 1e-6})
        assert value <= found.fun + 1e-12
        assert np.abs(end.params.shared) > 1.0

    def test_bound_holds_and_lets_go(self):
        # Queries 0 and 1 start on the bound; the loss of 0 falls across it, that of 1 away from it.
        target = jnp.array([-2.0, 3.0, 0.7])

        def function(point):
            a, b = point.own[:, 0], point.own[:, 1]
            return jnp.sum((a - target) ** 2 + (b - a) ** 2) + jnp.sum((point.shared - a[2]) ** 2)

        value, end = minimise(function, [[0.5, 0.0], [0.5, 0.0], [4.0, 0.0]], [0.0], 0.5)
        np.testing.assert_allclose(end.params.own, [[0.5, 0.5], [3, 3], [0.7, 0.7]], atol=1e-9)
        assert value == pytest.approx(2.5**2) and end.converged

    def test_stops_on_a_loss_that_is_not_a_number(self):
        value, end = minimise(lambda p: jnp.nan * jnp.sum(p.own), np.ones((2, 2)), [0.0], FREE)
        assert np.isnan(value) and not end.converged

    def test_says_when_it_ran_out_of_steps(self):
        def function(point):
            return jnp.sum(jnp.cosh(point.own - 30.0)) + jnp.sum(point.shared**2)

        _, end = minimise(function, np.zeros((2, 2)), [0.0], FREE, max_steps=3)
        assert not end.converged and end.steps == 3
