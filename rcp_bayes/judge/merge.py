"""Joining judgments folders: the shards of a pool, or copies that went on apart.

Plans and answers are copied as they are, attempts and all, so that a joined folder can be exported,
read again and continued like any other. Nothing is chosen: where two folders answered the same
window otherwise, or planned a query otherwise, the join is refused as a whole.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rcp_bayes.errors import InputError, UsageError
from rcp_bayes.judge.export import Exported, export
from rcp_bayes.judge.store import STORE_NAME, Store, storage_errors

_ATTEMPT = (
    "number, session, asked, latency, model, form, finish_reason, prompt_tokens,"
    " completion_tokens, content, reasoning, category, detail"
)
_WINDOW = "key, phase, batch, place, mirrored, documents, outcome, category, answer"
_N_WINDOW = len(_WINDOW.split(","))

Row = tuple[Any, ...]


def merge(folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Exported:
    """Join judgments folders into `out`, and export its tables.

    `out` may hold judgments already, also those of an earlier join of the same folders: what is
    there is not copied again. A window that is open in one folder and answered in another is
    answered. Every folder is read as it was at one moment, even if its shard is still being judged.

    Raises
    ------
    InputError
        A folder has no store; or two folders hold different answers to one window, different plans
        or texts of one query. Nothing is joined then.
    JudgeError
        `out` cannot be written.
    """
    if not folders:
        raise UsageError("name at least one judgments folder to merge")
    missing = [folder for folder in folders if not (Path(folder) / STORE_NAME).is_file()]
    if missing:  # before `out` is made
        Store.read(missing[0])
    with Store.write(out) as target, storage_errors(target.path):
        with target.transaction():
            for folder in folders:
                if Path(folder).resolve() != Path(out).resolve():
                    with Store.read(folder) as source, source.snapshot():
                        _Join(source, target, folder).run()
        return export(target, out)


class _Join:
    def __init__(self, source: Store, target: Store, folder: str | os.PathLike[str]) -> None:
        self.source, self.target, self.folder = source, target, folder

    def run(self) -> None:
        for row in self.source.rows("SELECT digest, body FROM texts"):
            self._write("INSERT OR IGNORE INTO texts VALUES (?,?)", row)
        self.configurations = self._configurations()
        self.queries = self._queries()
        self.sessions = self._sessions()
        for configuration, *cut in self.source.rows("SELECT * FROM cuts"):
            mine = self.configurations[configuration]
            self._write("INSERT OR REPLACE INTO cuts VALUES (?,?,?,?,?)", (mine, *cut))
        for window, attempts in self._windows():
            self._join_window(window, attempts)

    def _configurations(self) -> dict[int, int]:
        names = "digest, stage, judge, prompt, rubric, settings, schedule"
        found = {}
        for row, *values in self.source.rows(f"SELECT id, {names} FROM configurations"):
            self._write(
                f"INSERT OR IGNORE INTO configurations ({names}) VALUES (?,?,?,?,?,?,?)", values
            )
            statement = "SELECT id FROM configurations WHERE digest = ?"
            found[row] = self._one(statement, values[:1])[0]
        return found

    def _queries(self) -> dict[int, int]:
        statement = "SELECT id, dataset, query_id, place, documents, digest FROM queries"
        found = {}
        for row, dataset, query_id, place, documents, digest in self.source.rows(statement):
            try:
                found[row] = self.target.add_query(
                    dataset, query_id, place, json.loads(documents), digest
                )
            except InputError:
                raise InputError(
                    f"query {query_id!r} has other candidates or texts than in the folders before",
                    source=self.folder,
                    remedy="merge folders that were judged on one pool",
                ) from None
        return found

    def _sessions(self) -> dict[int, int]:
        found = {}
        for row, started, ended, version, used, notes in self.source.rows(
            "SELECT id, started, ended, version, configurations, notes FROM sessions"
        ):
            mine = [self.configurations[c] for c in json.loads(used)]
            same = self._one(
                "SELECT id FROM sessions WHERE started = ? AND version = ?", (started, version)
            )
            if same is None:
                self._write(
                    "INSERT INTO sessions (started, ended, version, configurations, notes)"
                    " VALUES (?,?,?,?,?)",
                    (started, ended, version, json.dumps(mine), notes),
                )
                same = self._one("SELECT last_insert_rowid()")
            found[row] = same[0]
        return found

    def _windows(self) -> Iterator[tuple[Row, list[Row]]]:
        """Each window of the source (configuration, query, values) with its attempts in order."""
        window = ", ".join(f"w.{name.strip()}" for name in _WINDOW.split(","))
        attempt = ", ".join(f"a.{name.strip()}" for name in _ATTEMPT.split(","))
        rows = self.source.rows(
            f"SELECT w.configuration, w.query, {window}, {attempt}"
            " FROM windows w LEFT JOIN attempts a ON a.window = w.id ORDER BY w.id, a.number"
        )
        head = 2 + _N_WINDOW
        for values, group in itertools.groupby(rows, key=lambda row: row[:head]):
            attempts = [row[head:] for row in group if row[head] is not None]
            yield values, attempts

    def _join_window(self, window: Row, attempts: list[Row]) -> None:
        configuration, query = self.configurations[window[0]], self.queries[window[1]]
        key, phase, _, place, *_ = window[2:]
        there = self._one(
            "SELECT id, key FROM windows WHERE configuration = ? AND query = ? AND place = ?",
            (configuration, query, place),
        )
        if there is None:
            self._write(
                f"INSERT INTO windows (configuration, query, {_WINDOW})"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (configuration, query, *window[2:]),
            )
            self._add(self._one("SELECT last_insert_rowid()")[0], attempts)
            return
        row, known = there
        before = list(
            self.target.rows(
                f"SELECT {_ATTEMPT} FROM attempts WHERE window = ? ORDER BY number", (row,)
            )
        )
        common = min(len(before), len(attempts))
        if key != known or [_answer(a) for a in before[:common]] != [
            _answer(a) for a in attempts[:common]
        ]:
            what = "planned" if key != known else "answered"
            query_id = self._one("SELECT query_id FROM queries WHERE id = ?", (query,))[0]
            raise InputError(
                f"window {place} ({phase}) of query {query_id!r} was {what} otherwise in the"
                " folders before",
                source=self.folder,
                remedy="merge shards of one pool, each judged once (--shard i/n)",
            )
        if len(attempts) > len(before):
            outcome, category, answer = window[-3:]
            self._add(row, attempts[common:])
            self._write(
                "UPDATE windows SET outcome = ?, category = ?, answer = ? WHERE id = ?",
                (outcome, category, answer, row),
            )

    def _add(self, window: int, attempts: list[Row]) -> None:
        for number, session, *values in attempts:
            self._write(
                f"INSERT INTO attempts (window, {_ATTEMPT}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (window, number, self.sessions[session], *values),
            )

    def _write(self, statement: str, values: Sequence[Any]) -> None:
        for _ in self.target.rows(statement, values):
            pass

    def _one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return next(self.target.rows(statement, values), None)


def _answer(attempt: Row) -> Row:
    """What makes an attempt the same one: all but the session's number and how it was read."""
    number, _, *values = attempt
    return (number, *values[:-2], values[-1])
