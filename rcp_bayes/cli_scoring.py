"""The scoring options that several commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rcp_bayes.errors import UsageError

if TYPE_CHECKING:
    from rcp_bayes.scores import Scores

PROTOCOLS = ("plain", "trec", "nanobeir", "bright", "vidore", "trecdl")


def score_from_arguments(a: argparse.Namespace) -> Scores:
    """The scores that the shared scoring options describe."""
    from rcp_bayes.evaluate import score
    from rcp_bayes.fitfolder import read_fit
    from rcp_bayes.io import (
        read_excluded,
        read_pool_excluded,
        read_pool_order,
        read_qrels,
        read_runs,
    )

    if a.fit is None and a.qrels is None:
        raise UsageError("score needs a FIT folder, or --qrels FILE to score without a fit")
    excluded = None
    if a.excluded is not None:
        excluded = read_excluded(a.excluded)
    elif a.pool is not None:
        excluded = read_pool_excluded(a.pool)
    return score(
        None if a.fit is None else read_fit(a.fit),
        read_runs(a.runs),
        None if a.qrels is None else read_qrels(a.qrels),
        k=a.k,
        protocol=a.protocol,
        pool_order=None if a.pool is None else read_pool_order(a.pool),
        excluded=excluded,
        drop_identical_ids=a.drop_identical_ids,
        unjudged=a.unjudged,
        qrel_gain=a.qrel_gain,
        gain_shape=a.gain_shape,
        interval=a.interval,
    )


def add_scoring(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("fit", nargs="?", metavar="FIT", help="folder made by `fit`")
    sub.add_argument(
        "--runs", nargs="+", required=True, metavar="FILE", help="TREC, Parquet, CSV or JSONL"
    )
    sub.add_argument("--qrels", metavar="FILE", help="human grades, for qrel-nDCG")
    sub.add_argument("--k", type=positive, default=10, help="cutoff (default: %(default)s)")
    sub.add_argument("--protocol", choices=PROTOCOLS, default="plain", help="default: %(default)s")
    sub.add_argument("--pool", metavar="POOL", help="pool folder: order and exclusions")
    sub.add_argument("--excluded", metavar="FILE", help="documents that leave ranking and ideal")
    sub.add_argument("--drop-identical-ids", action="store_true", help="drop doc id == query id")
    sub.add_argument(
        "--unjudged",
        choices=["zero", "condense"],
        default="zero",
        help="documents without a label count 0, or leave the list (default: %(default)s)",
    )
    sub.add_argument("--qrel-gain", choices=["linear", "exponential"], default="linear")
    sub.add_argument(
        "--gain-shape", default="rcp", help="gain of Eq. 4, or an alternative of E.5: see README"
    )
    sub.add_argument("--interval", type=float, default=0.95, metavar="X", help="level (0.95)")
    sub.add_argument("--out", metavar="FILE.parquet", help="per-query scores")
    sub.add_argument("--json", action="store_true", help="one JSON document on stdout")


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return int(text)
