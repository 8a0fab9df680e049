"""The joint model: one density in NumPyro and in the kernels; the mode; what the fit recovers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from joint_worlds import small_data, world
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy.optimize import minimize

from rcp_bayes.errors import InputError
from rcp_bayes.inference.joint_data import joint_data
from rcp_bayes.inference.joint_map import fit_joint, fit_stage_a
from rcp_bayes.inference.joint_query import (
    Mode,
    laplace,
    log_joint,
    log_prior_shared,
    n_shared,
    newton,
    unpack,
)
from rcp_bayes.models.joint import joint
from rcp_bayes.models.priors import HIERARCHICAL, WEAK
from rcp_bayes.observations import Observations
from rcp_bayes.windows import Windows

MODELS = pytest.mark.parametrize(
    ("scored", "prior"),
    [(True, WEAK), (False, HIERARCHICAL)],
    ids=["scores, weak", "pairs, hierarchical"],
)


def query_of(data, j):
    """A query's data without the leading axis, and its shape."""
    for group in data.groups:
        if j in group.query:
            at = int(np.flatnonzero(group.query == j)[0])
            own = jax.tree.map(lambda array, at=at: jnp.asarray(array[at]), group.data)
            return own, group
    raise AssertionError(j)


def some_point(data, prior, seed=0):
    rng = np.random.default_rng(seed)
    phi = rng.normal(0, 0.3, n_shared(data.n_criteria, prior))
    phi[data.n_criteria : 2 * data.n_criteria] += np.array([-2.5, -2.0, 0.0, 0.5, 4.0])
    phi[2 * data.n_criteria + 1] += 0.6  # a skewness away from 0, where its density has a kink
    eta = rng.normal([0.3, -2.0, 0.7], 0.2, (data.n_queries, 3))
    return eta, phi


height_of = jax.jit(log_joint, static_argnames="prior")


def start_of(group):
    return Mode(jnp.zeros(group.data.mask.shape[1]), jnp.zeros(group.n_windows))


@MODELS
def test_kernels_and_numpyro_model_are_one_density(scored, prior):
    data = small_data(scored)
    eta, phi = some_point(data, prior)
    rng = np.random.default_rng(5)
    abilities, total = [], float(log_prior_shared(phi, data.n_criteria, prior))
    shared = unpack(jnp.asarray(phi), data.n_criteria, prior)
    tau = np.exp(eta[:, 0])
    values = {"tau": tau, "log_scale": eta[:, 2], "alpha": np.zeros(data.n_queries)}
    values |= {"u": phi[:5], "v": phi[5:10]} | {k: float(v) for k, v in shared.scalars.items()}
    for k, group in enumerate(data.groups):
        ability = rng.normal(0, 2, group.data.mask.shape)
        offset = rng.normal(0, 1, (len(group.query), group.n_windows))
        if scored:  # the offsets of padded windows are outside both densities at 0
            offset *= np.any(group.data.windows.kind > 0, axis=2)
            values[f"offset_{k}"] = offset
        ability = np.where(group.data.mask, ability, 0.0)
        values[f"ability_{k}"] = ability
        abilities.append(ability)
        for row, j in enumerate(group.query):
            own, _ = query_of(data, j)
            mode = Mode(jnp.asarray(ability[row]), jnp.asarray(offset[row]))
            total += float(height_of(mode, eta[j], phi, own, prior))
            mean = ability[row][group.data.mask[row]].mean()
            values["alpha"][j] = eta[j, 1] + tau[j] * (mean - float(own.pivot))
    density, _ = log_density(
        joint,
        ([group.data for group in data.groups], [g.query for g in data.groups], data.n_queries),
        {"prior": prior},
        {name: jnp.asarray(value) for name, value in values.items()},
    )
    # The kernels' density is that of log tau.
    assert total == pytest.approx(float(density) + eta[:, 0].sum(), rel=1e-10)


@MODELS
def test_laplace_is_the_mode_and_the_determinant(scored, prior):
    """Against autodiff's Hessian in all abilities and offsets at once."""
    data = small_data(scored)
    eta, phi = some_point(data, prior)
    own, group = query_of(data, 3)  # 11 documents, padded
    compiled = jax.jit(lambda eta, phi: laplace(start_of(group), eta, phi, own, prior))
    found = compiled(eta[3], phi)
    real = int(own.mask.sum())
    windows = int(np.any(np.asarray(own.windows.kind) > 0, axis=1).sum()) if scored else 0
    assert real < len(own.mask)

    def height(flat):
        theta = jnp.zeros(len(own.mask)).at[:real].set(flat[:real])
        offset = jnp.zeros(group.n_windows).at[:windows].set(flat[real:])
        return log_joint(Mode(theta, offset), jnp.asarray(eta[3]), phi, own, prior)

    at = jnp.concatenate([found.mode.theta[:real], found.mode.offset[:windows]])
    top, gradient, hessian = jax.jit(
        lambda at: (height(at), jax.grad(height)(at), jax.hessian(height)(at))
    )(at)
    assert np.abs(gradient).max() < 1e-5
    curvature = -hessian
    _, log_det = np.linalg.slogdet(curvature)
    expected = top - 0.5 * log_det + 0.5 * len(at) * np.log(2 * np.pi)
    assert float(found.value) == pytest.approx(float(expected), rel=1e-10)
    variance = np.diag(np.linalg.inv(curvature))[:real]
    np.testing.assert_allclose(found.variance[:real], variance, rtol=1e-8)


@MODELS
def test_gradient_of_the_marginal(scored, prior):
    data = small_data(scored)
    eta, phi = some_point(data, prior)
    own, group = query_of(data, 2)
    zeta = np.concatenate([eta[2], phi])
    at = jax.jit(lambda zeta: laplace(start_of(group), zeta[:3], zeta[3:], own, prior))
    found = at(zeta)
    step = 1e-4
    for k in range(len(zeta)):
        shift = step * (np.arange(len(zeta)) == k)
        up, down = at(zeta + shift), at(zeta - shift)
        difference = (up.value - down.value) / (2 * step)
        assert float(found.gradient[k]) == pytest.approx(float(difference), rel=1e-5, abs=1e-5)
        moved = (up.mode.theta - down.mode.theta) / (2 * step)
        np.testing.assert_allclose(found.jacobian[:, k], moved, atol=2e-4)


def test_newton_from_far_away_ends_at_the_same_mode():
    data = small_data()
    eta, phi = some_point(data, WEAK)
    own, group = query_of(data, 0)
    climb = jax.jit(lambda mode: newton(mode, jnp.asarray(eta[0]), phi, own, WEAK))
    near, _ = climb(start_of(group))
    far = Mode(jnp.linspace(-30, 40, len(own.mask)), jnp.linspace(20, -20, group.n_windows))
    found, steps = climb(far)
    assert steps < 60
    np.testing.assert_allclose(found.theta, near.theta, atol=1e-4)


@pytest.fixture(scope="module")
def fitted():
    return fit_joint(small_data())


class TestFit:
    def test_converges(self, fitted):
        assert fitted.converged
        assert fitted.steps < 30

    def test_is_the_maximum(self, fitted):
        """Against a quasi-Newton search in every parameter at once, by NumPyro-free evaluation."""
        data = fitted.data
        shape = fitted.eta.shape

        def minus(flat):
            eta, phi = flat[: fitted.eta.size].reshape(shape), flat[fitted.eta.size :]
            total = -log_prior_shared(phi, data.n_criteria, WEAK)
            gradient = -np.asarray(jax.grad(log_prior_shared)(phi, data.n_criteria, WEAK))
            values, gradients = evaluate(eta, phi)
            total -= values.sum()
            own = -np.asarray(gradients[:, :3])
            gradient = gradient - np.asarray(gradients[:, 3:]).sum(axis=0)
            return float(total), np.concatenate([own.ravel(), gradient])

        (group,) = data.groups
        starts = Mode(jnp.asarray(fitted.theta[0]), jnp.asarray(fitted.offset[0]))

        @jax.jit
        def evaluate(eta, phi):
            return jax.lax.map(
                lambda part: laplace(part[0], part[1], phi, part[2], WEAK)[1:3],
                (starts, eta, jax.tree.map(jnp.asarray, group.data)),
            )

        start = np.concatenate([fitted.eta.ravel(), fitted.phi])
        height = minus(start)[0]
        assert -height == pytest.approx(fitted.value, rel=1e-9)
        moved = start + 0.05 * np.sin(np.arange(len(start)))
        found = minimize(minus, moved, jac=True, method="BFGS", options={"gtol": 1e-4})
        assert found.fun >= height - 1e-3  # nothing higher was found
        assert found.fun == pytest.approx(height, abs=5e-3)

    def test_order_and_signs_are_sensible(self, fitted):
        assert fitted.gamma.sum() == pytest.approx(5)
        assert fitted.beta.mean() == pytest.approx(0, abs=1e-12)
        # 55 documents: the noise is known to a few percent.
        assert np.exp(fitted.scalars["log_noise"]) == pytest.approx(0.7, rel=0.1)

    def test_stage_a_alone_knows_no_criteria(self):
        alone = fit_stage_a(small_data())
        assert np.exp(alone.scalars["log_noise"]) == pytest.approx(0.7, rel=0.1)
        np.testing.assert_array_equal(alone.phi[:10], 0.0)


def test_recovers_a_world():
    """16 queries x 40 documents: every parameter within its uncertainty of the truth.

    Bounds are four posterior sds for the criteria, and for the queries' parameters a root mean
    square of 1 sd with four standard errors over queries.
    """
    observed, made = world(seed=3, n_queries=16, pool=(40,) * 16, noise=0.7)
    fit = fit_joint(joint_data(observed), HIERARCHICAL)
    assert fit.converged
    beta_sd = 0.25  # of the hardest criterion; the others are better known
    np.testing.assert_allclose(fit.beta, made.truth_info["beta"], atol=4 * beta_sd)
    first = made.truth.drop_duplicates("query_id").set_index("query_id")
    truth = first.loc[observed.universe.query_id, "tau"].to_numpy()
    sd = np.sqrt(np.linalg.inv(fit.own)[:, 0, 0])
    z = (fit.eta[:, 0] - np.log(truth)) / sd
    assert np.sqrt(np.mean(z**2)) < (1 + 4 / np.sqrt(2 * 16))
    assert np.exp(fit.scalars["log_noise"]) == pytest.approx(0.7, rel=0.05)


def test_prior_predictive_draws_keep_the_rules():
    data = small_data()
    drawn = Predictive(joint, num_samples=3)(
        jax.random.key(0),
        [group.data for group in data.groups],
        [group.query for group in data.groups],
        data.n_queries,
        observed=False,
    )
    for k, group in enumerate(data.groups):
        assert np.abs(drawn[f"score_{k}"]).max() <= 5.0
        placed = group.data.placements[None, :, :, None]
        assert np.all((drawn[f"passes_{k}"] >= 0) & (drawn[f"passes_{k}"] <= placed))
    np.testing.assert_allclose(np.asarray(drawn["gamma"]).sum(axis=1), 5.0, atol=1e-9)


class TestLayout:
    def test_every_score_stands_once_beside_its_document(self):
        observed, _ = world(pool=(12, 70, 40, 11))
        data = joint_data(observed)
        assert len(data.groups) == 3
        windows = observed.windows
        seen = []
        for group in data.groups:
            kind = group.data.windows.kind
            row, window, place = np.nonzero(kind)
            document = group.document[row, group.data.windows.document[row, window, place]]
            seen.append(np.column_stack([document, group.data.windows.score[row, window, place]]))
        found = np.concatenate(seen)
        expected = np.column_stack([windows.document, windows.score])
        order = [np.lexsort(table.T) for table in (found, expected)]
        np.testing.assert_allclose(found[order[0]], expected[order[1]])

    def test_passes_and_placements(self):
        observed, _ = world()
        data = joint_data(observed)
        for group in data.groups:
            at = group.document[group.data.mask]
            np.testing.assert_array_equal(group.data.passes[group.data.mask], observed.passes[at])
            np.testing.assert_array_equal(
                group.data.placements[group.data.mask], observed.n_placements[at]
            )
            assert not group.data.passes[~group.data.mask].any()

    def test_wins_of_a_window_sum_to_its_pairs(self):
        observed, _ = world()
        data = joint_data(observed, scored=False)
        total = sum(group.data.pairs.wins.sum() for group in data.groups)
        size = observed.windows.size
        # Each pair has the weight 2 / w, shared between its two orders.
        assert total == pytest.approx((size * (size - 1) / 2 * 2 / size).sum())

    def test_ranked_windows_need_the_pair_model(self):
        observed, _ = world()
        ranked = Windows(
            **{
                **{name: getattr(observed.windows, name) for name in Windows.__annotations__},
                "scored": np.zeros(observed.windows.n_windows, bool),
            }
        )
        without = Observations(
            **{
                **{name: getattr(observed, name) for name in Observations.__annotations__},
                "windows": ranked,
            }
        )
        with pytest.raises(InputError, match="no scored Stage A window"):
            joint_data(without)
