"""Draws of the Laplace approximation: moments, and intervals that cover on known truth."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from joint_worlds import small_data, world

from rcp_bayes.gain import gain
from rcp_bayes.inference.blas import _openblas, single_threaded_blas
from rcp_bayes.inference.joint_data import joint_data
from rcp_bayes.inference.joint_map import fit_joint
from rcp_bayes.inference.joint_query import Mode, log_joint
from rcp_bayes.inference.laplace import laplace_draws
from rcp_bayes.inference.population import definite_inverse
from rcp_bayes.inference.posterior import document_summaries, summarise
from rcp_bayes.models.priors import HIERARCHICAL

DRAWS = 4000
ERROR = 4 / np.sqrt(DRAWS)  # four Monte Carlo errors, in sds


@pytest.fixture(scope="module")
def fit():
    return fit_joint(small_data())


@pytest.fixture(scope="module")
def draws(fit):
    return laplace_draws(fit, DRAWS, seed=1)


class TestMoments:
    def test_of_the_shared_parameters(self, fit, draws):
        """Against the dense inverse of the whole curvature, not the Schur complement."""
        n_queries, n_own = fit.eta.shape
        size = n_queries * n_own
        dense = np.zeros((size + len(fit.phi),) * 2)
        for j in range(n_queries):
            at = slice(j * n_own, (j + 1) * n_own)
            dense[at, at] = fit.own[j]
            dense[at, size:] = fit.cross[j]
            dense[size:, at] = fit.cross[j].T
        dense[size:, size:] = fit.shared
        covariance = np.linalg.inv(dense)
        sd = np.sqrt(np.diag(covariance))
        noise = draws.scalars["log_noise"]
        assert noise.mean() == pytest.approx(fit.scalars["log_noise"], abs=ERROR * sd[size + 10])
        assert noise.std() == pytest.approx(sd[size + 10], rel=ERROR)
        log_tau = np.log(draws.tau[:, fit.data.query])
        np.testing.assert_allclose(log_tau.std(axis=0), sd[0:size:3], rtol=1.5 * ERROR)
        together = np.corrcoef(log_tau[:, 0], noise)[0, 1]
        expected = covariance[0, size + 10] / (sd[0] * sd[size + 10])
        assert together == pytest.approx(expected, abs=ERROR)

    def test_of_the_abilities(self, fit, draws):
        """The law of total variance: conditional covariance plus what eta and phi move."""
        inverse = definite_inverse(fit.own)
        lever = inverse @ fit.cross
        schur = definite_inverse((fit.shared - np.einsum("jap,jaq->pq", fit.cross, lever))[None])
        ability = draws.ability()
        for k, group in enumerate(fit.data.groups):
            for row, j in enumerate(group.query):
                moved = np.block(
                    [
                        [inverse[j] + lever[j] @ schur[0] @ lever[j].T, -lever[j] @ schur[0]],
                        [-schur[0] @ lever[j].T, schur[0]],
                    ]
                )
                mask = group.data.mask[row]
                jacobian = fit.jacobian[k][row][mask]
                centred = np.eye(mask.sum()) - 1 / mask.sum()
                conditional = _conditional(fit, k, row)[np.ix_(mask, mask)]
                total = centred @ (conditional + jacobian @ moved @ jacobian.T) @ centred
                documents = group.document[row][mask]
                found = ability[:, documents]
                sd = np.sqrt(np.diag(total))
                np.testing.assert_allclose(found.std(axis=0), sd, rtol=1.5 * ERROR)
                mean = fit.theta[k][row][mask] - fit.theta[k][row][mask].mean()
                np.testing.assert_allclose(found.mean(axis=0) / sd, mean / sd, atol=1.2 * ERROR)

    def test_constraints_hold_in_every_draw(self, draws):
        np.testing.assert_allclose(draws.gamma.sum(axis=1), 5, rtol=1e-12)
        np.testing.assert_allclose(draws.beta.mean(axis=1), 0, atol=1e-12)
        assert (draws.tau > 0).all()
        for j in range(4):
            mean = draws.ability()[:, draws.query == j].mean(axis=1)
            np.testing.assert_allclose(mean, 0, atol=1e-5)  # theta is kept in single precision


@partial(jax.jit, static_argnames="prior")
def _hessian(at, eta, phi, data, prior):
    n = len(data.mask)

    def height(flat):
        return log_joint(Mode(flat[:n], flat[n:]), eta, phi, data, prior)

    return jax.hessian(height)(at)


def _conditional(fit, group, row):
    """Covariance of a query's abilities given eta and phi, from autodiff."""
    data = jax.tree.map(lambda array: jnp.asarray(array[row]), fit.data.groups[group].data)
    n = len(data.mask)
    eta = jnp.asarray(fit.eta[fit.data.groups[group].query[row]])

    at = np.concatenate([fit.theta[group][row], fit.offset[group][row]])
    curvature = -np.asarray(_hessian(at, eta, fit.phi, data, fit.prior))
    curvature[np.diag_indices(n)] += np.where(data.mask, 0.0, 1.0)
    return np.linalg.inv(curvature)[:n, :n]


def test_draws_follow_the_seed(fit):
    first, again, other = (laplace_draws(fit, 5, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.theta, again.theta)
    np.testing.assert_array_equal(first.beta, again.beta)
    assert np.abs(first.theta - other.theta).max() > 0.01


def test_summaries_are_those_of_the_draws(draws):
    found = document_summaries(draws, level=0.9)
    block = np.asarray(gain(draws.theta, draws.gamma, draws.beta))
    np.testing.assert_allclose(found["gain"].mean, block.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found["gain"].low, np.quantile(block, 0.05, axis=0), rtol=1e-4)
    direct = summarise(draws.theta, 0.9)
    np.testing.assert_allclose(found["theta"].high, direct.high, rtol=1e-6)


def test_intervals_cover_the_truth():
    """16 queries x 40 documents, noise 0.7: 90% intervals of abilities and gains.

    Bands are wide because documents of a query share its tau and offset: four standard errors with
    the query as the unit of sampling.
    """
    observed, made = world(seed=3, n_queries=16, pool=(40,) * 16, noise=0.7)
    draws = laplace_draws(fit_joint(joint_data(observed), HIERARCHICAL), 500, seed=2)
    truth = made.truth.set_index("doc_id").loc[observed.universe.doc_id]
    summaries = document_summaries(draws, level=0.9)
    for name, column in (("ability", "ability"), ("theta", "theta"), ("gain", "gain")):
        actual = truth[column].to_numpy()
        inside = (summaries[name].low <= actual) & (actual <= summaries[name].high)
        by_query = np.array([inside[draws.query == j].mean() for j in range(16)])
        error = max(by_query.std(ddof=1) / 4, 0.01)
        assert inside.mean() == pytest.approx(0.9, abs=4 * error + 0.02), name
    error = np.sqrt(((summaries["gain"].mean - truth["gain"]) ** 2).mean())
    assert error < 0.03


def test_blas_threads_are_put_back():
    library = _openblas()
    if library is None:
        pytest.skip("SciPy was not built with its own OpenBLAS")
    before = library.scipy_openblas_get_num_threads()
    with single_threaded_blas():
        assert library.scipy_openblas_get_num_threads() == 1
    assert library.scipy_openblas_get_num_threads() == before
