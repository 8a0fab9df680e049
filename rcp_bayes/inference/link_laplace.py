"""Posterior of the 2PL link given Stage A's abilities: `fixed`, and the inner step of `cut`.

The same Newton steps through the arrow as in the joint model, without abilities to integrate: a
query has log tau and its level at a pivot, the criteria are shared. Derivatives in (tau, alpha, u,
v) are those of the MAP (`link_system`); the priors are the posterior methods' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcp_bayes.inference.arrow import ArrowSystem, Point
from rcp_bayes.inference.joint_query import log_prior_shared, unpack
from rcp_bayes.inference.link_data import LinkData, checked_data
from rcp_bayes.inference.link_system import link_system
from rcp_bayes.inference.population import definite_inverse, learn_spreads, plug_in
from rcp_bayes.inference.rows import Laid, lay_in_rows
from rcp_bayes.inference.runtime import float64, use_compilation_cache
from rcp_bayes.models.priors import N_STAGE_A, WEAK, JointPrior
from rcp_bayes.models.two_pl import Documents, PaperPrior

_OWN = 2
_TOLERANCE = 1e-6  # nats that a Newton step may still promise
_MAX_STEPS = 100
_CAP = np.array([0.7, 2.0])  # largest step in log tau and level
_HALVINGS = 30
# No prior in `link_system`: ours are added here.
_FLAT = PaperPrior(tau_sd=float("inf"), alpha_sd=float("inf"), ridge=0.0)


@dataclass(frozen=True)
class LinkFit:
    """Mode of the link's posterior and the arrow of its curvature.

    Attributes
    ----------
    eta : (Q, 2)
        Log tau, and the level ``alpha + tau * pivot``.
    phi : (P,)
        As in `rcp_bayes.inference.joint_query`; scalars of Stage A stay at their prior means.
    pivot : (Q,)
    own, cross, shared : (Q, 2, 2), (Q, 2, P), (P, P)
        Negative Hessian of the log density of (log tau, level, phi).
    value : float
    steps : int
    converged : bool
    prior : JointPrior
    n_criteria : int
    """

    eta: np.ndarray
    phi: np.ndarray
    pivot: np.ndarray
    own: np.ndarray
    cross: np.ndarray
    shared: np.ndarray
    value: float
    steps: int
    converged: bool
    prior: JointPrior
    n_criteria: int


def fit_link(
    ability: np.ndarray,
    query: np.ndarray,
    n_placements: np.ndarray,
    passes: np.ndarray,
    n_queries: int,
    *,
    prior: JointPrior = WEAK,
    start: LinkFit | None = None,
) -> LinkFit:
    """Mode of the link given abilities; arguments as in `rcp_bayes.inference.map.fit_two_pl`.

    Parameters
    ----------
    start : LinkFit, optional
        Where to begin, e.g. the fit to another draw of the abilities; its pivots are kept.
    """
    data = checked_data(ability, query, n_placements, passes, n_queries)
    laid = lay_in_rows(*data, n_queries)
    use_compilation_cache()
    with float64():
        if start is None:
            start = _start(data, n_queries, prior)
        return _maximise(laid, start)


def draw_link(
    fit: LinkFit, n_draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of tau (S, Q), alpha (S, Q) and phi (S, P) from the normal approximation."""
    inverse = definite_inverse(fit.own)
    lever = inverse @ fit.cross
    schur = fit.shared - np.einsum("jap,jaq->pq", fit.cross, lever)
    root = np.linalg.cholesky(definite_inverse(schur[None])[0])
    move = generator.standard_normal((n_draws, len(fit.phi))) @ root.T
    own = generator.standard_normal((n_draws, *fit.eta.shape))
    own = np.einsum("jab,sjb->sja", np.linalg.cholesky(inverse), own)
    own -= np.einsum("jap,sp->sja", lever, move)
    tau = np.exp(fit.eta[:, 0] + np.clip(own[:, :, 0], -2.0, 2.0))
    return tau, fit.eta[:, 1] + own[:, :, 1] - tau * fit.pivot, fit.phi + move


def _start(data: LinkData, n_queries: int, prior: JointPrior) -> LinkFit:
    start = plug_in(*data, n_queries)
    eta = np.column_stack([start.log_tau, start.level])
    none = np.zeros(0)
    return LinkFit(
        eta=eta,
        phi=start.phi(prior),
        pivot=start.pivot,
        own=none,
        cross=none,
        shared=none,
        value=-np.inf,
        steps=0,
        converged=False,
        prior=prior,
        n_criteria=data.passes.shape[1],
    )


def _maximise(laid: Laid, fit: LinkFit) -> LinkFit:
    learned = learn_spreads(fit.prior, fit.n_criteria)
    free = ~learned.mask(len(fit.phi))
    free[2 * fit.n_criteria : 2 * fit.n_criteria + N_STAGE_A] = False  # nothing here knows Stage A
    eta, phi = fit.eta, fit.phi
    surface = _surface(eta, phi, laid, fit)
    steps, converged = 0, False
    while steps < _MAX_STEPS:
        own_step, shared_step, decrement = _step(surface, free)
        moved = learned.moved(
            phi,
            eta[:, 0],
            eta[:, 1] - np.exp(eta[:, 0]) * fit.pivot,
            *_spread(surface, eta, fit.pivot),
        )
        if decrement < _TOLERANCE and np.abs(moved - phi).max() < 1e-4:
            converged = True
            break
        share = 1.0
        for _ in range(_HALVINGS):
            trial = _surface(eta + share * own_step, phi + share * shared_step, laid, fit)
            if trial[0] >= surface[0] - 1e-11 * abs(surface[0]):
                break
            share *= 0.5
        else:
            break
        eta, phi = eta + share * own_step, phi + share * shared_step
        if learned.any:
            phi = np.where(learned.mask(len(phi)), moved, phi)
            trial = _surface(eta, phi, laid, fit)
        surface, steps = trial, steps + 1
    value, _, _, own, cross, shared = surface
    return LinkFit(
        eta, phi, fit.pivot, own, cross, shared, value, steps, converged, fit.prior, fit.n_criteria
    )


def _spread(surface: tuple, eta: np.ndarray, pivot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior variances of log tau and of alpha, given phi."""
    inverse = definite_inverse(surface[3])
    slope = np.stack([-np.exp(eta[:, 0]) * pivot, np.ones(len(eta))], axis=1)
    return inverse[:, 0, 0], np.einsum("ja,jab,jb->j", slope, inverse, slope)


def _step(surface: tuple, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    _, gradient, gradient_shared, own, cross, shared = surface
    inverse = definite_inverse(own)
    cross = cross[:, :, free]
    lever = inverse @ cross
    schur = shared[np.ix_(free, free)] - np.einsum("jap,jaq->pq", cross, lever)
    right = gradient_shared[free] - np.einsum("jap,ja->p", lever, gradient)
    move = np.zeros(len(free))
    move[free] = definite_inverse(schur[None])[0] @ right
    decrement = right @ move[free] + np.einsum("ja,jab,jb->", gradient, inverse, gradient)
    move = move * min(1.0, 1.0 / max(np.abs(move).max(), 1e-30))
    step = np.einsum("jab,jb->ja", inverse, gradient) - lever @ move[free]
    excess = np.max(np.abs(step) / _CAP, axis=1, keepdims=True)
    return step / np.maximum(excess, 1.0), move, float(decrement)


def _surface(eta: np.ndarray, phi: np.ndarray, laid: Laid, fit: LinkFit) -> tuple:
    """Log density, gradients in eta and phi, and the negative Hessian's blocks."""
    extra = laid.n_queries - len(eta)
    padded = np.concatenate([eta, np.zeros((extra, _OWN))])
    pivot = np.concatenate([fit.pivot, np.zeros(extra)])
    found = _density(
        padded,
        phi,
        pivot,
        laid.documents,
        laid.passes,
        len(eta),
        prior=fit.prior,
        n_criteria=fit.n_criteria,
    )
    value, gradient, gradient_shared, own, cross, shared = jax.tree.map(np.asarray, found)
    n = len(eta)
    return float(value), gradient[:n], gradient_shared, own[:n], cross[:n], shared


@partial(jax.jit, static_argnames=("prior", "n_criteria"))
def _density(
    eta: Any,
    phi: Any,
    pivot: Any,
    documents: Documents,
    passes: Any,
    n_queries: Any,
    *,
    prior: JointPrior,
    n_criteria: int,
) -> tuple[Any, ...]:
    log_tau, level = eta[:, 0], eta[:, 1]
    tau = jnp.exp(log_tau)
    alpha = level - tau * pivot
    real = jnp.arange(eta.shape[0]) < n_queries
    point = Point(jnp.stack([tau, alpha], axis=1), phi[: 2 * n_criteria])
    system = link_system(point, documents, passes, _FLAT, None)
    gradient, own, cross = _in_levels(system, tau, pivot)

    shared = unpack(phi, n_criteria, prior)
    of_row = documents.query
    theta = tau[of_row, None] * documents.ability + alpha[of_row, None]

    def likelihood(criterion):
        slope, difficulty, passed = criterion
        z = slope * (theta - difficulty)
        return jnp.sum(passed * z - documents.n_placements * jax.nn.softplus(z))

    answers = jnp.sum(jax.lax.map(likelihood, (shared.gamma, shared.beta, passes)))

    def own_prior(eta, phi, pivot):
        scalars = unpack(phi, n_criteria, prior).scalars
        mean, sd = prior.alpha_moments(scalars)
        z = (eta[1] - jnp.exp(eta[0]) * pivot - mean) / sd
        return prior.log_prob_tau(eta[0], scalars) - 0.5 * z * z - jnp.log(sd)

    def together(zeta, pivot):
        return own_prior(zeta[:_OWN], zeta[_OWN:], pivot)

    zeta = jnp.concatenate([eta, jnp.broadcast_to(phi, (len(eta), len(phi)))], axis=1)
    priors, slopes, curves = (
        jax.vmap(f)(zeta, pivot) for f in (together, jax.grad(together), jax.hessian(together))
    )
    priors = jnp.where(real, priors, 0.0)
    slopes = jnp.where(real[:, None], slopes, 0.0)
    curves = jnp.where(real[:, None, None], curves, 0.0)

    def items_prior(phi):
        return log_prior_shared(phi, n_criteria, prior)

    rest = len(phi) - 2 * n_criteria
    gradient_shared = jnp.concatenate([-system.gradient_shared, jnp.zeros(rest)])
    curvature = jnp.zeros((len(phi), len(phi)))
    curvature = curvature.at[: 2 * n_criteria, : 2 * n_criteria].set(system.shared)
    wide = jnp.concatenate([cross, jnp.zeros((*cross.shape[:2], rest))], axis=2)
    return (
        answers + jnp.sum(priors) + items_prior(phi),
        -gradient + slopes[:, :_OWN],
        gradient_shared + jnp.sum(slopes[:, _OWN:], axis=0) + jax.grad(items_prior)(phi),
        own - curves[:, :_OWN, :_OWN] + jnp.where(real, 0.0, 1.0)[:, None, None] * jnp.eye(_OWN),
        wide - curves[:, :_OWN, _OWN:],
        curvature - jnp.sum(curves[:, _OWN:, _OWN:], axis=0) - jax.hessian(items_prior)(phi),
    )


def _in_levels(system: ArrowSystem, tau: Any, pivot: Any) -> tuple[Any, Any, Any]:
    """Gradient and Hessian in (tau, alpha) as those in (log tau, level)."""
    zero, one = jnp.zeros_like(tau), jnp.ones_like(tau)
    jacobian = jnp.stack(
        [jnp.stack([tau, zero], axis=1), jnp.stack([-tau * pivot, one], axis=1)], axis=1
    )
    gradient = jnp.einsum("jab,ja->jb", jacobian, system.gradient_own)
    own = jnp.einsum("jab,jac,jcd->jbd", jacobian, system.own, jacobian)
    bend = tau * (system.gradient_own[:, 0] - pivot * system.gradient_own[:, 1])
    own = own.at[:, 0, 0].add(bend)
    return gradient, own, jnp.einsum("jab,jap->jbp", jacobian, system.cross)
