"""Draws of the joint posterior from its Laplace approximation, nested in three levels.

The shared vector phi is drawn from the normal whose precision is the Schur complement of the arrow;
each query's (log tau, level, log scale) from its normal given phi; the abilities given both from
theirs, whose mean moves with both. Scale and level enter the calibrated ability by a product, which
is taken draw by draw, so that its skewness is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from rcp_bayes.inference.blas import single_threaded_blas
from rcp_bayes.inference.joint_map import JointFit, chunks, n_threads
from rcp_bayes.inference.joint_query import Mode, covariance_root
from rcp_bayes.inference.population import definite_inverse
from rcp_bayes.inference.posterior import Posterior
from rcp_bayes.inference.runtime import float64
from rcp_bayes.models.priors import JointPrior
from rcp_bayes.models.query_data import QueryData

_FARTHEST = 2.0
"""Largest move of log tau in a draw: a query without information keeps a finite scale."""


def laplace_draws(fit: JointFit, n_draws: int, *, seed: int = 0) -> Posterior:
    """Independent draws from the approximation around `fit`.

    Parameters
    ----------
    fit : JointFit
    n_draws : int
    seed : int
        The draws of a query depend on the seed, its place and the fit alone.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    own, phi = _parameters(fit, n_draws, generator)
    data = fit.data
    n_universe = data.n_universe_queries
    gamma, beta = items_of(phi, data.n_criteria)
    theta = np.full((n_draws, data.n_documents), np.nan, dtype=np.float32)
    tau, alpha = (np.full((n_draws, n_universe), np.nan) for _ in range(2))
    moves = np.concatenate(
        [own - fit.eta, np.broadcast_to((phi - fit.phi)[:, None], (*own.shape[:2], phi.shape[1]))],
        axis=2,
    )
    for query, document, mask, abilities in _abilities(fit, moves, seed):
        scale = np.exp(own[:, query, 0])
        pivot = data.pivot[query]
        calibrated = scale[:, :, None] * (abilities - pivot[:, None]) + own[:, query, 1][:, :, None]
        mean = (abilities * mask).sum(axis=2) / mask.sum(axis=1)
        tau[:, data.query[query]] = scale
        alpha[:, data.query[query]] = own[:, query, 1] + scale * (mean - pivot)
        theta[:, document[mask]] = calibrated[:, mask]
    scalars = {
        name: phi[:, 2 * data.n_criteria + k] for k, name in enumerate(fit.prior.shared_names)
    }
    return Posterior(
        gamma=gamma,
        beta=beta,
        tau=tau,
        alpha=alpha,
        theta=theta,
        query=data.document_query,
        scalars=scalars,
        diagnostics={"converged": fit.converged, "steps": fit.steps},
    )


def _parameters(
    fit: JointFit, n_draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of the queries' own parameters (S, Q, 3) and of phi (S, P)."""
    inverse = definite_inverse(fit.own)
    lever = inverse @ fit.cross
    covariance = definite_inverse((fit.shared - np.einsum("jap,jaq->pq", fit.cross, lever))[None])
    root = np.linalg.cholesky(covariance[0])
    move = generator.standard_normal((n_draws, len(fit.phi))) @ root.T
    own = generator.standard_normal((n_draws, *fit.eta.shape))
    own = np.einsum("jab,sjb->sja", np.linalg.cholesky(inverse), own)
    own -= np.einsum("jap,sp->sja", lever, move)
    own[:, :, 0] = np.clip(own[:, :, 0], -_FARTHEST, _FARTHEST)
    return fit.eta + own, fit.phi + move


def items_of(phi: np.ndarray, n_criteria: int) -> tuple[np.ndarray, np.ndarray]:
    u, v = phi[:, :n_criteria], phi[:, n_criteria : 2 * n_criteria]
    gamma = np.exp(u - u.max(axis=1, keepdims=True))
    gamma *= n_criteria / gamma.sum(axis=1, keepdims=True)
    return gamma, v - v.mean(axis=1, keepdims=True)


def _abilities(fit: JointFit, moves: np.ndarray, seed: int) -> Iterator[tuple]:
    """Abilities (S, queries, n) of a chunk of queries at a time, not centred."""
    with ThreadPoolExecutor(n_threads()) as pool, single_threaded_blas():
        for k, group in enumerate(fit.data.groups):
            mode = Mode(fit.theta[k], fit.offset[k])
            eta = fit.eta[group.query]
            work = partial(_roots, group.data, mode, eta, fit.phi, fit.prior)
            parts = list(chunks(len(group.query)))
            for at, root in zip(parts, pool.map(work, parts), strict=True):
                at = np.unique(at)
                query = group.query[at]
                mean = fit.theta[k][at] + np.einsum(
                    "sjz,jnz->sjn", moves[:, query], fit.jacobian[k][at]
                )
                noise = np.stack(
                    [
                        np.random.default_rng(
                            np.random.SeedSequence(seed, spawn_key=(1, int(fit.data.query[j])))
                        ).standard_normal((len(moves), root.shape[1]))
                        for j in query
                    ]
                )
                mean += np.einsum("jsm,jmn->sjn", noise, root[: len(at)], optimize=True)
                yield query, group.document[at], group.data.mask[at], mean


def _roots(
    data: QueryData, mode: Mode, eta: np.ndarray, phi: np.ndarray, prior: JointPrior, at: np.ndarray
) -> np.ndarray:
    with float64():
        part = jax.tree.map(lambda array: array[at], (mode, eta, data))
        return np.asarray(_roots_of_chunk(*part[:2], phi, part[2], prior=prior))


@partial(jax.jit, static_argnames="prior")
def _roots_of_chunk(mode: Mode, eta: Any, phi: Any, data: QueryData, *, prior: JointPrior) -> Any:
    return jax.lax.map(
        lambda part: covariance_root(part[0], part[1], phi, part[2], prior), (mode, eta, data)
    )
