"""From the store to the tables that `fit` reads, and stored answers read again.

An exported table holds, for each judge, the answers of one configuration only: the one just used,
else the one used last. Answers made under another prompt, rubric, sampling setting or schedule stay
in the store, are counted in `Exported.set_aside` and never pool with them, unless `pool_digests`
asks for it.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rcp_bayes import __version__
from rcp_bayes.judge.decode import DECODER_VERSION
from rcp_bayes.judge.reading import read_answer
from rcp_bayes.judge.store import Store, storage_errors
from rcp_bayes.judge.stored import decode_answer, settles
from rcp_bayes.schedule import Answer, PlannedWindow, Stage
from rcp_bayes.writers import atomic_file

TABLES: dict[Stage, str] = {"a": "stage_a.parquet", "b": "stage_b.parquet"}
_CHUNK = 5000  # windows turned into rows at once

_IDENTITY = [("dataset", pa.string()), ("query_id", pa.string()), ("window_id", pa.string()),
             ("doc_id", pa.string())]  # fmt: skip
_SHOWN = [("phase", pa.string()), ("judge", pa.string()), ("position", pa.int32()),
          ("invalid", pa.string())]  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    tables : tuple of Path
    windows : dict
        Windows in the tables, by stage.
    invalid : dict
        Of these, the invalid ones: stage -> phase -> category -> number.
    unanswered : int
        Planned windows that have no answer and are in no table.
    set_aside : tuple of str
        A line on each configuration whose answers were left out.
    """

    tables: tuple[Path, ...]
    windows: dict[str, int]
    invalid: dict[str, dict[str, dict[str, int]]]
    unanswered: int
    set_aside: tuple[str, ...]


@dataclass(frozen=True)
class Reparsed:
    """What a newer decoder made of the stored answers.

    Attributes
    ----------
    windows : int
        Windows with an answer.
    changed : int
        Of these, read otherwise than before.
    gained, lost : int
        Of these, valid now and not before; before and not now.
    exported : Exported
    """

    windows: int
    changed: int
    gained: int
    lost: int
    exported: Exported


def export(
    store: Store,
    out: str | os.PathLike[str],
    *,
    current: Sequence[int] = (),
    pool_digests: bool = False,
) -> Exported:
    """Write ``stage_a.parquet`` and ``stage_b.parquet``, each whole or not at all.

    Rows stand in pool order, then in the order planned, so that the same answers give the same
    table however often the run was interrupted or split. A stage without answers is not written.

    Parameters
    ----------
    store : Store
    out : path
    current : sequence of int
        Configurations that were just used; they are exported even where empty of answers.
    pool_digests : bool
        Put all configurations of a judge in one table, under its one name.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    with storage_errors(store.path):
        chosen, aside = _choose(store, current, pool_digests)
        tables: list[Path] = []
        windows: dict[str, int] = {}
        invalid: dict[str, dict[str, dict[str, int]]] = {}
        for stage, name in TABLES.items():
            rows = _settled(store, chosen.get(stage, []))
            first = next(rows, None)
            if first is None:
                continue
            criteria = _criteria(store, chosen[stage][0]) if stage == "b" else None
            schema = _schema(criteria)
            count: Counter[tuple[str, str | None]] = Counter()
            path = Path(out) / name
            with (
                atomic_file(path) as file,
                pq.ParquetWriter(file, schema, compression="zstd") as to,
            ):
                for chunk in itertools.batched(itertools.chain([first], rows), _CHUNK):
                    to.write_table(_table(chunk, criteria, schema))
                    count.update((row.phase, row.invalid) for row in chunk)
            tables.append(path)
            windows[stage] = count.total()
            invalid[stage] = {}
            for (phase, category), n in count.items():
                if category is not None:
                    invalid[stage].setdefault(phase, {})[category] = n
        open_ = store.unanswered([row for rows in chosen.values() for row in rows])
    return Exported(tuple(tables), windows, invalid, open_, aside)


def reparse(folder: str | os.PathLike[str], *, pool_digests: bool = False) -> Reparsed:
    """Read all stored answers with the present decoder, without a call, and export again.

    The first readable attempt of a window is its answer. A window that is unreadable now after
    fewer than three attempts counts as invalid, and the next `judge_pool` asks it again. Windows
    that were planned from earlier readings stay as they were asked.

    Raises
    ------
    InputError
        The folder has no store, or another process writes to it.
    """
    windows = gained = lost = 0
    settled: list[tuple[int, Answer, str | None]] = []
    readings: list[tuple[str | None, int]] = []
    with Store.write(folder, create=False) as store, storage_errors(store.path):
        criteria = {row: _ids(store, rubric) for row, rubric in store.rows(
            "SELECT id, rubric FROM configurations")}  # fmt: skip
        for stored in _with_attempts(store):
            answer, reason = Answer(stored.window), None
            for attempt in stored.attempts:
                answer, reason = read_answer(
                    stored.window, *attempt.texts, criteria[stored.configuration]
                )
                if reason != attempt.category:
                    readings.append((reason, attempt.row))
                if settles(answer, reason, attempt.number):
                    break
            before = stored.answer
            windows += before is not None
            if before is None and not settles(answer, reason, len(stored.attempts)):
                continue  # interrupted between two attempts: still open
            if before is None or before != answer or reason != stored.category:
                settled.append((stored.row, answer, reason))
                was_valid = before is not None and before.valid
                gained += answer.valid and not was_valid
                lost += was_valid and not answer.valid
        with store.transaction():
            session = store.begin_session(__version__, [])
            for row, answer, reason in settled:
                store.settle(row, answer, reason)
            store.note_readings(readings)
            notes = {"reparsed": len(settled), "decoder": DECODER_VERSION}
            store.note_session(session, notes, ended=True)
        exported = export(store, folder, pool_digests=pool_digests)
    return Reparsed(windows, len(settled), gained, lost, exported)


# -------------------------------------------------------------------------- choosing what to export


def _choose(
    store: Store, current: Sequence[int], pool_digests: bool
) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """Configurations to export, by stage, and a line on each that is left out."""
    used: dict[int, int] = {}
    for session, configurations in store.rows(
        "SELECT row_number() OVER (ORDER BY started, id), configurations FROM sessions ORDER BY 1"
    ):
        used.update(dict.fromkeys(json.loads(configurations), session))
    found: dict[tuple[str, str], list[tuple[int, str, str | None, int]]] = {}
    for row, stage, judge, digest, rubric, answers in store.rows(
        "SELECT id, stage, judge, digest, rubric, (SELECT count(*) FROM windows"
        " WHERE configuration = configurations.id AND outcome IS NOT NULL)"
        " FROM configurations ORDER BY id"
    ):
        found.setdefault((stage, judge), []).append((row, digest, rubric, answers))
    picked: dict[str, list[int]] = {}
    aside: list[str] = []
    newest_b = max(
        (row for (stage, _), rows in found.items() if stage == "b" for row, *_ in rows),
        key=lambda row: (row in current, used.get(row, 0)),
        default=None,
    )
    rubrics = {row: rubric for rows in found.values() for row, _, rubric, _ in rows}
    columns = _ids(store, rubrics[newest_b]) if newest_b is not None else ()
    for (stage, judge), rows in found.items():
        last = max(rows, key=lambda entry: (entry[0] in current, used.get(entry[0], 0), entry[0]))
        for row, digest, rubric, answers in rows:
            same_columns = stage == "a" or _ids(store, rubric) == columns
            if same_columns and (pool_digests or row == last[0]):
                picked.setdefault(stage, []).append(row)
            elif answers:
                why = "other settings" if same_columns else "other criteria"
                aside.append(
                    f"stage {stage}: {answers} windows that {judge!r} answered under {why}"
                    f" (configuration {digest[:8]}) stay in the store and are not exported"
                )
    return picked, tuple(aside)


def _criteria(store: Store, configuration: int) -> tuple[str, ...]:
    query = "SELECT rubric FROM configurations WHERE id = ?"
    return _ids(store, next(store.rows(query, (configuration,)))[0])


def _ids(store: Store, rubric: str | None) -> tuple[str, ...]:
    """Criterion ids of a stored rubric."""
    return () if rubric is None else tuple(row[0] for row in json.loads(store.text(rubric)))


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True)
class _Attempt:
    row: int
    number: int
    texts: tuple[str | None, str | None, str | None]  # content, reasoning, finish reason
    category: str | None


@dataclass(frozen=True, slots=True)
class _Stored:
    row: int
    configuration: int
    window: PlannedWindow
    answer: Answer | None
    category: str | None
    attempts: tuple[_Attempt, ...]


def _with_attempts(store: Store) -> Iterator[_Stored]:
    """Windows that were answered at least once, with their attempts in order."""
    rows = store.rows(
        "SELECT w.id, w.configuration, c.stage, w.phase, w.batch, w.place, w.mirrored, w.documents,"
        " w.outcome, w.answer, w.category,"
        " a.id, a.number, a.content, a.reasoning, a.finish_reason, a.category"
        " FROM windows w JOIN configurations c ON c.id = w.configuration"
        " JOIN attempts a ON a.window = w.id ORDER BY w.id, a.number"
    )
    for row, group in itertools.groupby(rows, key=lambda entry: entry[0]):
        entries = list(group)
        _, configuration, stage, phase, batch, place, mirrored, names = entries[0][:8]
        outcome, answer, category = entries[0][8:11]
        window = PlannedWindow(stage, phase, batch, place, tuple(json.loads(names)), bool(mirrored))
        attempts = tuple(_Attempt(e[11], e[12], (e[13], e[14], e[15]), e[16]) for e in entries)
        before = None if outcome is None else decode_answer(window, answer)
        yield _Stored(row, configuration, window, before, category, attempts)


@dataclass(frozen=True, slots=True)
class _Row:
    """One settled window, as it goes into a table."""

    dataset: str
    query_id: str
    window_id: str
    phase: str
    judge: str
    documents: list[str]
    values: dict[str, list[Any]]  # scores, ranks or passes
    invalid: str | None


def _settled(store: Store, ids: Sequence[int]) -> Iterator[_Row]:
    marks = ",".join("?" * len(ids))
    rows = store.rows(
        "SELECT q.dataset, q.query_id, w.key, w.phase, w.batch, w.place, w.mirrored, c.judge,"
        " w.documents, w.answer, w.category FROM windows w"
        " JOIN queries q ON q.id = w.query JOIN configurations c ON c.id = w.configuration"
        f" WHERE w.outcome IS NOT NULL AND w.configuration IN ({marks})"
        " ORDER BY q.place, q.dataset, q.query_id, c.judge, c.digest, w.place",
        ids,
    )
    for dataset, query, key, phase, batch, place, mirrored, judge, names, answer, category in rows:
        # The key's head keeps two judges' windows, and two configurations', apart.
        name = f"{phase}-{batch}-{place:03d}{'r' if mirrored else ''}-{key[:8]}"
        values = {} if answer is None else json.loads(answer)
        yield _Row(dataset, query, name, phase, judge, json.loads(names), values, category)


def _schema(criteria: Sequence[str] | None) -> pa.Schema:
    if criteria is None:
        values = [("score", pa.float64()), ("rank", pa.float64())]
    else:
        values = [(name, pa.int8()) for name in criteria]
    return pa.schema([*_IDENTITY, *values, *_SHOWN])


def _table(rows: Sequence[_Row], criteria: Sequence[str] | None, schema: pa.Schema) -> pa.Table:
    """A row for each document shown."""
    columns: list[list[Any]] = [[] for _ in schema.names]
    for row in rows:
        n = len(row.documents)
        missing = [None] * n
        values: list[Sequence[Any]]
        if criteria is None:
            values = [row.values.get("scores", missing), row.values.get("ranks", missing)]
        elif "passes" in row.values:
            values = list(zip(*row.values["passes"], strict=True))
        else:
            values = [missing] * len(criteria)
        parts = [
            [row.dataset] * n, [row.query_id] * n, [row.window_id] * n, row.documents, *values,
            [row.phase] * n, [row.judge] * n, range(n), [row.invalid] * n,
        ]  # fmt: skip
        for column, part in zip(columns, parts, strict=True):
            column.extend(part)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
