"""A comparison as text: leaderboard with ranks, pairs, sensitivity, agreement of the metrics."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from rcp_bayes.comparison import WITHIN
from rcp_bayes.render import aligned, band_text, level_text
from rcp_bayes.tables import DEFAULT_DATASET, MEAN

if TYPE_CHECKING:
    import pandas as pd

    from rcp_bayes.comparison import Comparison


def comparison_text(found: Comparison, *, notes: bool = False) -> str:
    """Ranks and pairs of the mean over datasets, or of the only one; the rest in short.

    The pairs of every single dataset are in ``found.pairs`` and in ``--json``.
    """
    settings = found.settings
    datasets = list(dict.fromkeys(found.ranks["dataset"]))
    shown = datasets[0] if datasets else DEFAULT_DATASET
    several = len(datasets) > 1
    level = level_text(settings["interval"])
    where = f", mean over {len(datasets) - 1} datasets (unweighted)" if several else ""
    if not several and shown != DEFAULT_DATASET:
        where = f", {shown}"
    lines = [f"{settings['metric']}@{settings['k']}, protocol {settings['protocol']}{where}"]
    lines += ["", *_ranks(found.ranks[found.ranks["dataset"] == shown], level)]
    pairs = found.pairs[found.pairs["dataset"] == shown]
    if len(pairs):
        lines += ["", *_pairs(pairs, level, settings["tie_zone"])]
    lines += ["", *_sensitivity(found)]
    agreement = found.agreement[found.agreement["dataset"] == shown]
    if len(agreement):
        lines += ["", *_agreement(agreement)]
    lines += ["", *_legend(found, level, several)]
    if notes and found.notes:
        lines += ["", *(f"note: {note}" for note in found.notes)]
    return "\n".join(lines)


def _ranks(board: pd.DataFrame, level: str) -> list[str]:
    posterior = "p_best" in board
    header = ["#", "system", "score", f"bootstrap {level}"]
    if posterior:
        header += ["ranks", "P(best)", "ranks*", "P(best)*"]
    rows = [header]
    for row in board.to_dict("records"):
        line = [
            str(row["rank"]),
            row["system"],
            f"{row['score']:.4f}",
            band_text(row["boot_lo"], row["boot_hi"]),
        ]
        if posterior:
            for kind in ("", "total_"):
                lo, hi = int(row[f"{kind}rank_lo"]), int(row[f"{kind}rank_hi"])
                line += [str(lo) if lo == hi else f"{lo}–{hi}", f"{row[f'{kind}p_best']:.2f}"]
        rows.append(line)
    return aligned(rows, left=2, right_first=True)


def _pairs(pairs: pd.DataFrame, level: str, tie_zone: float) -> list[str]:
    posterior = "p_superior" in pairs
    header = ["a", "b", "a - b", "p", "Holm", "", f"bootstrap {level}"]
    if posterior:
        tie = f"P(≤{tie_zone:g})"
        header += [
            "P(a>b)",
            tie,
            f"labels {level}",
            "P(a>b)*",
            tie + "*",
            f"labels+queries {level}",
        ]
        header.append("close")
    rows = [header]
    for row in pairs.to_dict("records"):
        line = [
            row["a"],
            row["b"],
            f"{row['difference']:+.4f}",
            _p(row["p_value"]),
            _p(row["p_holm"]),
            "sep" if row["separated"] else "",
            band_text(row["boot_lo"], row["boot_hi"], "+"),
        ]
        if posterior:
            for kind in ("", "total_"):
                line += [f"{row[f'{kind}p_superior']:.3f}", f"{row[f'{kind}p_tie']:.3f}"]
                line.append(band_text(row[f"{kind}lo"], row[f"{kind}hi"], "+"))
            line.append(f"{row[WITHIN]:.0%}")
        rows.append(line)
    return aligned(rows, left=2)


def _sensitivity(found: Comparison) -> list[str]:
    shares = found.sensitivity
    datasets = [name for name in dict.fromkeys(chain(*shares.values())) if name != MEAN]
    header = ["sensitivity", *(datasets if len(datasets) > 1 else []), MEAN]
    if len(datasets) <= 1:
        header[-1] = "pairs separated"
    rows = [header]
    for metric, each in shares.items():
        columns = [*(datasets if len(datasets) > 1 else []), MEAN]
        rows.append([metric, *(_share(each.get(name, np.nan)) for name in columns)])
    return aligned(rows, left=1)


def _agreement(agreement: pd.DataFrame) -> list[str]:
    rows = [["leaderboards", "", "Kendall", "Spearman"]]
    for row in agreement.to_dict("records"):
        numbers = [_number(row["kendall"]), _number(row["spearman"])]
        rows.append([row["metric_a"], row["metric_b"], *numbers])
    return aligned(rows, left=2)


def _legend(found: Comparison, level: str, several: bool) -> list[str]:
    settings = found.settings
    test = "stratified t-test over the datasets" if several else "paired t-test over queries"
    lines = [
        f"p: {test}, sep: below {settings['level']}; Holm: adjusted for all pairs shown;"
        f" bootstrap: {settings['resamples']} resamples of queries, seed {settings['seed']}"
    ]
    if "p_superior" in found.pairs:
        lines += [
            f"P, ranks, labels {level}: what the labels leave open, for these queries"
            f" ({settings['n_draws']} draws); with *, and labels+queries: the queries as a sample"
            " too",
            f"P(≤{settings['tie_zone']:g}): the means are that close, a zone of our choice"
            " (--tie-zone); close: share of queries on which a and b are within 0.02",
        ]
    if several:
        lines.append("pairs and ranks of every dataset: --json")
    return lines


def _p(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.1%}"


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"
