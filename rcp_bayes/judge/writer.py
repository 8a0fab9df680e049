"""The single writer: a thread that commits what many windows report, many in one transaction.

A transaction costs a flush of the disk, whatever it holds, so whatever has queued up while the last
one was flushed goes into the next. Whoever awaits `Writer.do` goes on only after the commit: a
later phase never builds on an answer that a crash could take back.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from rcp_bayes.errors import JudgeError
from rcp_bayes.judge.store import Store, is_full, storage_errors

_MOST = 1000  # pieces of work in one transaction


class _Work(NamedTuple):
    run: Callable[[Store], Any]
    done: asyncio.Future[Any]


class Writer:
    """Runs pieces of work on the store in the order given, each within a transaction.

    Work is never dropped: what was queued before `close` is committed even if whoever awaited it
    was cancelled. After an error nothing more is written and every later call fails alike.

    Attributes
    ----------
    nearly_full : bool
        The disk was full and the store lives on its reserve: nothing new should be asked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self.nearly_full = False
        self._thread = threading.Thread(target=self._serve, name="judge-writer", daemon=True)
        self._thread.start()

    async def do[T](self, run: Callable[[Store], T]) -> T:
        """Result of ``run(store)``, once it is on disk.

        Raises
        ------
        JudgeError
            The disk is full, failing or read-only; nothing is written any more.
        """
        work = _Work(run, self._loop.create_future())
        self._queue.put(work)
        return await work.done

    def full_error(self) -> JudgeError:
        """What to tell the user where `nearly_full` is set."""
        return JudgeError(
            f"{self._store.path.parent}: the disk is full; all answers are kept: make room and run"
            " the same command again"
        )

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while batch[-1] is not None and len(batch) < _MOST:
                    batch.append(self._queue.get_nowait())
            pieces = [work for work in batch if work is not None]
            results = self._commit(pieces)
            # The loop is closed where the user has interrupted for the second time.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_resolve, pieces, results)
            if batch[-1] is None:
                return

    def _commit(self, pieces: list[_Work]) -> list[Any] | Exception:
        if self._failure is None and pieces:
            try:
                with storage_errors(self._store.path):
                    return self._committed(pieces)
            except Exception as error:
                self._failure = error
        return self._failure or []

    def _committed(self, pieces: list[_Work]) -> list[Any]:
        def attempt() -> list[Any]:
            with self._store.transaction():
                return [work.run(self._store) for work in pieces]

        try:
            return attempt()
        except sqlite3.Error as error:
            if not is_full(error):
                raise
            self._store.release_reserve()  # these answers are paid for: use the room kept for them
            results = attempt()
            self.nearly_full = True
            return results


def _resolve(pieces: list[_Work], results: list[Any] | Exception) -> None:
    for i, work in enumerate(pieces):
        if work.done.done():
            continue
        if isinstance(results, Exception):
            work.done.set_exception(results)
        else:
            work.done.set_result(results[i])
