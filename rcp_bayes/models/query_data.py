"""What one query observed, as padded arrays: the input of the joint model and of its kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from rcp_bayes.models.score import ScoreWindows


class Pairs(NamedTuple):
    """Pairwise preferences of one query, added up.

    Attributes
    ----------
    weight : (n, n) float
        Total weight of each pair: symmetric, zero on the diagonal.
    wins : (n,) float
        Wins of each document.
    """

    weight: Any
    wins: Any

    def log_likelihood(self, theta: Any) -> Any:
        """Bradley-Terry log likelihood; `theta` and the fields may have leading axes alike."""
        either = jnp.logaddexp(theta[..., :, None], theta[..., None, :])
        return jnp.sum(self.wins * theta) - 0.5 * jnp.sum(self.weight * either)


class QueryData(NamedTuple):
    """What one query observed (a leading axis holds several queries).

    Attributes
    ----------
    mask : (n,) bool
        False for padding.
    windows : ScoreWindows or None
        Scored windows.
    pairs : Pairs or None
        Every window as pairs, in place of scored windows.
    placements : (n,) float
    passes : (n, C) float
        Stage B; zeros leave Stage A alone.
    pivot : float
        Ability at which the level is taken.
    """

    mask: Any
    windows: ScoreWindows | None
    pairs: Pairs | None
    placements: Any
    passes: Any
    pivot: Any
