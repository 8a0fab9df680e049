"""Laplace's approximation to one query of the joint model, and its derivatives.

Given what all queries share (criteria, noise, shape and population of the abilities: the vector
``phi``) and a query's own three numbers (``eta``: log tau, level, log scale), the query's abilities
theta and window offsets b have a log-concave density. `newton` finds its mode with the offsets
eliminated: they do not touch each other, so that each step solves a system in the documents alone.
`laplace` then returns

    M(eta, phi) = max over (theta, b) of the log joint density - 1/2 log det of its curvature,

with the exact gradient of M in (eta, phi), through the movement of the mode and of the curvature,
and its Hessian up to the second derivatives of the determinant (a few percent).

The level is the calibrated ability at a pivot inside the range where criteria inform,
``alpha + tau * pivot``: given the data it is almost independent of tau, which alpha, the ability
far below, is not. Abilities here are not centred: their prior has mean 0, a sum to zero would tie
every document to the few whose scores are at the limits. Centring comes after, with alpha moved
along, and the prior of alpha is that of the moved one.

All arrays are of one query, padded: documents (n,), windows (W,), entries (W, w).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rcp_bayes.models.priors import JointPrior
from rcp_bayes.models.query_data import Pairs, QueryData
from rcp_bayes.models.score import (
    OFFSET_SD,
    ScoreWindows,
    entry_derivatives,
    entry_log_likelihood,
    log_skewed,
    skew_bound,
    skewed_derivatives,
)
from rcp_bayes.models.two_pl import item_parameters

OWN = 3
"""Parameters of a query: log tau, level, log scale."""

_HALF_LOG_2PI = 0.9189385332046727
_TOLERANCE = 1e-12  # Newton decrement, nats: the mode is then exact to 1e-6 sd
_MAX_STEPS = 60
_LARGEST_STEP = 3.0  # score units, in any ability
_FAR = 0.5  # nats: beyond this decrement the prior's curvature is replaced by its bound


class Shared(NamedTuple):
    """The vector phi by name."""

    gamma: Any
    beta: Any
    scalars: dict[str, Any]


class Curvature(NamedTuple):
    """Negative Hessian in (theta, b), and the factor of its Schur complement in theta.

    ``S = diag + dense - entries entries' / offsets + low 1 1'`` with `factor` the lower Cholesky
    factor of S without its last term; the covariance of theta is ``inverse(factor factor') - ones
    ones' / scale``.
    """

    entries: Any  # (n, W): minus the cross curvature of documents and offsets
    offsets: Any  # (W,): curvature of each offset
    factor: Any  # (n, n)
    ones: Any  # (n,): inverse(factor factor') applied to the mask
    scale: Any


class Mode(NamedTuple):
    """Where a query's abilities and offsets stand."""

    theta: Any
    offset: Any


class Laplace(NamedTuple):
    """Value and derivatives of M; `jacobian` (n, 3 + P) is how the mode of theta moves."""

    mode: Mode
    value: Any
    gradient: Any
    hessian: Any
    jacobian: Any
    variance: Any
    steps: Any


def n_shared(n_criteria: int, prior: JointPrior) -> int:
    """Length P of phi."""
    return 2 * n_criteria + len(prior.shared_names)


def unpack(phi: Any, n_criteria: int, prior: JointPrior) -> Shared:
    """phi = (u, v, scalars in the order of `JointPrior.shared_names`)."""
    gamma, beta = item_parameters(phi[:n_criteria], phi[n_criteria : 2 * n_criteria])
    names = prior.shared_names
    return Shared(gamma, beta, {name: phi[2 * n_criteria + k] for k, name in enumerate(names)})


def log_prior_shared(phi: Any, n_criteria: int, prior: JointPrior) -> Any:
    """Log prior density of phi."""
    shared = unpack(phi, n_criteria, prior)
    u, v = phi[:n_criteria], phi[n_criteria : 2 * n_criteria]
    return prior.log_prob_shared(u, v, shared.scalars)


def log_joint(mode: Mode, eta: Any, phi: Any, data: QueryData, prior: JointPrior) -> Any:
    """Log density of the query's abilities, offsets, own parameters and answers, given phi."""
    shared = unpack(phi, data.passes.shape[1], prior)
    return (
        _stage_a(mode, shared, data)
        + _documents(mode.theta, eta, shared, data, prior)
        + _own(eta, shared, prior)
    )


def newton(mode: Mode, eta: Any, phi: Any, data: QueryData, prior: JointPrior) -> tuple[Mode, Any]:
    """Mode of (theta, b), and the steps it took."""
    shared = unpack(phi, data.passes.shape[1], prior)

    def value(mode: Mode) -> Any:
        return _stage_a(mode, shared, data) + _documents(mode.theta, eta, shared, data, prior)

    def unfinished(carry):
        _, _, decrement, steps = carry
        return (decrement > _TOLERANCE) & (steps < _MAX_STEPS)

    def step(carry):
        mode, height, decrement, steps = carry
        gradient, curvature = _system(mode, eta, shared, data, prior, decrement > _FAR)
        move = _solve(curvature, gradient, data.mask)
        decrement = gradient.theta @ move.theta + gradient.offset @ move.offset
        largest = jnp.max(jnp.abs(move.theta))
        share = jnp.minimum(1.0, _LARGEST_STEP / jnp.maximum(largest, 1e-30))

        def lower(trial):
            share, _, height_there = trial
            # Near the mode the rounding of the height hides the ascent.
            return ~(height_there >= height - 1e-9 * (1.0 + jnp.abs(height))) & (share > 1e-4)

        def halve(trial):
            share = 0.4 * trial[0]
            there = _moved(mode, move, share)
            return share, there, value(there)

        there = _moved(mode, move, share)
        _, there, height = jax.lax.while_loop(lower, halve, (share, there, value(there)))
        return there, height, decrement, steps + 1

    start = (mode, value(mode), jnp.inf, 0)
    mode, _, _, steps = jax.lax.while_loop(unfinished, step, start)
    return mode, steps


def laplace(mode: Mode, eta: Any, phi: Any, data: QueryData, prior: JointPrior) -> Laplace:
    """M with its derivatives, from the mode that a nearby (eta, phi) had."""
    n_criteria = data.passes.shape[1]
    mode, steps = newton(mode, eta, phi, data, prior)
    zeta = jnp.concatenate([eta, phi])

    def split(zeta):
        return zeta[:OWN], unpack(zeta[OWN:], n_criteria, prior)

    shared = unpack(phi, n_criteria, prior)
    _, curvature = _system(mode, eta, shared, data, prior)
    covariance = _covariance(curvature, data.mask)

    # How the gradient in (theta, b) moves with zeta, and so the mode.
    def gradient_at(zeta):
        own, shared = split(zeta)
        return _gradient(mode, own, shared, data, prior)

    cross = jax.jacfwd(gradient_at)(zeta)
    lever = curvature.entries / curvature.offsets
    moved = covariance @ (cross.theta + lever @ cross.offset)
    moved_offset = (cross.offset + curvature.entries.T @ moved) / curvature.offsets[:, None]

    def height(zeta):
        own, shared = split(zeta)
        return (
            _stage_a(mode, shared, data)
            + _documents(mode.theta, own, shared, data, prior)
            + _own(own, shared, prior)
        )

    gradient = jax.grad(height)(zeta)
    hessian = jax.hessian(height)(zeta)
    hessian = hessian + cross.theta.T @ moved + cross.offset.T @ moved_offset

    # d(1/2 log det H) = 1/2 tr(V dH): every curvature weighs with the variance of what it curves.
    weights = _curvature_weights(curvature, covariance, data)

    def half_log_det(mode, zeta):
        own, shared = split(zeta)
        return _weighted_curvature(mode, own, shared, data, prior, weights)

    by_mode, by_zeta = jax.grad(half_log_det, (0, 1))(mode, zeta)
    gradient = gradient - by_zeta - by_mode.theta @ moved - by_mode.offset @ moved_offset

    value = height(zeta) - _half_log_det(curvature, eta, shared, data, prior)
    count = jnp.sum(data.mask) + _n_windows(data)
    value = value + count * _HALF_LOG_2PI
    return Laplace(mode, value, gradient, hessian, moved, jnp.diagonal(covariance), steps)


def covariance_root(mode: Mode, eta: Any, phi: Any, data: QueryData, prior: JointPrior) -> Any:
    """R (n, n) such that ``z @ R`` has the covariance of theta for standard normal rows z."""
    shared = unpack(phi, data.passes.shape[1], prior)
    _, curvature = _system(mode, eta, shared, data, prior)
    inverse = jax.scipy.linalg.solve_triangular(
        curvature.factor, jnp.eye(mode.theta.shape[0]), lower=True
    )
    # Shrink along `ones`, so that the covariance loses ones ones' / scale.
    mask = data.mask.astype(float)
    total = curvature.ones @ mask
    share = 1.0 - jnp.sqrt(jnp.maximum(1.0 - total / curvature.scale, 0.0))
    return inverse - jnp.outer(inverse @ mask, curvature.ones) * share / total


# --- the log density, in parts --------------------------------------------------------------------


def _n_windows(data: QueryData) -> Any:
    if data.windows is None:
        return 0.0
    return jnp.sum(jnp.any(data.windows.kind > 0, axis=1))


def _stage_a(mode: Mode, shared: Shared, data: QueryData) -> Any:
    total = jnp.zeros(())
    if data.windows is not None:
        mean = mode.theta[data.windows.document] - mode.offset[:, None]
        entries = entry_log_likelihood(
            mean, data.windows.score, data.windows.kind, shared.scalars["log_noise"]
        )
        offsets = -0.5 * (mode.offset / OFFSET_SD) ** 2
        constant = _n_windows(data) * (_HALF_LOG_2PI + jnp.log(OFFSET_SD))
        total = total + jnp.sum(entries) + jnp.sum(offsets) - constant
    if data.pairs is not None:
        total = total + data.pairs.log_likelihood(mode.theta)
    return total


def _alpha(theta: Any, eta: Any, data: QueryData) -> Any:
    """Offset that goes with centred abilities."""
    mean = jnp.sum(jnp.where(data.mask, theta, 0.0)) / jnp.sum(data.mask)
    return eta[1] + jnp.exp(eta[0]) * (mean - data.pivot)


def _documents(theta: Any, eta: Any, shared: Shared, data: QueryData, prior: JointPrior) -> Any:
    """Prior of the abilities and of alpha, likelihood of Stage B."""
    log_tau, level, log_scale = eta
    abilities = log_skewed(theta * jnp.exp(-log_scale), shared.scalars["skew"]) - log_scale
    total = jnp.sum(jnp.where(data.mask, abilities, 0.0))
    mean, sd = prior.alpha_moments(shared.scalars)
    z = (_alpha(theta, eta, data) - mean) / sd
    total = total - 0.5 * z * z - jnp.log(sd) - _HALF_LOG_2PI
    calibrated = jnp.exp(log_tau) * (theta - data.pivot) + level
    logits = shared.gamma * (calibrated[:, None] - shared.beta)
    answers = data.passes * logits - data.placements[:, None] * jax.nn.softplus(logits)
    return total + jnp.sum(answers)


def _own(eta: Any, shared: Shared, prior: JointPrior) -> Any:
    """Prior of tau (its logarithm) and of the ability scale."""
    return prior.log_prob_tau(eta[0], shared.scalars) + prior.log_prob_scale(eta[2], shared.scalars)


# --- derivatives in (theta, b), in closed form ----------------------------------------------------


def _document_derivatives(
    theta: Any,
    eta: Any,
    shared: Shared,
    data: QueryData,
    prior: JointPrior,
    far: Any = None,
) -> tuple[Any, Any]:
    """Gradient of `_documents`, and its diagonal curvature (alpha's prior apart)."""
    log_tau, level, log_scale = eta
    inverse = jnp.exp(-log_scale)
    gradient, curvature = skewed_derivatives(theta * inverse, shared.scalars["skew"])
    if far is not None:
        curvature = jnp.where(far, skew_bound(shared.scalars["skew"]), curvature)
    gradient, curvature = gradient * inverse, curvature * inverse**2
    tau = jnp.exp(log_tau)
    logits = shared.gamma * (tau * (theta - data.pivot)[:, None] + level - shared.beta)
    p = jax.nn.sigmoid(logits)
    placed = data.placements[:, None]
    gradient = gradient + tau * jnp.sum(shared.gamma * (data.passes - placed * p), axis=1)
    curvature = curvature + tau**2 * jnp.sum(shared.gamma**2 * placed * p * (1.0 - p), axis=1)
    mean, sd = prior.alpha_moments(shared.scalars)
    pull = (_alpha(theta, eta, data) - mean) / sd**2 * tau / jnp.sum(data.mask)
    return jnp.where(data.mask, gradient - pull, 0.0), jnp.where(data.mask, curvature, 1.0)


def _alpha_curvature(eta: Any, shared: Shared, data: QueryData, prior: JointPrior) -> Any:
    """c such that the prior of alpha curves theta by c 1 1'."""
    _, sd = prior.alpha_moments(shared.scalars)
    return (jnp.exp(eta[0]) / (sd * jnp.sum(data.mask))) ** 2


def _entries(mode: Mode, shared: Shared, windows: ScoreWindows) -> tuple[Any, Any]:
    mean = mode.theta[windows.document] - mode.offset[:, None]
    return entry_derivatives(mean, windows.score, windows.kind, shared.scalars["log_noise"])


def _gradient(mode: Mode, eta: Any, shared: Shared, data: QueryData, prior: JointPrior) -> Mode:
    theta, _ = _document_derivatives(mode.theta, eta, shared, data, prior)
    offset = jnp.zeros_like(mode.offset)
    if data.windows is not None:
        first, _ = _entries(mode, shared, data.windows)
        theta = theta.at[data.windows.document].add(first)
        offset = -jnp.sum(first, axis=1) - mode.offset / OFFSET_SD**2
    if data.pairs is not None:
        theta = theta + _pair_gradient(mode.theta, data.pairs)
    return Mode(theta, offset)


def _pair_gradient(theta: Any, pairs: Pairs) -> Any:
    expected = pairs.weight * jax.nn.sigmoid(theta[:, None] - theta[None, :])
    return pairs.wins - jnp.sum(expected, axis=1)


def _system(
    mode: Mode,
    eta: Any,
    shared: Shared,
    data: QueryData,
    prior: JointPrior,
    far: Any = None,
) -> tuple[Mode, Curvature]:
    """Gradient, and the factored curvature; with `far`, a bound that never overshoots."""
    n = mode.theta.shape[0]
    theta, diagonal = _document_derivatives(mode.theta, eta, shared, data, prior, far)
    offset, offsets = jnp.zeros_like(mode.offset), jnp.ones_like(mode.offset)
    entries = jnp.zeros((n, mode.offset.shape[0]))
    if data.windows is not None:
        document = data.windows.document
        first, second = _entries(mode, shared, data.windows)
        theta = theta.at[document].add(first)
        diagonal = diagonal.at[document].add(second)
        offset = -jnp.sum(first, axis=1) - mode.offset / OFFSET_SD**2
        offsets = jnp.sum(second, axis=1) + OFFSET_SD**-2
        window = jnp.arange(document.shape[0])[:, None]
        entries = entries.at[document, window].add(second)
    scaled = entries / jnp.sqrt(offsets)
    schur = jnp.diag(diagonal) - scaled @ scaled.T
    if data.pairs is not None:
        theta = theta + _pair_gradient(mode.theta, data.pairs)
        schur = schur + _pair_curvature(mode.theta, data.pairs)
    factor = jnp.linalg.cholesky(schur)
    mask = data.mask.astype(float)
    ones = jax.scipy.linalg.cho_solve((factor, True), mask)
    scale = ones @ mask + 1.0 / _alpha_curvature(eta, shared, data, prior)
    return Mode(theta, offset), Curvature(entries, offsets, factor, ones, scale)


def _pair_curvature(theta: Any, pairs: Pairs) -> Any:
    weight = pairs.weight * _logistic_slope(theta[:, None] - theta[None, :])
    return jnp.diag(jnp.sum(weight, axis=1)) - weight


def _logistic_slope(x: Any) -> Any:
    p = jax.nn.sigmoid(x)
    return p * (1.0 - p)


def _solve(curvature: Curvature, gradient: Mode, mask: Any) -> Mode:
    """Newton direction, offsets eliminated."""
    right = gradient.theta + curvature.entries @ (gradient.offset / curvature.offsets)
    theta = jax.scipy.linalg.cho_solve((curvature.factor, True), jnp.where(mask, right, 0.0))
    theta = theta - curvature.ones * (jnp.sum(theta) / curvature.scale)
    theta = jnp.where(mask, theta, 0.0)
    offset = (gradient.offset + curvature.entries.T @ theta) / curvature.offsets
    return Mode(theta, offset)


def _moved(mode: Mode, move: Mode, share: Any) -> Mode:
    return Mode(mode.theta + share * move.theta, mode.offset + share * move.offset)


def _covariance(curvature: Curvature, mask: Any) -> Any:
    """Covariance of theta (n, n), 0 for padding."""
    inverse = jax.scipy.linalg.solve_triangular(
        curvature.factor, jnp.eye(curvature.factor.shape[0]), lower=True
    )
    covariance = inverse.T @ inverse
    covariance = covariance - jnp.outer(curvature.ones, curvature.ones) / curvature.scale
    return jnp.where(mask[:, None] & mask[None, :], covariance, 0.0)


def _half_log_det(
    curvature: Curvature, eta: Any, shared: Shared, data: QueryData, prior: JointPrior
) -> Any:
    """Half the log determinant of the curvature in (theta, b), padding apart."""
    # Padding has curvature 1 in theta; an empty window has the prior's in b.
    offsets = jnp.log(curvature.offsets)
    if data.windows is not None:
        offsets = jnp.where(jnp.any(data.windows.kind > 0, axis=1), offsets, 0.0)
    low = jnp.log(curvature.scale * _alpha_curvature(eta, shared, data, prior))
    factor = jnp.sum(jnp.log(jnp.diagonal(curvature.factor)))
    return 0.5 * jnp.sum(offsets) + factor + 0.5 * low


class _Weights(NamedTuple):
    entry: Any  # (W, w): variance of theta_i - b_w
    pair: Any  # (n, n): variance of theta_i - theta_k
    document: Any  # (n,)
    total: Any  # variance of the sum


def _curvature_weights(curvature: Curvature, covariance: Any, data: QueryData) -> _Weights:
    variance = jnp.diagonal(covariance)
    entry = pair = None
    if data.windows is not None:
        lever = curvature.entries / curvature.offsets
        with_offset = covariance @ lever
        offset = 1.0 / curvature.offsets + jnp.sum(lever * with_offset, axis=0)
        document = data.windows.document
        window = jnp.arange(document.shape[0])[:, None]
        entry = variance[document] - 2.0 * with_offset[document, window] + offset[:, None]
    if data.pairs is not None:
        pair = variance[:, None] + variance[None, :] - 2.0 * covariance
    return _Weights(entry, pair, variance, jnp.sum(covariance))


def _weighted_curvature(
    mode: Mode, eta: Any, shared: Shared, data: QueryData, prior: JointPrior, weights: _Weights
) -> Any:
    """Half the trace of V H, with V held: its gradient is that of half the log determinant."""
    _, diagonal = _document_derivatives(mode.theta, eta, shared, data, prior)
    total = jnp.sum(diagonal * weights.document)
    total = total + _alpha_curvature(eta, shared, data, prior) * weights.total
    if data.windows is not None:
        _, second = _entries(mode, shared, data.windows)
        total = total + jnp.sum(second * weights.entry)
    if data.pairs is not None:
        slope = _logistic_slope(mode.theta[:, None] - mode.theta[None, :])
        total = total + 0.5 * jnp.sum(data.pairs.weight * slope * weights.pair)
    return 0.5 * total
