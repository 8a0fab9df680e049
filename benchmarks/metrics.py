"""Speed of the scores: against ir_measures (pytrec_eval) on the same runs, and over draws.

    python benchmarks/metrics.py            # both sizes and the draws, under a minute
    python benchmarks/metrics.py --draws 0

Times are the best of three, reading not counted; the ratio is theirs over ours. The values
of both are compared, so that the ratio is between equal answers.
"""

from __future__ import annotations

import argparse
import resource

import ir_measures
import numpy as np
import pandas as pd
from timing import timed

from rcp_bayes.evaluate import score
from rcp_bayes.metrics import TopK, ndcg_of_lists, rank_lists, top_k

K = 10


def world(n_systems: int, n_queries: int, n_documents: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs without ties (pytrec_eval and `trec` break them alike, but ir_measures may not)."""
    rng = np.random.default_rng(0)
    system = np.repeat(np.arange(n_systems), n_queries * n_documents)
    query = np.tile(np.repeat(np.arange(n_queries), n_documents), n_systems)
    document = np.tile(np.arange(n_queries * n_documents), n_systems)
    runs = pd.DataFrame(
        {
            "query_id": pd.Series(query).map("q{}".format),
            "doc_id": pd.Series(document).map("d{}".format),
            "score": rng.permutation(len(query)) / 2**10,
            "system": pd.Series(system).map("s{}".format),
        }
    )
    qrels = runs.loc[system == 0, ["query_id", "doc_id"]].copy()
    qrels["grade"] = rng.choice([0.0, 1.0, 2.0, 3.0], len(qrels), p=[0.85, 0.08, 0.05, 0.02])
    return runs, qrels


def theirs(runs: pd.DataFrame, qrels: pd.DataFrame) -> dict[tuple[str, str], float]:
    judged = qrels.assign(relevance=qrels["grade"].astype(int))
    evaluator = ir_measures.pytrec_eval.evaluator([ir_measures.nDCG @ K], judged)
    return {
        (system, entry.query_id): entry.value
        for system, part in runs.groupby("system", sort=False)
        for entry in evaluator.iter_calc(part[["query_id", "doc_id", "score"]])
    }


def against_ir_measures(n_systems: int, n_queries: int, n_documents: int) -> None:
    runs, qrels = world(n_systems, n_queries, n_documents)
    ours, scores = timed(lambda: score(None, runs, qrels, k=K, protocol="trec"))
    other, values = timed(lambda: theirs(runs, qrels), repeats=1)
    table = scores.per_query
    keys = zip(table["system"], table["query_id"], strict=True)
    gap = max(abs(values[key] - value) for key, value in zip(keys, table["score"], strict=True))
    print(
        f"{n_systems} systems x {n_queries} queries x {n_documents} documents:"
        f" ours {ours:.3f} s, ir_measures {other:.3f} s, ratio {other / ours:.1f},"
        f" largest difference {gap:.1e}"
    )


def over_draws(
    n_draws: int, n_systems: int = 14, n_queries: int = 649, n_documents: int = 150
) -> None:
    rng = np.random.default_rng(1)
    size = n_queries * n_documents
    gains = rng.random((n_draws, size))
    offset = np.arange(n_queries + 1) * n_documents
    lists = np.repeat(np.arange(n_systems * n_queries), n_documents)
    document = np.tile(np.arange(size), n_systems)
    scores = rng.normal(size=n_systems * size)

    def work() -> np.ndarray:
        top = top_k(rank_lists(lists, scores, n_systems * n_queries), K)
        top = TopK(top.offset, document[top.item], top.weight, top.share)
        query = np.tile(np.arange(n_queries), n_systems)
        return ndcg_of_lists(gains, top, query, offset, K)

    seconds, _ = timed(work, repeats=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{n_draws} draws x {size} documents x {n_systems} systems: {seconds:.2f} s,"
        f" peak memory {peak:.2f} GiB (the draws themselves {gains.nbytes / 2**30:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    arguments = parser.parse_args()
    against_ir_measures(63, 27, 200)
    against_ir_measures(14, 649, 150)
    if arguments.draws:
        over_draws(arguments.draws)


if __name__ == "__main__":
    main()
