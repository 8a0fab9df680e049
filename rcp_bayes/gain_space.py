"""The documents that a metric has gains for: which they are, by query, and what their gains are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from rcp_bayes.align import Query, Rows
from rcp_bayes.errors import InputError
from rcp_bayes.gain import GainShape, shaped_gain
from rcp_bayes.metrics import TopK

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from rcp_bayes.fitfolder import Fit

Metric = Literal["rcp_ndcg", "qrel_ndcg", "count_ndcg", "raw_bt_ndcg"]
_LARGEST_GAIN = 1e100
METRICS: tuple[Metric, ...] = get_args(Metric)


@dataclass(frozen=True)
class Removed:
    """Documents that leave ranking and ideal: listed ones, and those with their query's own id."""

    queries: list[Query]
    vocabulary: pa.Array
    listed: Rows | None
    identical: bool

    def of(self, rows: Rows) -> np.ndarray:
        out = np.zeros(len(rows.key), dtype=bool)
        if self.listed is not None:
            out |= np.isin(rows.key, self.listed.key[self.listed.query >= 0])
        if self.identical:
            place = {text: code for code, text in enumerate(self.vocabulary.to_pylist())}
            own = np.array([place.get(query, -1) for _, query in self.queries], dtype=np.int64)
            out |= (own[rows.query] == rows.document) & (rows.query >= 0)
        return out


@dataclass(frozen=True)
class GainSpace:
    """The documents that a metric has gains for, grouped by query.

    Attributes
    ----------
    row : int64 array (D,)
        Row of each document in its table.
    offset : int64 array (Q + 1,)
    index : pandas Index of key
    """

    row: np.ndarray
    offset: np.ndarray
    index: pd.Index

    @classmethod
    def of(cls, rows: Rows, n_queries: int, removed: Removed) -> GainSpace:
        import pandas as pd

        row = np.flatnonzero((rows.query >= 0) & ~removed.of(rows))
        row = row[np.argsort(rows.query[row], kind="stable")]
        counts = np.bincount(rows.query[row], minlength=n_queries)
        offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return cls(row, offset, pd.Index(rows.key[row]))

    def locate(self, key: np.ndarray) -> np.ndarray:
        """Position of each key among the documents, -1 where it is not one."""
        return self.index.get_indexer(key)  # type: ignore[arg-type]

    def on_items(self, top: TopK, key: np.ndarray) -> TopK:
        """The same weights on documents of this space in place of rows of the runs."""
        return replace(top, item=self.locate(key[top.item]))


def label_gains(
    fit: Fit, rows: Rows, n_queries: int, removed: Removed, shape: GainShape
) -> tuple[GainSpace, dict[Metric, np.ndarray], np.ndarray]:
    """The label metrics' gains, NaN where a document has none; and which queries (Q,) have any.

    A query without any gain is scored by none of the three, so that they compare on the same ones.
    """
    labels = fit.labels
    everything = GainSpace.of(rows, n_queries, replace(removed, listed=None, identical=False))
    space = GainSpace.of(rows, n_queries, removed)
    kept = everything.locate(space.index.to_numpy())

    def column(name: str) -> np.ndarray:
        return labels[name].to_numpy(dtype=np.float64, na_value=np.nan)[everything.row]

    def shaped(ability: np.ndarray) -> np.ndarray:
        return np.asarray(
            shaped_gain(
                ability, fit.items.gamma, fit.items.beta, shape=shape, offset=everything.offset
            )
        )

    gain = column("gain") if shape == "rcp" else shaped(column("theta"))
    query = np.repeat(np.arange(n_queries), np.diff(everything.offset))
    calibrated = np.bincount(query, weights=~np.isnan(gain), minlength=n_queries) > 0
    found: dict[Metric, np.ndarray] = {
        "rcp_ndcg": gain,
        "count_ndcg": np.where(calibrated[query], column("pass_share"), np.nan),
        "raw_bt_ndcg": np.where(calibrated[query], shaped(column("bt")), np.nan),
    }
    return space, {metric: values[kept] for metric, values in found.items()}, calibrated


def qrel_gains(
    grade: np.ndarray, rows: Rows, n_queries: int, removed: Removed, kind: str
) -> tuple[GainSpace, np.ndarray]:
    space = GainSpace.of(rows, n_queries, removed)
    gain = np.maximum(grade[space.row], 0.0)
    if kind == "exponential":
        with np.errstate(over="ignore"):
            gain = np.exp2(gain) - 1.0
    beyond = np.flatnonzero(gain > _LARGEST_GAIN)
    if len(beyond):  # their sums would leave the range of floats, and nDCG with them
        row = int(space.row[beyond].min())
        raise InputError(
            f"grade {grade[row]:g} has a gain above {_LARGEST_GAIN:g}",
            source="qrels",
            row=row + 1,
            column="grade",
            remedy="use smaller grades, or linear gains",
        )
    return space, gain


def row_of(rows: Rows, key: np.ndarray) -> np.ndarray:
    """The table's row that has each key, -1 where none has."""
    import pandas as pd

    known = np.flatnonzero(rows.query >= 0)
    at = pd.Index(rows.key[known]).get_indexer(key)
    return np.where(at >= 0, known[at], -1)
