"""`fixed` and `cut`: the calibration given Stage A, without feedback.

`fixed` takes the Bradley-Terry scores as known, the paper's plug-in. `cut` passes draws of Stage A
into the calibration by multiple imputation (Plummer 2015): each draw of the abilities has its own
fit of the link, from which a few draws are taken, so that Stage B never changes the tournament.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rcp_bayes.errors import InputError
from rcp_bayes.inference.joint_data import joint_data
from rcp_bayes.inference.joint_map import fit_stage_a
from rcp_bayes.inference.laplace import items_of, laplace_draws
from rcp_bayes.inference.link_laplace import LinkFit, draw_link, fit_link
from rcp_bayes.inference.posterior import Posterior
from rcp_bayes.inference.sandwich import sandwich_draws
from rcp_bayes.models.priors import WEAK, JointPrior
from rcp_bayes.observations import Observations

IMPUTATIONS = 50
"""Draws of Stage A that `cut` calibrates one by one."""

_BLOCK = 4096  # documents whose draws are computed at once


def fixed_draws(
    observed: Observations,
    ability: np.ndarray,
    n_draws: int,
    *,
    prior: JointPrior = WEAK,
    seed: int = 0,
) -> Posterior:
    """Draws of the calibration with abilities (D,) held, NaN where there is none."""
    return _calibrated(observed, ability[None], n_draws, prior, seed, None)


def cut_draws(
    observed: Observations,
    abilities: np.ndarray,
    n_draws: int,
    *,
    prior: JointPrior = WEAK,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Posterior:
    """Draws of the calibration for draws of Stage A's abilities (M, D).

    The `n_draws` are spread over the M imputations as evenly as they go.
    """
    return _calibrated(observed, abilities, n_draws, prior, seed, progress)


def stage_a_draws(
    observed: Observations,
    n_draws: int = IMPUTATIONS,
    *,
    scored: bool,
    theta: np.ndarray | None = None,
    prior: JointPrior = WEAK,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> np.ndarray:
    """Draws of Stage A's abilities (M, D), summing to zero within a query, for `cut_draws`.

    Parameters
    ----------
    scored : bool
        From the score model; else Bradley-Terry scores `theta` (D,) with the sandwich around them.
    """
    if scored:
        alone = fit_stage_a(joint_data(observed), prior, progress=progress)
        return laplace_draws(alone, n_draws, seed=seed).ability()
    if theta is None or observed.windows is None:
        raise InputError("the sandwich needs Stage A windows and their Bradley-Terry scores")
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    return sandwich_draws(observed.universe.offset, observed.windows, theta, n_draws, generator)


def _calibrated(
    observed: Observations,
    abilities: np.ndarray,
    n_draws: int,
    prior: JointPrior,
    seed: int,
    progress: Callable[[str], None] | None,
) -> Posterior:
    universe = observed.universe
    answered = np.isfinite(abilities[0]) & (observed.n_placements > 0)
    if not answered.any():
        raise InputError("no document has answers in both stages")
    fitted, query = np.unique(universe.query[answered], return_inverse=True)
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
    shares = np.diff(np.linspace(0, n_draws, len(abilities) + 1).astype(int))
    gamma, beta = (np.empty((n_draws, observed.passes.shape[1])) for _ in range(2))
    tau, alpha = (np.full((n_draws, universe.n_queries), np.nan) for _ in range(2))
    theta = np.full((n_draws, universe.n_documents), np.nan, dtype=np.float32)
    fit: LinkFit | None = None
    converged, first = 0, 0
    of_fitted = np.full(universe.n_queries, -1)
    of_fitted[fitted] = np.arange(len(fitted))
    known = np.flatnonzero(np.isfinite(abilities[0]) & (of_fitted[universe.query] >= 0))
    at = of_fitted[universe.query[known]]
    for k, (ability, share) in enumerate(zip(abilities, shares, strict=True)):
        if progress and k % 10 == 0:
            progress(f"calibration {k + 1} of {len(abilities)}")
        fit = fit_link(
            ability[answered],
            query,
            observed.n_placements[answered],
            observed.passes[answered],
            len(fitted),
            prior=prior,
            start=fit,
        )
        converged += fit.converged
        rows = slice(first, first + int(share))
        drawn_tau, drawn_alpha, phi = draw_link(fit, int(share), generator)
        _calibrate(theta[rows], known, at, ability, drawn_tau, drawn_alpha)
        tau[rows, fitted], alpha[rows, fitted] = drawn_tau, drawn_alpha
        gamma[rows], beta[rows] = items_of(phi, fit.n_criteria)
        first = rows.stop
    return Posterior(
        gamma=gamma,
        beta=beta,
        tau=tau,
        alpha=alpha,
        theta=theta,
        query=universe.query,
        diagnostics={
            "converged": converged == len(abilities),
            "imputations": len(abilities),
        },
    )


def _calibrate(
    theta: np.ndarray,
    known: np.ndarray,
    query: np.ndarray,
    ability: np.ndarray,
    tau: np.ndarray,
    alpha: np.ndarray,
) -> None:
    """Write ``tau * ability + alpha`` of the known documents into `theta`, a block at a time."""
    tau, alpha = tau.astype(np.float32), alpha.astype(np.float32)
    ability = ability.astype(np.float32)
    for first in range(0, len(known), _BLOCK):
        part = slice(first, first + _BLOCK)
        block = tau[:, query[part]]
        block *= ability[known[part]]
        block += alpha[:, query[part]]
        theta[:, known[part]] = block
