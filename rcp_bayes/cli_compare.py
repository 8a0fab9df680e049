"""The command that compares systems in pairs."""

from __future__ import annotations

import argparse

from rcp_bayes.cli_scoring import score_from_arguments
from rcp_bayes.terminal import present

# Spelled out: the modules that define them load NumPy, and `--help` answers at once.
METRICS = ("rcp_ndcg", "qrel_ndcg", "count_ndcg", "raw_bt_ndcg")


def run_compare(a: argparse.Namespace) -> None:
    from rcp_bayes.comparison import compare_scores
    from rcp_bayes.io import write_table
    from rcp_bayes.render_compare import comparison_text

    scores = score_from_arguments(a)
    if a.out:
        write_table(scores.per_query, a.out)
    found = compare_scores(
        scores,
        metric=a.metric or ("qrel_ndcg" if a.fit is None else "rcp_ndcg"),
        tie_zone=a.tie_zone,
        interval=a.interval,
    )
    present(found, lambda: comparison_text(found), as_json=a.json)


def add_compare(sub: argparse.ArgumentParser) -> None:
    """The options that `compare` has besides those of `score`."""
    sub.add_argument("--metric", choices=METRICS, help="default: rcp_ndcg, without a FIT qrel_ndcg")
    sub.add_argument(
        "--tie-zone",
        type=float,
        default=0.005,
        metavar="X",
        help="mean scores this close count as tied (default: %(default)s)",
    )
