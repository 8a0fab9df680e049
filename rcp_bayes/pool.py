"""Candidate pools (Sections C.1, C.7): first-stage runs fused by reciprocal rank, then completed.

Also three plain rankers of a pool's texts, so that a pool can be scored without any model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rcp_bayes.align import join_datasets
from rcp_bayes.errors import InputError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from rcp_bayes.io import PoolFolder

QUERY = ["dataset", "query_id"]
KEY = [*QUERY, "doc_id"]


@dataclass(frozen=True)
class Pool:
    """Candidates in pool order, and how they came about.

    Attributes
    ----------
    candidates : DataFrame
        ``dataset, query_id, doc_id``, each query's documents in pool order.
    queries : DataFrame
        A row per query: ``dataset, query_id, size, fused`` (documents that any run has),
        ``replaced`` (lowest-ranked candidates that made room for missed positives), ``joined``
        (judged documents that were added), ``positives_left_out`` (where k is too small for all).
    n_without_run : int
        Judged queries that no run ranks; they have no pool.
    """

    candidates: pd.DataFrame
    queries: pd.DataFrame
    n_without_run: int = 0

    def report(self) -> str:
        """One line on sizes, replacements and additions."""
        table = self.queries
        low, high = int(table["size"].min()), int(table["size"].max())
        size = str(low) if low == high else f"{low} to {high}"
        parts = [f"{len(table)} queries, {len(self.candidates)} candidates, {size} a query"]
        for column, words in (
            ("replaced", "missed positives replace the lowest-ranked"),
            ("joined", "judged documents joined"),
            ("positives_left_out", "positives left out (more than k)"),
        ):
            if table[column].any():
                total, n = int(table[column].sum()), int((table[column] > 0).sum())
                parts.append(f"{total} {words} in {n} queries")
        if self.n_without_run:
            parts.append(f"{self.n_without_run} judged queries that no run ranks have no pool")
        return "; ".join(parts)


def fuse(runs: pd.DataFrame, *, kappa: float = 60.0) -> pd.DataFrame:
    """Reciprocal rank fusion: the sum over runs of 1 / (kappa + rank), with ranks from 1 (C.1).

    Equal scores within a run stand in file order; equal fused scores go to the document that the
    better single rank, then the first run names first.

    Parameters
    ----------
    runs : DataFrame
        ``dataset, query_id, doc_id, score, system`` of first-stage systems.

    Returns
    -------
    DataFrame
        ``dataset, query_id, doc_id, fused``, queries in order of appearance, best first.
    """
    table = runs[[*KEY, "score", "system"]].reset_index(drop=True)
    table = table.sort_values("score", ascending=False, kind="stable")
    table["rank"] = table.groupby(["system", *QUERY], sort=False).cumcount() + 1
    table["fused"] = 1.0 / (kappa + table["rank"])
    table["appearance"] = table.index
    # Best rank first, so that equal ranks sum to equal bits whichever run they come from.
    table = table.sort_values(["rank", "appearance"])
    fused = table.groupby(KEY, sort=False, as_index=False).agg(
        fused=("fused", "sum"), best=("rank", "min"), appearance=("appearance", "min")
    )
    fused["query"] = fused.groupby(QUERY)["appearance"].transform("min")
    order = ["query", "fused", "best", "appearance"]
    fused = fused.sort_values(order, ascending=[True, False, True, True], kind="stable")
    return fused[[*KEY, "fused"]].reset_index(drop=True)


def build_pool(
    runs: pd.DataFrame,
    *,
    k: int = 150,
    kappa: float = 60.0,
    qrels: pd.DataFrame | None = None,
    keep_positives: bool = False,
    join_judged: bool = False,
    excluded: pd.DataFrame | None = None,
) -> Pool:
    """The top k of a reciprocal rank fusion, completed by human judgments where wanted.

    Parameters
    ----------
    runs : DataFrame
        First-stage runs. Qrels and exclusions without datasets join theirs by query id.
    k : int
        Candidates of a query.
    kappa : float
        Constant of the fusion, 60 in the paper.
    qrels : DataFrame, optional
        ``dataset, query_id, doc_id, grade``.
    keep_positives : bool
        Positive documents that the fusion misses replace the lowest-ranked candidates that are not
        positive themselves, so that the size stays k. They stand at the end, in the qrels' order.
    join_judged : bool
        Every judged document joins the pool behind the fused ones (TREC-DL, C.7).
    excluded : DataFrame, optional
        ``dataset, query_id, doc_id`` that never enter.

    Raises
    ------
    UsageError
        Both ways of completing, either without qrels, or k below 1.
    InputError
        Qrels and runs share no query, the exclusions leave no candidate, or a query id without
        dataset stands in several datasets of the runs.
    """
    import pandas as pd

    if k < 1 or not kappa > -1:
        raise UsageError("--k is at least 1, --kappa above -1")
    if keep_positives and join_judged:
        raise UsageError("choose one of --keep-positives and --join-judged")
    if (keep_positives or join_judged) and qrels is None:
        raise UsageError("--keep-positives and --join-judged need --qrels")
    known = runs[QUERY].drop_duplicates()
    if excluded is not None:
        excluded = _with_datasets(excluded, known, "excluded")
    fused = _without(fuse(runs, kappa=kappa), excluded)
    if fused.empty:
        raise InputError("the exclusions leave no candidate", remedy="check --excluded")
    judged, n_without_run = {}, 0
    if qrels is not None:
        qrels = _with_datasets(qrels, known, "qrels")
        judged = _judged(qrels, known, excluded)
        named = qrels[QUERY].drop_duplicates()
        n_without_run = len(named) - len(named.merge(known, on=QUERY))
    candidates: list[tuple[str, str, str]] = []
    rows: list[dict[str, Any]] = []
    for name, group in fused.groupby(QUERY, sort=False):
        dataset, query = (str(part) for part in name)
        ranked = group["doc_id"].tolist()
        chosen, row = _complete(
            ranked, judged.get((dataset, query), {}), k, keep_positives, join_judged
        )
        candidates += [(dataset, query, document) for document in chosen]
        rows.append({"dataset": dataset, "query_id": query, "size": len(chosen), **row})
    return Pool(pd.DataFrame(candidates, columns=KEY), pd.DataFrame(rows), n_without_run)


def _complete(
    ranked: list[str], grades: Mapping[str, float], k: int, keep_positives: bool, join_judged: bool
) -> tuple[list[str], dict[str, int]]:
    """One query's candidates, and what was replaced, joined or left out."""
    chosen = ranked[:k]
    row = {"fused": len(ranked), "replaced": 0, "joined": 0, "positives_left_out": 0}
    if join_judged:
        missing = [document for document in grades if document not in set(chosen)]
        return chosen + missing, row | {"joined": len(missing)}
    if keep_positives:
        positive = {document for document, grade in grades.items() if grade > 0}
        missed = [d for d in grades if d in positive and d not in set(chosen)]
        free = k - len(chosen)  # a short pool has room
        replaceable = [document for document in chosen if document not in positive]
        taken = missed[: free + len(replaceable)]
        n_replaced = max(len(taken) - free, 0)
        dropped = set(replaceable[len(replaceable) - n_replaced :])
        row |= {"replaced": n_replaced, "joined": len(taken) - n_replaced}
        row["positives_left_out"] = len(missed) - len(taken)
        chosen = [document for document in chosen if document not in dropped] + taken
    return chosen, row


def _judged(
    qrels: pd.DataFrame, known: pd.DataFrame, excluded: pd.DataFrame | None
) -> dict[tuple[str, str], dict[str, float]]:
    """Grades of each query's judged documents, in file order."""
    shared = qrels.merge(known, on=QUERY, how="inner")
    if shared.empty:
        raise InputError(
            "qrels and runs share no query "
            f"(qrels have {qrels['query_id'].iloc[0]!r}, runs {known['query_id'].iloc[0]!r})",
            remedy="name the qrels of these runs",
        )
    grades: dict[tuple[str, str], dict[str, float]] = {}
    for row in _without(shared, excluded)[[*KEY, "grade"]].itertuples(index=False):
        grades.setdefault((row[0], row[1]), {})[row[2]] = row[3]
    return grades


def _with_datasets(table: pd.DataFrame, known: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table with the datasets of the runs, where it names none and they do."""
    if table.empty:
        return table
    own = list(table[QUERY].drop_duplicates().itertuples(index=False, name=None))
    reference = list(known.itertuples(index=False, name=None))
    homes = dict(zip(own, join_datasets(own, reference, name), strict=True))
    pairs = table[QUERY].itertuples(index=False, name=None)
    return table.assign(dataset=[homes[pair][0] for pair in pairs])


def _without(table: pd.DataFrame, excluded: pd.DataFrame | None) -> pd.DataFrame:
    if excluded is None:
        return table
    gone = excluded[KEY].drop_duplicates().assign(gone=True)
    kept = table.merge(gone, on=KEY, how="left")["gone"].isna()
    return table[kept.to_numpy()].reset_index(drop=True)


def plain_rankers(pool: PoolFolder) -> pd.DataFrame:
    """Runs of three plain rankers over a pool's texts: ``bm25``, ``overlap``, ``shortest``.

    ``bm25`` is Okapi BM25 (k1 = 1.2, b = 0.75) with document frequencies of the corpus; ``overlap``
    counts the distinct query words that a document has; ``shortest`` prefers short documents.
    """
    import pandas as pd

    from rcp_bayes.judge.embedded import terms

    texts = {
        name: f"{title} {text}"
        for name, title, text in zip(
            pool.corpus["doc_id"], pool.corpus["title"].fillna(""), pool.corpus["text"], strict=True
        )
    }
    words = {name: terms(text) for name, text in texts.items()}
    frequency: dict[str, int] = {}
    for document in words.values():
        for word in set(document):
            frequency[word] = frequency.get(word, 0) + 1
    mean_length = sum(map(len, words.values())) / max(len(words), 1)
    queries = {
        name: terms(text)
        for name, text in zip(pool.queries["query_id"], pool.queries["text"], strict=True)
    }
    candidates = pool.candidates[KEY]
    parts = []
    for system in ("bm25", "overlap", "shortest"):
        score = []
        for query_id, doc_id in zip(candidates["query_id"], candidates["doc_id"], strict=True):
            document = words[doc_id]
            asked = set(queries[query_id])
            if system == "shortest":
                score.append(-float(len(document)))
            elif system == "overlap":
                score.append(float(len(asked & set(document))))
            else:
                norm = 1.2 * (0.25 + 0.75 * len(document) / mean_length)
                score.append(
                    sum(
                        np.log(1 + (len(words) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                        * document.count(word)
                        * 2.2
                        / (document.count(word) + norm)
                        for word in sorted(asked & set(document))
                    )
                )
        parts.append(candidates.assign(score=np.array(score, dtype=float), system=system))
    return pd.concat(parts, ignore_index=True)
