"""Gradient and arrow Hessian of N C times Eq. 7 in closed form.

With ``z = gamma_c (tau_j x + alpha_j - beta_c)``, an answer's derivatives in z are the residual r
and the weight w = P (1 - P). All first and second derivatives in (tau, alpha, u, v) are
combinations of five sums per query and criterion, those of r, r x, w, w x and w x^2 over the
query's documents: one pass over the documents, and the rest does not grow with their number.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rcp_bayes.inference.arrow import ArrowSystem, Point
from rcp_bayes.models.two_pl import Documents, PaperPrior, item_parameters


def link_system(
    point: Point,
    documents: Documents,
    passes: Any,
    prior: PaperPrior,
    items: tuple[Any, Any] | None,
) -> ArrowSystem:
    """Derivatives at (tau, alpha) of the queries and, unless `items` are held, (u, v) jointly.

    Parameters
    ----------
    point : Point
        ``own`` (Q, 2) holds tau and alpha; ``shared`` (2 C,) is u followed by v, or (0,) with
        `items`.
    documents, passes, prior, items
        As in `two_pl`.
    """
    tau, alpha = point.own[:, 0], point.own[:, 1]
    n_criteria = passes.shape[0]
    u, v = point.shared[:n_criteria], point.shared[n_criteria:]
    gamma, beta = item_parameters(u, v) if items is None else items
    r0, r1, w0, w1, w2 = _moments(tau, alpha, gamma, beta, documents, passes)

    square = gamma**2
    centre, precision = jnp.array([[prior.tau_mean, 0.0], [prior.tau_sd**-2, prior.alpha_sd**-2]])
    gradient_own = jnp.stack([r1, r0], axis=1) @ gamma + precision * (point.own - centre)
    off = w1 @ square
    own = jnp.stack([w2 @ square + precision[0], off, off, w0 @ square + precision[1]], axis=1)
    own = own.reshape(-1, 2, 2)
    if items is not None:
        none = jnp.zeros(0)
        return ArrowSystem(gradient_own, none, own, jnp.zeros((*own.shape[:2], 0)), none[:, None])

    # Sums of w (theta - beta), w x (theta - beta) and w (theta - beta)^2.
    shift = alpha[:, None] - beta
    a0 = tau[:, None] * w1 + shift * w0
    a1 = tau[:, None] * w2 + shift * w1
    a2 = tau[:, None] * a1 + shift * a0
    # In (gamma, beta) first, where criteria do not meet ...
    r, ra, w, a, aa = jnp.sum(jnp.stack([r0, tau[:, None] * r1 + shift * r0, w0, a0, a2]), axis=1)
    gradient = jnp.concatenate([ra, -gamma * r])
    mixed = -gamma * a - r
    curvature = jnp.block(
        [
            [jnp.diag(aa + ra / gamma), jnp.diag(mixed)],
            [jnp.diag(mixed), jnp.diag(square * w)],
        ]
    )
    cross = jnp.concatenate(
        [
            jnp.stack([gamma * a1 + r1, gamma * a0 + r0], axis=1),
            jnp.stack([-square * w1, -square * w0], axis=1),
        ],
        axis=2,
    )
    # ... then in (u, v). The softmax curves: its second derivatives are the ra / gamma above and
    # the multiple of `simplex` below.
    share = gamma / n_criteria
    simplex = jnp.diag(share) - jnp.outer(share, share)
    zero = jnp.zeros_like(simplex)
    chain = jnp.block([[n_criteria * simplex, zero], [zero, jnp.eye(n_criteria) - 1 / n_criteria]])
    bent = jnp.block([[(ra @ gamma) * simplex, zero], [zero, zero]])
    ridge = prior.ridge * n_criteria * jnp.sum(documents.n_placements)
    return ArrowSystem(
        gradient_own,
        chain @ gradient + ridge * point.shared,
        own,
        cross @ chain,
        chain @ curvature @ chain - bent + ridge * jnp.eye(2 * n_criteria),
    )


def _moments(
    tau: jax.Array,
    alpha: jax.Array,
    gamma: jax.Array,
    beta: jax.Array,
    documents: Documents,
    passes: Any,
) -> tuple[jax.Array, ...]:
    """Sums of r, r x, w, w x and w x^2 over each query's documents, (Q, C) each."""
    x, n, of_row = documents
    theta = tau[of_row, None] * x + alpha[of_row, None]

    def along_rows(criterion: tuple[Any, Any, Any]) -> jax.Array:
        slope, difficulty, passed = criterion
        p = 1.0 / (1.0 + jnp.exp(-slope * (theta - difficulty)))
        expected = n * p
        residual = expected - passed
        weight = expected - expected * p
        weight_x = weight * x
        terms = (residual, residual * x, weight, weight_x, weight_x * x)
        return jnp.stack([jnp.sum(term, axis=1) for term in terms], axis=-1)

    # One criterion at a time: the arrays in flight are as long as the documents, not C times that.
    by_row = lax.map(along_rows, (gamma, beta, passes))  # (C, R, 5)
    by_query = jax.ops.segment_sum(
        by_row.swapaxes(0, 1), of_row, num_segments=len(tau), indices_are_sorted=True
    )
    return tuple(by_query[..., k] for k in range(5))
