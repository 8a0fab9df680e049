"""What one query observed, as padded arrays: the input of the joint model and of its kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

from rcp_bayes.models.score import ScoreWindows


class QueryData(NamedTuple):
    """What one query observed (a leading axis holds several queries).

    Attributes
    ----------
    mask : (n,) bool
        False for padding.
    windows : ScoreWindows or None
        Scored windows.
    wins : (n, n) float or None
        Pairwise preferences: how often (with what weight) the row was preferred to the column.
    placements : (n,) float
    passes : (n, C) float
        Stage B; zeros leave Stage A alone.
    pivot : float
        Ability at which the level is taken.
    """

    mask: Any
    windows: ScoreWindows | None
    wins: Any
    placements: Any
    passes: Any
    pivot: Any
