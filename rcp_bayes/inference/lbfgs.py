"""Optax's L-BFGS as an optimizer that NumPyro's SVI drives to the end in one update.

The plain alternative to `rcp_bayes.inference.arrow`: it needs nothing but SVI's loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rcp_bayes.inference.driver import Driver, DriverState

MEMORY = 20
"""Past steps that shape the next one."""

_ROUNDS = 10


class Lbfgs(Driver):
    """Optimizer whose one ``update`` runs L-BFGS until the gradient vanishes.

    Parameters
    ----------
    bounded : str
        Name of the parameter with a lower bound.
    lower : float
        Its bound, in SVI's unconstrained coordinates.
    tolerance, max_steps
        As in `Driver`.

    Notes
    -----
    Below its bound a parameter is read as the bound, where the loss no longer depends on it. One
    that a long step carried there although the loss falls away from the bound is set back above it
    for another round.
    """

    def __init__(self, bounded: str, lower: Any, *, tolerance: Any, max_steps: int) -> None:
        super().__init__(tolerance=tolerance, max_steps=max_steps)
        self._bounded = bounded
        self._lower = lower

    def minimise(
        self, loss: Callable[[Any], jax.Array], start: DriverState
    ) -> tuple[jax.Array, DriverState]:
        def loss_at(params: Any) -> jax.Array:
            return loss(self._clamped(params))

        solver = optax.lbfgs(memory_size=MEMORY)
        value_and_grad = optax.value_and_grad_from_state(loss_at)

        def largest(memory: Any) -> jax.Array:
            return optax.tree.norm(optax.tree.get(memory, "grad"), ord=jnp.inf)

        def unfinished(carry: tuple) -> jax.Array:
            _, memory, steps, first = carry
            return (first | (largest(memory) > self._tolerance)) & (steps < self._max_steps)

        def descend(carry: tuple) -> tuple:
            params, memory, steps, _ = carry
            value, gradient = value_and_grad(params, state=memory)
            step, memory = solver.update(
                gradient, memory, params, value=value, grad=gradient, value_fn=loss_at
            )
            return optax.apply_updates(params, step), memory, steps + 1, jnp.array(False)

        def another_round(carry: tuple) -> jax.Array:
            _, _, steps, rounds, trapped, _ = carry
            more = jnp.any(trapped) & (rounds < _ROUNDS) & (steps < self._max_steps)
            return (rounds == 0) | more

        def run(carry: tuple) -> tuple:
            params, _, steps, rounds, trapped, _ = carry
            bounded = jnp.where(trapped, self._lower + 1.0, params[self._bounded])
            params = params | {self._bounded: bounded}
            params, memory, steps, _ = lax.while_loop(
                unfinished, descend, (params, solver.init(params), steps, jnp.array(True))
            )
            converged = largest(memory) <= self._tolerance
            params = self._clamped(params)
            value, gradient = jax.value_and_grad(loss)(params)
            trapped = (params[self._bounded] <= self._lower) & (gradient[self._bounded] < 0.0)
            return params, value, steps, rounds + 1, trapped, converged

        none = jnp.zeros_like(start.params[self._bounded], dtype=bool)
        carry = (start.params, jnp.array(jnp.inf), start.steps, jnp.array(0), none, start.converged)
        params, value, steps, _, trapped, converged = lax.while_loop(another_round, run, carry)
        return value, DriverState(params, steps, converged & ~jnp.any(trapped))

    def _clamped(self, params: Any) -> Any:
        value = params[self._bounded]
        return params | {self._bounded: jnp.where(value > self._lower, value, self._lower)}
