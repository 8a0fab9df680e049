"""The link's posterior given abilities: mode, curvature, draws; `fixed` and `cut`."""

import numpy as np
import pytest
from joint_worlds import world
from scipy.optimize import minimize
from scipy.special import log_ndtr
from scipy.stats import norm

from rcp_bayes.errors import InputError
from rcp_bayes.inference.bradley_terry import fit_bradley_terry
from rcp_bayes.inference.cut import cut_draws, fixed_draws, stage_a_draws
from rcp_bayes.inference.link_laplace import draw_link, fit_link
from rcp_bayes.models.priors import HIERARCHICAL, WEAK
from rcp_bayes.observations import observe


def true_abilities(observed, made):
    return made.truth.set_index("doc_id").loc[observed.universe.doc_id, "ability"].to_numpy()


@pytest.fixture(scope="module")
def known():
    """A world whose abilities are known: arguments of `fit_link`."""
    observed, made = world()
    ability = true_abilities(observed, made)
    universe = observed.universe
    return ability, universe.query, observed.n_placements, observed.passes, universe.n_queries


def log_density(log_tau, alpha, u, v, ability, query, placed, passes):
    """The posterior under weak priors, written out; density of log tau."""
    gamma = len(u) * np.exp(u) / np.exp(u).sum()
    beta = v - v.mean()
    tau = np.exp(log_tau)
    z = gamma * ((tau[query] * ability + alpha[query])[:, None] - beta)
    answers = (passes * z - placed[:, None] * np.logaddexp(0, z)).sum()
    scale = (norm.logpdf(tau, 1, 1) - log_ndtr(1) + log_tau).sum()
    items = norm.logpdf(u, 0, 0.5).sum() + norm.logpdf(v, 0, 3).sum()
    return answers + scale + norm.logpdf(alpha, 0, 2).sum() + items


class TestLink:
    def test_mode_is_scipys(self, known):
        *data, n_queries = known
        fit = fit_link(*known)
        assert fit.converged

        def minus(flat):
            parts = np.split(flat, [n_queries, 2 * n_queries, 2 * n_queries + 5])
            return -log_density(*parts, *data)

        tau = np.exp(fit.eta[:, 0])
        at = np.concatenate([fit.eta[:, 0], fit.eta[:, 1] - tau * fit.pivot, fit.phi[:10]])
        found = minimize(minus, at + 0.1, method="BFGS")
        assert minus(at) == pytest.approx(found.fun, abs=1e-4)
        np.testing.assert_allclose(at, found.x, atol=5e-3)

    def test_curvature_by_differences(self, known):
        *data, n_queries = known
        fit = fit_link(*known)

        def density(flat):
            log_tau, level = flat[:n_queries], flat[n_queries : 2 * n_queries]
            alpha = level - np.exp(log_tau) * fit.pivot
            return log_density(log_tau, alpha, flat[2 * n_queries : -5], flat[-5:], *data)

        at = np.concatenate([*fit.eta.T, fit.phi[:10]])
        size, step = len(at), 1e-3
        basis = step * np.eye(size)
        found = np.empty((size, size))
        for a in range(size):
            for b in range(a, size):
                corners = [
                    density(at + p * basis[a] + q * basis[b]) for p in (1, -1) for q in (1, -1)
                ]
                bend = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * step**2)
                found[a, b] = found[b, a] = -bend
        expected = np.zeros((size, size))
        for j in range(n_queries):
            own = [j, n_queries + j]
            expected[np.ix_(own, own)] = fit.own[j]
            expected[np.ix_(own, range(2 * n_queries, size))] = fit.cross[j][:, :10]
            expected[np.ix_(range(2 * n_queries, size), own)] = fit.cross[j][:, :10].T
        expected[2 * n_queries :, 2 * n_queries :] = fit.shared[:10, :10]
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())

    @pytest.mark.parametrize("prior", [WEAK, HIERARCHICAL], ids=["weak", "hierarchical"])
    def test_a_start_changes_nothing(self, known, prior):
        first = fit_link(*known, prior=prior)
        shaken = (known[0] + 0.3 * np.sin(np.arange(len(known[0]))), *known[1:])
        start = fit_link(*shaken, prior=prior)
        again = fit_link(*known, prior=prior, start=start)
        np.testing.assert_allclose(again.phi, first.phi, atol=2e-3)
        tau, _, _ = draw_link(again, 50, np.random.default_rng(0))
        assert (tau > 0).all()

    def test_draws_have_the_arrows_covariance(self, known):
        fit = fit_link(*known)
        n_draws = 4000
        tau, alpha, phi = draw_link(fit, n_draws, np.random.default_rng(3))
        n_queries = len(fit.eta)
        size = 2 * n_queries
        dense = np.zeros((size + len(fit.phi),) * 2)
        for j in range(n_queries):
            at = slice(2 * j, 2 * j + 2)
            dense[at, at] = fit.own[j]
            dense[at, size:], dense[size:, at] = fit.cross[j], fit.cross[j].T
        dense[size:, size:] = fit.shared
        sd = np.sqrt(np.diag(np.linalg.inv(dense)))
        error = 5 / np.sqrt(2 * n_draws)
        np.testing.assert_allclose(np.log(tau).std(axis=0), sd[0:size:2], rtol=error)
        np.testing.assert_allclose((alpha + tau * fit.pivot).std(axis=0), sd[1:size:2], rtol=error)
        np.testing.assert_allclose(phi.std(axis=0), sd[size:], rtol=error)


def test_known_abilities_are_covered():
    """16 queries: at least 80% of tau and alpha inside 90% intervals (binomial: 3.3 errors)."""
    observed, made = world(seed=3, n_queries=16, pool=(40,) * 16, noise=0.7)
    draws = fixed_draws(observed, true_abilities(observed, made), 1000, prior=HIERARCHICAL, seed=1)
    assert draws.diagnostics["converged"]
    first = made.truth.drop_duplicates("query_id").set_index("query_id")
    for name in ("tau", "alpha"):
        truth = first.loc[observed.universe.query_id, name].to_numpy()
        low, high = np.quantile(getattr(draws, name), [0.05, 0.95], axis=0)
        assert ((low <= truth) & (truth <= high)).mean() > 0.65, name
    low, high = np.quantile(draws.beta, [0.001, 0.999], axis=0)
    truth = np.array(made.truth_info["beta"])
    assert ((low <= truth) & (truth <= high)).all()


class TestCut:
    @pytest.fixture(scope="class")
    @staticmethod
    def tournament():
        observed, _ = world()
        return observed, fit_bradley_terry(observed.universe.offset, observed.windows).theta

    def test_order_is_the_tournaments_in_every_draw(self, tournament):
        observed, theta = tournament
        draws = fixed_draws(observed, theta, 20, seed=2)
        for j in range(observed.universe.n_queries):
            own = observed.universe.query == j
            expected = np.argsort(theta[own])
            for drawn in draws.theta[:, own]:
                np.testing.assert_array_equal(np.argsort(drawn), expected)

    def test_of_one_ability_is_fixed(self, tournament):
        observed, theta = tournament
        fixed = fixed_draws(observed, theta, 10, seed=2)
        cut = cut_draws(observed, theta[None], 10, seed=2)
        np.testing.assert_array_equal(fixed.theta, cut.theta)

    @pytest.mark.parametrize("scored", [True, False], ids=["score", "sandwich"])
    def test_draws_of_stage_a_pass_through(self, tournament, scored):
        observed, theta = tournament
        abilities = stage_a_draws(observed, 8, scored=scored, theta=theta, seed=1)
        assert abilities.shape == (8, observed.universe.n_documents)
        draws = cut_draws(observed, abilities, 24, seed=1)
        assert draws.diagnostics == {"converged": True, "imputations": 8}
        used = np.repeat(np.arange(8), 3)
        np.testing.assert_allclose(
            draws.ability(), abilities[used], atol=1e-4
        )  # no feedback: exactly those that came in, in single precision

    def test_spread_is_wider_than_fixed(self, tournament):
        observed, theta = tournament
        abilities = stage_a_draws(observed, 60, scored=False, theta=theta, seed=1)
        cut = cut_draws(observed, abilities, 600, seed=1).theta.std(axis=0)
        fixed = fixed_draws(observed, theta, 600, seed=1).theta.std(axis=0)
        # 60 imputations and 600 draws: each sd is known to about 10%.
        assert (cut**2).mean() > (fixed**2).mean()
        assert np.mean(cut > fixed) > 0.7

    def test_documents_without_stage_a_stay_without(self, tournament):
        observed, theta = tournament
        gone = theta.copy()
        gone[[0, 5]] = np.nan
        draws = fixed_draws(observed, gone, 5)
        assert np.isnan(draws.theta[:, [0, 5]]).all()
        assert np.isfinite(np.delete(draws.theta, [0, 5], axis=1)).all()

    def test_nothing_to_calibrate(self, tournament):
        observed, theta = tournament
        with pytest.raises(InputError, match="no document has answers in both stages"):
            fixed_draws(observed, np.full(len(theta), np.nan), 5)


def test_observations_without_stage_a_are_refused():
    import rcp_bayes as rcp

    made = rcp.simulate(n_queries=1, pool_size=10, seed=1)
    observed = observe(rcp.Judgments.from_frames(None, made.stage_b))
    with pytest.raises(InputError):
        stage_a_draws(observed, 3, scored=False)
