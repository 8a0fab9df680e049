"""Mode of the joint model of both stages, for all queries at once.

Given what all queries share, queries are independent, so that the curvature is an arrow: a 3 x 3
block per query (log tau, level, log scale), coupled through the shared vector phi (criteria, noise,
population). Abilities and window offsets are integrated out by Laplace's approximation inside
`rcp_bayes.inference.joint_query`; here Newton steps maximise the sum over queries of these
marginals, plus the prior of phi.

Why not the mode in everything at once: with a few answers per document the mode in (theta, gamma,
tau) stretches the scale (as joint maximum likelihood does in item response theory) and, with the
noise of the scores free, understates it by the share of the parameters in the data. With theta and
b integrated out both biases go.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rcp_bayes.errors import RcpError
from rcp_bayes.inference.blas import single_threaded_blas
from rcp_bayes.inference.joint_data import JointData
from rcp_bayes.inference.joint_query import (
    OWN,
    Mode,
    laplace,
    log_prior_shared,
    n_shared,
    unpack,
)
from rcp_bayes.inference.population import (
    LearnedSpreads,
    definite_inverse,
    learn_spreads,
    plug_in,
)
from rcp_bayes.inference.runtime import float64, use_compilation_cache
from rcp_bayes.models.priors import N_STAGE_A, WEAK, JointPrior
from rcp_bayes.models.query_data import QueryData

CHUNK = 8
"""Queries that one compiled call handles, one after the other."""

_TOLERANCE = 1e-3  # nats that a Newton step may still promise, over all queries together
_MAX_STEPS = 60
_OWN_CAP = np.array([0.7, 2.0, 0.7])  # largest step in log tau, level, log scale
_SHARED_CAP = 1.0
_DIFFERENCE = 0.02  # posterior sds by which gradients are differenced for the curvature
_HALVINGS = 6
_SETTLED = 5e-3  # change of a population's log sd at which it stands


@dataclass(frozen=True)
class JointFit:
    """Mode of the joint model and the arrow of its curvature.

    Attributes
    ----------
    eta : (Q, 3) float64
        Log tau, level at the pivot, log ability scale.
    phi : (P,) float64
        What queries share (`rcp_bayes.inference.joint_query.unpack`).
    theta : tuple of (G, n) arrays, offset : tuple of (G, W) arrays
        Modes of abilities (not centred) and window offsets, per group of `data`.
    jacobian : tuple of (G, n, 3 + P) arrays
        How `theta` moves with (eta, phi).
    own, cross, shared : (Q, 3, 3), (Q, 3, P), (P, P)
        Negative Hessian of the log marginal density; `shared` sums over queries and has the prior.
    value : float
        Log marginal density at the mode.
    steps : int
    decrement : float
        Nats that one more Newton step would promise.
    converged : bool
    data : JointData
        With the pivots that the fit used.
    prior : JointPrior
    """

    eta: np.ndarray
    phi: np.ndarray
    theta: tuple[np.ndarray, ...]
    offset: tuple[np.ndarray, ...]
    jacobian: tuple[np.ndarray, ...]
    own: np.ndarray
    cross: np.ndarray
    shared: np.ndarray
    value: float
    steps: int
    decrement: float
    converged: bool
    data: JointData
    prior: JointPrior

    @property
    def gamma(self) -> np.ndarray:
        return _unpacked(self)[0]

    @property
    def beta(self) -> np.ndarray:
        return _unpacked(self)[1]

    @property
    def scalars(self) -> dict[str, float]:
        """Noise, skewness and population parameters by name."""
        return _unpacked(self)[2]


def fit_joint(
    data: JointData,
    prior: JointPrior = WEAK,
    *,
    progress: Callable[[str], None] | None = None,
) -> JointFit:
    """Maximise the marginal density of everything but abilities and window offsets.

    Parameters
    ----------
    data : JointData
        Both stages, from `joint_data`.
    prior : JointPrior
    progress : callable, optional
        Told a line per Newton step.

    Raises
    ------
    RcpError
        If the density is not finite at the start.
    """
    tell = progress or (lambda text: None)
    use_compilation_cache()
    with float64(), single_threaded_blas():
        alone = fit_stage_a(data, prior, progress=progress)
        data, eta, phi = _calibrated_start(alone, data)
        start = _State(eta, phi, alone.theta, alone.offset)
        learned = learn_spreads(prior, data.n_criteria).mask(len(phi))
        free = _Free(np.ones(OWN, bool), ~learned)
        return _maximise(start, data, prior, free, lambda text: tell(f"both stages: {text}"))


def fit_stage_a(
    data: JointData,
    prior: JointPrior = WEAK,
    *,
    progress: Callable[[str], None] | None = None,
) -> JointFit:
    """The same for Stage A alone: noise, scales and abilities without the criteria's answers."""
    tell = progress or (lambda text: None)
    use_compilation_cache()
    n_criteria = data.n_criteria
    with float64(), single_threaded_blas():
        silent = data.without_stage_b()
        phi = np.zeros(n_shared(n_criteria, prior))
        for k, name in enumerate(prior.shared_names):
            phi[2 * n_criteria + k] = getattr(prior, name).mean
        eta = np.tile([0.0, 0.0, prior.scale_mean.mean], (data.n_queries, 1))
        free = np.zeros(len(phi), bool)
        free[2 * n_criteria : 2 * n_criteria + N_STAGE_A] = True
        if not data.scored:
            free[2 * n_criteria] = False  # no scores, no noise of scores
        start = _State(
            eta,
            phi,
            tuple(np.zeros(group.data.mask.shape) for group in data.groups),
            tuple(np.zeros((len(group.query), group.n_windows)) for group in data.groups),
        )
        own = np.array([False, False, True])
        return _maximise(
            start, silent, prior, _Free(own, free), lambda text: tell(f"stage A: {text}")
        )


@dataclass(frozen=True)
class _State:
    eta: np.ndarray
    phi: np.ndarray
    theta: tuple[np.ndarray, ...]
    offset: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Free:
    own: np.ndarray
    shared: np.ndarray


@dataclass(frozen=True)
class _Surface:
    """The log density around a state: value, gradient and Hessian by query, modes."""

    state: _State
    value: float
    gradient: np.ndarray  # (Q, 3 + P)
    hessian: np.ndarray  # (Q, 3 + P, 3 + P)
    jacobian: tuple[np.ndarray, ...]  # (G, n, 3 + P): how the abilities' modes move


def _calibrated_start(alone: JointFit, data: JointData) -> tuple[JointData, np.ndarray, np.ndarray]:
    """Pivots, eta and phi from the plug-in calibration of Stage A's modes."""
    n_criteria = data.n_criteria
    ability, query, placed, passes = [], [], [], []
    for group, theta in zip(data.groups, alone.theta, strict=True):
        mask = group.data.mask
        ability.append(theta[mask])
        query.append(np.repeat(group.query, mask.sum(axis=1)))
        placed.append(group.data.placements[mask])
        passes.append(group.data.passes[mask])
    start = plug_in(
        np.concatenate(ability),
        np.concatenate(query),
        np.concatenate(placed),
        np.concatenate(passes),
        data.n_queries,
    )
    phi = start.phi(alone.prior)
    stage_a = slice(2 * n_criteria, 2 * n_criteria + N_STAGE_A)
    phi[stage_a] = alone.phi[stage_a]
    eta = np.column_stack([start.log_tau, start.level, alone.eta[:, 2]])
    return data.with_pivots(start.pivot), eta, phi


def _maximise(
    state: _State,
    data: JointData,
    prior: JointPrior,
    free: _Free,
    tell: Callable[[str], None],
) -> JointFit:
    with ThreadPoolExecutor(n_threads()) as pool:
        look = partial(_surface, data=data, prior=prior, pool=pool)
        learned = learn_spreads(prior, data.n_criteria)
        if not free.own.all():
            learned = replace(learned, at=())
        surface = look(state)
        if not np.isfinite(surface.value):
            raise RcpError("the joint model has no finite density at the start of the fit")
        correction: np.ndarray | float = 0.0
        decrement, steps, converged = np.inf, 0, False
        # Stage A alone has one parameter per query, where the correction is small.
        corrected = not free.own.all()
        while steps < _MAX_STEPS:
            own_step, shared_step, decrement = _newton_step(
                surface, surface.hessian + correction, data, prior, free
            )
            tell(f"step {steps}, log density {surface.value:.3f}, to gain {decrement / 2:.2g}")
            spread = _spreads(surface, surface.hessian + correction, data, learned)
            settled = np.abs(spread - surface.state.phi).max() < _SETTLED
            if decrement < _TOLERANCE and corrected and settled:
                converged = True
                break
            if not corrected and np.abs(own_step).max() < 0.3:
                correction = _corrected(surface, data, prior, free, look)
                corrected = True
                continue
            moved = _climb(surface, own_step, shared_step, look)
            if moved is None:
                break
            surface, steps = moved, steps + 1
            if not settled:
                phi = np.where(learned.mask(len(spread)), spread, surface.state.phi)
                surface = look(replace(surface.state, phi=phi))
    hessian = surface.hessian + correction
    n_criteria = data.n_criteria
    shared = -hessian[:, OWN:, OWN:].sum(axis=0) - _prior_hessian(
        surface.state.phi, n_criteria, prior
    )
    return JointFit(
        eta=surface.state.eta,
        phi=surface.state.phi,
        theta=surface.state.theta,
        offset=surface.state.offset,
        jacobian=surface.jacobian,
        own=-hessian[:, :OWN, :OWN],
        cross=-hessian[:, :OWN, OWN:],
        shared=shared,
        value=surface.value,
        steps=steps,
        decrement=float(decrement),
        converged=converged,
        data=data,
        prior=prior,
    )


def _spreads(
    surface: _Surface, hessian: np.ndarray, data: JointData, learned: LearnedSpreads
) -> np.ndarray:
    """phi with the population's sds moved to where they are best."""
    if not learned.any:
        return surface.state.phi
    eta, tau = surface.state.eta, np.exp(surface.state.eta[:, 0])
    mean = np.empty(data.n_queries)
    for k, group in enumerate(data.groups):
        mask = group.data.mask
        mean[group.query] = (surface.state.theta[k] * mask).sum(axis=1) / mask.sum(axis=1)
    gap = tau * (mean - data.pivot)
    inverse = definite_inverse(-hessian[:, :OWN, :OWN])
    slope = np.stack([gap, np.ones_like(gap), np.zeros_like(gap)], axis=1)
    alpha_variance = np.einsum("ja,jab,jb->j", slope, inverse, slope)
    return learned.moved(
        surface.state.phi, eta[:, 0], eta[:, 1] + gap, inverse[:, 0, 0], alpha_variance
    )


def _newton_step(
    surface: _Surface, hessian: np.ndarray, data: JointData, prior: JointPrior, free: _Free
) -> tuple[np.ndarray, np.ndarray, float]:
    """Ascent step in (eta, phi) through the arrow, capped, and its Newton decrement."""
    phi = surface.state.phi
    prior_gradient = _prior_gradient(phi, data.n_criteria, prior)
    prior_hessian = _prior_hessian(phi, data.n_criteria, prior)
    gradient = np.where(free.own, surface.gradient[:, :OWN], 0.0)
    both = free.own[:, None] & free.own
    inverse = both * definite_inverse(np.where(both, -hessian[:, :OWN, :OWN], np.eye(OWN)))
    cross = -hessian[:, :OWN, OWN:][:, :, free.shared]
    block = (-hessian[:, OWN:, OWN:].sum(axis=0) - prior_hessian)[np.ix_(free.shared, free.shared)]
    lever = inverse @ cross
    schur = block - np.einsum("jap,jaq->pq", cross, lever)
    right = (surface.gradient[:, OWN:].sum(axis=0) + prior_gradient)[free.shared]
    right = right - np.einsum("jap,ja->p", lever, gradient)
    shared = np.zeros(len(phi))
    shared[free.shared] = definite_inverse(schur[None])[0] @ right
    decrement = right @ shared[free.shared] + np.einsum("ja,jab,jb->", gradient, inverse, gradient)
    largest = np.abs(shared).max(initial=0.0)
    shared = shared * min(1.0, _SHARED_CAP / max(largest, 1e-30))
    own = np.einsum("jab,jb->ja", inverse, gradient) - lever @ shared[free.shared]
    excess = np.max(np.abs(own) / _OWN_CAP, axis=1, keepdims=True)
    return own / np.maximum(excess, 1.0), shared, float(decrement)


def _climb(
    surface: _Surface,
    own_step: np.ndarray,
    shared_step: np.ndarray,
    look: Callable[[_State], _Surface],
) -> _Surface | None:
    """The surface after the step, or after a part of it that goes up; None where none does."""
    share = 1.0
    for _ in range(_HALVINGS):
        state = surface.state
        trial = look(
            replace(state, eta=state.eta + share * own_step, phi=state.phi + share * shared_step)
        )
        # The modes inside are found to about 1e-9 of the height.
        if trial.value >= surface.value - 1e-9 * abs(surface.value):
            return trial
        share *= 0.4
    return None


def _corrected(
    surface: _Surface,
    data: JointData,
    prior: JointPrior,
    free: _Free,
    look: Callable[[_State], _Surface],
) -> np.ndarray:
    """What the Hessian of the determinant adds in the queries' own parameters (Q, 3 + P, 3 + P).

    By differences of the exact gradient, which leaves the shared block as it is: there the sum over
    queries makes the data's own curvature dominate.
    """
    correction = np.zeros_like(surface.hessian)
    state = surface.state
    sd = np.sqrt(np.diagonal(definite_inverse(-surface.hessian[:, :OWN, :OWN]), 0, 1, 2))
    for k in np.flatnonzero(free.own):
        shift = np.zeros_like(state.eta)
        shift[:, k] = _DIFFERENCE * np.minimum(sd[:, k], 1.0)
        up, down = (look(replace(state, eta=state.eta + sign * shift)) for sign in (1, -1))
        column = (up.gradient - down.gradient) / (2.0 * shift[:, k : k + 1])
        difference = column - surface.hessian[:, :, k]
        correction[:, :, k] = difference
        correction[:, k, :] = difference
    return correction


def _surface(
    state: _State, data: JointData, prior: JointPrior, pool: ThreadPoolExecutor
) -> _Surface:
    """Value, gradient and Hessian of every query, in chunks over the threads."""
    size = OWN + len(state.phi)
    gradient = np.empty((data.n_queries, size))
    hessian = np.empty((data.n_queries, size, size))
    value = float(_prior_value(state.phi, data.n_criteria, prior))
    theta, offset, jacobian = [], [], []
    for k, group in enumerate(data.groups):
        mode = Mode(state.theta[k], state.offset[k])
        eta = state.eta[group.query]
        work = partial(_look_at, group.data, mode, eta, state.phi, prior)
        parts = list(pool.map(work, chunks(len(group.query))))
        found = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
        gradient[group.query], hessian[group.query] = found.gradient, found.hessian
        value += float(found.value.sum())
        theta.append(found.mode.theta)
        offset.append(found.mode.offset)
        jacobian.append(found.jacobian)
    moved = replace(state, theta=tuple(theta), offset=tuple(offset))
    return _Surface(moved, value, gradient, hessian, tuple(jacobian))


def _look_at(
    data: QueryData, mode: Mode, eta: np.ndarray, phi: np.ndarray, prior: JointPrior, at: np.ndarray
) -> Any:
    with float64():  # settings of JAX belong to a thread
        part = jax.tree.map(lambda array: array[at], (mode, eta, data))
        found = _laplace_of_chunk(part[0], part[1], phi, part[2], prior=prior)
        own = len(np.unique(at))
        return jax.tree.map(lambda array: np.asarray(array)[:own], found)


@partial(jax.jit, static_argnames="prior")
def _laplace_of_chunk(mode: Mode, eta: Any, phi: Any, data: QueryData, *, prior: JointPrior) -> Any:
    def one(part: tuple) -> Any:
        mode, eta, data = part
        found = laplace(mode, eta, phi, data, prior)
        return found._replace(variance=None)

    return jax.lax.map(one, (mode, eta, data))


def chunks(count: int) -> Iterator[np.ndarray]:
    """Indices in chunks of one size; the last repeats its last query."""
    for first in range(0, count, CHUNK):
        yield np.minimum(np.arange(first, first + CHUNK), count - 1)


def n_threads() -> int:
    return min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        16,
    )


@partial(jax.jit, static_argnames=("n_criteria", "prior"))
def _prior_parts(phi: Any, n_criteria: int, prior: JointPrior) -> tuple[Any, Any, Any]:
    def value(phi: Any) -> Any:
        return log_prior_shared(phi, n_criteria, prior)

    return value(phi), jax.grad(value)(phi), jax.hessian(value)(phi)


def _prior_value(phi: np.ndarray, n_criteria: int, prior: JointPrior) -> float:
    return float(_prior_parts(phi, n_criteria, prior)[0])


def _prior_gradient(phi: np.ndarray, n_criteria: int, prior: JointPrior) -> np.ndarray:
    return np.asarray(_prior_parts(phi, n_criteria, prior)[1])


def _prior_hessian(phi: np.ndarray, n_criteria: int, prior: JointPrior) -> np.ndarray:
    return np.asarray(_prior_parts(phi, n_criteria, prior)[2])


def _unpacked(fit: JointFit) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    with float64():
        shared = unpack(jnp.asarray(fit.phi), fit.data.n_criteria, fit.prior)
        scalars = {name: float(value) for name, value in shared.scalars.items()}
        return np.asarray(shared.gamma), np.asarray(shared.beta), scalars
