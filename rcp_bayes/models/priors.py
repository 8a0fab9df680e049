"""Priors of the posterior methods, in the units of the parameters (logits unless said).

``weak`` is their default: independent of the number of responses, tau and alpha as in the paper.
``hierarchical`` learns how tau and alpha spread over queries. Stage A's noise, shape and scales of
abilities have the same priors under both. All of them are written once, here, and read by the
NumPyro model and by the Laplace kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr

from rcp_bayes.models.two_pl import PositiveNormal

N_STAGE_A = 3
"""The first of a prior's shared scalars, which Stage A alone tells."""


@dataclass(frozen=True)
class Normal:
    """Mean and sd of a normal prior."""

    mean: float
    sd: float

    def log_prob(self, x):
        z = (x - self.mean) / self.sd
        return -0.5 * z * z - jnp.log(self.sd) - 0.5 * jnp.log(2 * jnp.pi)

    def distribution(self) -> dist.Distribution:
        return dist.Normal(self.mean, self.sd)


@dataclass(frozen=True)
class JointPrior:
    """Prior of the joint model of both stages.

    Attributes
    ----------
    hierarchical : bool
        Learn how log tau and alpha spread over queries, instead of the paper's fixed priors.
    u, v : Normal
        Entries of u (log discriminations) and v (difficulties before centring).
    tau, alpha : Normal
        Scale (cut at 0) and offset of a query, where not hierarchical.
    log_noise : Normal
        Log of the judge's noise, in score units.
    skew : Normal
        Skewness parameter of the abilities (`rcp_bayes.models.score.log_skewed`).
    scale_mean : Normal
        Mean over queries of the log ability scale.
    scale_sd : float
        Sd of a query's log ability scale around that mean. Not learned: a pool of a hundred
        documents knows its scale, and a small one is held within a factor of three.
    log_tau_mean, log_tau_log_sd, alpha_mean, alpha_log_sd : Normal
        Population of log tau and of alpha, where hierarchical.
    """

    hierarchical: bool = False
    u: Normal = Normal(0.0, 0.5)
    v: Normal = Normal(0.0, 3.0)
    tau: Normal = Normal(1.0, 1.0)
    alpha: Normal = Normal(0.0, 2.0)
    log_noise: Normal = Normal(-0.5, 1.0)
    skew: Normal = Normal(0.5, 1.0)
    scale_mean: Normal = Normal(0.7, 1.0)
    scale_sd: float = 0.5
    log_tau_mean: Normal = Normal(0.3, 0.5)
    log_tau_log_sd: Normal = Normal(-1.0, 0.5)
    alpha_mean: Normal = Normal(-3.0, 3.0)
    alpha_log_sd: Normal = Normal(0.3, 0.5)

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Scalar parameters that all queries share, in the order of the kernels' vector."""
        names: tuple[str, ...] = ("log_noise", "skew", "scale_mean")
        if self.hierarchical:
            names += ("log_tau_mean", "log_tau_log_sd", "alpha_mean", "alpha_log_sd")
        return names

    def log_prob_tau(self, log_tau, shared):
        """Log density of log tau: the density of tau times the Jacobian tau."""
        if self.hierarchical:
            return _log_normal(log_tau, shared["log_tau_mean"], shared["log_tau_log_sd"])
        cut = log_ndtr(self.tau.mean / self.tau.sd)
        return self.tau.log_prob(jnp.exp(log_tau)) + log_tau - cut

    def alpha_moments(self, shared):
        """Mean and sd of a query's offset."""
        if self.hierarchical:
            return shared["alpha_mean"], jnp.exp(shared["alpha_log_sd"])
        return self.alpha.mean, self.alpha.sd

    def log_prob_scale(self, log_scale, shared):
        """Log density of a query's log ability scale."""
        return Normal(0.0, self.scale_sd).log_prob(log_scale - shared["scale_mean"])

    def log_prob_shared(self, u, v, shared):
        """Log density of what all queries share."""
        total = jnp.sum(self.u.log_prob(u)) + jnp.sum(self.v.log_prob(v))
        for name in self.shared_names:
            total = total + getattr(self, name).log_prob(shared[name])
        return total

    def sample_shared(self) -> dict:
        """NumPyro sites of the shared scalars."""
        return {
            name: numpyro.sample(name, getattr(self, name).distribution())
            for name in self.shared_names
        }

    def tau_distribution(self, shared) -> dist.Distribution:
        """Prior of a query's scale."""
        if self.hierarchical:
            return dist.LogNormal(shared["log_tau_mean"], jnp.exp(shared["log_tau_log_sd"]))
        return PositiveNormal(self.tau.mean, self.tau.sd)

    def scale_distribution(self, shared) -> dist.Distribution:
        """Prior of a query's log ability scale."""
        return dist.Normal(shared["scale_mean"], self.scale_sd)

    def alpha_distribution(self, shared) -> dist.Distribution:
        """Prior of a query's offset."""
        return dist.Normal(*self.alpha_moments(shared))


WEAK = JointPrior()
HIERARCHICAL = JointPrior(hierarchical=True)


def _log_normal(x, mean, log_sd):
    z = (x - mean) * jnp.exp(-log_sd)
    return -0.5 * z * z - log_sd - 0.5 * jnp.log(2 * jnp.pi)
