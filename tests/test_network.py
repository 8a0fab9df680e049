"""A pass over HTTP: faults, limits, servers that go away, interrupts, full disks."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from judging import (
    SMALL,
    TABLES,
    TASK,
    Counting,
    ask_server,
    judge,
    mean_rate,
    same_tables,
    select,
    served,
    table,
    write_pool,
)

from rcp_bayes.errors import JudgeError
from rcp_bayes.io import PoolFolder
from rcp_bayes.judge.embedded import LexicalJudge
from rcp_bayes.judge.run import judge_pool
from rcp_bayes.judge.task import Task


@pytest.fixture
def pool(tmp_path) -> PoolFolder:
    return write_pool(tmp_path / "pool")


def accounted(out: Path, task: Task, sizes: list[int]) -> Counter:
    """Check that every planned window is settled as the rules say; outcomes by category."""
    found: Counter = Counter()
    for stage, name in zip("ab", TABLES, strict=True):
        rows = table(out, name)
        calls = sum(task.schedule.calls(stage, n) for n in sizes)
        windows = rows.groupby(["query_id", "window_id"])
        assert windows.ngroups == calls
        assert (windows["invalid"].nunique(dropna=False) == 1).all()
        found.update(windows["invalid"].first().fillna("valid"))
    rows = select(
        out, "SELECT w.outcome, w.category, count(*), max(a.number), group_concat(a.category)"
        " FROM windows w JOIN attempts a ON a.window = w.id GROUP BY w.id",
    )  # fmt: skip
    for outcome, category, count, last, categories in rows:
        assert count == last  # attempts are numbered without gaps
        if outcome == "valid":
            assert len((categories or "").split(",")) >= count - 1 and category is None
        elif category == "refused":
            assert count <= 3 and categories.split(",")[-1] == "refused"
        else:
            assert count == 3 and len(categories.split(",")) == 3
    assert select(out, "SELECT count(*) FROM windows WHERE outcome IS NULL") == [(0,)]
    return found


FAULTS = dict.fromkeys(
    ["rate_limit", "error", "drop", "truncate", "bad_json", "prose", "empty", "content_filter",
     "repeat", "reasoning", "reasoning_field"], 0.05,
)  # fmt: skip


def test_a_faulty_server_loses_no_window(pool, tmp_path, monkeypatch):
    monkeypatch.setattr("rcp_bayes.judge.client._BACKOFF", 0.02)
    with served(faults=FAULTS) as server:
        out = tmp_path / "out"
        done = judge(pool, out, ask_server(server), concurrency=16)
        found = accounted(out, TASK, [20] * 3)
        assert found["valid"] > 0.8 * sum(found.values()) and found["refused"] > 0
        assert done.report["repeated"].keys() == {"429", "500", "connection"}
        assert done.calls == server.counts()["answers"]
        assert done.prompt_tokens > 0 < done.completion_tokens
        # Faults follow the request: another order and other interruptions give the same tables.
        with pytest.raises(JudgeError):
            judge_pool(
                pool, tmp_path / "two", judge=ask_server(server), rate_b=mean_rate,
                rate_a=lambda *_: (_ for _ in ()).throw(JudgeError("stop")), task=TASK,
            )  # fmt: skip
        judge(pool, tmp_path / "two", ask_server(server), concurrency=2)
        assert same_tables(out, tmp_path / "two")
    assert not [p for p in out.iterdir() if b"sk-key" in p.read_bytes()]


@pytest.mark.slow
def test_a_faulty_server_at_full_size(tmp_path):
    """20 queries x 150 documents, 64 at once, 10% faults of every kind: nothing is lost."""
    pool = write_pool(tmp_path / "pool", queries=20, documents=150)
    with served(faults=dict.fromkeys(FAULTS, 0.1) | {"delay": 0.02}) as server:
        judge(pool, tmp_path / "out", ask_server(server), Task(), concurrency=64)
        counts = server.counts()
    found = accounted(tmp_path / "out", Task(), [150] * 20)
    assert sum(found.values()) == 20 * 316
    assert all(counts[name] > 100 for name in FAULTS)


def test_forms_are_probed_once_and_recorded(pool, tmp_path):
    limits = {"forms": ["json_schema"], "form_status": 500}
    with served(limits=limits) as server:
        done = judge(pool, tmp_path / "out", ask_server(server))
    assert done.report["structured"] == "json_object"
    assert select(tmp_path / "out", "SELECT DISTINCT form FROM attempts") == [("json_object",)]
    ((notes,),) = select(tmp_path / "out", "SELECT notes FROM sessions")
    assert json.loads(notes)["structured"] == "json_object"
    assert "json_schema is refused (500)" in json.loads(notes)["changed"][0]


@pytest.mark.parametrize(
    ("limits", "settings", "message"),
    [
        ({"context": 100}, {}, "does not fit in the context.*--max-document-chars"),
        ({"api_key": "right"}, {}, "refuses the key"),
        ({"options": ["top_p"]}, {"top_p": 0.9}, "--top-p 0.9"),
        ({}, {"model": "gpt-x"}, "does not serve model 'gpt-x'.*it serves 'lexical'"),
    ],
)
def test_what_no_retry_mends_ends_the_run_at_once(pool, tmp_path, limits, settings, message):
    with served(limits=limits) as server:
        given = replace(ask_server(server), **settings)
        with pytest.raises(JudgeError, match=message):
            judge(pool, tmp_path / "out", given)
        assert server.counts().get("answers", 0) == 0


def test_a_server_that_goes_away_and_comes_back(pool, tmp_path, monkeypatch):
    monkeypatch.setattr("rcp_bayes.judge.client.FIRST_PATIENCE", 0.5)
    out = tmp_path / "out"
    with served(faults={"delay": 0.02}) as server:
        port = server.port
        judged: list[str] = []

        def killed_soon(text: str) -> None:
            judged.append(text)
            server.process.kill()

        monkeypatch.setattr("rcp_bayes.judge.run._TOLD_EVERY", 0.1)
        with pytest.raises(JudgeError, match=r"cannot be reached.*same command again"):
            judge(pool, out, ask_server(server, patience=1.0), progress=killed_soon)
    kept = select(out, "SELECT count(*) FROM attempts")[0][0]
    assert judged and kept > 0
    with pytest.raises(JudgeError, match="cannot be reached"):
        judge(pool, out, ask_server(server, patience=1.0))
    with served(port=port) as server:
        done = judge(pool, out, ask_server(server))
        assert server.counts()["answers"] == done.calls == sum(done.windows.values()) - kept
    judge(pool, tmp_path / "plain", LexicalJudge())
    for name in TABLES:
        kept_columns = [c for c in table(out, name) if c != "window_id"]
        pd.testing.assert_frame_equal(
            table(out, name)[kept_columns], table(tmp_path / "plain", name)[kept_columns]
        )


_INTERRUPTED = """
# Whoever started the tests may ignore the signal, and children inherit that.
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import sys
sys.path.insert(0, {tests!r})
from judging import SMALL, mean_rate, write_pool
from pathlib import Path
from rcp_bayes.io import read_pool
from rcp_bayes.judge.client import Settings
from rcp_bayes.judge.run import judge_pool
from rcp_bayes.judge.task import Task
judge_pool(read_pool({pool!r}), {out!r}, judge=Settings("lexical", {url!r}, seed=1),
           rate_a=mean_rate, rate_b=mean_rate, task=Task(schedule=SMALL), concurrency=8,
           progress=lambda text: print(text, flush=True))
"""


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_keeps_what_was_paid(pool, tmp_path, times):
    """Once: the calls in flight are waited for. Twice: they are dropped. Nothing stored is lost."""
    out = tmp_path / "out"
    with served(faults={"delay": 1.0}) as server:
        code = _INTERRUPTED.format(
            tests=str(Path(__file__).parent), pool=str(tmp_path / "pool"), out=str(out),
            url=server.url,
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while not process.stdout.readline().startswith("judged"):
            assert process.poll() is None, process.stderr.read()
        while server.counts()["answers"] < 9:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        line = process.stdout.readline()
        while line.startswith("judged"):
            line = process.stdout.readline()
        assert "calls in flight; interrupt again" in line
        if times == 2:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode != 0 and "KeyboardInterrupt" in errors
        answered = server.counts()["answers"]
        kept = select(out, "SELECT count(*) FROM attempts")[0][0]
        assert kept == answered if times == 1 else 0 < kept <= answered
    with served() as server:
        done = judge(pool, out, ask_server(server, api_key=None))
    assert done.calls == sum(done.windows.values()) - kept
    accounted(out, TASK, [20] * 3)


def test_a_full_disk_keeps_what_was_paid(pool, tmp_path):
    """Files may not grow beyond a limit, in a process of its own; then they may again."""
    out = tmp_path / "out"
    code = f"""
        import resource, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from judging import Counting, judge
        from rcp_bayes.errors import JudgeError
        from rcp_bayes.io import read_pool
        pool, counting = read_pool({str(tmp_path / "pool")!r}), Counting()
        from rcp_bayes.judge.store import Store
        Store.write({str(out)!r}).close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        try:
            judge(pool, {str(out)!r}, counting)
        except JudgeError as error:
            assert "disk is full" in str(error) and "same command" in str(error), error
            print(counting.calls)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 3 * (SMALL.calls("a", 20) + SMALL.calls("b", 20))
    kept = select(out, "SELECT count(*) FROM attempts")[0][0]
    assert int(done.stdout) - 16 <= kept <= int(done.stdout)  # at most those in flight are lost
    counting = Counting()
    again = judge(pool, out, counting)
    assert counting.calls == sum(again.windows.values()) - again.resumed
    judge(pool, tmp_path / "whole")
    assert same_tables(tmp_path / "whole", out)
