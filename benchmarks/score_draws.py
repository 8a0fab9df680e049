"""RCP-nDCG as draws: time and memory at NanoBEIR's size, beside a plain loop over draws.

    python benchmarks/score_draws.py [--draws 1000] [--queries 649] [--systems 14] [--loop 10]

`score` here is the whole call: reading the frames, ranking, draws, both intervals. Two loops run in
the same process, over a few draws, and are scaled to all: `score` once for each draw, and a plain
loop over systems and queries on lists that are ranked already (sort the gains, two dot products).
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import pandas as pd

from rcp_bayes.comparison import compare_scores
from rcp_bayes.draws import GainDraws
from rcp_bayes.evaluate import score
from rcp_bayes.fitfolder import Fit
from rcp_bayes.gain import gain
from rcp_bayes.items import load_items

POOL, RANKED, DATASETS = 150, 100, 13


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=649)
    parser.add_argument("--systems", type=int, default=14)
    parser.add_argument("--loop", type=int, default=10, help="draws that the plain loop scores")
    a = parser.parse_args()
    fit, runs = world(a.draws, a.queries, a.systems)
    print(
        f"{a.draws:,} draws x {len(fit.labels):,} documents ({fit.draws.gain.nbytes / 1e6:.0f} MB),"
        f" {a.systems} systems x {a.queries} queries, {len(runs):,} ranked rows"
    )
    before = peak()
    start = time.perf_counter()
    scores = score(fit, runs, metrics=["rcp_ndcg"])
    whole = time.perf_counter() - start
    print(f"score: {whole:.2f} s, peak memory {peak():.2f} GB (data alone {before:.2f} GB)")
    start = time.perf_counter()
    found = compare_scores(scores)
    print(
        f"compare: {time.perf_counter() - start:.2f} s for {len(found.pairs):,} pairs,"
        f" peak {peak():.2f} GB"
    )
    start = time.perf_counter()
    largest = 0.0
    for s in range(a.loop):
        labels = fit.labels.assign(gain=fit.draws.gain[s].astype(np.float64))
        alone = score(Fit(labels, fit.queries, fit.items, {}), runs, metrics=["rcp_ndcg"])
        matrix = scores.draws.score[s].ravel()
        largest = max(largest, float(np.abs(alone.per_query["score"] - matrix).max()))
    report("score per draw", time.perf_counter() - start, a, whole, largest)
    head = heads(fit, runs)
    discount = 1 / np.log2(np.arange(2, 12))
    start = time.perf_counter()
    largest = 0.0
    for s in range(a.loop):
        drawn = fit.draws.gain[s].astype(np.float64)
        for q in range(a.queries):
            best = np.sort(drawn[q * POOL : (q + 1) * POOL])[::-1][:10]
            ideal = best @ discount
            for m in range(a.systems):
                value = drawn[head[m, q]] @ discount / ideal
                largest = max(largest, abs(value - scores.draws.score[s, m, q]))
    report("plain loop", time.perf_counter() - start, a, whole, largest)


def report(name: str, seconds: float, a: argparse.Namespace, whole: float, largest: float) -> None:
    loop = seconds / a.loop * a.draws
    print(
        f"{name}: {loop / a.draws:.2f} s a draw ({a.loop} draws), {loop:.0f} s for all:"
        f" {loop / whole:.0f} times as long; largest difference {largest:.1e}"
    )


def heads(fit: Fit, runs: pd.DataFrame) -> np.ndarray:
    """Label rows of each system's top 10, (systems, queries, 10); the runs stand best first."""
    row = pd.Index(fit.labels["doc_id"]).get_indexer(runs["doc_id"])
    return row.reshape(-1, len(fit.queries), RANKED)[:, :, :10]


def world(n_draws: int, n_queries: int, n_systems: int) -> tuple[Fit, pd.DataFrame]:
    rng = np.random.default_rng(0)
    items = load_items("nanobeir-qwen3.5-397b")
    n = n_queries * POOL
    theta = rng.normal(-3, 2.5, n)
    drawn = np.empty((n_draws, n), dtype=np.float32)
    for s in range(n_draws):
        drawn[s] = gain(theta + rng.normal(0, 0.4, n), items.gamma, items.beta)
    query = np.repeat(np.arange(n_queries), POOL)
    ids = np.array([f"q{q}" for q in range(n_queries)])
    homes = np.array([f"d{q % DATASETS}" for q in range(n_queries)])
    documents = np.array([f"doc{d}" for d in range(n)])
    labels = pd.DataFrame(
        {
            "dataset": homes[query],
            "query_id": ids[query],
            "doc_id": documents,
            "pool_position": np.tile(np.arange(POOL), n_queries),
            "bt": theta,
            "theta": theta,
            "gain": drawn.mean(axis=0, dtype=np.float64),
            "pass_share": 0.5,
        }
    )
    parts = []
    for m in range(n_systems):
        noisy = theta + rng.normal(0, 1 + 0.1 * m, n)
        best = np.argsort(-noisy.reshape(n_queries, POOL), axis=1)[:, :RANKED]
        row = (best + np.arange(n_queries)[:, None] * POOL).ravel()
        parts.append(
            pd.DataFrame(
                {
                    "dataset": homes[query[row]],
                    "query_id": ids[query[row]],
                    "doc_id": documents[row],
                    "score": noisy[row],
                    "system": f"s{m:02d}",
                }
            )
        )
    queries = pd.DataFrame({"dataset": homes, "query_id": ids})
    return Fit(labels, queries, items, {}, GainDraws(drawn)), pd.concat(parts, ignore_index=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
