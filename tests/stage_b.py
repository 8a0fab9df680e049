"""Small worlds of Stage B answers and Eq. 7 as printed, in numpy: what the 2PL tests compare to."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

LOWER = 1e-3


@dataclass(frozen=True)
class World:
    """Arguments of `fit_two_pl`, in its order."""

    ability: np.ndarray
    query: np.ndarray
    n_placements: np.ndarray
    passes: np.ndarray
    n_queries: int

    @property
    def arguments(self):
        return (self.ability, self.query, self.n_placements, self.passes, self.n_queries)

    def only(self, keep):
        """The same world with the documents that the mask or index `keep` selects."""
        parts = (self.ability, self.query, self.n_placements, self.passes)
        return World(*(part[keep] for part in parts), self.n_queries)


def draw(seed, tau, alpha, gamma, beta, *, pool, placements):
    """Answers of the 2PL at known parameters; abilities skewed as in a pool, centred per query."""
    rng = np.random.default_rng(seed)
    tau, alpha, gamma, beta = (np.asarray(a, dtype=float) for a in (tau, alpha, gamma, beta))
    n_queries = len(tau)
    ability = rng.gumbel(scale=2.0, size=(n_queries, pool))
    ability = (ability - ability.mean(axis=1, keepdims=True)).ravel()
    query = np.repeat(np.arange(n_queries), pool)
    n = rng.multinomial(placements, np.full(pool, 1 / pool), size=n_queries).ravel()
    p = expit(gamma * ((tau[query] * ability + alpha[query])[:, None] - beta))
    return World(ability, query, n, rng.binomial(n[:, None], p), n_queries)


def small(seed=0, n_queries=7, gamma=(1.3, 0.9, 0.8), beta=(-2.0, 0.5, 1.5)):
    """A few ordinary queries of ten documents."""
    rng = np.random.default_rng([seed, 1])
    tau, alpha = np.exp(rng.normal(0.0, 0.4, n_queries)), rng.normal(-1.0, 1.0, n_queries)
    return draw(seed, tau, alpha, gamma, beta, pool=10, placements=60)


def eq7(tau, alpha, u, v, world, *, ridge=1e-4):
    """Eq. 7 and its gradient in (tau, alpha, u, v), with the hyperparameters of Table 2."""
    n_criteria, n_responses = len(u), world.n_placements.sum()
    gamma = n_criteria * np.exp(u) / np.exp(u).sum()
    beta = v - v.mean()
    value, slopes = _penalised(tau, alpha, gamma, beta, world)
    n_answers = n_responses * n_criteria
    value += 0.5 * ridge * n_answers * (u @ u + v @ v)
    in_gamma, in_beta = slopes[2], slopes[3]
    slopes[2] = gamma * (in_gamma - (gamma @ in_gamma) / n_criteria) + ridge * n_answers * u
    slopes[3] = in_beta - in_beta.mean() + ridge * n_answers * v
    return value / n_answers, np.concatenate(slopes) / n_answers


def eq7_held(tau, alpha, gamma, beta, world):
    """Eq. 7 without its ridge, and its gradient in (tau, alpha)."""
    n_answers = world.n_placements.sum() * len(gamma)
    value, slopes = _penalised(tau, alpha, gamma, beta, world)
    return value / n_answers, np.concatenate(slopes[:2]) / n_answers


def _penalised(tau, alpha, gamma, beta, world):
    x, query, n, passes, n_queries = world.arguments
    distance = (tau[query] * x + alpha[query])[:, None] - beta
    z = gamma * distance
    value = np.sum(n[:, None] * np.logaddexp(0.0, z) - passes * z)
    value += np.sum((tau - 1.0) ** 2) / 2 + np.sum(alpha**2) / (2 * 2.0**2)
    residual = n[:, None] * expit(z) - passes
    pull = residual @ gamma
    return value, [
        np.bincount(query, pull * x, n_queries) + tau - 1.0,
        np.bincount(query, pull, n_queries) + alpha / 4.0,
        np.sum(residual * distance, axis=0),
        -gamma * residual.sum(axis=0),
    ]


def by_scipy(world, *, items=None, ftol=0.0, starts=2):
    """Optimum of Eq. 7 over tau >= 1e-3 by L-BFGS-B: (objective, tau, alpha, u, v).

    By default as far as it goes, with a second start from the first end in case its line search
    gave up.
    """
    n_queries, n_criteria = world.n_queries, world.passes.shape[1]
    cuts = [n_queries, 2 * n_queries, 2 * n_queries + n_criteria]

    def loss(flat):
        tau, alpha, u, v = np.split(flat, cuts)
        return eq7(tau, alpha, u, v, world) if items is None else held(tau, alpha)

    def held(tau, alpha):
        return eq7_held(tau, alpha, *(np.asarray(a, dtype=float) for a in items), world)

    at = np.zeros(2 * n_queries + (0 if items is not None else 2 * n_criteria))
    at[:n_queries] = 1.0
    bounds = [(LOWER, None)] * n_queries + [(None, None)] * (len(at) - n_queries)
    options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": ftol, "gtol": 1e-12, "maxcor": 30}
    for _ in range(starts):
        at = minimize(loss, at, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return loss(at)[0], *np.split(at, cuts)
