"""What the posterior methods' fits share: a start, definite inverses, a population's spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcp_bayes.inference.map import fit_two_pl
from rcp_bayes.models.priors import JointPrior


@dataclass(frozen=True)
class PlugIn:
    """The plug-in calibration as a start.

    Attributes
    ----------
    log_tau, level, pivot : (Q,)
        ``level = alpha + tau * pivot``, the calibrated ability at the pivot.
    u, v : (C,)
    alpha : (Q,)
    """

    log_tau: np.ndarray
    level: np.ndarray
    pivot: np.ndarray
    u: np.ndarray
    v: np.ndarray
    alpha: np.ndarray

    def phi(self, prior: JointPrior) -> np.ndarray:
        """The shared vector: criteria, populations as they look, the rest at its prior."""
        scalars = {name: getattr(prior, name).mean for name in prior.shared_names}
        if prior.hierarchical:
            scalars |= {
                "log_tau_mean": self.log_tau.mean(),
                "log_tau_log_sd": np.log(self.log_tau.std() + 0.1),
                "alpha_mean": self.alpha.mean(),
                "alpha_log_sd": np.log(self.alpha.std() + 0.3),
            }
        return np.concatenate([self.u, self.v, [scalars[name] for name in prior.shared_names]])


def plug_in(
    ability: np.ndarray,
    query: np.ndarray,
    n_placements: np.ndarray,
    passes: np.ndarray,
    n_queries: int,
) -> PlugIn:
    """Start from the MAP of Eq. 7; arguments as in `rcp_bayes.inference.map.fit_two_pl`."""
    found = fit_two_pl(ability, query, n_placements, passes, n_queries)
    tau = np.clip(found.tau, 0.1, 10.0)
    # Pivots where the criteria inform: abilities weighted with the information of their answers.
    theta = tau[query] * ability + found.alpha[query]
    p = 1.0 / (1.0 + np.exp(-found.gamma * (theta[:, None] - found.beta)))
    weight = 1e-6 + n_placements * (found.gamma**2 * p * (1.0 - p)).sum(axis=1)
    total = np.bincount(query, weight, n_queries)
    pivot = np.bincount(query, weight * ability, n_queries) / np.where(total > 0, total, 1.0)
    level = found.alpha + tau * pivot
    return PlugIn(np.log(tau), level, pivot, np.log(found.gamma), found.beta, found.alpha)


def definite_inverse(matrices: np.ndarray) -> np.ndarray:
    """Inverses with the absolute eigenvalues, bounded away from 0 relative to the diagonal."""
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(matrices, 0, -2, -1)), 1e-8))
    scaled = matrices / (scale[..., :, None] * scale[..., None, :])
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-6)
    inverse = np.einsum("...ab,...b,...cb->...ac", vectors, 1.0 / values, vectors)
    return inverse / (scale[..., :, None] * scale[..., None, :])


@dataclass(frozen=True)
class LearnedSpreads:
    """The sds of a population, which Newton's steps leave alone.

    At the joint mode of queries and their population the sd is too small, down to 0 where queries
    know little: it is moved to where it is best with the queries' parameters integrated out,
    by the moments of their posterior (an EM step).

    Attributes
    ----------
    at : tuple of int
        Places of the log sds of log tau and of alpha in phi, each after that of its mean.
    """

    at: tuple[int, ...]
    prior: JointPrior

    @property
    def any(self) -> bool:
        return bool(self.at)

    def mask(self, size: int) -> np.ndarray:
        """(P,) True at the log sds."""
        return np.isin(np.arange(size), self.at)

    def moved(
        self,
        phi: np.ndarray,
        log_tau: np.ndarray,
        alpha: np.ndarray,
        log_tau_variance: np.ndarray,
        alpha_variance: np.ndarray,
    ) -> np.ndarray:
        """phi with its log sds where the queries' means and variances put them."""
        phi = phi.copy()
        found = ((log_tau, log_tau_variance), (alpha, alpha_variance))
        priors = (self.prior.log_tau_log_sd, self.prior.alpha_log_sd)
        for k, (mean, variance), own in zip(self.at, found, priors, strict=bool(self.at)):
            square = np.sum((mean - phi[k - 1]) ** 2 + variance)
            grid = np.linspace(own.mean - 8 * own.sd, own.mean + 8 * own.sd, 4001)
            height = -len(mean) * grid - 0.5 * square * np.exp(-2 * grid)
            phi[k] = grid[np.argmax(height - 0.5 * ((grid - own.mean) / own.sd) ** 2)]
        return phi


def learn_spreads(prior: JointPrior, n_criteria: int) -> LearnedSpreads:
    """The population sds of a prior: none unless it is hierarchical."""
    names = [f"{name}_log_sd" for name in ("log_tau", "alpha")] if prior.hierarchical else []
    at = tuple(2 * n_criteria + prior.shared_names.index(name) for name in names)
    return LearnedSpreads(at, prior)
