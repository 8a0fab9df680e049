"""Small pools, plain ratings and local servers for the tests of judging."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd

from rcp_bayes.errors import JudgeError
from rcp_bayes.io import PoolFolder, read_pool
from rcp_bayes.judge.client import Settings
from rcp_bayes.judge.embedded import Asked, LexicalJudge
from rcp_bayes.judge.run import JudgeResult, judge_pool
from rcp_bayes.judge.task import Task
from rcp_bayes.schedule import Schedule

WORDS = "tide moon ocean gravity bread flour yeast oven lamp switch wire copper orbit stone".split()
# Every phase of both stages in few calls: 18 for Stage A and 6 for Stage B at 20 documents.
SMALL = Schedule(
    window=5,
    random_a=Fraction(3, 2),
    stratified_a=Fraction(1, 2),
    adaptive_batches=2,
    adaptive=Fraction(1, 20),
    random_b=Fraction(1),
    stratified_b=Fraction(1, 2),
)


def write_pool(folder: Path, queries: int = 3, documents: int = 20) -> PoolFolder:
    """A pool of word salads, other documents for each query."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    asked, texts, candidates = [], [], []
    for q in range(queries):
        asked.append({"_id": f"q{q}", "text": " ".join(rng.choice(WORDS, 4))})
        for d in range(documents):
            name = f"q{q}-d{d}"
            texts.append({"_id": name, "text": f"{name} " + " ".join(rng.choice(WORDS, 12))})
            candidates.append({"query_id": f"q{q}", "doc_id": name})
    tables = {"queries": asked, "corpus": texts, "candidates": candidates}
    for name, rows in tables.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_pool(folder)


def mean_rate(documents: Sequence[str], answers: Sequence[Any]) -> np.ndarray:
    """Mean score, negative rank or number of passes of each document: a rating without a model."""
    place = {name: i for i, name in enumerate(documents)}
    total, seen = np.zeros(len(documents)), np.zeros(len(documents))
    for answer in answers:
        values = answer.scores
        if answer.ranks is not None:
            values = [-rank for rank in answer.ranks]
        elif answer.passes is not None:
            values = [sum(marks) for marks in answer.passes]
        for name, value in zip(answer.window.documents, values, strict=True):
            total[place[name]] += value
            seen[place[name]] += 1
    return np.divide(total, seen, out=np.full(len(documents), np.nan), where=seen > 0)


_SERVE = """
import json, sys
from rcp_bayes.judge.embedded import Asked, LexicalJudge, SimulatedJudge
from rcp_bayes.judge.faults import Faults, Limits
from rcp_bayes.judge.serve import serve
given = json.loads(sys.argv[1])
truth = given.get("truth")
serve(
    SimulatedJudge.from_folder(truth) if truth else LexicalJudge(),
    port=given.get("port", 0), faults=Faults(**given.get("faults", {})),
    limits=Limits(**given.get("limits", {})), on_ready=lambda port: print(port, flush=True),
)
"""


class Served:
    """A local server in a process of its own."""

    def __init__(self, **given: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, json.dumps(given)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip(), "the server did not start"
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def counts(self) -> dict[str, int]:
        with urlopen(f"http://127.0.0.1:{self.port}/stats") as reply:
            return json.load(reply)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def served(**given: Any) -> Iterator[Served]:
    """`serve` in a subprocess, as `rcp-bayes serve-judge` runs it: faults, limits, truth, port."""
    server = Served(**given)
    try:
        yield server
    finally:
        server.stop()


Answering = Callable[[dict[str, Any], int], tuple[int, dict[str, Any] | str, dict[str, str]] | None]


class Scripted:
    """A server whose every answer is a function of the request and its number (from 1).

    The function returns status, body and headers, or None to cut the connection. `requests` holds
    the bodies in the order of arrival.
    """

    def __init__(self, answer: Answering) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": [{"id": "m-1", "object": "model"}]}, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    outer.requests.append(body)
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                    number = len(outer.requests)
                reply = answer(body, number)
                if reply is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                self._send(*reply)

            def _send(self, status: int, body: Any, headers: dict[str, str]) -> None:
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                for name, value in {
                    "content-type": "application/json",
                    "content-length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args: Any) -> None: ...  # a cut connection is part of the test

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def scripted(answer: Answering) -> Iterator[Scripted]:
    server = Scripted(answer)
    try:
        yield server
    finally:
        server.close()


def completion(content: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """The body of a chat completion, as servers send it."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content, **message},
    }
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m-1",
            "choices": [choice], "usage": usage}  # fmt: skip


def refusal(message: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """The body of an error, as servers send it."""
    return {"error": {"message": message, "type": "error", "code": code, "param": param}}


TASK = Task(schedule=SMALL)
TABLES = ("stage_a", "stage_b")


def judge(
    pool: PoolFolder, out: Path, asked: Any = None, task: Task = TASK, **more: Any
) -> JudgeResult:
    """A pass with plain ratings, by the lexical judge where none is given."""
    asked = asked or LexicalJudge()
    return judge_pool(pool, out, judge=asked, rate_a=mean_rate, rate_b=mean_rate, task=task, **more)


def ask_server(server: Any, **more: Any) -> Settings:
    given = {"model": "lexical", "seed": 1, "api_key": "sk-key", **more}
    return Settings(base_url=server.url, **given)


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(out / f"{name}.parquet")


def same_tables(a: Path, b: Path) -> bool:
    return all(
        (a / f"{t}.parquet").read_bytes() == (b / f"{t}.parquet").read_bytes() for t in TABLES
    )


def select(out: Path, statement: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(out / "judge.sqlite") as db:
        rows = db.execute(statement).fetchall()
    db.close()
    return rows


class Counting(LexicalJudge):
    """Counts calls, and fails for good after some of them."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.calls, self.fail_after = 0, fail_after

    def reply(self, messages: Any) -> str:
        if self.calls == self.fail_after:
            raise JudgeError("the server is gone")
        self.calls += 1
        return super().reply(messages)


class Sloppy(LexicalJudge):
    """Prose wherever a certain document is shown, in a stage."""

    def __init__(self, words: str, stage: str) -> None:
        self.words, self.stage = words, stage

    def reply(self, messages: Any) -> str:
        asked = Asked(messages)
        stage = "b" if asked.criteria else "a"
        if stage == self.stage and any(self.words in text for text in asked.documents.values()):
            return "None of these passages relates to the query."
        return super().reply(messages)
