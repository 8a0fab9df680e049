"""The store of a judgments folder: every window planned and every answer paid for, in SQLite.

One file, ``judge.sqlite``, in WAL mode with full synchronisation: what `Store.transaction` has
committed survives a killed process and a lost machine. Tables:

- ``texts``: prompts and rubrics by SHA-256, so that stored answers can be read again without them.
- ``configurations``: what makes answers comparable, one row per stage, judge, prompt, rubric,
  sampling settings and schedule. Never a key, never a URL.
- ``queries``: each query's place in the pool, its candidates and a digest of all texts shown.
- ``windows``: each planned call. ``key`` is the digest of its configuration, query, documents in
  order, phase and place; ``outcome`` is null until the window is settled.
- ``attempts``: each answer with raw text, finish reason, tokens, latency and model.
- ``sessions``: each run, with what was learned of the server. ``cuts``: documents shortened.

A batch of windows is planned in one transaction and the stored plan is what a later run follows,
so a restart asks exactly the windows that are still open, even where a newer decoder or another
machine's arithmetic would have planned others.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rcp_bayes.errors import InputError, JudgeError
from rcp_bayes.judge.lock import FolderLock
from rcp_bayes.judge.stored import (
    MAX_ATTEMPTS,
    REFUSED,
    Attempt,
    Configuration,
    StoredWindow,
    decode_answer,
    encode_answer,
    text_digest,
    window_key,
)
from rcp_bayes.schedule import Answer, PlannedWindow, Stage

STORE_NAME = "judge.sqlite"
RESERVE_NAME = ".judge.reserve"
RESERVE_BYTES = 4 << 20  # about 500 long answers: what can be in flight when the disk fills
VERSION = 1

_SCHEMA = """
CREATE TABLE texts (digest TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE configurations (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, stage TEXT NOT NULL, judge TEXT NOT NULL,
    prompt TEXT NOT NULL, rubric TEXT, settings TEXT NOT NULL, schedule TEXT NOT NULL
);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, started REAL NOT NULL, ended REAL, version TEXT NOT NULL,
    configurations TEXT NOT NULL, notes TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE queries (
    id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, query_id TEXT NOT NULL, place INTEGER NOT NULL,
    documents TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (dataset, query_id)
);
CREATE TABLE windows (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
    configuration INTEGER NOT NULL REFERENCES configurations,
    query INTEGER NOT NULL REFERENCES queries,
    phase TEXT NOT NULL, batch INTEGER NOT NULL, place INTEGER NOT NULL, mirrored INTEGER NOT NULL,
    documents TEXT NOT NULL, outcome TEXT, category TEXT, answer TEXT,
    UNIQUE (configuration, query, place)
);
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, window INTEGER NOT NULL REFERENCES windows, number INTEGER NOT NULL,
    session INTEGER NOT NULL REFERENCES sessions, asked REAL NOT NULL, latency REAL, model TEXT,
    form TEXT, finish_reason TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,
    content TEXT, reasoning TEXT, category TEXT, detail TEXT, UNIQUE (window, number)
);
CREATE TABLE cuts (
    configuration INTEGER NOT NULL REFERENCES configurations, dataset TEXT NOT NULL,
    doc_id TEXT NOT NULL, characters INTEGER NOT NULL, kept INTEGER NOT NULL,
    PRIMARY KEY (configuration, dataset, doc_id)
) WITHOUT ROWID;
"""


class Store:
    """An open store. Not thread-safe: one thread writes, and readers open their own.

    Attributes
    ----------
    path : Path
        Of the SQLite file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: FolderLock | None) -> None:
        self.path = path
        self._db = connection
        self._lock = lock

    # ------------------------------------------------------------------------------------ opening

    @classmethod
    def write(cls, folder: str | os.PathLike[str], *, create: bool = True) -> Self:
        """Open for writing, alone: a second process is refused for as long as this one lives.

        Raises
        ------
        InputError
            Another process writes to the folder, its store is none of ours, or it is a file.
        JudgeError
            The folder cannot be written.
        """
        where = Path(folder)
        path = where / STORE_NAME
        if not create and not path.is_file():
            raise _no_store(folder)
        if where.exists() and not where.is_dir():
            raise InputError("is a file, not a folder", source=folder, remedy="name another place")
        try:
            where.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(where)
        except OSError as error:
            raise JudgeError(
                f"{where}: cannot be written ({error.strerror or error}); name another --out"
            ) from None
        try:
            with storage_errors(path):
                db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                store = cls(path, db, lock)
                with _closed_on_error(db):
                    store._prepare()
                return store
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Open for reading; allowed while another process writes.

        Raises
        ------
        InputError
            There is no store, or it is none of ours.
        """
        path = Path(folder) / STORE_NAME
        if not path.is_file():
            raise _no_store(folder)
        # A closed store has no side files; on a read-only medium SQLite could not make them.
        idle = not path.with_name(path.name + "-wal").exists()
        sealed = "&immutable=1" if idle and not os.access(path.parent, os.W_OK) else ""
        with storage_errors(path):
            uri = path.absolute().as_uri() + "?mode=ro" + sealed
            db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            store = cls(path, db, None)
            with _closed_on_error(db):
                store._check_version()
        return store

    def _prepare(self) -> None:
        self._db.execute("PRAGMA busy_timeout=10000")
        self._db.execute("PRAGMA foreign_keys=ON")
        if self._version() == 0:
            if not self._is_empty():
                raise _foreign(self.path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self.transaction():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={VERSION}")
        else:
            self._check_version()
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
        reserve = self.path.with_name(RESERVE_NAME)
        with contextlib.suppress(OSError):  # without it a full disk costs the answers in flight
            reserve.write_bytes(bytes(RESERVE_BYTES))

    def _version(self) -> int:
        return self._db.execute("PRAGMA user_version").fetchone()[0]

    def _is_empty(self) -> bool:
        return not self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]

    def _check_version(self) -> None:
        version = self._version()
        if version == 0 and self._is_empty():  # its process died before it wrote a word
            raise InputError(
                "holds nothing yet", source=self.path, remedy="judge into the folder first"
            )
        if version == 0:
            raise _foreign(self.path)
        if version > VERSION:
            raise InputError(
                f"written by a newer rcp-bayes (store version {version}, this one reads {VERSION})",
                source=self.path,
                remedy="upgrade rcp-bayes",
            )

    def close(self) -> None:
        """Close; after the last writer the folder holds the one file and no side files."""
        self._db.close()
        if self._lock is not None:
            self.release_reserve()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def release_reserve(self) -> None:
        """Give the reserved bytes back to the disk, so that pending answers can be written."""
        with contextlib.suppress(OSError):
            self.path.with_name(RESERVE_NAME).unlink(missing_ok=True)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; on disk when it returns."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read within was so at one moment, whatever another process writes."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    # ------------------------------------------------------------------------------------ writing

    def add_configuration(self, configuration: Configuration) -> int:
        """Row id of a configuration, added where it is new; its texts are kept."""
        digests = {}
        for name, text in (("prompt", configuration.prompt), ("rubric", configuration.rubric)):
            digests[name] = None if text is None else text_digest(text)
            if text is not None:
                self._db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (digests[name], text))
        settings, schedule = (
            json.dumps(dict(part), sort_keys=True, ensure_ascii=False)
            for part in (configuration.settings, configuration.schedule)
        )
        self._db.execute(
            "INSERT OR IGNORE INTO configurations"
            " (digest, stage, judge, prompt, rubric, settings, schedule) VALUES (?,?,?,?,?,?,?)",
            (configuration.digest, configuration.stage, configuration.judge, digests["prompt"],
             digests["rubric"], settings, schedule),
        )  # fmt: skip
        row = self._db.execute(
            "SELECT id FROM configurations WHERE digest = ?", (configuration.digest,)
        )
        return row.fetchone()[0]

    def add_query(
        self, dataset: str, query_id: str, place: int, documents: Sequence[str], digest: str
    ) -> int:
        """Row id of a query, added where it is new.

        Raises
        ------
        InputError
            The folder knows the query with another pool or other texts.
        """
        row = self._db.execute(
            "SELECT id, digest, documents FROM queries WHERE dataset = ? AND query_id = ?",
            (dataset, query_id),
        ).fetchone()
        if row is None:
            return self._insert(
                "INSERT INTO queries (dataset, query_id, place, documents, digest)"
                " VALUES (?,?,?,?,?)",
                (dataset, query_id, place, json.dumps(list(documents)), digest),
            )
        if row[1] != digest:
            before = json.loads(row[2])
            what = (
                "the texts differ"
                if before == list(documents)
                else f"{len(before)} candidates then, {len(documents)} now, or another order"
            )
            raise InputError(
                f"query {query_id!r} was judged on another pool ({what})",
                source=self.path.parent,
                remedy="judge the changed pool into a new folder",
            )
        return row[0]

    def plan(
        self, configuration: int, digest: str, query: int, names: tuple[str, str],
        windows: Iterable[PlannedWindow],
    ) -> list[StoredWindow]:  # fmt: skip
        """Add windows to the plan; `names` are the query's dataset and id."""
        planned = []
        for window in windows:
            row = self._insert(
                "INSERT INTO windows"
                " (key, configuration, query, phase, batch, place, mirrored, documents)"
                " VALUES (?,?,?,?,?,?,?,?)",
                (window_key(digest, *names, window), configuration, query, window.phase,
                 window.batch, window.index, int(window.mirrored), json.dumps(window.documents)),
            )  # fmt: skip
            planned.append(StoredWindow(row, window, 0, None, None))
        return planned

    def record(self, session: int, window: int, attempt: Attempt, answer: Answer | None) -> None:
        """Add an attempt; with `answer` the window is answered, or invalid where that is empty."""
        a = attempt
        self._db.execute(
            "INSERT INTO attempts (window, number, session, asked, latency, model, form,"
            " finish_reason, prompt_tokens, completion_tokens, content, reasoning, category,"
            " detail) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (window, a.number, session, a.asked, a.latency, a.model, a.form, a.finish_reason,
             a.prompt_tokens, a.completion_tokens, _storable(a.content), _storable(a.reasoning),
             a.category, _storable(a.detail)),
        )  # fmt: skip
        if answer is not None:
            self.settle(window, answer, a.category)

    def settle(self, window: int, answer: Answer, category: str | None) -> None:
        """Write a window's outcome; `category` says why an invalid one is invalid."""
        outcome = "valid" if answer.valid else "invalid"
        self._db.execute(
            "UPDATE windows SET outcome = ?, category = ?, answer = ? WHERE id = ?",
            (outcome, None if answer.valid else category, encode_answer(answer), window),
        )

    def note_readings(self, readings: Iterable[tuple[str | None, int]]) -> None:
        """Change the category under which attempts (second of each pair) were read."""
        self._db.executemany("UPDATE attempts SET category = ? WHERE id = ?", readings)

    def add_cuts(self, configuration: int, cuts: Iterable[tuple[str, str, int, int]]) -> None:
        """Record shortened documents: dataset, doc_id, characters before and after."""
        self._db.executemany(
            "INSERT OR REPLACE INTO cuts VALUES (?,?,?,?,?)",
            ((configuration, *cut) for cut in cuts),
        )

    def begin_session(self, version: str, configurations: Sequence[int]) -> int:
        return self._insert(
            "INSERT INTO sessions (started, version, configurations) VALUES (?,?,?)",
            (time.time(), version, json.dumps(list(configurations))),
        )

    def note_session(self, session: int, notes: Mapping[str, Any], *, ended: bool = False) -> None:
        """Replace a session's notes (what was learned of the server, counts of failures)."""
        self._db.execute(
            "UPDATE sessions SET notes = ?, ended = ? WHERE id = ?",
            (json.dumps(dict(notes), ensure_ascii=False), time.time() if ended else None, session),
        )

    def _insert(self, statement: str, values: Sequence[Any]) -> int:
        row = self._db.execute(statement, values).lastrowid
        assert row is not None
        return row

    # ------------------------------------------------------------------------------------ reading

    def rows(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a query, read as they are needed."""
        yield from self._db.execute(statement, values)

    def settled_counts(self, configuration: int) -> dict[int, int]:
        """Windows of each query that no call will be made for again."""
        statement = f"""
            SELECT query, count(*) FROM windows w WHERE configuration = ? AND (
                outcome = 'valid' OR category = '{REFUSED}' OR (outcome = 'invalid' AND
                (SELECT count(*) FROM attempts WHERE window = w.id) >= {MAX_ATTEMPTS}))
            GROUP BY query"""
        return dict(self._db.execute(statement, (configuration,)))

    def unanswered(self, configurations: Sequence[int]) -> int:
        """Windows that are planned and have no outcome."""
        marks = ",".join("?" * len(configurations))
        statement = (
            f"SELECT count(*) FROM windows WHERE outcome IS NULL AND configuration IN ({marks})"
        )
        return self._db.execute(statement, configurations).fetchone()[0]

    def planned_queries(self, configuration: int) -> set[int]:
        """Queries that have planned windows."""
        statement = "SELECT DISTINCT query FROM windows WHERE configuration = ?"
        return {row for (row,) in self._db.execute(statement, (configuration,))}

    def windows_of(self, configuration: int, query: int, stage: Stage) -> list[StoredWindow]:
        """Planned windows of a query, in order of their place."""
        found = self._db.execute(
            "SELECT id, phase, batch, place, mirrored, documents, outcome, category, answer,"
            " (SELECT count(*) FROM attempts WHERE window = windows.id)"
            " FROM windows WHERE configuration = ? AND query = ? ORDER BY place",
            (configuration, query),
        )
        windows = []
        for row, phase, batch, place, mirrored, documents, outcome, category, answer, n in found:
            names = tuple(json.loads(documents))
            window = PlannedWindow(stage, phase, batch, place, names, bool(mirrored))
            given = None if outcome is None else decode_answer(window, answer)
            windows.append(StoredWindow(row, window, n, given, category))
        return windows

    def text(self, digest: str) -> str:
        """A prompt or a rubric by its digest."""
        row = self._db.execute("SELECT body FROM texts WHERE digest = ?", (digest,)).fetchone()
        return row[0]


@contextlib.contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        db.close()
        raise


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Say in one line what a failing disk means for the run; the rest of SQLite's errors too."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        folder = path.parent
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise InputError(
                f"is not a whole store ({error})",
                source=path,
                remedy="restore it from a copy, or judge into a new folder",
            ) from None
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise JudgeError(
                f"{folder}: the disk is full or failing ({error}); the answers stored so far are"
                " kept: make room and run the same command again"
            ) from None
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise JudgeError(
                f"{folder}: the store cannot be written ({error}); the answers stored so far are"
                " kept: make the folder writable, or copy it, and run the same command again"
            ) from None
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise JudgeError(
                f"{folder}: another program holds the store open ({error}); close it and run the"
                " same command again"
            ) from None
        raise


def is_full(error: sqlite3.Error) -> bool:
    """Whether room on the disk would have helped."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _storable(text: str | None) -> str | None:
    """Text that SQLite takes: a lone surrogate, which JSON allows, is kept as its escape."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _no_store(folder: str | os.PathLike[str]) -> InputError:
    return InputError(
        f"no {STORE_NAME} in it",
        source=folder,
        remedy="name a folder that `rcp-bayes judge` made",
    )


def _foreign(path: Path) -> InputError:
    return InputError("is an SQLite file of another program", source=path, remedy="move it away")
