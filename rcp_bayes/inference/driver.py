"""What optimizers share that NumPyro's SVI drives to the end in one update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.optim import _NumPyroOptim


class DriverState(NamedTuple):
    """State of a `Driver` between updates.

    Attributes
    ----------
    params : dict
        SVI's unconstrained parameters.
    steps : int
        Steps taken.
    converged : bool
        The gradient came within the tolerance, bounded parameters at their bound aside.
    """

    params: Any
    steps: Any
    converged: Any


class Driver(_NumPyroOptim):
    """Optimizer whose one ``update`` runs `minimise` to its end.

    Like `numpyro.optim.Minimize` it evaluates SVI's loss as often as it needs within one update,
    and it is for guides without randomness (`AutoDelta`).

    Parameters
    ----------
    tolerance : float or scalar array
        Largest absolute entry of the gradient at which to stop, entries at a bound aside.
    max_steps : int
        Steps after which to give up.
    """

    def __init__(self, *, tolerance: Any, max_steps: int) -> None:
        super().__init__(
            lambda: (
                lambda params: DriverState(params, jnp.array(0), jnp.array(False)),
                lambda i, gradient, state: state,
                lambda state: state.params,
            )
        )
        self._tolerance = tolerance
        self._max_steps = max_steps

    def minimise(
        self, loss: Callable[[Any], jax.Array], start: DriverState
    ) -> tuple[jax.Array, DriverState]:
        """The lowest loss found from `start`, and the state there."""
        raise NotImplementedError

    def eval_and_update(
        self,
        fn: Callable[[Any], tuple],
        state: tuple[Any, DriverState],
        forward_mode_differentiation: bool = False,
    ) -> tuple[tuple[Any, None], tuple[Any, DriverState]]:
        """Minimise `fn` from the state's parameters; answers the loss at the new ones."""
        i, start = state
        loss, end = self.minimise(lambda params: fn(params)[0], start)
        return (loss, None), (i + 1, end)
