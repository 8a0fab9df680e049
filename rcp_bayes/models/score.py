"""Stage A as a generative model of the judge's scores: ability, window mood, noise, limits.

In window w the judge would give document i the score

    z = theta_i - b_w + sigma * e,    e ~ N(0, 1),

and writes it down clipped to the ends of the scale, so that a score at -5 (or 5) says only that z
lay at or beyond it. The offset b_w is the window's own zero. It has a wide prior, N(0, 5^2): what a
window tells is the differences between its documents, as in the paper's pairwise preferences, and
no assumption is made about how a judge's mood depends on the company a document is shown in.

Abilities sum to zero within a query. Their prior is a skewed log-concave density (below) whose
shape all queries share and whose scale each query has its own: pools hold a mass of poor documents
and a thin tail of good ones.

The functions are plain array code over entries and documents of any shape; `ClippedNormal` and
`Skewed` are the same densities as NumPyro distributions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import erfc, erfcx
from numpyro.distributions import constraints

SCORE_LIMIT = 5.0
"""The judge's scale ends at minus and plus this (Section 3.1)."""

OFFSET_SD = 5.0
"""Prior sd of a window's offset, in score units: the whole half-width of the scale."""

PAD, SEEN, AT_FLOOR, AT_CEILING = 0, 1, 2, 3
"""Kinds of entries: none, a score within the limits, one at -5, one at 5."""

_HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))


class ScoreWindows(NamedTuple):
    """Scored windows of one query, padded (a leading axis holds several queries).

    Attributes
    ----------
    document : (W, w) int32
        Index of the entry's document within the query; 0 where padded.
    score : (W, w) float
    kind : (W, w) int8
        `PAD`, `SEEN`, `AT_FLOOR` or `AT_CEILING`.
    """

    document: Any
    score: Any
    kind: Any


@jax.custom_jvp
def log_normal_cdf(x: Any) -> Any:
    """Log of the standard normal distribution function, exact in both tails.

    About ten times as fast as `jax.scipy.special.log_ndtr` on a CPU.
    """
    low = jnp.minimum(x, 0.0)
    high = jnp.maximum(x, 0.0)
    left = -0.5 * low * low + jnp.log(0.5 * erfcx(-low / np.sqrt(2.0)))
    right = jnp.log1p(-0.5 * erfc(high / np.sqrt(2.0)))
    return jnp.where(x < 0.0, left, right)


@log_normal_cdf.defjvp
def _log_normal_cdf_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return log_normal_cdf(x), mills(x) * dx


@jax.custom_jvp
def mills(x: Any) -> Any:
    """Density over distribution function of the standard normal, ``phi(x) / Phi(x)``."""
    # Beyond 37 the ratio is below the smallest float64; erfcx would overflow.
    return np.sqrt(2.0 / np.pi) / erfcx(-jnp.minimum(x, 37.0) / np.sqrt(2.0))


@mills.defjvp
def _mills_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio = mills(x)
    return ratio, -ratio * (x + ratio) * dx


def entry_log_likelihood(mean: Any, score: Any, kind: Any, log_sigma: Any) -> Any:
    """Log likelihood of each entry given the judge's expected score; 0 where padded.

    ``mean`` is ``theta_i - b_w``. A score within the limits has the normal density, one at a limit
    the probability of everything beyond it (a Tobit likelihood).
    """
    inverse = jnp.exp(-log_sigma)
    seen = kind == SEEN
    residual = jnp.where(seen, score - mean, 0.0) * inverse
    sign = jnp.where(kind == AT_FLOOR, -1.0, 1.0)
    beyond = jnp.where((kind == AT_FLOOR) | (kind == AT_CEILING), sign * mean - SCORE_LIMIT, 0.0)
    return jnp.where(
        seen,
        -0.5 * residual * residual - log_sigma - _HALF_LOG_2PI,
        jnp.where(kind == PAD, 0.0, log_normal_cdf(beyond * inverse)),
    )


def entry_derivatives(mean: Any, score: Any, kind: Any, log_sigma: Any) -> tuple[Any, Any]:
    """First derivative of `entry_log_likelihood` in the mean, and minus the second (>= 0)."""
    inverse = jnp.exp(-log_sigma)
    seen = kind == SEEN
    limited = (kind == AT_FLOOR) | (kind == AT_CEILING)
    sign = jnp.where(kind == AT_FLOOR, -1.0, 1.0)
    beyond = jnp.where(limited, sign * mean - SCORE_LIMIT, 0.0) * inverse
    ratio = mills(beyond)
    first = jnp.where(seen, (score - mean) * inverse, jnp.where(limited, sign * ratio, 0.0))
    second = jnp.where(seen, 1.0, jnp.where(limited, ratio * (beyond + ratio), 0.0))
    return first * inverse, second * inverse * inverse


SKEW_LIMIT = 0.95
"""Largest share of the exponential part in the sd of `log_skewed`."""


def log_skewed(z: Any, skew: Any) -> Any:
    """Log density of a standardised skewed distribution (mean 0, sd 1), log-concave.

    The sum of a normal and a centred exponential variable whose sds are ``sqrt(1 - k^2)`` and
    ``k = SKEW_LIMIT * tanh(skew)``; mirrored where `skew` is negative. Skewness ``2 k^3``: 0 is the
    normal, and a large `skew` has a short left and an exponential right side.
    """
    k, s, x = _skew_parts(z, skew)
    t = (x + k) / s - s / k
    return -jnp.log(k) + 0.5 * (s / k) ** 2 - (x + k) / k + log_normal_cdf(t)


def skewed_derivatives(z: Any, skew: Any) -> tuple[Any, Any]:
    """First derivative of `log_skewed` in z, and minus the second, which is in [0, 1 / s^2]."""
    k, s, x = _skew_parts(z, skew)
    t = (x + k) / s - s / k
    ratio = mills(t)
    return jnp.where(skew < 0.0, -1.0, 1.0) * (ratio / s - 1.0 / k), ratio * (t + ratio) / s**2


def skew_bound(skew: Any) -> Any:
    """Largest curvature that `skewed_derivatives` can have at this skew."""
    _, s, _ = _skew_parts(jnp.zeros(()), skew)
    return 1.0 / s**2


def _skew_parts(z: Any, skew: Any) -> tuple[Any, Any, Any]:
    # Below 0.05 the third moment is under 3e-4 and the formula would divide by zero.
    k = jnp.maximum(SKEW_LIMIT * jnp.tanh(jnp.abs(skew)), 0.05)
    return k, jnp.sqrt(1.0 - k * k), jnp.where(skew < 0.0, -z, z)


class ClippedNormal(dist.Distribution):
    """A score around the judge's mean, clipped to the limits of the scale.

    Parameters
    ----------
    loc : array
        Judge's expected score before clipping.
    log_sigma : array
        Log of the judge's noise, in score units.
    """

    arg_constraints = {"loc": constraints.real, "log_sigma": constraints.real}  # noqa: RUF012
    support = constraints.real
    reparametrized_params = ["loc", "log_sigma"]  # noqa: RUF012

    def __init__(self, loc: Any, log_sigma: Any, *, validate_args: bool | None = None) -> None:
        self.loc, self.log_sigma = jnp.asarray(loc), jnp.asarray(log_sigma)
        shape = jnp.broadcast_shapes(self.loc.shape, self.log_sigma.shape)
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        noise = jax.random.normal(key, (*sample_shape, *self.batch_shape))
        score = self.loc + jnp.exp(self.log_sigma) * noise
        return jnp.clip(score, -SCORE_LIMIT, SCORE_LIMIT)

    def log_prob(self, value: Any) -> jax.Array:
        """Density within the limits, probability at them."""
        kind = score_kind(value)
        return entry_log_likelihood(self.loc, value, kind, self.log_sigma)


class Skewed(dist.Distribution):
    """Abilities of a pool: `log_skewed`, times a scale."""

    arg_constraints = {"skew": constraints.real, "log_scale": constraints.real}  # noqa: RUF012
    support = constraints.real
    reparametrized_params = ["log_scale"]  # noqa: RUF012

    def __init__(self, skew: Any, log_scale: Any, *, validate_args: bool | None = None) -> None:
        self.skew, self.log_scale = jnp.asarray(skew), jnp.asarray(log_scale)
        shape = jnp.broadcast_shapes(self.skew.shape, self.log_scale.shape)
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        shape = (*sample_shape, *self.batch_shape)
        normal, exponential = (
            draw(part, shape)
            for draw, part in zip(
                (jax.random.normal, jax.random.exponential), jax.random.split(key), strict=True
            )
        )
        k, s, _ = _skew_parts(jnp.zeros(()), self.skew)
        z = s * normal + k * (exponential - 1.0)
        return jnp.where(self.skew < 0.0, -z, z) * jnp.exp(self.log_scale)

    def log_prob(self, value: Any) -> jax.Array:
        """Log density, log-concave."""
        return log_skewed(value * jnp.exp(-self.log_scale), self.skew) - self.log_scale


def score_kind(score: Any) -> Any:
    """Kind of each score that is there: `SEEN`, `AT_FLOOR` or `AT_CEILING`."""
    low, high = score <= -SCORE_LIMIT, score >= SCORE_LIMIT
    return low * AT_FLOOR + high * AT_CEILING + ~(low | high) * SEEN
