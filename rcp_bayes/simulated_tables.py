"""A simulated world's tables: integer places in, pandas frames with the contract's columns out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rcp_bayes.simulated_windows import INVALID, PHASES, Calls

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Names:
    """Ids of queries and documents; documents of query j are ``offset[j]:offset[j + 1]``."""

    dataset: Any  # pandas string arrays, so that tables are made by take
    query_id: Any
    doc_id: Any
    offset: np.ndarray

    @classmethod
    def of(cls, sizes: Sequence[int], n_datasets: int) -> Names:
        import pandas as pd

        datasets = [f"sim-{d + 1}" for d in range(n_datasets)] if n_datasets > 1 else ["default"]
        query = [f"q{j + 1:04d}" for j in range(len(sizes))]
        document = [f"{query[j]}-d{i + 1:03d}" for j, n in enumerate(sizes) for i in range(n)]
        return cls(
            pd.array(datasets, dtype="str").take(np.arange(len(sizes)) % n_datasets),
            pd.array(query, dtype="str"),
            pd.array(document, dtype="str"),
            np.concatenate([[0], np.cumsum(sizes)]),
        )

    def frame(self, document: np.ndarray) -> pd.DataFrame:
        """``dataset, query_id, doc_id`` of documents by their place in the world."""
        import pandas as pd

        query = np.searchsorted(self.offset, document, side="right") - 1
        return pd.DataFrame(
            {
                "dataset": self.dataset.take(query),
                "query_id": self.query_id.take(query),
                "doc_id": self.doc_id.take(document),
            }
        )


def stage_frame(
    names: Names, stage: str, calls: Sequence[Calls], answers: list[str], with_invalid: bool
) -> pd.DataFrame:
    """A row per document shown; ``answers`` are the names of the answers' columns."""
    import pandas as pd

    size = np.concatenate([np.full(len(c.shown), c.shown.shape[1]) for c in calls])
    number = np.concatenate([np.arange(len(c.shown)) for c in calls])
    labels = pd.array([f"{stage}{i:04d}" for i in range(number.max() + 1)], dtype="str")
    document = np.concatenate(
        [(c.shown + start).ravel() for c, start in zip(calls, names.offset[:-1], strict=True)]
    )
    first = np.repeat(np.cumsum(size) - size, size)
    phase = np.repeat(np.concatenate([c.phase for c in calls]), size)
    invalid = np.repeat(np.concatenate([c.invalid for c in calls]), size)
    columns: dict[str, Any] = {
        "window_id": labels.take(np.repeat(number, size)),
        "phase": pd.array(list(PHASES), dtype="str").take(phase),
        "judge": "simulated",
        "position": np.arange(len(document)) - first,
        "doc_id": names.doc_id.take(document),
    }
    frame = names.frame(document)[["dataset", "query_id"]].assign(**columns)
    values = np.concatenate([c.answers.reshape(c.shown.size, -1) for c in calls])
    for c, name in enumerate(answers):
        column = pd.Series(values[:, c])
        if with_invalid:  # nulls: NaN scores, answers of a nullable integer type
            column = column if stage == "a" else column.astype("Int8")
            column = column.mask(invalid >= 0)
        frame[name] = column
    if with_invalid:
        category = pd.array([*INVALID, None], dtype="str")
        frame["invalid"] = category.take(np.where(invalid < 0, len(INVALID), invalid))
    return frame


def runs_frame(names: Names, scores: Sequence[np.ndarray], systems: list[str]) -> pd.DataFrame:
    """A row per query, system and document; ``scores`` are (systems, n) for each query."""
    import pandas as pd

    pools = [np.arange(*names.offset[j : j + 2]) for j in range(len(scores))]
    frame = names.frame(np.concatenate([np.tile(pool, len(systems)) for pool in pools]))
    frame["score"] = np.concatenate([score.ravel() for score in scores])
    system = np.concatenate([np.repeat(np.arange(len(systems)), len(pool)) for pool in pools])
    frame["system"] = pd.array(systems, dtype="str").take(system)
    return frame


def qrels_frame(names: Names, grades: Sequence[tuple[np.ndarray, np.ndarray]]) -> pd.DataFrame:
    starts = names.offset[:-1]
    graded = [documents + start for (documents, _), start in zip(grades, starts, strict=True)]
    grade = np.concatenate([grade for _, grade in grades])
    return names.frame(np.concatenate(graded)).assign(grade=grade)
