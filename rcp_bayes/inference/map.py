"""The paper's calibration: MAP of the 2PL link (Eq. 7) by NumPyro's SVI with AutoDelta.

SVI's loss under an `AutoDelta` guide is minus the log joint density, which is N C times Eq. 7 plus
a constant. What drives SVI is a second-order optimizer (`rcp_bayes.inference.arrow`), or L-BFGS as
the plain alternative. The gradient that certifies the result is SVI's own, by automatic
differentiation, at the parameters that SVI answers.

A query whose Stage B answers contradict its Stage A order has its optimum at tau -> 0, which the
softplus never reaches. So the fit is the optimum over ``tau >= MIN_TAU``: such a query rests on the
bound, its offset is fitted as any other, and its scale is left out of the certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_value
from numpyro.infer.svi import SVIState

from rcp_bayes.errors import RcpError, UsageError
from rcp_bayes.inference.arrow import ArrowNewton, Point, at_bound
from rcp_bayes.inference.lbfgs import Lbfgs
from rcp_bayes.inference.link_data import checked_data, checked_items, untold
from rcp_bayes.inference.link_system import link_system
from rcp_bayes.inference.rows import lay_in_rows
from rcp_bayes.inference.runtime import float64, use_compilation_cache
from rcp_bayes.models.two_pl import Documents, PaperPrior, PositiveNormal, item_parameters, two_pl

Optimizer = Literal["newton", "lbfgs"]

MIN_TAU = 1e-3
"""Lower bound of a query's scale."""

CERTIFIED = 1e-5
"""Largest absolute gradient of N C times Eq. 7 at which a fit counts as converged."""

_MAX_STEPS = {"newton": 200, "lbfgs": 10_000}
_SOFTPLUS = biject_to(PositiveNormal.support)


@dataclass(frozen=True)
class TwoPLFit:
    """Calibration of all queries, and how well it was found.

    Attributes
    ----------
    tau, alpha : (Q,) float64
        Scale and offset of each query (Eq. 2). A query without responses has those of its prior.
    gamma, beta : (C,) float64
        Discrimination and difficulty of each criterion; held items as they were given.
    objective : float
        Eq. 7 at the optimum. Held items have no ridge.
    max_gradient : float
        Largest absolute entry of the gradient of N C times Eq. 7 in (t, alpha, u, v), with
        ``tau = softplus(t)``; the t of queries `at_boundary` aside.
    iterations : int
        Steps of the optimizer.
    converged : bool
        `max_gradient` is within `CERTIFIED`.
    at_boundary : (Q,) bool
        The query's tau is held at `MIN_TAU`.
    n_responses : int
        N of Eq. 7.
    warnings : tuple of str
        What the data could not tell, a line each, ending in a name in parentheses.
    """

    tau: np.ndarray
    alpha: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    objective: float
    max_gradient: float
    iterations: int
    converged: bool
    at_boundary: np.ndarray
    n_responses: int
    warnings: tuple[str, ...]


def fit_two_pl(
    ability: np.ndarray,
    query: np.ndarray,
    n_placements: np.ndarray,
    passes: np.ndarray,
    n_queries: int,
    *,
    items: tuple[Any, Any] | None = None,
    prior: PaperPrior = PaperPrior(),  # noqa: B008 (immutable)
    optimizer: Optimizer = "newton",
    criterion_names: Sequence[str] | None = None,
    query_names: Sequence[str] | None = None,
) -> TwoPLFit:
    """Fit Eq. 7 to documents that have answers in both stages.

    Parameters
    ----------
    ability : (D,)
        Stage A score of each document, in logits.
    query : (D,) int
        Its query, from 0 to Q - 1, in any order.
    n_placements : (D,) int
        Its Stage B responses; 0 is allowed and adds nothing.
    passes : (D, C) int
        How many of them passed each criterion.
    n_queries : int
        Q.
    items : (gamma, beta), optional
        Criterion parameters (C,) to hold, used as they are; only tau and alpha are fitted
        (transfer, Section E.1). Discriminations all 1 are the Rasch form.
    prior : PaperPrior
    optimizer : {"newton", "lbfgs"}
        Both find the same optimum: Newton in a dozen steps to about 1e-8 in the gradient.
    criterion_names, query_names : sequence of str, optional
        How warnings name them. Default: ``criterion 0``, ``query 0``.

    Raises
    ------
    InputError
        If the arrays do not fit together, or hold a number that is not finite or not possible.
    RcpError
        If the loss is not finite, as abilities beyond any sensible scale make it.
    """
    if optimizer not in get_args(Optimizer):
        raise UsageError(
            f"unknown optimizer {optimizer!r}; known: {', '.join(get_args(Optimizer))}"
        )
    data = checked_data(ability, query, n_placements, passes, n_queries)
    n_responses, n_criteria = int(data.n_placements.sum()), data.passes.shape[1]
    held = None if items is None else checked_items(items, n_criteria)
    laid = lay_in_rows(*data, n_queries)
    use_compilation_cache()
    with float64():
        solution = _run(
            laid.documents,
            laid.passes,
            held,
            n_queries=laid.n_queries,
            prior=prior,
            optimizer=optimizer,
        )
        loss, constant, values, gradient, steps = jax.device_get(solution)
    numbers = [loss, *values.values(), *gradient.values()]
    if not all(np.isfinite(number).all() for number in numbers):
        raise RcpError(
            f"the calibration has no finite loss (abilities reach {np.abs(data.ability).max():.3g})"
        )

    tau, alpha = values["tau"][:n_queries], values["alpha"][:n_queries]
    gradient = {name.removesuffix("_auto_loc"): entry for name, entry in gradient.items()}
    at_boundary = np.asarray(at_bound(tau, MIN_TAU)) & (gradient["tau"][:n_queries] >= 0.0)
    tau = np.where(at_boundary, MIN_TAU, tau)
    gradient["tau"] = np.where(at_boundary, 0.0, gradient["tau"][:n_queries])
    max_gradient = max(float(np.abs(entry).max()) for entry in gradient.values())
    return TwoPLFit(
        tau=tau,
        alpha=alpha,
        gamma=values["gamma"],
        beta=values["beta"],
        objective=float((loss - constant) / (n_responses * n_criteria)),
        max_gradient=max_gradient,
        iterations=int(steps),
        converged=max_gradient <= CERTIFIED,
        at_boundary=at_boundary,
        n_responses=n_responses,
        warnings=untold(data, n_queries, criterion_names, query_names),
    )


@partial(jax.jit, static_argnames=("n_queries", "prior", "optimizer"))
def _run(
    documents: Documents,
    passes: Any,
    items: tuple[Any, Any] | None,
    *,
    n_queries: int,
    prior: PaperPrior,
    optimizer: Optimizer,
) -> tuple[Any, ...]:
    """One SVI update from the paper's start: loss, its constant, values, gradient, steps."""
    n_criteria = passes.shape[0]
    n_answers = jnp.sum(documents.n_placements) * n_criteria
    # The rounding of the answers' sum alone moves a gradient by up to 1e-16 of their number.
    tolerance = jnp.maximum(1e-8, 1e-14 * n_answers)
    if optimizer == "newton":
        driver = ArrowNewton(
            lambda point: link_system(point, documents, passes, prior, items),
            _to_point,
            partial(_to_params, n_criteria=n_criteria),
            lower=MIN_TAU,
            tolerance=tolerance,
            max_steps=_MAX_STEPS[optimizer],
        )
    else:
        driver = Lbfgs(
            "tau_auto_loc",
            _SOFTPLUS.inv(jnp.array(MIN_TAU)),
            tolerance=CERTIFIED,
            max_steps=_MAX_STEPS[optimizer],
        )
    start = {"tau": jnp.ones(n_queries), "alpha": jnp.zeros(n_queries)}
    if items is None:
        start |= {"u": jnp.zeros(n_criteria), "v": jnp.zeros(n_criteria)}
    guide = AutoDelta(two_pl, init_loc_fn=init_to_value(values=start))
    # Sums the sites in the model's order. Trace_ELBO sums them in that of a set of names, which
    # differs between processes: neither the last bits nor the compiled program would be the same.
    svi = SVI(two_pl, guide, driver, TraceMeanField_ELBO())
    arguments = (documents, n_queries, n_criteria)
    options = {"prior": prior, "items": items, "passes": passes}
    # The guide knows shapes and start values alone: one document shows it those, and the model of
    # all of them need not be compiled once more. The key decides nothing.
    one = Documents(jnp.zeros((1, 1)), jnp.ones((1, 1)), jnp.zeros(1, dtype=int))
    state = svi.init(
        jax.random.key(0),
        one,
        *arguments[1:],
        **options | {"passes": jnp.zeros((n_criteria, 1, 1))},
    )
    state, loss = svi.update(state, *arguments, **options)

    params = svi.optim.get_params(state.optim_state)
    gradient = jax.grad(lambda params: svi.evaluate(_at(state, params), *arguments, **options))(
        params
    )
    values = guide.median(svi.get_params(state))
    gamma, beta = item_parameters(values["u"], values["v"]) if items is None else items
    values |= {"gamma": gamma, "beta": beta}
    constant = -n_queries * (prior.scale().log_prob(prior.tau_mean) + prior.offset().log_prob(0.0))
    if items is None:
        constant -= 2 * n_criteria * prior.item(n_answers).log_prob(0.0)
    return loss, constant, values, gradient, state.optim_state[1].steps


def _at(state: SVIState, params: dict[str, Any]) -> SVIState:
    """SVI's state with other parameters."""
    count, driver = state.optim_state
    return state._replace(optim_state=(count, driver._replace(params=params)))


def _to_point(params: dict[str, Any]) -> Point:
    """Newton's coordinates: tau itself, in which each query's problem is convex."""
    own = [_SOFTPLUS(params["tau_auto_loc"]), params["alpha_auto_loc"]]
    shared = [params[name] for name in ("u_auto_loc", "v_auto_loc") if name in params]
    return Point(jnp.stack(own, axis=1), jnp.concatenate([jnp.zeros(0), *shared]))


def _to_params(point: Point, n_criteria: int) -> dict[str, Any]:
    params = {
        "tau_auto_loc": _SOFTPLUS.inv(point.own[:, 0]),
        "alpha_auto_loc": point.own[:, 1],
    }
    if point.shared.size:
        params |= {
            "u_auto_loc": point.shared[:n_criteria],
            "v_auto_loc": point.shared[n_criteria:],
        }
    return params
