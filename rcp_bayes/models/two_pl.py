"""Stage B's 2PL link (Eq. 2) in NumPyro, over pass counts instead of single answers.

A document of query j with Stage A score x passes criterion c with probability

    sigmoid(gamma_c * (tau_j * x + alpha_j - beta_c)),

slope times distance: discrimination 2 with intercept 1 is difficulty -0.5. The hard constraints of
Section 3.3, ``sum(gamma) = C`` and ``mean(beta) = 0``, hold by construction: gamma is C times the
softmax of u, and beta is v less its mean.

The likelihood depends on a document's answers only through how often it was placed and how often it
passed each criterion, so that its cost does not grow with the number of placements. Up to a
constant, the log density is minus N C times Eq. 7 (N responses, C criteria): the model's MAP is the
paper's fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.truncated import LeftTruncatedDistribution


class Documents(NamedTuple):
    """Documents in rows: each row holds up to T documents of one query.

    A query with more than T documents has several rows. What belongs to a query is looked up once a
    row, and sums over a query's documents are sums along rows; on a CPU this makes a gradient
    several times as fast as a lookup per document. Rows of one document (T = 1) are the plain form.

    Attributes
    ----------
    ability : (R, T) float
        Stage A scores, in logits; 0 in unused places.
    n_placements : (R, T) float
        Stage B responses of each document; 0 in unused places, which then add nothing.
    query : (R,) int
        Query of each row, non-decreasing.
    """

    ability: Any
    n_placements: Any
    query: Any


@dataclass(frozen=True)
class PaperPrior:
    """Weak priors of Eq. 7 (Table 2), in the units of the parameters.

    A prior of another kind offers the same three methods; the model calls each once, outside its
    plates, so that a method may draw hyperparameters of its own.

    Attributes
    ----------
    tau_mean, tau_sd : float
        Normal prior of a query's scale, cut at 0. It is a density of tau itself: there is no
        Jacobian of the softplus, as in Eq. 7.
    alpha_sd : float
        Normal prior of a query's offset, around 0.
    ridge : float
        lambda of Eq. 7. The same as independent normal priors of variance ``1 / (N C ridge)`` on
        the entries of u and v, which tighten as responses are added.
    """

    tau_mean: float = 1.0
    tau_sd: float = 1.0
    alpha_sd: float = 2.0
    ridge: float = 1e-4

    def scale(self) -> dist.Distribution:
        """Prior of tau."""
        return PositiveNormal(self.tau_mean, self.tau_sd)

    def offset(self) -> dist.Distribution:
        """Prior of alpha."""
        return dist.Normal(0.0, self.alpha_sd)

    def item(self, n_answers: Any) -> dist.Distribution:
        """Prior of the entries of u and of v, given the number of answers, N times C."""
        return dist.Normal(0.0, (n_answers * self.ridge) ** -0.5)


class PositiveNormal(LeftTruncatedDistribution):
    """Normal distribution cut at 0, optimised and sampled through a softplus.

    NumPyro's own cut normal goes through an exponential, in which a scale that tends to 0 or grows
    moves far more slowly or quickly.
    """

    support = constraints.softplus_positive

    def __init__(self, loc: Any, scale: Any, *, validate_args: bool | None = None) -> None:
        super().__init__(dist.Normal(loc, scale), low=0.0, validate_args=validate_args)


class PassCounts(dist.BinomialLogits):
    """How many of a document's responses passed, as a density of the single responses.

    The density is that of the 0/1 responses one by one, whose order carries no information: the
    binomial density without its coefficient, a constant of the data.
    """

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Counts drawn given their totals."""
        whole = dist.BinomialLogits(self.logits, jnp.asarray(self.total_count, dtype=int))
        return whole.sample(key, sample_shape)

    def log_prob(self, value: Any) -> jax.Array:
        """Minus the summed cross-entropy of Eq. 7; finite at any finite logit."""
        z = self.logits
        return value * z - self.total_count * _softplus(z)


@jax.custom_jvp
def _softplus(z: jax.Array) -> jax.Array:
    """log(1 + exp(z)), several times as fast on a CPU as `jax.nn.softplus`.

    Its derivative is stated because that of the expression is wrong at 0, where JAX's derivatives
    of maximum and abs do not add up; an offset of 0 at the start makes logits of exactly 0.
    """
    return jnp.maximum(z, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(z)))


@_softplus.defjvp
def _softplus_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (z,), (dz,) = primals, tangents
    return _softplus(z), jax.nn.sigmoid(z) * dz


def item_parameters(u: Any, v: Any) -> tuple[jax.Array, jax.Array]:
    """Discriminations and difficulties of the criteria, ``(..., C)`` each, from u and v (C.3)."""
    gamma = u.shape[-1] * jax.nn.softmax(u, axis=-1)
    return gamma, v - jnp.mean(v, axis=-1, keepdims=True)


def two_pl(
    documents: Documents,
    n_queries: int,
    n_criteria: int,
    *,
    prior: Any = PaperPrior(),
    items: tuple[Any, Any] | None = None,
    passes: Any = None,
) -> None:
    """Pass counts of all documents on all criteria.

    Parameters
    ----------
    documents : Documents
    n_queries, n_criteria : int
        Q and C.
    prior : PaperPrior
    items : (gamma, beta), optional
        Criterion parameters (C,) to hold, on any scale (transfer, Section E.1). Without them both
        are estimated.
    passes : (C, R, T), optional
        Passed responses, at most `Documents.n_placements`. Without them they are drawn: the same
        function simulates from the prior or the posterior.

    Notes
    -----
    Sites: ``tau`` (Q,), ``alpha`` (Q,), ``u`` (C,), ``v`` (C,), and the observed ``passes``;
    deterministic ``gamma`` (C,) and ``beta`` (C,).
    """
    scale, offset = prior.scale(), prior.offset()
    with numpyro.plate("queries", n_queries, dim=-1):
        tau = numpyro.sample("tau", scale)
        alpha = numpyro.sample("alpha", offset)
    if items is None:
        item = prior.item(jnp.sum(documents.n_placements) * n_criteria)
        with numpyro.plate("criteria", n_criteria, dim=-1):
            u = numpyro.sample("u", item)
            v = numpyro.sample("v", item)
        gamma, beta = item_parameters(u, v)
    else:
        gamma, beta = (jnp.asarray(parameter) for parameter in items)
    gamma = numpyro.deterministic("gamma", gamma)
    beta = numpyro.deterministic("beta", beta)

    of_row = documents.query
    theta = tau[of_row, None] * documents.ability + alpha[of_row, None]
    logits = gamma[:, None, None] * (theta - beta[:, None, None])
    rows, width = documents.ability.shape
    with (
        numpyro.plate("answered", n_criteria, dim=-3),
        numpyro.plate("rows", rows, dim=-2),
        numpyro.plate("documents", width, dim=-1),
    ):
        numpyro.sample("passes", PassCounts(logits, documents.n_placements), obs=passes)
