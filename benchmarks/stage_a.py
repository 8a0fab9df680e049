"""Stage A at NanoBEIR's size: 649 queries x 150 documents x 216 windows of 10.

    python benchmarks/stage_a.py                   # about two minutes, mostly the simulation
    python benchmarks/stage_a.py --queries 65

Our times come from fresh processes, so that peak memory is that of a fit and compilation is seen
with an empty cache and with a filled one. Times are the best of five.

Baseline in the same run: scipy's L-BFGS-B per query, with the analytic gradient and from the same
aggregated pairs, on a sample of queries and scaled up to all of them. Where torch happens to be
installed, torch's L-BFGS per query in float32 too. Errors in theta are against our own fit at a
tolerance of 1e-14, which is in turn checked against scipy's sample.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from timing import timed

from rcp_bayes.pairs import PairMatrices, find_contestants, pair_matrices
from rcp_bayes.windows import Windows

RIDGE = 1e-4


def simulated(n_queries: int, pool_size: int, folder: Path) -> tuple[np.ndarray, Windows]:
    """Window arrays of a simulated suite under the paper's schedule, read back from its files."""
    from rcp_bayes.io import read_judgments
    from rcp_bayes.observations import observe
    from rcp_bayes.simulation import simulate

    simulate(n_queries=n_queries, pool_size=pool_size).write(folder)
    observed = observe(read_judgments(folder))
    assert observed.windows is not None
    return observed.universe.offset, observed.windows


def save(path: Path, offset: np.ndarray, windows: Windows) -> None:
    np.savez(path, universe_offset=offset, **vars(windows))


def load(path: Path) -> tuple[np.ndarray, Windows]:
    data = np.load(path)
    fields = {name: data[name] for name in data.files}
    return fields.pop("universe_offset"), Windows(**fields)


def child(path: Path) -> None:
    """One fresh process: the first fit, warm fits, the solver alone; JSON on stdout."""
    offset, windows = load(path)

    import jax

    from rcp_bayes.inference import bradley_terry as ours

    jax.devices()  # starting JAX is not compilation
    events: dict[str, float] = {}

    def listen(event: str, seconds: float, **_: Any) -> None:
        events[event] = events.get(event, 0.0) + seconds

    jax.monitoring.register_event_duration_secs_listener(listen)
    first, fit = timed(lambda: ours.fit_bradley_terry(offset, windows), repeats=1)
    compiled = events.get("/jax/core/compile/backend_compile_duration", 0.0)
    warm, fit = timed(lambda: ours.fit_bradley_terry(offset, windows), repeats=5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    contestants = find_contestants(offset, windows)
    size = contestants.size
    with jax.enable_x64(True):
        stacked = [
            jax.device_put(
                ours._stack(
                    pair_matrices(windows, contestants, queries, shape[-1]),
                    np.full(len(queries), RIDGE),
                    shape,
                )
            )
            for queries, shape in ours._batches(np.flatnonzero(size > 1), size[size > 1])
        ]
        jax.block_until_ready(stacked)
        solver = {
            tolerance: timed(
                lambda tolerance=tolerance: jax.block_until_ready(
                    [ours._solve(*arguments, tolerance) for arguments in stacked]
                ),
                repeats=5,
            )[0]
            for tolerance in (1e-8, ours.TOLERANCE)
        }
    tight = ours.fit_bradley_terry(offset, windows, tolerance=1e-14)
    loose = ours.fit_bradley_terry(offset, windows, tolerance=1e-8)
    again = ours.fit_bradley_terry(offset, windows)
    np.save(path.with_suffix(".theta.npy"), tight.theta)
    json.dump(
        {
            "first": first,
            "compile": compiled,
            "warm": warm,
            "solver": solver[ours.TOLERANCE],
            "solver_loose": solver[1e-8],
            "peak_mb": peak,
            "max_gradient": float(fit.max_gradient.max()),
            "max_gradient_loose": float(loose.max_gradient.max()),
            "newton_steps": float(fit.iterations.mean()),
            "error": float(np.nanmax(np.abs(fit.theta - tight.theta))),
            "error_loose": float(np.nanmax(np.abs(loose.theta - tight.theta))),
            "same_bits": bool(np.array_equal(fit.theta, again.theta, equal_nan=True)),
        },
        sys.stdout,
    )


def run_child(path: Path, cache: Path) -> dict[str, Any]:
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    argv = [sys.executable, __file__, "--child", str(path)]
    return json.loads(subprocess.run(argv, env=environment, check=True, stdout=-1).stdout)


def scipy_lbfgs(pairs: PairMatrices) -> list[np.ndarray]:
    """Each query by L-BFGS-B: value and gradient from the pair matrices, tight enough for 1e-8."""

    def evaluate(
        theta: np.ndarray, weight: np.ndarray, wins: np.ndarray
    ) -> tuple[float, np.ndarray]:
        difference = theta[:, None] - theta
        either = np.maximum(theta[:, None], theta) + np.log1p(np.exp(-np.abs(difference)))
        value = 0.5 * np.sum(weight * either) - wins @ theta + RIDGE / 2 * theta @ theta
        return value, (weight * expit(difference)).sum(axis=1) - wins + RIDGE * theta

    found = []
    for weight, wins, total, n in zip(
        pairs.weight, pairs.wins, pairs.total, pairs.size, strict=True
    ):
        options = {"ftol": 0.0, "gtol": 1e-8, "maxiter": 10_000, "maxfun": 100_000, "maxcor": 20}
        arguments = (weight[:n, :n] / total, wins[:n] / total)
        result = minimize(
            evaluate, np.zeros(n), arguments, method="L-BFGS-B", jac=True, options=options
        )
        found.append(result.x - result.x.mean())
    return found


def torch_lbfgs(pairs: PairMatrices) -> list[np.ndarray]:
    """Each query by torch's L-BFGS with a strong Wolfe search, in float32."""
    import torch

    found = []
    for weight, wins, total, n in zip(
        pairs.weight, pairs.wins, pairs.total, pairs.size, strict=True
    ):
        share = torch.tensor(weight[:n, :n] / total, dtype=torch.float32)
        won = torch.tensor(wins[:n] / total, dtype=torch.float32)
        theta = torch.zeros(int(n), dtype=torch.float32, requires_grad=True)
        optimizer = torch.optim.LBFGS([theta], max_iter=500, line_search_fn="strong_wolfe")

        def closure(theta=theta, share=share, won=won, optimizer=optimizer):
            optimizer.zero_grad()
            either = torch.logaddexp(theta[:, None], theta[None, :])
            loss = 0.5 * (share * either).sum() - won @ theta + RIDGE / 2 * (theta @ theta)
            loss.backward()
            return loss

        optimizer.step(closure)
        scores = theta.detach().numpy().astype(float)
        found.append(scores - scores.mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=649)
    parser.add_argument("--pool", type=int, default=150)
    parser.add_argument("--sample", type=int, default=20, help="queries given to the baselines")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        offset, windows = simulated(arguments.queries, arguments.pool, folder / "world")
        save(folder / "windows.npz", offset, windows)
        n_queries, cache = len(offset) - 1, folder / "cache"
        print(
            f"{n_queries} queries, {offset[-1]:,} documents, {windows.n_windows:,} windows,"
            f" {len(windows.document):,} rows"
        )
        empty = run_child(folder / "windows.npz", cache)
        filled = run_child(folder / "windows.npz", cache)
        tight = np.load(folder / "windows.theta.npy")

    print(
        f"compilation: {empty['compile']:.2f} s with an empty cache, {filled['compile']:.2f} s from"
        f" the cache; first fit {empty['first']:.2f} s and {filled['first']:.2f} s"
    )
    best = {key: min(empty[key], filled[key]) for key in ("warm", "solver", "solver_loose")}
    print(
        f"windows to scores: {best['warm']:.2f} s warm; peak {filled['peak_mb']:.0f} MB in all\n"
        f"solver alone, from pairs: {best['solver']:.2f} s to a gradient of"
        f" {filled['max_gradient']:.0e} (theta within {filled['error']:.0e}),"
        f" {best['solver_loose']:.2f} s to {filled['max_gradient_loose']:.0e}"
        f" (theta within {filled['error_loose']:.0e})\n"
        f"Newton steps per query: {filled['newton_steps']:.1f};"
        f" the same bits again: {empty['same_bits'] and filled['same_bits']}"
    )

    rng = np.random.default_rng(0)
    contestants = find_contestants(offset, windows)
    fittable = np.flatnonzero(contestants.size > 1)
    sample = np.sort(rng.choice(fittable, min(arguments.sample, len(fittable)), replace=False))
    pairs = pair_matrices(windows, contestants, sample)
    expected = [tight[contestants.document[slice(*contestants.offset[[q, q + 1]])]] for q in sample]
    baselines = {"scipy L-BFGS-B, float64": scipy_lbfgs}
    try:
        import torch  # noqa: F401

        baselines["torch L-BFGS, float32"] = torch_lbfgs
    except ImportError:
        print("torch is not installed: no comparison with it")
    for title, solve in baselines.items():
        seconds, found = timed(lambda solve=solve: solve(pairs), repeats=1)
        scaled = seconds / len(sample) * n_queries
        error = max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))
        print(
            f"{title}: {scaled:.1f} s (scaled up from {len(sample)} queries),"
            f" {scaled / best['solver']:.0f} x our solver, theta within {error:.0e} of ours"
        )


if __name__ == "__main__":
    main()
