"""Calibration (Eq. 7) at NanoBEIR's size and at ViDoRe v3's, beside scipy and, if there, torch.

    python benchmarks/calibration.py [--sizes nanobeir vidore] [--no-lbfgs]

Baselines run in the same process on the same data: scipy's L-BFGS-B with an analytic gradient on
the sufficient statistics, and torch's L-BFGS in float32 on one row per placement where torch is
installed. Objectives are those of Eq. 7 in float64 at the parameters each ends with; `gap` is how
far above the lowest.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from stage_b import World, by_scipy, draw, eq7

from rcp_bayes.inference.map import fit_two_pl

# Queries; each has 150 documents and 1,000 placements, five criteria.
SIZES = {"nanobeir": 649, "vidore": 14_514}
GAMMA, BETA = np.array([1.17, 1.05, 0.94, 1.16, 0.69]), np.array([-2.57, -2.0, -0.25, 0.71, 4.12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["nanobeir", "vidore"])
    parser.add_argument("--no-lbfgs", action="store_true", help="leave out the plain alternative")
    arguments = parser.parse_args()
    for size in arguments.sizes:
        compare(size, SIZES[size], lbfgs=not arguments.no_lbfgs)


def compare(size: str, n_queries: int, *, lbfgs: bool) -> None:
    rng = np.random.default_rng(n_queries)
    tau, alpha = np.exp(rng.normal(0.4, 0.35, n_queries)), rng.normal(-5.6, 1.2, n_queries)
    world = draw(1, tau, alpha, GAMMA, BETA, pool=150, placements=1000)
    answers = world.passes.shape[1] * world.n_placements.sum()
    print(f"\n{size}: {n_queries:,} queries, {len(world.query):,} documents, {answers:,} answers")
    rows = [
        ("newton, first call", *ours(world, "newton")),
        ("newton, warm", *ours(world, "newton")),
    ]
    if size == "nanobeir":
        if lbfgs:
            rows.append(("optax L-BFGS through SVI, warm", *warm(world, "lbfgs")))
        rows.append(("scipy L-BFGS-B, analytic gradient", *scipy(world)))
        if importlib.util.find_spec("torch"):
            rows.append(("torch L-BFGS float32, by placement", *torch(world)))
    lowest = min(objective for _, _, objective, _ in rows)
    reference = rows[1][1]
    for name, seconds, objective, gradient in rows:
        print(
            f"  {name:36} {seconds:8.3f} s  {seconds / reference:7.1f} x"
            f"  objective {objective:.12f}  gap {objective - lowest:.1e}  |gradient| {gradient:.1e}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  peak memory of the process so far {peak:.2f} GiB")


def ours(world: World, optimizer: str) -> tuple[float, float, float]:
    started = time.perf_counter()
    fit = fit_two_pl(*world.arguments, optimizer=optimizer)
    return time.perf_counter() - started, fit.objective, fit.max_gradient


def warm(world: World, optimizer: str) -> tuple[float, float, float]:
    ours(world, optimizer)
    return ours(world, optimizer)


def scipy(world: World) -> tuple[float, float, float]:
    started = time.perf_counter()
    objective, *parameters = by_scipy(world, ftol=1e-13, starts=1)
    seconds = time.perf_counter() - started
    return seconds, objective, largest(parameters, world)


def torch(world: World) -> tuple[float, float, float]:
    """As the authors describe their fits: every placement a row, float32, L-BFGS."""
    import torch

    answers = np.repeat(np.arange(len(world.query)), world.n_placements)
    order = np.arange(len(answers)) - np.repeat(
        np.cumsum(world.n_placements) - world.n_placements, world.n_placements
    )
    x = torch.tensor(world.ability[answers], dtype=torch.float32)[:, None]
    query = torch.tensor(world.query[answers])
    y = torch.tensor(order[:, None] < world.passes[answers], dtype=torch.float32)
    n_queries, n_criteria = world.n_queries, y.shape[1]
    t = torch.full((n_queries,), float(np.log(np.expm1(1.0))), requires_grad=True)
    alpha, u, v = (torch.zeros(n, requires_grad=True) for n in (n_queries, n_criteria, n_criteria))
    parameters = [t, alpha, u, v]
    solver = torch.optim.LBFGS(
        parameters, max_iter=1000, tolerance_grad=1e-9, tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        solver.zero_grad()
        tau = torch.nn.functional.softplus(t)
        gamma, beta = n_criteria * torch.softmax(u, 0), v - v.mean()
        z = gamma * (tau[query, None] * x + alpha[query, None] - beta)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
        penalty = ((tau - 1) ** 2 / 2).sum() + (alpha**2 / 8).sum()
        loss = loss + penalty / y.numel() + 5e-5 * ((u**2).sum() + (v**2).sum())
        loss.backward()
        return loss

    started = time.perf_counter()
    solver.step(closure)
    seconds = time.perf_counter() - started
    t64, *rest = (p.detach().numpy().astype(float) for p in parameters)
    parameters = [np.logaddexp(0.0, t64), *rest]
    return seconds, eq7(*parameters, world)[0], largest(parameters, world)


def largest(parameters: list[np.ndarray], world: World) -> float:
    """Largest absolute gradient of N C times Eq. 7 in (tau, alpha, u, v), off the bound."""
    gradient = eq7(*parameters, world)[1] * world.n_placements.sum() * world.passes.shape[1]
    tau = parameters[0]
    gradient[: len(tau)][(tau <= 1e-3) & (gradient[: len(tau)] > 0)] = 0.0
    return float(np.abs(gradient).max())


if __name__ == "__main__":
    main()
