"""Kill -9 at random moments: nothing answered is asked again, and the tables come out the same."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from judging import TASK, ask_server, judge, same_tables, select, served, write_pool

CONCURRENCY = 4
# Imports everything once; each line on stdin starts a pass in a forked child, which is then killed.
_ZYGOTE = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from judging import TASK, judge
    import openai
    from rcp_bayes.io import read_pool
    from rcp_bayes.judge.client import Settings
    pool = read_pool({pool!r})
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            settings = Settings("lexical", {url!r}, seed=1, api_key="sk-key")
            judge(pool, {out!r}, settings, TASK, concurrency={concurrency})
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
"""


def stored(out: Path) -> set[tuple]:
    """Every attempt in the store, after a look at its integrity."""
    if not (out / "judge.sqlite").exists() or not select(out, "SELECT name FROM sqlite_schema"):
        return set()
    assert select(out, "PRAGMA integrity_check") == [("ok",)]
    # What is settled has its attempts, and what has three attempts is settled.
    assert select(
        out, "SELECT count(*) FROM windows w WHERE outcome IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM attempts WHERE window = w.id)",
    ) == [(0,)]  # fmt: skip
    assert select(
        out, "SELECT count(*) FROM windows w WHERE outcome IS NULL"
        " AND (SELECT count(*) FROM attempts WHERE window = w.id) >= 3",
    ) == [(0,)]  # fmt: skip
    return set(select(
        out, "SELECT w.key, a.number, a.content, a.category, a.asked FROM attempts a"
        " JOIN windows w ON w.id = a.window",
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("kills", "queries"), [(8, 2), pytest.param(20, 6, marks=pytest.mark.slow)]
)
def test_a_killed_pass_goes_on_as_if_nothing_had_happened(tmp_path, kills, queries):
    pool = write_pool(tmp_path / "pool", queries=queries)
    whole, out = tmp_path / "whole", tmp_path / "out"
    draw = random.Random(7)
    text_faults = dict.fromkeys(["truncate", "prose", "content_filter", "reasoning"], 0.08)
    with served(faults={**text_faults, "delay": 0.01}) as server:
        judge(pool, whole, ask_server(server), concurrency=CONCURRENCY)
        expected = server.counts()["answers"]
        code = _ZYGOTE.format(
            tests=str(Path(__file__).parent), pool=str(tmp_path / "pool"), out=str(out),
            url=server.url, concurrency=CONCURRENCY,
        )  # fmt: skip
        zygote = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        before: set[tuple] = set()
        for turn in range(kills + 1):
            print(file=zygote.stdin, flush=True)
            child = int(zygote.stdout.readline())
            if turn < kills:
                until = server.counts()["answers"] + draw.randint(0, 2 * expected // kills)
                deadline = time.monotonic() + 5  # a pass that is done already cannot be killed
                while server.counts()["answers"] < until and time.monotonic() < deadline:
                    time.sleep(0.002)
                time.sleep(draw.random() * 0.02)
                os.kill(child, signal.SIGKILL)
            status = int(zygote.stdout.readline())
            assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if turn < kills else 0)
            after = stored(out)
            assert before <= after  # what was answered stays as it was
            before = after
        zygote.stdin.close()
        zygote.wait()
        zygote.stdout.close()
        answers = server.counts()["answers"] - expected
    assert same_tables(whole, out)
    assert {row[:4] for row in stored(whole)} == {row[:4] for row in before}
    assert len(before) == expected
    # Only what was on its way when the process died was asked for twice.
    assert answers <= expected + kills * CONCURRENCY
    sessions = select(out, "SELECT count(*), count(ended) FROM sessions")
    assert sessions[0][0] <= kills + 1 and sessions[0][1] == 1
    assert json.loads(select(out, "SELECT notes FROM sessions ORDER BY id DESC")[0][0])["calls"] > 0
    assert TASK.stages == ("a", "b")
