"""From judgments to calibrated labels: Stage A scores, the 2PL calibration, one row per document.

The paper's plug-in path (Sections 3.1-3.4): Bradley-Terry scores are fitted per query and held
fixed, then the 2PL link of Eq. 2 is fitted once over all queries, and every document gets its
calibrated ability (Eq. 3) and its gain (Eq. 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.fitfolder import Fit
from rcp_bayes.gain import gain as rcp_gain
from rcp_bayes.items import Items, load_items
from rcp_bayes.records import Judgments
from rcp_bayes.rubric import criteria_named

if TYPE_CHECKING:
    import pandas as pd

    from rcp_bayes.inference.bradley_terry import BradleyTerryFit
    from rcp_bayes.inference.map import TwoPLFit
    from rcp_bayes.observations import Observations
    from rcp_bayes.universe import Universe

Progress = Callable[[str], None]


def fit(
    judgments: Judgments | str | Path,
    *,
    criteria: Sequence[str] | None = None,
    judge: str | None = None,
    items: Items | str | Path | None = None,
    optimizer: Literal["newton", "lbfgs"] = "newton",
    pool: str | Path | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Calibrate a judgments folder by the paper's MAP (Eq. 7).

    Parameters
    ----------
    judgments : Judgments or path
        What the judge answered: both stages.
    criteria : sequence of str, optional
        Criteria to fit, in rubric order. Default: all, in file order.
    judge : str, optional
        The judge to fit, where a stage holds answers of several.
    items : Items, path or name, optional
        Criterion parameters to freeze, so that only the queries' scale and offset are fitted
        (transfer, Section E.1). A name finds a published set, e.g. ``nanobeir-qwen3.5-397b``.
    optimizer : {"newton", "lbfgs"}
        What drives SVI to the MAP; both reach the same optimum.
    pool : path, optional
        Pool folder that gives queries' documents their order (`pool_position`).
    progress : callable, optional
        Told one short line as each step starts.

    Returns
    -------
    Fit
        `labels` and `queries` frames, `items`, and `info` (what `fit.json` holds).

    Raises
    ------
    InputError
        Where the judgments cannot be used; the message names file, row, column and remedy.
    """
    from rcp_bayes.inference.bradley_terry import fit_bradley_terry
    from rcp_bayes.io import read_judgments, read_pool_order
    from rcp_bayes.observations import observe

    if isinstance(criteria, str):
        raise UsageError(f"criteria is a list of names: {criteria.split(',')!r}, not one text")
    if not isinstance(judgments, Judgments | str | Path):
        kind = type(judgments).__name__
        raise UsageError(f"judgments is a folder or Judgments.from_frames(a, b), not a {kind}")
    tell = progress or (lambda text: None)
    clock = _Clock()
    tell("reading judgments")
    if not isinstance(judgments, Judgments):
        judgments = read_judgments(judgments, criteria=criteria)
    frozen = None if items is None else _frozen_items(items, judgments, criteria)
    if frozen is not None:
        criteria = [criterion.id for criterion in frozen.criteria]
    order = None if pool is None else read_pool_order(pool)
    observed = observe(judgments, criteria=criteria, judge=judge, pool_order=order)
    if observed.windows is None or observed.placements is None:
        missing = "stage_a" if observed.windows is None else "stage_b"
        raise InputError(
            f"no {missing} answers, and a fit needs both stages",
            source=judgments.source,
            remedy=f"add {missing}.parquet, or judge the pool with --stage both",
        )
    clock.lap("read")

    tell("stage A: Bradley-Terry scores")
    tournament = fit_bradley_terry(observed.universe.offset, observed.windows)
    clock.lap("stage_a")

    tell("calibration: 2PL MAP")
    calibration, fitted_queries = _calibrate(
        observed, tournament, frozen, optimizer, judgments.source
    )
    clock.lap("calibration")

    names = observed.criteria
    found = frozen or Items(
        criteria=criteria_named(names),
        gamma=calibration.gamma,
        beta=calibration.beta,
        priors=_PAPER_PRIORS,
        constraints=_CONSTRAINTS,
        rounded=False,
    )
    tau, alpha = _spread(calibration, fitted_queries, len(observed.universe.query_id))
    labels = _labels(observed, tournament, tau, alpha, found)
    queries = _queries(observed, tau, alpha)
    clock.lap("labels")
    info = _info(judgments, observed, tournament, calibration, fitted_queries, clock, optimizer)
    info["items_frozen"] = frozen is not None
    info["notes"] = _notes(observed, tournament)
    return Fit(labels=labels, queries=queries, items=found, info=info)


def _notes(observed: Observations, tournament: BradleyTerryFit) -> list[str]:
    """What of the judgments did not enter the fit, in words; `counts` has every number."""
    notes = []
    for stage, name in (("stage_a", "Stage A"), ("stage_b", "Stage B")):
        count = observed.counts[stage]
        if count["folded"]:
            notes.append(f"{name}: {count['folded']} rows identical to an earlier row were folded")
        if count["invalid_windows"]:
            kinds: dict[str, int] = {}
            for categories in count["invalid_by_phase"].values():
                for category, number in categories.items():
                    kinds[category] = kinds.get(category, 0) + number
            text = ", ".join(f"{category} {number}" for category, number in sorted(kinds.items()))
            notes.append(f"{name}: {count['invalid_windows']} invalid windows not fitted ({text})")
        if count["rows_of_other_judges"]:
            notes.append(f"{name}: {count['rows_of_other_judges']} rows of other judges not fitted")
    if observed.counts["stage_b"]["null_placements"]:
        number = observed.counts["stage_b"]["null_placements"]
        notes.append(f"Stage B: {number} placements with a null answer were dropped whole")
    alone = int(np.isnan(tournament.theta).sum())
    if alone:
        notes.append(
            f"{alone} documents have no Stage A window: no bt, theta or gain; in a ranking, gain 0"
        )
    return notes


_PAPER_PRIORS = {
    "name": "paper",
    "tau": "normal(1, 1)",
    "alpha": "normal(0, 2)",
    "u": "normal(0, 1/sqrt(N C lambda)), lambda = 1e-4",
    "v": "normal(0, 1/sqrt(N C lambda)), lambda = 1e-4",
}
_CONSTRAINTS = {"sum_gamma": "C", "mean_beta": 0.0}


class _Clock:
    """Seconds per step, in the order the steps ran."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, step: str) -> None:
        now = perf_counter()
        self.seconds[step] = round(now - self._last, 4)
        self._last = now


def _frozen_items(
    items: Items | str | Path, judgments: Judgments, criteria: Sequence[str] | None
) -> Items:
    """The criterion parameters to hold, checked against the judgments and the caller's choice."""
    frozen = items if isinstance(items, Items) else load_items(items)
    if criteria is not None:
        frozen = frozen.subset(criteria)
    absent = [c.id for c in frozen.criteria if c.id not in judgments.criteria]
    if absent:
        raise InputError(
            f"no answers to criterion {', '.join(absent)} of the frozen items;"
            f" the judgments have {', '.join(judgments.criteria)}",
            source=judgments.source,
            remedy="choose criteria that both have with --criteria",
        )
    return frozen


def _calibrate(
    observed: Observations,
    tournament: BradleyTerryFit,
    frozen: Items | None,
    optimizer: Literal["newton", "lbfgs"],
    source: str,
) -> tuple[TwoPLFit, np.ndarray]:
    """The 2PL MAP over documents that have both stages, and the queries it covers (indices)."""
    from rcp_bayes.inference.map import fit_two_pl

    usable = np.isfinite(tournament.theta) & (observed.n_placements > 0)
    if not usable.any():
        raise InputError(
            "no document has answers in both stages",
            source=source,
            remedy="check that stage_a and stage_b use the same query and document ids",
        )
    fitted, query = np.unique(observed.universe.query[usable], return_inverse=True)
    calibration = fit_two_pl(
        tournament.theta[usable],
        query.astype(np.int32),
        observed.n_placements[usable],
        observed.passes[usable],
        len(fitted),
        items=None if frozen is None else (frozen.gamma, frozen.beta),
        optimizer=optimizer,
        criterion_names=observed.criteria,
        query_names=_query_names(observed.universe, fitted),
    )
    return calibration, fitted


def _query_names(universe: Universe, queries: np.ndarray) -> list[str]:
    """How warnings call these queries: by their id, with the dataset where there are several."""
    several = len(set(universe.dataset)) > 1
    return [
        f"{universe.dataset[j]}/{universe.query_id[j]}" if several else str(universe.query_id[j])
        for j in queries
    ]


def _spread(
    calibration: TwoPLFit, fitted: np.ndarray, n_queries: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset per query, NaN for a query without both stages."""
    tau, alpha = np.full(n_queries, np.nan), np.full(n_queries, np.nan)
    tau[fitted], alpha[fitted] = calibration.tau, calibration.alpha
    return tau, alpha


def _labels(
    observed: Observations,
    tournament: BradleyTerryFit,
    tau: np.ndarray,
    alpha: np.ndarray,
    items: Items,
) -> pd.DataFrame:
    """The frame of `labels.parquet`: one row per judged document (the contract's columns)."""
    import pandas as pd

    universe = observed.universe
    theta = tau[universe.query] * tournament.theta + alpha[universe.query]
    placed = np.where(observed.n_placements > 0, observed.n_placements, np.nan)
    n_criteria = observed.passes.shape[1]
    columns = {
        "dataset": universe.dataset[universe.query],
        "query_id": universe.query_id[universe.query],
        "doc_id": universe.doc_id,
        "pool_position": universe.pool_position,
        "n_windows": observed.n_windows,
        "n_placements": observed.n_placements,
        "bt": tournament.theta,
        "theta": theta,
        "gain": rcp_gain(theta, items.gamma, items.beta),
        "pass_share": observed.passes.sum(axis=1) / (n_criteria * placed),
    }
    names = [criterion.id for criterion in items.criteria]
    columns |= {f"passes_{name}": observed.passes[:, c] for c, name in enumerate(names)}
    return pd.DataFrame(columns)


def _queries(observed: Observations, tau: np.ndarray, alpha: np.ndarray) -> pd.DataFrame:
    """The frame of `queries.parquet`."""
    import pandas as pd

    universe = observed.universe
    return pd.DataFrame(
        {
            "dataset": universe.dataset,
            "query_id": universe.query_id,
            "tau": tau,
            "alpha": alpha,
            "n_documents": np.diff(universe.offset),
            "n_invalid_a": observed.n_invalid_a,
            "n_invalid_b": observed.n_invalid_b,
        }
    )


def _info(
    judgments: Judgments,
    observed: Observations,
    tournament: BradleyTerryFit,
    calibration: TwoPLFit,
    fitted: np.ndarray,
    clock: _Clock,
    optimizer: str,
) -> dict[str, Any]:
    """What `fit.json` holds."""
    universe = observed.universe

    def named(queries: np.ndarray) -> list[dict[str, str]]:
        return [
            {"dataset": str(universe.dataset[j]), "query_id": str(universe.query_id[j])}
            for j in queries
        ]

    split = np.flatnonzero(tournament.n_components > 1)
    boundary = fitted[calibration.at_boundary]
    without = np.setdiff1d(np.arange(len(universe.query_id)), fitted)
    warnings = list(calibration.warnings)
    if len(split):
        warnings.append(
            f"{len(split)} queries whose Stage A comparisons fall into several components:"
            " the ridge alone places the components against each other (disconnected_queries)"
        )
    if len(boundary):
        warnings.append(
            f"{len(boundary)} queries whose Stage B answers contradict their Stage A order:"
            " scale held at its lower bound (tau_at_boundary)"
        )
    if len(without):
        warnings.append(
            f"{len(without)} queries without both stages have no scale, offset or gain"
            " (queries_without_calibration)"
        )
    not_converged = np.flatnonzero(~tournament.converged)
    if len(not_converged):
        warnings.append(f"Stage A of {len(not_converged)} queries stopped before its tolerance")
    if not calibration.converged:
        warnings.append("the calibration stopped before its tolerance")
    return {
        "method": "map",
        "stage_a": "fixed",
        "stage_a_model": "bradley-terry",
        "priors": "paper",
        "link": "affine",
        "seed": None,  # nothing random enters a MAP
        "interval": None,
        "optimizer": optimizer,
        "versions": {name: version(name) for name in ("rcp-bayes", "jax", "numpyro", "numpy")},
        "input": {"source": judgments.source, "digest": judgments.digest},
        "criteria": list(observed.criteria),
        "counts": observed.counts | {"responses_fitted": int(calibration.n_responses)},
        "iterations": int(calibration.iterations),
        "objective": float(calibration.objective),
        "max_gradient": float(calibration.max_gradient),
        "converged": bool(calibration.converged),
        "stage_a_fit": {
            "max_gradient": float(tournament.max_gradient.max(initial=0.0)),
            "iterations": int(tournament.iterations.max(initial=0)),
            "converged": bool(tournament.converged.all()),
        },
        "tau_at_boundary": named(boundary),
        "disconnected_queries": [
            entry | {"components": int(tournament.n_components[j])}
            for entry, j in zip(named(split), split, strict=True)
        ],
        "queries_without_calibration": named(without),
        "warnings": warnings,
        "seconds": clock.seconds,
    }
