"""Results as text: plain, aligned by what a terminal shows, and never cut: pipes read well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len

from rcp_bayes.evaluate import METRICS, PROTOCOLS
from rcp_bayes.scores import MEAN
from rcp_bayes.tables import DEFAULT_DATASET

if TYPE_CHECKING:
    import pandas as pd

    from rcp_bayes.fitfolder import Fit
    from rcp_bayes.scores import Scores

_TIES = {
    "group_mean": "tied documents take their mean gain",
    "id_descending": "ties by document id, descending, scores as 32-bit floats",
    "pool_order": "ties in pool order",
}


def leaderboard_text(scores: Scores, *, notes: bool = False) -> str:
    """The leaderboards of `scores`: the mean over datasets first, then each dataset.

    Every metric has its scores and ranks; rows follow the first metric. Where both are there, an
    arrow says how many places a system gains (up) or loses from `qrel_ndcg` to `rcp_ndcg`.

    Parameters
    ----------
    notes : bool
        Add what was left out, undefined or unjudged. The command line tells it on stderr instead.
    """
    board = scores.leaderboard
    datasets = [name for name in board["dataset"].drop_duplicates() if name != MEAN]
    lines = [_headline(scores)]
    if len(datasets) > 1:
        title = f"mean over {len(datasets)} datasets (unweighted)"
        lines += ["", *_table(board[board["dataset"] == MEAN], title, scores)]
    for dataset in datasets:
        title = "" if datasets == [DEFAULT_DATASET] else dataset
        lines += ["", *_table(board[board["dataset"] == dataset], title, scores)]
    metrics = set(board["metric"])
    legend = []
    if {"rcp_ndcg", "qrel_ndcg"} <= metrics:
        legend.append("↑↓: places gained or lost from qrel_ndcg to rcp_ndcg")
    if metrics - {"qrel_ndcg"}:
        legend.append(f"labelled@{scores.k}: share of the top {scores.k} that has a gain")
    if "qrel_ndcg" in metrics:
        legend.append(f"graded@{scores.k}: that has a qrel")
    lines += ["", "; ".join(legend)]
    if scores.draws is not None:
        lines.append(
            f"rcp_ndcg: mean of {scores.settings['n_draws']} draws;"
            f" labels {level_text(scores.settings['interval'])}: what the labels leave open, for"
            " these queries; labels+queries: the queries as a sample too (Bayesian bootstrap)"
        )
    if notes and scores.notes:
        lines += ["", *(f"note: {note}" for note in scores.notes)]
    return "\n".join(lines)


def fit_summary(fit: Fit) -> str:
    """What a fit found, in a dozen lines: criteria, scales and offsets, certificate."""
    labels, items = fit.labels, fit.items
    placed = int(labels["n_placements"].sum())
    rows = [["criterion", "", "gamma", "beta", "passed"]]
    for c, criterion in enumerate(items.criteria):
        passes = labels[f"passes_{criterion.id}"].sum()
        rows.append(
            [
                criterion.id,
                criterion.name,
                f"{items.gamma[c]:.3f}",
                f"{items.beta[c]:+.3f}",
                f"{passes / placed:.1%}" if placed else "-",
            ]
        )
    with_gain = int(labels["gain"].notna().sum())
    tau = fit.queries["tau"].dropna().to_numpy(dtype=np.float64)
    alpha = fit.queries["alpha"].dropna().to_numpy(dtype=np.float64)
    lines = [
        f"{len(fit.queries)} queries, {len(labels)} documents ({with_gain} with a gain),"
        f" {placed} Stage B placements",
        "",
        *aligned(rows, left=2),
    ]
    if len(tau):
        low, middle, high = np.quantile(tau, [0.05, 0.5, 0.95])
        lines += [
            "",
            f"scale tau: median {middle:.2f}, 5% {low:.2f}, 95% {high:.2f};"
            f" offset alpha: mean {alpha.mean():+.2f}",
        ]
    if fit.info.get("objective") is not None:
        lines.append(
            f"objective (Eq. 7) {fit.info['objective']:.9f} after {fit.info['iterations']}"
            f" iterations, largest gradient {fit.info['max_gradient']:.1e}"
        )
    return "\n".join(lines)


def _headline(scores: Scores) -> str:
    settings, rule = scores.settings, PROTOCOLS[scores.settings["protocol"]]
    ranked = "the judged pool is ranked" if rule.judged_pool else "all documents are ranked"
    unjudged = "count 0" if settings["unjudged"] == "zero" else "leave the lists"
    parts = [
        f"nDCG@{scores.k}, protocol {scores.protocol}: {_TIES[rule.ties]}; {ranked};"
        f" unjudged documents {unjudged}"
    ]
    if settings["qrel_gain"] != "linear":
        parts.append("qrel gain 2^grade - 1")
    if settings["gain_shape"] != "rcp":
        parts.append(f"gain shape {settings['gain_shape']}")
    if settings["drop_identical_ids"]:
        parts.append("documents with their query's id are dropped")
    return "; ".join(parts)


def _bands(board: pd.DataFrame) -> dict[str, list[str]]:
    """Both intervals of every system; none where the metric has no draws."""
    if board["lo"].isna().all():
        return {}
    columns = (board[name] for name in ("lo", "hi", "total_lo", "total_hi"))
    return {
        system: [band_text(lo, hi), band_text(total_lo, total_hi)]
        for system, lo, hi, total_lo, total_hi in zip(board["system"], *columns, strict=True)
    }


class _Entry(NamedTuple):
    """A system under one metric; rank 0 where its score is undefined."""

    score: float
    rank: int
    judged: float


def _table(board: pd.DataFrame, title: str, scores: Scores) -> list[str]:
    """One leaderboard, rows in the order of its first metric, whose intervals are shown."""
    k = scores.k
    metrics = [metric for metric in METRICS if metric in set(board["metric"])]
    entries: dict[str, dict[str, _Entry]] = {}
    counts: dict[str, int] = {}
    for metric in metrics:
        part = board[board["metric"] == metric]
        ranks = part["rank"].fillna(0).astype(int)
        found = map(_Entry, part["score"], ranks, part["judged_at_k"])
        entries[metric] = dict(zip(part["system"], found, strict=True))
        counts[metric] = int(part["n_queries"].max())
    if not metrics:
        return [f"{title}: no system is scored on every dataset"]
    first, *others = metrics
    shares: list[tuple[str, str]] = []
    if first != "qrel_ndcg":
        shares.append((f"labelled@{k}", first))
    if "qrel_ndcg" in metrics:
        shares.append((f"graded@{k}", "qrel_ndcg"))
    moves = {"rcp_ndcg", "qrel_ndcg"} <= set(metrics)
    bands = _bands(board[board["metric"] == first]) if scores.draws is not None else {}
    header = ["#", "system", first]
    if bands:
        level = level_text(scores.settings["interval"])
        header += [f"labels {level}", f"labels+queries {level}"]
    header += [""] if moves else []
    for metric in others:
        header += [metric, "#"]
    rows = [header + [name for name, _ in shares]]
    for system, entry in entries[first].items():
        row = [_rank(entry), system, _number(entry.score, 4), *bands.get(system, [])]
        if moves:
            row.append(_move(entries["qrel_ndcg"][system], entry))
        for metric in others:
            other = entries[metric][system]
            row += [_number(other.score, 4), _rank(other)]
        rows.append(row + [_number(entries[metric][system].judged, 2) for _, metric in shares])
    if len(set(counts.values())) == 1:
        queries = f"{counts[first]} queries"
    else:
        queries = "queries: " + ", ".join(f"{metric} {n}" for metric, n in counts.items())
    caption = f"{len(entries[first])} systems, {queries}"
    return [f"{title}: {caption}" if title else caption, *aligned(rows, left=2, right_first=True)]


def level_text(interval: float) -> str:
    return f"{100 * interval:g}%"


def band_text(lo: float, hi: float, sign: str = "") -> str:
    """An interval to four digits; `sign` "+" writes one before every bound."""
    return "-" if np.isnan(lo) or np.isnan(hi) else f"[{lo:{sign}.4f}, {hi:{sign}.4f}]"


def _rank(entry: _Entry) -> str:
    return str(entry.rank or "-")


def _move(before: _Entry, after: _Entry) -> str:
    places = before.rank - after.rank if before.rank and after.rank else 0
    return f"{'↑' if places > 0 else '↓'}{abs(places)}" if places else ""


def _number(value: float, digits: int) -> str:
    return "-" if np.isnan(value) else f"{value:.{digits}f}"


def aligned(rows: Sequence[Sequence[str]], *, left: int, right_first: bool = False) -> list[str]:
    """Aligned lines: the first `left` columns to the left, the rest to the right."""
    widths = [max(cell_len(row[c]) for row in rows) for c in range(len(rows[0]))]

    def cell(text: str, c: int) -> str:
        padding = " " * (widths[c] - cell_len(text))
        to_right = c >= left or (right_first and c == 0)
        return padding + text if to_right else text + padding

    return ["  ".join(cell(text, c) for c, text in enumerate(row)).rstrip() for row in rows]
