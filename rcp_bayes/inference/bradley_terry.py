"""Bradley-Terry MAP of every query at once, by a truncated Newton method in float64.

Each query is a smooth, strictly convex problem of its own (`rcp_bayes.models.bradley_terry`).
Queries are padded to a few static sizes, solved in chunks that fit the cache, and the chunks of a
batch run inside one compiled call while numpy adds up the pairs of the next batch.

* ``sigmoid(theta_i - theta_k) = e_i / (e_i + e_k)`` with ``e_i = exp(theta_i)``: n exponentials
  instead of n^2 per gradient.
* The Hessian is a weighted graph Laplacian plus the ridge. Its Newton equation is solved by
  conjugate gradients, preconditioned with the diagonal, only as far as the outer residual deserves.
* The full step is taken where convexity shows that it descends, else the step
  ``log(1 + r) / r`` for a direction of range r, which always does: along a direction the curvature
  of a logistic loss grows at most by ``exp(r t)``. No evaluation of the objective is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rcp_bayes.errors import UsageError
from rcp_bayes.inference.runtime import float64, use_compilation_cache
from rcp_bayes.models.bradley_terry import RIDGE, log_likelihood
from rcp_bayes.pairs import PairMatrices, find_contestants, pair_matrices
from rcp_bayes.windows import Windows

# Newton steps converge quadratically, so that the last digits are nearly free. Measured on the
# paper's schedule, the scores are good to 5e-8 at this tolerance, and to 1e-5 at 1e-8.
TOLERANCE = 1e-10
MAX_NEWTON_STEPS = 200

# Sizes that queries are padded to (152 holds the paper's pool of 150); beyond the last in steps of
# 128. Few fixed sizes keep the compiled programs reusable between data sets.
_SIZES = (8, 16, 32, 48, 64, 96, 128, 152, 192, 256, 320, 384)
_STEP = 128
# A chunk's matrices should stay in a core's cache (3 MB); a batch is one compiled call (12 MB).
_CHUNK_CELLS = 16 * 152 * 152
_BATCH_CELLS = 4 * _CHUNK_CELLS
# Measured on two cores: what a cell of padding costs, and what one more static size costs.
_SECONDS_PER_CELL = 1e-8
_SECONDS_PER_COMPILATION = 0.8
# exp(+-600), with small weights times or over a sum of two, is far from both ends of float64. The
# ridge of the paper bounds the range by sqrt(4 log(2) / 1e-4) = 167; a tiny one may not.
_FAST_RANGE = 1200.0
# Directions of a smaller range descend with the full step whatever the data:
# exp(r) - r - 1 < r^2 for r < 1.79.
_SAFE_RANGE = 1.5


@dataclass(frozen=True)
class BradleyTerryFit:
    """Stage A scores of all queries and how well they were found.

    Attributes
    ----------
    theta : (D,) float64
        Score in logits, mean 0 within each query; NaN for a document without a valid window.
    objective : (Q,) float64
        Weighted mean cross-entropy plus ridge; NaN for a query without a window, 0 for one without
        a pair.
    max_gradient : (Q,) float64
        Largest absolute entry of the gradient of `objective`; 0 where there is nothing to fit.
    iterations : (Q,) int64
        Newton steps.
    n_components : (Q,) int64
        Connected components of the comparison graph: with more than one, the level between them
        comes from the ridge alone. 0 for a query without a window.
    converged : (Q,) bool
        `max_gradient` is within the tolerance.
    """

    theta: np.ndarray
    objective: np.ndarray
    max_gradient: np.ndarray
    iterations: np.ndarray
    n_components: np.ndarray
    converged: np.ndarray


def fit_bradley_terry(
    universe_offset: np.ndarray,
    windows: Windows,
    *,
    ridge: float | np.ndarray = RIDGE,
    tolerance: float = TOLERANCE,
    progress: Callable[[int], object] | None = None,
) -> BradleyTerryFit:
    """Fit the Stage A scores of every query (Section 3.1, C.2).

    Parameters
    ----------
    universe_offset : (Q + 1,) int
        `Universe.offset`.
    windows : Windows
        Valid windows. Those of one document hold no pair; a document seen in no other has score 0.
    ridge : float or (Q,) array
        lambda of the objective, above 0.
    tolerance : float
        Largest absolute gradient allowed. Rounding sets a floor near 1e-16.
    progress : callable, optional
        Called with the number of queries just finished, on the way.

    Raises
    ------
    UsageError
        If `ridge` or `tolerance` is not a positive number.
    InputError
        If the windows are inconsistent (`rcp_bayes.pairs.find_contestants`).

    Notes
    -----
    Two runs on one machine give identical bits. Time grows with the sum of squared pool sizes,
    memory with the data plus a batch of about 100 MB.
    """
    contestants = find_contestants(universe_offset, windows)
    size = contestants.size
    ridge = np.broadcast_to(np.asarray(ridge, dtype=np.float64), size.shape)
    if not (np.all(np.isfinite(ridge) & (ridge > 0)) and tolerance > 0):
        raise UsageError("the Bradley-Terry ridge and tolerance must be positive numbers")
    use_compilation_cache()

    score = np.zeros(len(contestants.document))
    objective = np.where(size > 0, 0.0, np.nan)
    max_gradient = np.zeros(len(size))
    iterations = np.zeros(len(size), dtype=np.int64)
    to_fit = np.flatnonzero(size > 1)
    finished = len(size) - len(to_fit)

    def collect(queries: np.ndarray, solution: _Solution) -> None:
        theta, objective[queries], max_gradient[queries], iterations[queries] = (
            np.asarray(part).reshape(-1, *part.shape[2:])[: len(queries)] for part in solution
        )
        present = np.arange(theta.shape[1]) < size[queries][:, None]
        place = contestants.offset[queries][:, None] + np.arange(theta.shape[1])
        score[place[present]] = theta[present]

    # Calls return before their work is done: while one batch is solved the next is added up. At
    # most two are kept, so that memory does not grow with the number of queries.
    running: deque[tuple[np.ndarray, _Solution]] = deque()
    with float64():
        for queries, shape in _batches(to_fit, size[to_fit]):
            pairs = pair_matrices(windows, contestants, queries, shape[-1])
            running.append((queries, _solve(*_stack(pairs, ridge[queries], shape), tolerance)))
            if len(running) > 1:
                finished += len(running[0][0])
                collect(*running.popleft())
            if progress is not None:
                progress(finished)
                finished = 0
        while running:
            finished += len(running[0][0])
            collect(*running.popleft())
    if progress is not None and finished:
        progress(finished)

    theta = np.full(int(universe_offset[-1]), np.nan)
    theta[contestants.document] = score
    return BradleyTerryFit(
        theta=theta,
        objective=objective,
        max_gradient=max_gradient,
        iterations=iterations,
        n_components=contestants.n_components,
        converged=max_gradient <= tolerance,
    )


def static_sizes(sizes: np.ndarray) -> list[int]:
    """Padded sizes for queries of these sizes, ascending.

    The largest query sets one; a smaller one is added where it saves more than its compilation.
    """
    largest = int(np.max(sizes))
    possible = [*_SIZES, *range(_SIZES[-1] + _STEP, largest + _STEP, _STEP)]
    chosen = [next(size for size in possible if size >= largest)]
    while smaller := [size for size in possible if size < chosen[0]]:
        saved = [np.count_nonzero(sizes <= n) * (chosen[0] ** 2 - n**2) for n in smaller]
        best = int(np.argmax(saved))
        if saved[best] * _SECONDS_PER_CELL < _SECONDS_PER_COMPILATION:
            break
        chosen.insert(0, smaller[best])
    return chosen


def _batches(
    queries: np.ndarray, sizes: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple[int, int, int]]]:
    """Queries of one compiled call each, with its shape (chunks, queries per chunk, documents)."""
    if not len(queries):
        return
    below = 0
    for n in static_sizes(sizes):
        group = queries[(sizes > below) & (sizes <= n)]
        below = n
        per_chunk = _power_of_two(min(len(group), max(1, _CHUNK_CELLS // n**2)))
        n_chunks = _power_of_two(
            min(-(-len(group) // per_chunk), max(1, _BATCH_CELLS // (per_chunk * n**2)))
        )
        step = n_chunks * per_chunk
        for at in range(0, len(group), step):
            yield group[at : at + step], (n_chunks, per_chunk, n)


def _power_of_two(number: int) -> int:
    """The largest power of two that does not exceed `number`; 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)


def _stack(pairs: PairMatrices, ridge: np.ndarray, shape: tuple[int, int, int]) -> list[np.ndarray]:
    """Lay the arguments of `_solve` out as (chunks, queries, ...), empty queries at the end."""
    n_chunks, per_chunk, _ = shape
    missing = n_chunks * per_chunk - len(ridge)
    return [
        np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1)).reshape(
            n_chunks, per_chunk, *part.shape[1:]
        )
        if missing
        else part.reshape(n_chunks, per_chunk, *part.shape[1:])
        for part in (pairs.weight, pairs.wins, pairs.present, ridge)
    ]


class _Solution(NamedTuple):
    """Of each query: scores (…, n), objective, largest absolute gradient, Newton steps."""

    theta: jax.Array
    objective: jax.Array
    max_gradient: jax.Array
    steps: jax.Array


class _Newton(NamedTuple):
    """State of the outer loop over one chunk of B queries."""

    theta: jax.Array  # (B, n)
    gradient: jax.Array  # (B, n)
    curvature: jax.Array  # (B, n, n): W_ik p_ik p_ki, the off-diagonal Hessian with its sign turned
    cautious: jax.Array  # (B,) bool: the full step failed, take the short one
    steps: jax.Array  # (B,) int


@jax.jit
def _solve(
    weight: jax.Array, wins: jax.Array, present: jax.Array, ridge: jax.Array, tolerance: jax.Array
) -> _Solution:
    """Fit (chunks, B) queries of n documents, one chunk of B after the other."""

    return lax.map(lambda chunk: _solve_chunk(chunk, tolerance), (weight, wins, present, ridge))


def _solve_chunk(chunk: tuple[jax.Array, ...], tolerance: jax.Array) -> _Solution:
    weight, wins, present, ridge = chunk
    n_documents = jnp.maximum(jnp.sum(present, axis=-1, keepdims=True), 1)
    # Wins add up to the total weight. The objective is a mean over it.
    total = jnp.sum(wins, axis=-1, keepdims=True)
    share = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
    weight, wins = weight * share[:, :, None], wins * share
    evaluate = partial(_gradient_and_curvature, weight, wins, ridge[:, None])

    def step(state: _Newton) -> _Newton:
        residual = _size_of(state.gradient)
        active = residual > tolerance
        # Superlinear convergence, but no digits beyond a hundredth of what is asked.
        enough = jnp.maximum(
            residual * jnp.minimum(0.1, jnp.sqrt(residual)), jnp.minimum(tolerance, residual) * 0.01
        )
        direction = _newton_direction(
            state.curvature, ridge, state.gradient, jnp.where(active, enough, jnp.inf)
        )
        # The optimum has mean 0, and moving there can only lower the ridge.
        direction -= present * jnp.sum(direction, axis=-1, keepdims=True) / n_documents
        reach = jnp.max(direction, axis=-1) - jnp.min(direction, axis=-1)
        short = jnp.log1p(reach) / jnp.where(reach > 0, reach, 1.0)
        length = jnp.where(active, jnp.where(state.cautious, short, 1.0), 0.0)
        theta = state.theta + length[:, None] * direction
        gradient, curvature = evaluate(theta)
        # On a line a convex function that still falls at the end has fallen all the way.
        falling = jnp.sum(gradient * direction, axis=-1) <= 0.0
        accepted = ~active | state.cautious | (reach < _SAFE_RANGE) | falling
        return _Newton(
            theta=jnp.where(accepted[:, None], theta, state.theta),
            gradient=jnp.where(accepted[:, None], gradient, state.gradient),
            curvature=lax.cond(
                jnp.all(accepted),
                lambda: curvature,
                lambda: jnp.where(accepted[:, None, None], curvature, state.curvature),
            ),
            cautious=~accepted,
            steps=state.steps + active,
        )

    def unfinished(state: _Newton) -> jax.Array:
        return jnp.any(_size_of(state.gradient) > tolerance) & (
            jnp.max(state.steps) < MAX_NEWTON_STEPS
        )

    start = jnp.zeros_like(wins)
    state = lax.while_loop(
        unfinished,
        step,
        _Newton(
            start,
            *evaluate(start),
            cautious=jnp.zeros(ridge.shape, bool),
            steps=jnp.zeros(ridge.shape, int),
        ),
    )
    cross_entropy = -log_likelihood(state.theta, weight, wins)
    return _Solution(
        theta=state.theta,
        objective=cross_entropy + 0.5 * ridge * jnp.sum(state.theta**2, axis=-1),
        max_gradient=_size_of(state.gradient),
        steps=state.steps,
    )


def _size_of(gradient: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(gradient), axis=-1)


def _gradient_and_curvature(weight, wins, ridge, theta) -> tuple[jax.Array, jax.Array]:
    """Gradient (B, n) of the objective and the matrix W_ik p_ik p_ki (B, n, n)."""
    highest, lowest = jnp.max(theta, axis=-1), jnp.min(theta, axis=-1)
    middle = 0.5 * (highest + lowest)

    def fast():
        e = jnp.exp(theta - middle[:, None])
        ratio = 1.0 / (e[:, :, None] + e[:, None, :])
        shared = weight * ratio
        expected = e * jnp.sum(shared, axis=-1)
        # In this order no product of two large exponentials is formed.
        return expected, (shared * e[:, :, None]) * (ratio * e[:, None, :])

    def general():
        difference = theta[:, :, None] - theta[:, None, :]
        shared = weight * jax.nn.sigmoid(difference)
        return jnp.sum(shared, axis=-1), shared * jax.nn.sigmoid(-difference)

    expected, curvature = lax.cond(jnp.max(highest - lowest) < _FAST_RANGE, fast, general)
    return expected - wins + ridge * theta, curvature


def _newton_direction(curvature, ridge, gradient, enough) -> jax.Array:
    """Solve H d = -gradient by conjugate gradients until the residual is at most `enough` (B,).

    Every iterate from d = 0 satisfies d'Hd = -gradient'd, so that it is a descent direction for
    which the unit step minimises the quadratic model.
    """
    diagonal = jnp.sum(curvature, axis=-1) + ridge[:, None]

    def unfinished(state):
        *_, active, count = state
        return jnp.any(active) & (count < gradient.shape[-1] + 16)

    def iterate(state):
        d, r, p, rho, active, count = state
        hp = diagonal * p - jnp.einsum("bik,bk->bi", curvature, p)
        alpha = jnp.where(active, rho / jnp.where(active, jnp.sum(p * hp, axis=-1), 1.0), 0.0)
        d += alpha[:, None] * p
        r -= alpha[:, None] * hp
        active &= _size_of(r) > enough
        z = r / diagonal
        rho_next = jnp.sum(r * z, axis=-1)
        beta = jnp.where(active, rho_next / jnp.where(active, rho, 1.0), 0.0)
        return d, r, z + beta[:, None] * p, rho_next, active, count + 1

    z = -gradient / diagonal
    start = (
        jnp.zeros_like(gradient),
        -gradient,
        z,
        jnp.sum(-gradient * z, axis=-1),
        _size_of(gradient) > enough,
        0,
    )
    return lax.while_loop(unfinished, iterate, start)[0]
