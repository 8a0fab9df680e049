"""What every posterior method returns: draws, laid out by document and query of the universe.

Gains are not kept beside abilities: they follow from them and the criteria (Eq. 4), and are
computed in blocks of documents where they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rcp_bayes.gain import gain

_BLOCK = 4_000_000
"""Numbers that a block of gains holds at most."""


@dataclass(frozen=True)
class Posterior:
    """Draws of the calibration, of the abilities, and of what Stage A's model learned.

    Attributes
    ----------
    gamma, beta : (S, C) float64
        Criteria.
    tau, alpha : (S, Q) float64
        Scale and offset of each query of the universe, for abilities that sum to zero within it;
        NaN for a query without calibration.
    theta : (S, D) float32
        Calibrated abilities of the universe's documents, NaN where there is none.
    query : (D,) int32
        Query of each document.
    scalars : dict of str to (S,) float64
        Noise and population parameters, on the scale on which they are sampled.
    n_chains : int
        Chains of equal length, one after the other along S.
    diagnostics : dict
        What the method says about itself.
    """

    gamma: np.ndarray
    beta: np.ndarray
    tau: np.ndarray
    alpha: np.ndarray
    theta: np.ndarray
    query: np.ndarray
    scalars: dict[str, np.ndarray] = field(default_factory=dict)
    n_chains: int = 1
    diagnostics: dict = field(default_factory=dict)

    @property
    def n_draws(self) -> int:
        return len(self.gamma)

    def ability(self, documents: slice = slice(None)) -> np.ndarray:
        """Stage A abilities (S, documents), float32, summing to zero within a query."""
        query = self.query[documents]
        alpha, tau = (part.astype(np.float32)[:, query] for part in (self.alpha, self.tau))
        return (self.theta[:, documents] - alpha) / tau

    def gain(self, documents: slice = slice(None)) -> np.ndarray:
        """Gains (S, documents), float32."""
        theta = self.theta[:, documents]
        gamma, beta = (part.astype(np.float32) for part in (self.gamma, self.beta))
        return np.asarray(gain(theta, gamma, beta))

    def blocks(self) -> Iterator[slice]:
        """Slices of documents that together are all of them."""
        width = max(1, _BLOCK // max(self.n_draws, 1))
        for first in range(0, self.theta.shape[1], width):
            yield slice(first, min(first + width, self.theta.shape[1]))


@dataclass(frozen=True)
class Summary:
    """Mean, sd and equal-tailed interval over the draws."""

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray


def summarise(draws: np.ndarray, level: float = 0.95) -> Summary:
    """Summary over the first axis; NaN where the draws are.

    Quantiles interpolate linearly between order statistics, as NumPy's do; sorting contiguous
    copies is several times as fast as `numpy.quantile` along the first axis.
    """
    ordered = np.sort(np.ascontiguousarray(np.moveaxis(draws, 0, -1)), axis=-1)
    mean = ordered.mean(axis=-1, dtype=np.float64)
    sd = ordered.std(axis=-1, dtype=np.float64, ddof=1)
    low, high = (_quantile(ordered, p) for p in ((1.0 - level) / 2.0, (1.0 + level) / 2.0))
    return Summary(mean, sd, low, high)


def _quantile(ordered: np.ndarray, p: float) -> np.ndarray:
    place = p * (ordered.shape[-1] - 1)
    below = int(np.floor(place))
    share = place - below
    upper = ordered[..., min(below + 1, ordered.shape[-1] - 1)].astype(np.float64)
    # A NaN among the draws is sorted to the end.
    missing = np.isnan(ordered[..., -1])
    found = ordered[..., below] * (1.0 - share) + upper * share
    return np.where(missing, np.nan, found)


def document_summaries(posterior: Posterior, level: float = 0.95) -> dict[str, Summary]:
    """Summaries (D,) of ``theta``, ``gain`` and ``ability``, in blocks of documents."""
    parts: dict[str, list[Summary]] = {"theta": [], "gain": [], "ability": []}
    for block in posterior.blocks():
        parts["theta"].append(summarise(posterior.theta[:, block], level))
        parts["gain"].append(summarise(posterior.gain(block), level))
        parts["ability"].append(summarise(posterior.ability(block), level))
    return {
        name: Summary(
            *(
                np.concatenate([getattr(part, moment) for part in found])
                for moment in ("mean", "sd", "low", "high")
            )
        )
        for name, found in parts.items()
    }
