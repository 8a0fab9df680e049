"""Calls per second of judging a pool on an instant server, beside plain loops of the openai client.

``python benchmarks/judge_throughput.py [--calls N] [--concurrency N]``

The server runs in a process of its own on the same machine and answers at once, so that what is
measured is the work around a call: planning, rendering, HTTP, reading, storing. Baselines ask the
same questions of the same server with the openai client and nothing else: one after the other, and
as many at once as our run. Memory is the resident set of the judging process, sampled as calls are
answered; its slope is taken over the second half, when caches and pools have filled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rcp_bayes.io import read_pool
from rcp_bayes.judge.client import Settings
from rcp_bayes.judge.material import Material
from rcp_bayes.judge.prompts import load_prompts, render
from rcp_bayes.judge.run import judge_pool
from rcp_bayes.judge.task import Task
from rcp_bayes.rubric import DEFAULT_RUBRIC

_SERVE = """
import json, re
from rcp_bayes.judge.faults import Faults, Limits
from rcp_bayes.judge.serve import serve

CRITERION = re.compile(r"^(\\S+) \\(.*\\): ", re.M)
DOCUMENT = re.compile(r'<document label="([^"]+)">')

class Instant:
    name = "instant"
    def reply(self, messages):
        text = messages[0]["content"]
        labels = DOCUMENT.findall(text)
        if "<criteria>" in text:
            names = CRITERION.findall(text.partition("</criteria>")[0])
            row = {name: i % 2 for i, name in enumerate(names)}
            return json.dumps({"answers": dict.fromkeys(labels, row)})
        return json.dumps({"scores": {label: i / 4 for i, label in enumerate(labels)}})

serve(Instant(), on_ready=lambda port: print(port, flush=True))
"""
DOCUMENTS = 150


def write_pool(folder: Path, queries: int) -> None:
    """Documents of about 600 characters, as passages are."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(500)]
    with (
        (folder / "queries.jsonl").open("w") as asked,
        (folder / "corpus.jsonl").open("w") as texts,
        (folder / "candidates.jsonl").open("w") as pool,
    ):
        for q in range(queries):
            asked.write(json.dumps({"_id": f"q{q}", "text": " ".join(rng.choice(words, 8))}) + "\n")
            for d in range(DOCUMENTS):
                text = " ".join(rng.choice(words, 85))
                texts.write(json.dumps({"_id": f"q{q}d{d}", "text": text}) + "\n")
                pool.write(json.dumps({"query_id": f"q{q}", "doc_id": f"q{q}d{d}"}) + "\n")


def rate(documents, answers) -> np.ndarray:
    """Any order will do: the fits have benchmarks of their own."""
    return np.arange(len(documents), dtype=float)


def resident() -> float:
    """Resident set of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def plain_loops(url: str, folder: Path, calls: int, concurrency: int) -> tuple[float, float, float]:
    """Calls per second of the openai client alone, one after the other and many at once.

    Third, the processor time of a call at once, ms.
    """
    import openai

    material = Material(read_pool(folder))
    query = material.queries[0]
    documents = material.documents(query, query.documents[:10])
    prompts = load_prompts()
    asked = [render(s, prompts, DEFAULT_RUBRIC, query.text, None, documents) for s in "ab"]
    client = openai.OpenAI(base_url=url, api_key="none")
    started = time.perf_counter()
    for i in range(calls // 4):
        client.chat.completions.create(model="instant", messages=asked[i % 2].messages)
    sequential = calls // 4 / (time.perf_counter() - started)
    client.close()

    async def at_once() -> float:
        many = openai.AsyncOpenAI(base_url=url, api_key="none")
        left = iter(range(calls))

        async def work() -> None:
            for i in left:
                await many.chat.completions.create(model="instant", messages=asked[i % 2].messages)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        seconds = time.perf_counter() - started
        await many.close()
        return calls / seconds

    used = time.process_time()
    speed = asyncio.run(at_once())
    return sequential, speed, (time.process_time() - used) / calls * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=6000)
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args()
    queries = max(1, round(given.calls / 316))
    server = subprocess.Popen([sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        with tempfile.TemporaryDirectory() as place:
            pool = Path(place) / "pool"
            pool.mkdir()
            write_pool(pool, queries)
            sequential, at_once, plain_cpu = plain_loops(url, pool, 1000, given.concurrency)
            memory: list[tuple[int, float]] = []

            def progress(line: str) -> None:
                memory.append((int(line.split()[1].replace(",", "")), resident()))

            used = time.process_time()
            done = judge_pool(
                pool, Path(place) / "out", judge=Settings(model="instant", base_url=url),
                rate_a=rate, rate_b=rate, task=Task(), concurrency=given.concurrency,
                progress=progress,
            )  # fmt: skip
            own_cpu = (time.process_time() - used) / done.calls * 1000
            stored = sum(f.stat().st_size for f in (Path(place) / "out").iterdir()) / 1e6
    finally:
        server.kill()
    calls, seconds = done.calls, done.seconds
    late = np.array(memory[len(memory) // 2 :])
    slope = np.polyfit(late[:, 0], late[:, 1], 1)[0] * 1000 if len(late) > 2 else float("nan")
    print(f"{os.cpu_count()} cores, concurrency {given.concurrency}, {queries} queries")
    print(f"openai client, one call after the other {sequential:6.0f} calls/s")
    print(f"openai client, many calls at once {at_once:12.0f} calls/s, {plain_cpu:.2f} ms CPU each")
    speed = calls / seconds
    print(f"judge_pool, {calls} calls, stored {speed:12.0f} calls/s, {own_cpu:.2f} ms CPU each")
    print(f"memory {late[-1, 1]:.0f} MB, {slope:+.2f} MB per 1,000 calls; folder {stored:.0f} MB")


if __name__ == "__main__":
    main()
