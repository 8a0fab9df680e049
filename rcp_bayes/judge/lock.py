"""One writer per judgments folder."""

from __future__ import annotations

import os
from pathlib import Path

from rcp_bayes.errors import InputError

LOCK_NAME = ".judge.lock"


class FolderLock:
    """An advisory lock of the operating system, which falls when its process ends in any way.

    The file also names the process, for the message that a second one gets; it is left behind,
    since removing it could take the lock from under a third process.

    Raises
    ------
    InputError
        Another process holds it.
    OSError
        The folder cannot be written, or its file system knows no locks.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl

        self._handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._handle, 32, 0).decode("ascii", "replace").strip()
            os.close(self._handle)
            raise InputError(
                f"process {holder or 'unknown'} is writing judgments into this folder",
                source=folder,
                remedy="wait for it, or split the queries with --shard i/n, one --out folder each,"
                " and join them with `rcp-bayes merge`",
            ) from None
        except OSError:
            os.close(self._handle)
            raise
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._handle)
