"""Newton's method for a loss whose Hessian is an arrow, as an optimizer that NumPyro's SVI drives.

The loss has two parameters for each of Q queries and a few that all queries share. Queries meet
only through the shared ones, so that the Hessian is 2 x 2 blocks along its diagonal, bordered by
the rows and columns of the shared parameters: eliminating the blocks leaves a Schur complement of
the size of the border, and a Newton step costs O(Q).

The first parameter of a query may have a lower bound. Where the loss falls towards the bound, the
parameter rests on it and the others are optimised as usual.

The steps descend from any start:

* A query's block is positive definite (the loss is convex in the query's two parameters). The Schur
  complement need not be, far from the optimum: it takes the absolute values of its eigenvalues.
* The shared step and every query's own step are capped, since a logistic loss far from its optimum
  is so flat that full steps overshoot. A direction that the caps turned uphill gives way to the one
  without the border, which cannot be.
* A step is halved until the loss of SVI itself has fallen (Armijo).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rcp_bayes.inference.driver import Driver, DriverState

CAP = 1.0
"""Longest step of a shared parameter or of a query's own, in the units of the parameters."""

_SUFFICIENT = 1e-4  # Armijo's share of the predicted decrease
_HALVINGS = 40
_ROUNDING = 1e-13  # relative error of a loss summed over millions of answers, with a margin


class ArrowSystem(NamedTuple):
    """Gradient and Hessian of the loss at one point; G shared parameters.

    Attributes
    ----------
    gradient_own : (Q, 2)
    gradient_shared : (G,)
    own : (Q, 2, 2)
        Each query's block, positive definite.
    cross : (Q, 2, G)
    shared : (G, G)
    """

    gradient_own: jax.Array
    gradient_shared: jax.Array
    own: jax.Array
    cross: jax.Array
    shared: jax.Array


class Point(NamedTuple):
    """Where Newton's method stands: (Q, 2) own parameters of the queries, (G,) shared ones."""

    own: jax.Array
    shared: jax.Array


class ArrowNewton(Driver):
    """Optimizer whose one ``update`` takes Newton steps until the gradient vanishes.

    Derivatives come from `system`, in closed form; what a step must lower is the loss that SVI
    hands over.

    Parameters
    ----------
    system : callable
        `ArrowSystem` at a `Point`.
    to_point, to_params : callable
        From SVI's unconstrained parameters to a `Point`, and back. Newton's method works in the
        coordinates of the point, SVI's loss in its parameters.
    lower : float
        Lower bound of ``own[:, 0]``.
    tolerance, max_steps
        As in `Driver`.
    """

    def __init__(
        self,
        system: Callable[[Point], ArrowSystem],
        to_point: Callable[[Any], Point],
        to_params: Callable[[Point], Any],
        *,
        lower: float,
        tolerance: Any,
        max_steps: int,
    ) -> None:
        super().__init__(tolerance=tolerance, max_steps=max_steps)
        self._system = system
        self._to_point = to_point
        self._to_params = to_params
        self._lower = lower

    def minimise(
        self, loss: Callable[[Any], jax.Array], start: DriverState
    ) -> tuple[jax.Array, DriverState]:
        def loss_at(point: Point) -> jax.Array:
            return loss(self._to_params(point))

        def unfinished(carry: tuple) -> jax.Array:
            _, _, steps, converged, stuck = carry
            return ~converged & ~stuck & (steps < self._max_steps)

        def newton(carry: tuple) -> tuple:
            point, value, steps, _, _ = carry
            system = self._system(point)
            held = _held(point.own, system, self._lower)
            converged = _largest(system, held) <= self._tolerance
            step = newton_step(system, point.own, self._lower)
            moved, lowered, found = _search(
                loss_at, point, value, step, _slope(system, step), converged
            )
            taken = jnp.where(converged, 0, 1)
            return moved, lowered, steps + taken, converged, ~found

        point = self._to_point(start.params)
        carry = (point, loss_at(point), start.steps, jnp.array(False), jnp.array(False))
        point, value, steps, converged, _ = lax.while_loop(unfinished, newton, carry)
        return value, DriverState(self._to_params(point), steps, converged)


def at_bound(first: jax.Array, lower: float) -> jax.Array:
    """Which parameters rest on their bound, up to the rounding of a step that ends there."""
    return first <= lower + 1e-12 * abs(lower)


def _held(own: jax.Array, system: ArrowSystem, lower: float) -> jax.Array:
    """(Q,) bool: on the bound, and the loss falls only across it."""
    return at_bound(own[:, 0], lower) & (system.gradient_own[:, 0] > 0.0)


def _largest(system: ArrowSystem, held: jax.Array) -> jax.Array:
    """Largest absolute entry of the gradient, held parameters aside."""
    first = jnp.where(held, 0.0, system.gradient_own[:, 0])
    parts = (first, system.gradient_own[:, 1], system.gradient_shared)
    return jnp.max(jnp.abs(jnp.concatenate(parts)))


def _slope(system: ArrowSystem, step: Point) -> jax.Array:
    return jnp.sum(system.gradient_own * step.own) + jnp.sum(system.gradient_shared * step.shared)


def newton_step(system: ArrowSystem, own: jax.Array, lower: float) -> Point:
    """Capped Newton step, or the one without the border where the caps turned that uphill.

    Parameters
    ----------
    system : ArrowSystem
    own : (Q, 2)
        Where the queries' own parameters stand.
    lower : float
        Bound of the first of them.
    """
    held = _held(own, system, lower)
    room = lower - own[:, 0]
    # Both at once, with the border weighted 1 and 0: half the code to compile.
    steps = jax.vmap(
        lambda weight: _capped_step(system._replace(cross=weight * system.cross), held, room)
    )(jnp.array([1.0, 0.0]))
    newton, plain = (jax.tree.map(lambda both, k=k: both[k], steps) for k in (0, 1))
    uphill = _slope(system, newton) >= 0.0
    return jax.tree.map(lambda a, b: jnp.where(uphill, b, a), newton, plain)


def _capped_step(system: ArrowSystem, held: jax.Array, room: jax.Array) -> Point:
    """Step of the shared parameters from the Schur complement, then of the queries given that.

    `room` (Q,) is how far the first parameter may go down, at most 0.
    """
    a, b, d = system.own[:, 0, 0], system.own[:, 0, 1], system.own[:, 1, 1]
    gradient, cross = system.gradient_own, system.cross
    shared = jnp.zeros_like(system.gradient_shared)
    if shared.size:
        # A held parameter stays where it is: its block is 1 x 1.
        inverse = jnp.where(
            held[:, None, None],
            _two_by_two(0.0 * a, 0.0 * b, 1.0 / d),
            _two_by_two(d, -b, a) / (a * d - b * b)[:, None, None],
        )
        lever = jnp.einsum("jab,jbg->jag", inverse, cross)
        schur = system.shared - jnp.einsum("jag,jah->gh", cross, lever)
        right = system.gradient_shared - jnp.einsum("jag,ja->g", lever, gradient)
        shared = -_solve_descending(schur, right)
        shared = shared * jnp.minimum(1.0, CAP / jnp.maximum(jnp.max(jnp.abs(shared)), CAP))
        gradient = gradient + cross @ shared
    # Minimum of each query's convex quadratic over its half-plane, on the edge where need be.
    determinant = a * d - b * b
    first = jnp.maximum((b * gradient[:, 1] - d * gradient[:, 0]) / determinant, room)
    second = -(gradient[:, 1] + b * first) / d
    own = jnp.stack([first, second], axis=1)
    longest = jnp.max(jnp.abs(own), axis=1, keepdims=True)
    return Point(own * (CAP / jnp.maximum(longest, CAP)), shared)


def _two_by_two(a: jax.Array, b: jax.Array, d: jax.Array) -> jax.Array:
    """Symmetric matrices (Q, 2, 2) of their entries (Q,)."""
    return jnp.stack([jnp.stack([a, b], axis=-1), jnp.stack([b, d], axis=-1)], axis=-2)


def _solve_descending(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solve with the absolute eigenvalues, so that minus the answer is a descent direction."""
    values, vectors = jnp.linalg.eigh(matrix)
    values = jnp.abs(values)
    values = jnp.maximum(values, 1e-10 * jnp.max(values))
    return vectors @ ((vectors.T @ right) / values)


def _search(
    loss_at: Callable[[Point], jax.Array],
    point: Point,
    loss: jax.Array,
    step: Point,
    slope: jax.Array,
    stay: jax.Array,
) -> tuple[Point, jax.Array, jax.Array]:
    """Halve the step until the loss has fallen enough: new point, its loss, whether there is one.

    The test allows for the rounding of the loss: within it the last, tiny steps cannot be told from
    an ascent, and there the vanishing gradient decides. A loss that is NaN counts as not fallen.
    """
    slack = _ROUNDING * jnp.abs(loss)

    def searching(carry: tuple) -> jax.Array:
        halvings, _, _, accepted = carry
        return ~accepted & (halvings < _HALVINGS)

    def attempt(carry: tuple) -> tuple:
        halvings, _, _, _ = carry
        share = 0.5**halvings
        trial = Point(point.own + share * step.own, point.shared + share * step.shared)
        lowered = loss_at(trial)
        return (
            halvings + 1,
            trial,
            lowered,
            lowered <= loss + _SUFFICIENT * share * slope + slack,
        )

    carry = (jnp.array(0), point, loss, stay)
    _, trial, lowered, accepted = lax.while_loop(searching, attempt, carry)
    trial = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial, point)
    return trial, jnp.where(accepted, lowered, loss), accepted
