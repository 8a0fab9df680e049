"""Bradley-Terry fit of Stage A: closed forms, scipy on the definition, hard inputs, real data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer.util import log_density
from scipy.optimize import brentq, root
from scipy.special import expit
from stage_a import beats, build, objective, random_windows

from rcp_bayes.errors import UsageError
from rcp_bayes.inference import bradley_terry as inference
from rcp_bayes.inference.bradley_terry import fit_bradley_terry, static_sizes
from rcp_bayes.models.bradley_terry import bradley_terry, log_likelihood, ridge_precision
from rcp_bayes.pairs import find_contestants, pair_matrices

# Documents of one query of 6 in most tests: one compiled program serves them all.
SIX = np.array([0, 6])


def by_scipy(windows, n, ridge=1e-4):
    """Root of the gradient of the definition, for one query that shows all its n documents."""
    found = root(lambda theta: objective(theta, windows, 0, ridge)[1], np.zeros(n), tol=1e-14)
    assert np.abs(found.fun).max() < 1e-12
    return found.x


def model_arguments(offset, windows):
    contestants = find_contestants(offset, windows)
    return pair_matrices(windows, contestants, np.arange(len(offset) - 1))


class TestClosedForms:
    def test_two_documents_with_scores(self):
        # By symmetry theta = (t, -t) with sigmoid(2t) - p + lambda t = 0.
        windows = build((0, (0, 1), (1.3, -0.9), None), (0, (1, 0), (0.4, 0.0), None))
        fit = fit_bradley_terry(np.array([0, 2]), windows, tolerance=1e-14)
        p = (expit(2.2) + expit(-0.4)) / 2
        t = brentq(lambda t: expit(2 * t) - p + 1e-4 * t, -5, 5, xtol=1e-15)
        np.testing.assert_allclose(fit.theta, [t, -t], rtol=0, atol=1e-10)
        entropy = -(p * np.log(expit(2 * t)) + (1 - p) * np.log(expit(-2 * t)))
        assert fit.objective == pytest.approx([entropy + 1e-4 * t**2], abs=1e-14)

    def test_one_document_always_wins(self):
        fit = fit_bradley_terry(np.array([0, 2]), build(*beats(0, 0, 1, 7)), tolerance=1e-15)
        t = brentq(lambda t: 1e-4 * t - expit(-2 * t), 0, 10, xtol=1e-15)
        np.testing.assert_allclose(fit.theta, [t, -t], rtol=0, atol=1e-10)

    def test_ties_are_half_wins(self):
        tied = fit_bradley_terry(SIX, build((0, (2, 4), None, (1, 1))))
        split = fit_bradley_terry(SIX, build(*beats(0, 2, 4), *beats(0, 4, 2)))
        np.testing.assert_array_equal(tied.theta[[2, 4]], [0, 0])
        np.testing.assert_array_equal(split.theta[[2, 4]], [0, 0])
        assert tied.objective == pytest.approx([np.log(2)], rel=1e-15)
        assert split.objective == pytest.approx([np.log(2)], rel=1e-15)

    def test_a_beats_b_and_b_beats_c(self):
        windows = build(*beats(0, 0, 1, 5), *beats(0, 1, 2, 5))
        offset = np.array([0, 3])
        fit = fit_bradley_terry(offset, windows)
        assert fit.converged.all() and np.all(np.isfinite(fit.theta))
        assert fit.theta[0] > fit.theta[1] > fit.theta[2]
        np.testing.assert_allclose(fit.theta, by_scipy(windows, 3), rtol=0, atol=1e-6)
        # Independent N(0, 1) priors: 5 sigmoid(-t) = t. The total weight is 10.
        t = brentq(lambda t: 5 * expit(-t) - t, 0, 5, xtol=1e-15)
        assert round(t, 4) == 1.1775
        unit = fit_bradley_terry(offset, windows, ridge=1 / 10, tolerance=1e-14)
        np.testing.assert_allclose(unit.theta, [t, 0, -t], rtol=0, atol=1e-10)
        with jax.enable_x64(True):
            pairs = model_arguments(offset, windows)
            data = (pairs.weight, pairs.wins, pairs.present)

            def density(theta):
                return log_density(bradley_terry, data, {"precision": 1.0}, {"theta": theta})[0]

            slope = jax.grad(density)(jnp.array([[t, 0.0, -t]]))
        np.testing.assert_allclose(slope, np.zeros((1, 3)), rtol=0, atol=1e-10)


class TestAgainstScipy:
    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("ridge", [1e-4, 0.03])
    def test_random_windows(self, seed, ridge):
        # Soft and hard windows mixed, of one to six documents, with ties. The gradient of 1e-10
        # leaves at most 1e-10 / ridge in theta.
        rng = np.random.default_rng(seed)
        windows = build(
            (0, np.arange(6), rng.normal(0, 2, 6), None),
            *random_windows(rng, 0, np.arange(6), 12, share_hard=0.5),
        )
        fit = fit_bradley_terry(SIX, windows, ridge=ridge)
        np.testing.assert_allclose(fit.theta, by_scipy(windows, 6, ridge), rtol=0, atol=1e-6)
        value, gradient = objective(fit.theta, windows, 0, ridge)
        assert fit.objective == pytest.approx([value], abs=1e-13)
        assert fit.max_gradient == pytest.approx([np.abs(gradient).max()], abs=1e-14)
        assert fit.max_gradient[0] <= 1e-10
        assert abs(fit.theta.mean()) < 1e-13

    def test_where_plain_newton_steps_diverge(self):
        # Wins of row over column, twelve orders of magnitude apart: full steps from 0 alone end at
        # a gradient of 0.67. (Found by a random search; see the step rule in the module.)
        count = np.zeros((8, 8))
        count[:4, :4] = [[0, 0, 1e6, 0], [0, 0, 1e2, 0], [0, 1e2, 0, 1e1], [1e6, 1e6, 1, 0]]
        weight, wins, ridge = count + count.T, count.sum(axis=1), 1e-8
        with jax.enable_x64(True):
            theta, _, largest, steps = (
                np.asarray(part)[0, 0]
                for part in inference._solve(
                    weight[None, None],
                    wins[None, None],
                    (np.arange(8) < 4)[None, None],
                    np.full((1, 1), ridge),
                    1e-12,
                )
            )
        p = expit(theta[:, None] - theta)
        gradient = ((weight * p).sum(axis=1) - wins) / wins.sum() + ridge * theta
        assert np.abs(gradient).max() <= 1e-12 + 1e-15
        assert largest <= 1e-12 and steps < 50
        np.testing.assert_array_equal(theta[4:], 0)

    def test_a_disconnected_graph_is_fitted_and_reported(self):
        windows = build(
            (0, (0, 1, 2), (2.0, 0.0, -1.0), None), *beats(0, 3, 4, 3), (0, (5,), (4.0,), None)
        )
        fit = fit_bradley_terry(SIX, windows)
        assert fit.n_components.tolist() == [3] and fit.converged.all()
        np.testing.assert_allclose(fit.theta, by_scipy(windows, 6), rtol=0, atol=1e-6)
        # The ridge centres each component.
        assert abs(fit.theta[:3].sum()) < 1e-5 and abs(fit.theta[3:5].sum()) < 1e-5
        assert abs(fit.theta[5]) < 1e-5


class TestModel:
    rng = np.random.default_rng(3)
    offset = np.array([0, 6, 11])
    windows = build(
        *random_windows(rng, 0, np.arange(6), 25), *random_windows(rng, 1, np.arange(6, 11), 9)
    )

    def density(self):
        pairs = model_arguments(self.offset, self.windows)
        data = (pairs.weight, pairs.wins, pairs.present, ridge_precision(pairs.total))
        return pairs, lambda theta: log_density(bradley_terry, data, {}, {"theta": theta})[0]

    def padded(self, theta):
        return np.stack([theta[:6], np.append(theta[6:], 0.0)])

    def test_density_is_minus_the_weighted_objective(self):
        draws = np.random.default_rng(4).normal(0, 3, (2, 11))
        with jax.enable_x64(True):
            pairs, density = self.density()
            difference = np.subtract(*(float(density(self.padded(theta))) for theta in draws))
        values = [[objective(theta, self.windows, q)[0] for q in (0, 1)] for theta in draws]
        assert difference == pytest.approx(-np.diff(values[::-1], axis=0) @ pairs.total, abs=1e-10)

    def test_the_fit_is_the_mode(self):
        fit = fit_bradley_terry(self.offset, self.windows)
        with jax.enable_x64(True):
            pairs, density = self.density()
            slope = jax.grad(density)(jnp.asarray(self.padded(fit.theta)))
        np.testing.assert_allclose(slope / pairs.total[:, None], 0, rtol=0, atol=1.01e-10)

    def test_curvature_where_scores_tie(self):
        with jax.enable_x64(True):
            pairs = model_arguments(self.offset, self.windows)
            weight, wins = pairs.weight[0], pairs.wins[0]
            hessian = jax.hessian(log_likelihood)(jnp.zeros(6), weight, wins)
        laplacian = np.diag(weight.sum(axis=1)) - weight
        np.testing.assert_allclose(hessian, -laplacian / 4, rtol=0, atol=1e-13)

    def test_finite_at_any_score(self):
        with jax.enable_x64(True):
            weight, wins = jnp.array([[0.0, 2.0], [2.0, 0.0]]), jnp.array([0.5, 1.5])
            theta = jnp.array([4000.0, -4000.0])
            value, slope = jax.value_and_grad(log_likelihood)(theta, weight, wins)
        assert value == -1.5 * 8000
        np.testing.assert_array_equal(slope, [-1.5, 1.5])


class TestLargeScores:
    @pytest.mark.parametrize("reach", [3.0, 590.0, 5000.0])
    def test_gradient_and_curvature(self, reach):
        # 590 ends just inside the fast form, 5000 needs the general one.
        rng = np.random.default_rng(5)
        theta = np.concatenate([[-reach, reach], rng.uniform(-reach, reach, 6)])[None]
        theta[0, 2] = theta[0, 1]  # a pair of equals at the far end still decides
        weight = rng.random((1, 8, 8))
        weight = (weight + weight.swapaxes(1, 2)) * (1 - np.eye(8)) * 1e-6
        wins = rng.random((1, 8)) * 1e-6
        with jax.enable_x64(True):
            gradient, curvature = inference._gradient_and_curvature(
                *(jnp.asarray(x) for x in (weight, wins, np.full((1, 1), 1e-9), theta))
            )
        p = expit(theta[0][:, None] - theta[0])
        expected = (weight[0] * p).sum(axis=1) - wins[0] + 1e-9 * theta[0]
        np.testing.assert_allclose(gradient[0], expected, rtol=1e-12, atol=1e-20)
        np.testing.assert_allclose(curvature[0], weight[0] * p * p.T, rtol=1e-12, atol=1e-300)

    def test_a_long_separable_chain_with_a_tiny_ridge(self):
        # 128 documents, each beating the next: scores beyond what exp can hold.
        n, ridge = 128, 1e-14
        windows = build(*(game for i in range(n - 1) for game in beats(0, i, i + 1)))
        fit = fit_bradley_terry(np.array([0, n]), windows, ridge=ridge, tolerance=1e-15)
        assert fit.converged.all()
        assert np.ptp(fit.theta) > 1200
        assert np.all(np.diff(fit.theta) < 0)
        # Stationarity, gap by gap: the flow over a boundary carries the ridge of all above it.
        flow = expit(np.diff(fit.theta)) / (n - 1)
        np.testing.assert_allclose(flow, ridge * np.cumsum(fit.theta)[:-1], rtol=0, atol=n * 1e-15)


class TestBatches:
    def world(self):
        rng = np.random.default_rng(6)
        sizes = rng.integers(1, 41, 40)
        sizes[:5] = [40, 1, 2, 2, 3]
        offset = np.concatenate([[0], np.cumsum(sizes)])
        windows = [
            window
            for query in range(40)
            for window in random_windows(
                rng, query, np.arange(offset[query], offset[query + 1]), 60, share_hard=0.5
            )
        ]
        return offset, windows

    def test_a_query_alone_and_in_a_batch(self):
        offset, windows = self.world()
        together = fit_bradley_terry(offset, build(*windows))
        assert together.converged.all() and together.max_gradient.max() <= 1e-10
        for query in (0, 2, 4):
            first, last = offset[query], offset[query + 1]
            own = [
                (0, np.subtract(documents, first), scores, ranks)
                for q, documents, scores, ranks in windows
                if q == query
            ]
            alone = fit_bradley_terry(np.array([0, last - first]), build(*own))
            np.testing.assert_allclose(alone.theta, together.theta[first:last], rtol=0, atol=1e-9)
            assert alone.iterations[0] == together.iterations[query]

    def test_two_runs_give_the_same_bits(self):
        offset, windows = self.world()
        one, two = (fit_bradley_terry(offset, build(*windows)) for _ in range(2))
        np.testing.assert_array_equal(one.theta, two.theta)
        np.testing.assert_array_equal(one.objective, two.objective)

    def test_every_query_is_optimal_and_progress_counts_them(self):
        offset, windows = self.world()
        windows, done = build(*windows), []
        fit = fit_bradley_terry(offset, windows, progress=done.append)
        assert sum(done) == 40
        for query in np.flatnonzero(np.diff(offset) > 1):
            theta = np.nan_to_num(fit.theta)
            value, gradient = objective(theta, windows, query)
            assert np.abs(gradient).max() <= 1e-10 + 1e-14
            assert fit.objective[query] == pytest.approx(value, abs=1e-12)

    def test_queries_without_anything_to_compare(self):
        # Query 0: one window of one document, another document never shown. Query 1: no window.
        windows = build((0, (1,), (2.0,), None), *beats(2, 5, 6))
        fit = fit_bradley_terry(np.array([0, 2, 5, 7]), windows)
        np.testing.assert_array_equal(fit.theta[:5], [np.nan, 0, np.nan, np.nan, np.nan])
        assert fit.theta[5] == -fit.theta[6] > 0
        np.testing.assert_array_equal(fit.objective[:2], [0, np.nan])
        assert fit.max_gradient[:2].tolist() == [0, 0]
        assert fit.n_components.tolist() == [1, 0, 1]
        assert fit.converged.all()

    def test_documents_that_met_nobody(self):
        fit = fit_bradley_terry(
            SIX, build((0, (1,), (2.0,), None), (0, (3,), None, (1,)), (0, (1,), (1.0,), None))
        )
        np.testing.assert_array_equal(fit.theta, [np.nan, 0, np.nan, 0, np.nan, np.nan])
        assert fit.objective.tolist() == [0.0] and fit.n_components.tolist() == [2]

    def test_no_windows(self):
        fit = fit_bradley_terry(np.array([0, 3]), build())
        assert np.isnan(fit.theta).all() and fit.converged.all()

    def test_more_than_a_thousand_documents(self):
        rng = np.random.default_rng(7)
        n = 1100
        truth = np.sort(rng.normal(0, 2, n))[::-1]
        windows = []
        for _ in range(4):
            for shown in rng.permutation(n).reshape(-1, 10):
                score = truth[shown] + rng.normal(0, 0.5, 10)
                windows.append((0, shown, np.clip(score, -5, 5), None))
        windows.append((0, rng.permutation(300), None, rng.integers(1, 50, 300)))
        windows = build(*windows)
        fit = fit_bradley_terry(np.array([0, n]), windows)
        value, gradient = objective(fit.theta, windows, 0)
        assert np.abs(gradient).max() <= 1e-10 + 1e-14
        assert fit.objective == pytest.approx([value], abs=1e-12)

    def test_static_sizes(self):
        assert static_sizes(np.full(649, 150)) == [152]
        assert static_sizes(np.array([2])) == [8]
        assert static_sizes(np.array([7, 385, 1100])) == [1152]
        # 10,000 small queries are not padded to the one large query.
        small, large = static_sizes(np.array([20] * 10_000 + [500]))
        assert small == 32 and large == 512

    @pytest.mark.parametrize("bad", [{"ridge": 0.0}, {"ridge": np.nan}, {"tolerance": 0.0}])
    def test_ridge_and_tolerance_must_be_positive(self, bad):
        with pytest.raises(UsageError):
            fit_bradley_terry(SIX, build(*beats(0, 0, 1)), **bad)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.permutations(range(6)))
def test_renaming_documents_renames_scores(seed, order):
    rng = np.random.default_rng(seed)
    windows = random_windows(rng, 0, np.arange(6), 10)
    order = np.array(order)
    renamed = [(0, order[list(shown)], scores, ranks) for _, shown, scores, ranks in windows]
    rng.shuffle(renamed)
    fit = fit_bradley_terry(SIX, build(*windows), tolerance=1e-13)
    again = fit_bradley_terry(SIX, build(*renamed), tolerance=1e-13)
    # 1e-13 / ridge bounds what the tolerance leaves.
    np.testing.assert_allclose(again.theta[order], fit.theta, rtol=0, atol=2e-9)


@pytest.mark.parametrize(
    ("name", "n_queries", "n_preferences"), [("dl19", 43, 27463), ("dl21", 27, 24991)]
)
def test_real_preferences(shared_data, name, n_queries, n_preferences):
    from rcp_bayes.io import read_judgments
    from rcp_bayes.observations import observe

    observed = observe(read_judgments(shared_data / name / "judgments"))
    windows, offset = observed.windows, observed.universe.offset
    assert windows.n_windows == n_preferences
    fit = fit_bradley_terry(offset, windows)
    assert len(fit.objective) == n_queries and fit.n_components.tolist() == [1] * n_queries
    # All preferences at once: the first of a pair, by rank, is the winner.
    document, rank = windows.document.reshape(-1, 2), windows.rank.reshape(-1, 2)
    p = 0.5 + 0.5 * np.sign(rank[:, 1] - rank[:, 0])
    residual = expit(fit.theta[document[:, 0]] - fit.theta[document[:, 1]]) - p
    residual /= np.bincount(windows.query)[windows.query]
    gradient = 1e-4 * np.nan_to_num(fit.theta)
    np.add.at(gradient, document[:, 0], residual)
    np.add.at(gradient, document[:, 1], -residual)
    assert np.abs(gradient).max() <= 1e-10 + 1e-14
    assert fit.max_gradient.max() == pytest.approx(np.abs(gradient).max(), abs=1e-14)
    mean = np.add.reduceat(np.nan_to_num(fit.theta), offset[:-1])
    assert np.abs(mean).max() < 1e-9
    # A ranking of this size can agree with nearly all of the judge's own preferences.
    agrees = (fit.theta[document[:, 0]] > fit.theta[document[:, 1]]) == (p > 0.5)
    assert agrees.mean() > 0.85
