"""Both stages in one NumPyro model: the judge's windows and the criteria's answers share abilities.

    ability_i ~ skewed, scale of query j;       theta_i = ability_i - mean over the query
    score     ~ clipped N(ability_i - b_w, sigma^2)                       (scored windows), or
    P(i before k) = sigmoid(ability_i - ability_k)                        (pairs)
    passes    ~ Binomial(placements, sigmoid(gamma_c (tau_j theta_i + alpha_j - beta_c)))

Stage B informs a document's ability beyond an affine map, so that the order within a query may
differ from the tournament's. The maximum of this density with abilities and offsets integrated out
is what `rcp_bayes.inference.joint_map` finds, by the same densities written for speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from rcp_bayes.models.priors import WEAK, JointPrior
from rcp_bayes.models.query_data import QueryData
from rcp_bayes.models.score import OFFSET_SD, PAD, ClippedNormal, Skewed
from rcp_bayes.models.two_pl import PassCounts, item_parameters


def joint(
    groups: Sequence[QueryData],
    rows: Sequence[np.ndarray],
    n_queries: int,
    *,
    prior: JointPrior = WEAK,
    observed: bool = True,
) -> None:
    """Stage A and Stage B of all queries.

    Parameters
    ----------
    groups : sequence of QueryData
        Queries in groups of one padded shape, (G, ...) each.
    rows : sequence of (G,) int
        Which of the Q queries stand in the group.
    n_queries : int
        Q.
    prior : JointPrior
    observed : bool
        Condition on the data; else scores and passes are drawn (pairs cannot be).

    Notes
    -----
    Sites: ``u, v`` (C,), the shared scalars of the prior, ``tau, alpha, log_scale`` (Q,), and per
    group k ``ability_k`` (G, n), ``offset_k`` (G, W), the observed ``score_k`` (G, W, w) and
    ``passes_k`` (G, n, C); deterministic ``gamma, beta`` and ``theta_k`` (G, n), calibrated.
    Padding is masked out of the density and keeps its prior where it is drawn.
    """
    n_criteria = groups[0].passes.shape[-1]
    with numpyro.plate("criteria", n_criteria, dim=-1):
        u = numpyro.sample("u", prior.u.distribution())
        v = numpyro.sample("v", prior.v.distribution())
    gamma, beta = item_parameters(u, v)
    gamma, beta = numpyro.deterministic("gamma", gamma), numpyro.deterministic("beta", beta)
    shared = prior.sample_shared()
    with numpyro.plate("queries", n_queries, dim=-1):
        tau = numpyro.sample("tau", prior.tau_distribution(shared))
        alpha = numpyro.sample("alpha", prior.alpha_distribution(shared))
        log_scale = numpyro.sample("log_scale", prior.scale_distribution(shared))

    for k, (data, row) in enumerate(zip(groups, rows, strict=True)):
        mask = jnp.asarray(data.mask)
        abilities = Skewed(shared["skew"], jnp.broadcast_to(log_scale[row, None], mask.shape))
        ability = numpyro.sample(f"ability_{k}", abilities.mask(mask).to_event(2))
        if data.windows is not None:
            windows = data.windows
            wide = dist.Normal(0.0, OFFSET_SD).expand(windows.document.shape[:2])
            real = jnp.any(windows.kind != PAD, axis=-1)
            offset = numpyro.sample(f"offset_{k}", wide.mask(real).to_event(2))
            shown = jax.vmap(lambda ability, document: ability[document])(ability, windows.document)
            scores = ClippedNormal(shown - offset[..., None], shared["log_noise"])
            numpyro.sample(
                f"score_{k}",
                scores.mask(windows.kind != PAD).to_event(3),
                obs=windows.score if observed else None,
            )
        if data.pairs is not None:
            numpyro.factor(f"pairs_{k}", data.pairs.log_likelihood(ability))
        mean = jnp.sum(jnp.where(mask, ability, 0.0), axis=1) / jnp.sum(mask, axis=1)
        theta = tau[row, None] * (ability - mean[:, None]) + alpha[row, None]
        theta = numpyro.deterministic(f"theta_{k}", theta)
        answers = PassCounts(gamma * (theta[..., None] - beta), data.placements[..., None])
        numpyro.sample(f"passes_{k}", answers.to_event(3), obs=data.passes if observed else None)
