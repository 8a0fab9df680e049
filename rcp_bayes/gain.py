"""From ability to gain: pass probability (Eq. 2), gain (Eq. 4), test information (Eq. 8).

An ability is a document's calibrated score, in logits of the scale that the criteria share. The
gain is what nDCG sums: the pass probabilities of the criteria, averaged with their discriminations
as weights, so that its slope is the test information over the sum of the discriminations (Lemma
I.1). Section E.5 of the paper compares five other shapes; they are here by name.

Every function takes NumPy or JAX arrays and answers in kind; JAX is not imported. Shapes: abilities
are ``(..., D)`` over documents, criterion parameters ``(C,)``, or ``(..., C)`` with the leading
(draw) shape of the abilities. A NaN ability has a NaN gain.

The 2PL form is slope times distance, ``gamma * (theta - beta)``: discrimination 2 with intercept 1
is difficulty -0.5.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from rcp_bayes.errors import UsageError

GainShape = Literal["rcp", "unweighted", "logistic", "c4", "clipped", "minmax"]
"""Names of the gains.

- ``rcp``: Eq. 4.
- ``unweighted``: plain mean of the pass probabilities.
- ``logistic``: the logistic of the ability, centred at difficulty 0.
- ``c4``: pass probability of the fourth criterion.
- ``clipped``: linear in the ability, clipped to [0, 1]. The paper does not print its ends; here it
  rises from where the easiest criterion's tangent at its difficulty meets 0 to where the hardest
  one's meets 1 (``beta - 2 / gamma`` and ``beta + 2 / gamma``).
- ``minmax``: linear from the query's lowest ability (0) to its highest (1). It ignores the
  calibration.
"""
GAIN_SHAPES: tuple[GainShape, ...] = get_args(GainShape)


def gain(theta: Any, gamma: Any, beta: Any) -> Any:
    """Gain of Eq. 4, in (0, 1) and strictly increasing in the ability; shape of `theta`."""
    total, weight = 0.0, 0.0
    for slope, difficulty in _criteria(theta, gamma, beta):
        total = total + slope * logistic(slope * (theta - difficulty))
        weight = weight + slope
    return total / weight


def information(theta: Any, gamma: Any, beta: Any) -> Any:
    """Test information of Eq. 8, per squared logit: what one answer to each criterion tells."""
    total = 0.0
    for slope, difficulty in _criteria(theta, gamma, beta):
        logit = slope * (theta - difficulty)
        # 1 - P as the logistic of -logit keeps its digits where P is nearly 1.
        total = total + slope**2 * logistic(logit) * logistic(-logit)
    return total


def pass_probability(theta: Any, gamma: Any, beta: Any) -> Any:
    """Probability of Eq. 2 that a document passes each criterion, ``(..., D, C)``."""
    xp = _namespace(theta, gamma, beta)
    columns = [
        logistic(slope * (theta - difficulty))
        for slope, difficulty in _criteria(theta, gamma, beta)
    ]
    return xp.stack(xp.broadcast_arrays(*columns), axis=-1)


def shaped_gain(
    theta: Any, gamma: Any, beta: Any, *, shape: GainShape = "rcp", offset: Any = None
) -> Any:
    """Gain of a named shape; ``(..., D)`` like `theta`.

    Parameters
    ----------
    theta, gamma, beta
        Abilities and criterion parameters.
    shape
        One of `GAIN_SHAPES`.
    offset : int array (Q + 1,), optional
        Documents of query j are ``offset[j]:offset[j + 1]``. Needed by ``minmax`` alone. A query
        whose documents all have one ability has gain 1 throughout.

    Raises
    ------
    UsageError
        An unknown name; ``c4`` with fewer than four criteria; ``minmax`` without `offset`.
    """
    if shape == "rcp":
        return gain(theta, gamma, beta)
    if shape == "unweighted":
        return pass_probability(theta, gamma, beta).mean(axis=-1)
    if shape == "logistic":
        return logistic(theta)
    if shape == "c4":
        if np.shape(gamma)[-1] < 4:
            raise UsageError("gain shape c4 is the pass probability of a fourth criterion")
        slope, difficulty = _criteria(theta, gamma, beta)[3]
        return logistic(slope * (theta - difficulty))
    if shape == "clipped":
        return _clipped(theta, gamma, beta)
    if shape == "minmax":
        if offset is None:
            raise UsageError("gain shape minmax needs the offsets of the queries")
        return _min_max(theta, offset)
    raise UsageError(f"unknown gain shape {shape!r}; known: {', '.join(GAIN_SHAPES)}")


def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)), to full relative precision on both sides and without overflow."""
    xp = _namespace(x)
    x = xp.asarray(x)
    # exp(87) is near the top of float32, exp(700) of float64; beyond, the gain stays above 0.
    floor = -700.0 if x.dtype.itemsize == 8 else -87.0
    return 1.0 / (1.0 + xp.exp(-xp.maximum(x, floor)))


def _clipped(theta: Any, gamma: Any, beta: Any) -> Any:
    xp = _namespace(theta, gamma, beta)
    criteria = _criteria(theta, gamma, beta)
    lower = [difficulty - 2.0 / slope for slope, difficulty in criteria]
    upper = [difficulty + 2.0 / slope for slope, difficulty in criteria]
    # The easiest and the hardest criterion, by difficulty: per draw where the parameters are draws.
    difficulties = xp.stack([xp.asarray(difficulty) for _, difficulty in criteria])
    low = xp.take_along_axis(xp.stack(lower), difficulties.argmin(axis=0)[None], axis=0)[0]
    high = xp.take_along_axis(xp.stack(upper), difficulties.argmax(axis=0)[None], axis=0)[0]
    return xp.clip((theta - low) / (high - low), 0.0, 1.0)


def _min_max(theta: Any, offset: Any) -> Any:
    xp = _namespace(theta)
    offset = np.asarray(offset)
    sizes = np.diff(offset)
    starts = offset[:-1][sizes > 0]
    missing = xp.isnan(theta)
    low = xp.minimum.reduceat(xp.where(missing, xp.inf, theta), starts, axis=-1)
    high = xp.maximum.reduceat(xp.where(missing, -xp.inf, theta), starts, axis=-1)
    of_document = np.repeat(np.arange(len(starts)), sizes[sizes > 0])
    low, high = low[..., of_document], high[..., of_document]
    flat = low >= high  # also where every ability of the query is missing
    scaled = (theta - xp.where(flat, 0.0, low)) / xp.where(flat, 1.0, high - low)
    return xp.where(missing, xp.nan, xp.where(flat, 1.0, scaled))


def _criteria(theta: Any, gamma: Any, beta: Any) -> list[tuple[Any, Any]]:
    """(discrimination, difficulty) of each criterion, shaped to broadcast against `theta`."""
    xp = _namespace(theta, gamma, beta)
    gamma, beta = xp.asarray(gamma), xp.asarray(beta)
    if gamma.ndim == 1:
        return [(gamma[c], beta[c]) for c in range(gamma.shape[0])]
    return [(gamma[..., c, None], beta[..., c, None]) for c in range(gamma.shape[-1])]


def _namespace(*arrays: Any) -> Any:
    """The module of the arrays: that of the first which is not NumPy's own, else NumPy."""
    for array in arrays:
        space = getattr(array, "__array_namespace__", None)
        if space is not None and not isinstance(array, np.ndarray | np.generic):
            return space()
    return np
