"""The store: identity of windows, transactions, one writer, damaged files, failing disks."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from rcp_bayes.errors import InputError, JudgeError
from rcp_bayes.judge.lock import LOCK_NAME
from rcp_bayes.judge.store import RESERVE_NAME, STORE_NAME, VERSION, Store
from rcp_bayes.judge.stored import (
    Attempt,
    Configuration,
    decode_answer,
    encode_answer,
    window_key,
)
from rcp_bayes.schedule import Answer, PlannedWindow

BASE = Configuration(
    "b", "m-1", "prompt", '[["C1","n","q"]]', {"model": "m-1", "temperature": 1.0}, {"seed": 42}
)
WINDOW = PlannedWindow("b", "random", 0, 0, ("d1", "d2"))
NAMES = ("default", "q1")


def attempt(number: int = 1, **more) -> Attempt:
    return Attempt(number, 1.7e9, 0.5, **{"content": "{}", "finish_reason": "stop", **more})


def filled(folder: Path, windows=(WINDOW,), *, configuration=BASE, documents=("d1", "d2")):
    """A store with a plan; its configuration, session and planned windows."""
    store = Store.write(folder)
    with store.transaction():
        row = store.add_configuration(configuration)
        session = store.begin_session("0", [row])
        query = store.add_query(*NAMES, 0, documents, "digest")
        planned = store.plan(row, configuration.digest, query, NAMES, windows)
    return store, row, session, query, planned


def only(store: Store, statement: str) -> tuple:
    (row,) = store.rows(statement)
    return row


def test_a_window_is_what_was_asked_and_how():
    """Each part of the question changes the key, and nothing else does."""
    keys = [window_key(BASE.digest, *NAMES, WINDOW)]
    for change in (
        {"stage": "a"}, {"judge": "m-2"}, {"prompt": "other"}, {"rubric": '[["C1","n","other"]]'},
        {"settings": {"model": "m-1", "temperature": 0.0}}, {"schedule": {"seed": 43}},
    ):  # fmt: skip
        keys.append(window_key(replace(BASE, **change).digest, *NAMES, WINDOW))
    for change in (
        {"documents": ("d2", "d1")}, {"phase": "stratified"}, {"batch": 1}, {"index": 1},
        {"mirrored": True},
    ):  # fmt: skip
        keys.append(window_key(BASE.digest, *NAMES, replace(WINDOW, **change)))
    keys.append(window_key(BASE.digest, "default", "q2", WINDOW))
    keys.append(window_key(BASE.digest, "other", "q1", WINDOW))
    assert len(set(keys)) == len(keys)
    reordered = replace(BASE, settings=dict(reversed(BASE.settings.items())))
    assert window_key(reordered.digest, *NAMES, WINDOW) == keys[0]


@pytest.mark.parametrize(
    "values",
    [
        {"scores": (0.1, -5.0)}, {"scores": (2.2250738585072014e-308, 1 / 3)},
        {"ranks": (1.5, 1.5)}, {"passes": ((0, 1), (1, 1))}, {},
    ],
)  # fmt: skip
def test_answers_come_back_as_they_went_in(values):
    answer = Answer(WINDOW, **values)
    assert decode_answer(WINDOW, encode_answer(answer)) == answer


def test_a_plan_and_its_answers_outlive_the_process_that_made_them(tmp_path):
    windows = [replace(WINDOW, index=i) for i in range(4)]
    store, row, session, query, planned = filled(tmp_path, windows)
    answer = Answer(windows[0], passes=((1,), (0,)))
    with store.transaction():
        store.record(session, planned[0].id, attempt(prompt_tokens=7), answer)
        for number, kept in ((1, None), (2, None), (3, Answer(windows[1]))):
            store.record(session, planned[1].id, attempt(number, category="no_json"), kept)
        store.record(session, planned[2].id, attempt(category="refused"), Answer(windows[2]))
        store.record(session, planned[3].id, attempt(category="no_json"), None)
    store.close()
    with Store.read(tmp_path) as store:
        found = store.windows_of(row, query, "b")
        assert [(w.window.index, w.attempts, w.settled, w.category) for w in found] == [
            (0, 1, True, None), (1, 3, True, "no_json"), (2, 1, True, "refused"),
            (3, 1, False, None),
        ]  # fmt: skip
        assert found[0].answer == answer and found[0].window == windows[0]
        assert store.settled_counts(row) == {query: 3}
        assert store.unanswered([row]) == 1


def test_an_invalid_window_with_attempts_left_is_still_open(tmp_path):
    """As `reparse` leaves it, where a newer decoder cannot read what an older one could."""
    store, row, session, query, planned = filled(tmp_path)
    with store, store.transaction():
        store.record(session, planned[0].id, attempt(category="no_json"), Answer(WINDOW))
        assert store.settled_counts(row) == {}
        assert not store.windows_of(row, query, "b")[0].settled


def test_a_transaction_is_all_or_nothing(tmp_path):
    store, row, session, query, planned = filled(tmp_path)
    with store:

        def twice_then_stop() -> None:
            with store.transaction():
                answer = Answer(WINDOW, passes=((1,), (1,)))
                store.record(session, planned[0].id, attempt(1), answer)
                store.record(session, planned[0].id, attempt(1), None)  # the number is taken

        with pytest.raises(sqlite3.IntegrityError):
            twice_then_stop()
        window = store.windows_of(row, query, "b")[0]
        assert window.attempts == 0 and window.answer is None


def test_the_same_place_is_never_planned_twice(tmp_path):
    store, row, _, query, _ = filled(tmp_path)
    other = replace(WINDOW, documents=("d2", "d1"))
    with store, pytest.raises(sqlite3.IntegrityError), store.transaction():
        store.plan(row, BASE.digest, query, NAMES, [other])


def test_a_changed_pool_is_refused(tmp_path):
    store, *_ = filled(tmp_path)
    with store:
        with pytest.raises(InputError, match=r"'q1'.*texts differ.*new folder"):
            store.add_query(*NAMES, 0, ("d1", "d2"), "other")
        with pytest.raises(InputError, match="2 candidates then, 3 now"):
            store.add_query(*NAMES, 0, ("d1", "d2", "d3"), "other")


def test_text_that_sqlite_cannot_hold_is_kept_as_escapes(tmp_path):
    store, _, session, _, planned = filled(tmp_path)
    with store, store.transaction():
        store.record(session, planned[0].id, attempt(content="a\ud800b\x00c"), None)
        assert only(store, "SELECT content FROM attempts") == ("a\\ud800b\x00c",)


# ------------------------------------------------------------------------------------ who may write


def test_a_second_writer_is_refused_and_named_the_first(tmp_path):
    with Store.write(tmp_path), pytest.raises(InputError) as error:
        Store.write(tmp_path)
    assert f"process {os.getpid()} is writing" in str(error.value)
    assert "--shard" in str(error.value)
    Store.write(tmp_path).close()  # free again


def test_the_lock_of_a_killed_process_falls(tmp_path):
    code = f"""
        import os, signal
        from rcp_bayes.judge.store import Store
        store = Store.write({str(tmp_path)!r})
        print("open", flush=True)
        signal.pause()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "open\n"
    with pytest.raises(InputError, match=f"process {process.pid} is writing"):
        Store.write(tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()
    assert (tmp_path / LOCK_NAME).exists() and (tmp_path / RESERVE_NAME).exists()
    Store.write(tmp_path).close()
    assert not (tmp_path / RESERVE_NAME).exists()


def test_a_reader_sees_what_is_committed_while_another_writes(tmp_path):
    store, row, session, query, planned = filled(tmp_path)
    with store, Store.read(tmp_path) as reader:
        with reader.snapshot():
            before = reader.windows_of(row, query, "b")[0].attempts
            with store.transaction():
                store.record(session, planned[0].id, attempt(), None)
            assert (before, reader.windows_of(row, query, "b")[0].attempts) == (0, 0)
        assert reader.windows_of(row, query, "b")[0].attempts == 1


def test_a_closed_folder_holds_one_file(tmp_path):
    store, *_ = filled(tmp_path)
    store.close()
    assert sorted(os.listdir(tmp_path)) == [LOCK_NAME, STORE_NAME]


# -------------------------------------------------------------------------------------- bad folders


def test_a_folder_without_a_store(tmp_path):
    for opening in (lambda: Store.read(tmp_path), lambda: Store.write(tmp_path, create=False)):
        with pytest.raises(InputError, match=r"no judge\.sqlite in it"):
            opening()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["text", "cut", "foreign", "newer"])
def test_files_that_are_none_of_ours_are_refused_in_one_line(tmp_path, damage):
    path = tmp_path / STORE_NAME
    if damage == "text":
        path.write_text("this is no database, and long enough to be taken for one " * 50)
    elif damage == "foreign":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
    else:
        filled(tmp_path)[0].close()
        if damage == "cut":
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])
        else:
            with sqlite3.connect(path) as newer:
                newer.execute(f"PRAGMA user_version = {VERSION + 1}")
            newer.close()
    for opening in (Store.read, Store.write):
        with pytest.raises(InputError, match=STORE_NAME) as error, opening(tmp_path) as store:
            list(store.rows("SELECT * FROM windows"))
        assert "\n" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    filled(tmp_path)[0].close()
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(JudgeError, match="cannot be written"):
            Store.write(tmp_path)
        with Store.read(tmp_path) as store:
            assert only(store, "SELECT count(*) FROM windows") == (1,)
    finally:
        tmp_path.chmod(0o755)


def test_a_place_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is a file"):
        Store.write(tmp_path / "out")


def test_a_store_that_may_not_grow_keeps_what_it_has(tmp_path):
    """A limit on the size of files stands for a full disk: the kernel refuses the same writes."""
    code = f"""
        import asyncio, json, resource, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_store import WINDOW, attempt, filled
        from rcp_bayes.errors import JudgeError
        from rcp_bayes.judge.writer import Writer

        async def main():
            store, row, session, query, planned = filled(Path({str(tmp_path)!r}))
            number, size = 0, 400_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            writer = Writer(store)
            try:
                while True:
                    piece = attempt(number + 1, content="x" * 20_000)
                    await writer.do(lambda s: s.record(session, planned[0].id, piece, None))
                    number += 1
            except JudgeError as error:
                print(json.dumps([number, writer.nearly_full, str(error)]))
            writer.close()
        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    number, _, message = json.loads(done.stdout)
    assert number > 5 and "disk is full" in message and "same command" in message
    with Store.read(tmp_path) as store:
        assert only(store, "SELECT count(*), sum(length(content)) FROM attempts") == (
            number, 20_000 * number,
        )  # fmt: skip
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
