"""The tables of the contract, one schema each, and the judgments that a fit starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rcp_bayes.columns import Column, Origin
from rcp_bayes.errors import InputError
from rcp_bayes.rubric import id_problem
from rcp_bayes.tables import (
    DEFAULT_DATASET,
    Part,
    Schema,
    require_overlap,
    table_digest,
    table_of,
    unite,
)

if TYPE_CHECKING:
    import pandas as pd

SCORE_LIMIT = 5.0  # Stage A scores are logits in [-5, 5] (Section 3.1)

_DATASET = Column("dataset", "id", required=False, default=DEFAULT_DATASET)
_QUERY = Column("query_id", "id", aliases=("query-id",))
_DOCUMENT = Column("doc_id", "id", aliases=("corpus-id",))
_SHOWN = (
    Column("phase", "word", required=False, nullable=True),
    Column("judge", "word", required=False, nullable=True),
    Column("position", "integer", required=False, nullable=True, low=0),
    Column("invalid", "word", required=False, nullable=True),
)
_WINDOW = (_DATASET, Column("query_id", "id"), Column("window_id", "id"), Column("doc_id", "id"))
# Two judges may answer the same window: each answer is a window of its own.
_WINDOW_KEY = ("dataset", "query_id", "window_id", "doc_id", "judge")

STAGE_A = Schema(
    "stage_a",
    (
        *_WINDOW,
        Column("score", "real", required=False, nullable=True, low=-SCORE_LIMIT, high=SCORE_LIMIT),
        Column("rank", "real", required=False, nullable=True, low=1),
        *_SHOWN,
    ),
    _WINDOW_KEY,
    one_of=("score", "rank"),
)
STAGE_B = Schema("stage_b", (*_WINDOW, *_SHOWN), _WINDOW_KEY)
QRELS = Schema(
    "qrels",
    (_DATASET, _QUERY, _DOCUMENT, Column("grade", "real", aliases=("score",))),
    ("dataset", "query_id", "doc_id"),
)
RUNS = Schema(
    "runs",
    (
        _DATASET,
        _QUERY,
        _DOCUMENT,
        Column("score", "real"),
        Column("system", "id", required=False, aliases=("model",)),
    ),
    ("dataset", "system", "query_id", "doc_id"),
    repeats="refuse",
    sparse=True,
)
CANDIDATES = Schema("candidates", (_DATASET, _QUERY, _DOCUMENT), ("dataset", "query_id", "doc_id"))
EXCLUDED = replace(CANDIDATES, name="excluded")
QUERIES = Schema(
    "queries",
    (
        _DATASET,
        Column("query_id", "id", aliases=("_id",)),
        Column("text", "text"),
        Column("instruction", "text", required=False, nullable=True),
    ),
    ("dataset", "query_id"),
)
CORPUS = Schema(
    "corpus",
    (
        _DATASET,
        Column("doc_id", "id", aliases=("_id",)),
        Column("title", "text", required=False, nullable=True),
        Column("text", "text"),
    ),
    ("dataset", "doc_id"),
)


_SHARES = ("gain", "pass_share")


def _reals(*names: str, required: bool = False) -> tuple[Column, ...]:
    return tuple(Column(name, "real", required=required, nullable=True) for name in names)


def _counts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "integer", low=0) for name in names)


def labels_schema(criteria: Sequence[str]) -> Schema:
    """Schema of ``labels.parquet`` for a fit of these criteria."""
    return Schema(
        "labels",
        (
            _DATASET,
            Column("query_id", "id"),
            Column("doc_id", "id"),
            *_counts("pool_position", "n_windows", "n_placements"),
            *_reals("bt", "theta", required=True),
            *(Column(name, "real", nullable=True, low=0, high=1) for name in _SHARES),
            *_counts(*(f"passes_{name}" for name in criteria)),
            *_reals("ability", "ability_sd", "theta_sd", "gain_sd", "gain_lo", "gain_hi"),
        ),
        ("dataset", "query_id", "doc_id"),
        repeats="refuse",
        sparse=True,
    )


FIT_QUERIES = Schema(
    "queries",
    (
        _DATASET,
        Column("query_id", "id"),
        *_reals("tau", "alpha", required=True),
        *_counts("n_documents", "n_invalid_a", "n_invalid_b"),
        *_reals("tau_sd", "tau_lo", "tau_hi", "alpha_sd", "alpha_lo", "alpha_hi"),
    ),
    ("dataset", "query_id"),
    repeats="refuse",
    sparse=True,
)


@dataclass(frozen=True)
class Source:
    """A file that was read: which table it belongs to, its rows and the SHA-256 of its content."""

    table: str
    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Judgments:
    """What a judge answered, checked; see the module docstring for the canonical form.

    Attributes
    ----------
    stage_a : pa.Table or None
        ``dataset, query_id, window_id, doc_id, score, rank, phase, judge, position, invalid``.
    stage_b : pa.Table or None
        ``dataset, query_id, window_id, doc_id, phase, judge, position, invalid`` and one int8
        column for each criterion.
    criteria : tuple of str
        Criteria of Stage B in file order, or as named by the caller; empty without Stage B.
    counts : dict
        ``{"stage_a": {"rows", "folded"}, "stage_b": {...}}``: rows read and folded.
    sources : tuple of Source
    source : str
        The folder they came from, for messages.
    """

    stage_a: pa.Table | None
    stage_b: pa.Table | None
    criteria: tuple[str, ...]
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    source: str = "judgments"

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of everything read, with the stage each belongs to."""
        whole = hashlib.sha256()
        for source in self.sources:
            whole.update(f"{source.table} {source.sha256}\n".encode())
        return whole.hexdigest()

    @classmethod
    def from_parts(
        cls,
        stage_a: Sequence[Part],
        stage_b: Sequence[Part],
        *,
        criteria: Sequence[str] | None = None,
        sources: Sequence[Source] = (),
        source: str = "judgments",
    ) -> Judgments:
        """Check raw tables, one or several a stage; an empty sequence is a stage without answers.

        Raises
        ------
        InputError
            See `unite`; also where the stages share no query or a criterion is not there.
        """
        if not stage_a and not stage_b:
            raise InputError(
                "neither stage_a.* nor stage_b.* is there",
                source=source,
                remedy="a judgments folder holds one or both as Parquet, CSV or JSONL",
            )
        counts: dict[str, dict[str, Any]] = {}
        a = b = None
        names: tuple[str, ...] = ()
        if stage_a:
            a, folded = unite(stage_a, STAGE_A)
            counts["stage_a"] = {"rows": a.num_rows + folded, "folded": folded}
        if stage_b:
            names = _criteria(stage_b, criteria)
            extra = tuple(Column(c, "bit", nullable=True) for c in names)
            b, folded = unite(stage_b, replace(STAGE_B, columns=STAGE_B.columns + extra))
            counts["stage_b"] = {"rows": b.num_rows + folded, "folded": folded}
        if a is not None and b is not None:
            require_overlap(a, b, "stage_a", "stage_b", source=source)
        return cls(a, b, names, counts, tuple(sources), source)

    @classmethod
    def from_frames(
        cls,
        stage_a: pd.DataFrame | pa.Table | None,
        stage_b: pd.DataFrame | pa.Table | None,
        criteria: Sequence[str] | None = None,
    ) -> Judgments:
        """Judgments held in memory, with the columns of the files.

        Raises
        ------
        InputError
            As for files; ``stage_a`` or ``stage_b`` is named as the source.
        """
        parts: dict[str, list[Part]] = {"stage_a": [], "stage_b": []}
        sources = []
        for schema, frame in ((STAGE_A, stage_a), (STAGE_B, stage_b)):
            if frame is not None:
                name, origin = schema.name, Origin(schema.name)
                table = table_of(frame, origin, schema)
                parts[name].append((table, origin))
                sources.append(Source(name, name, table.num_rows, table_digest(table)))
        return cls.from_parts(
            parts["stage_a"], parts["stage_b"], criteria=criteria, sources=sources
        )


def _criteria(parts: Sequence[Part], named: Sequence[str] | None) -> tuple[str, ...]:
    """Criteria of Stage B: those named, else every column that the schema does not know.

    Columns without a name and pandas' stored index are no criteria.
    """
    found: tuple[str, ...] | None = None
    for table, origin in parts:
        if not table.num_rows:
            continue
        there = tuple(
            c
            for c in origin.columns or table.column_names
            if c and not STAGE_B.reads(c) and not c.startswith("__index_level_")
        )
        if named is not None:
            unknown = [c for c in named if c not in there]
            if unknown:
                raise origin.error(
                    f"criterion {unknown[0]!r} is not there", remedy=f"there are {', '.join(there)}"
                )
            if len(set(named)) < len(named):
                raise InputError("a criterion is named twice", remedy="name each once")
        elif found is not None and set(found) != set(there):
            odd = sorted(set(found) ^ set(there))
            raise origin.error(
                f"the parts of stage_b hold different criteria ({', '.join(odd)})",
                remedy="name those to be read (--criteria)",
            )
        if found is None:
            found = tuple(named) if named is not None else there
    for name in found or ():
        if problem := id_problem(name):
            raise parts[0][1].error(
                problem,
                column=repr(name),
                remedy="rename the column, or name the criteria to be read (--criteria)",
            )
    if found == ():
        raise parts[0][1].error("no criterion column", remedy="one 0/1 column for each criterion")
    return found or ()
