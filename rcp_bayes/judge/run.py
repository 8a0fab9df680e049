"""The loop over phases: plan, ask, read, store, until every window of a pool is settled.

The two stages of a query are two chains of batches; the windows of a batch may be asked in any
order, the next batch needs all their answers. `concurrency` workers take windows from whichever
chains have some, and open the next chain where none has, so that the server stays full while
single chains wait for their last window or their next fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rcp_bayes import __version__
from rcp_bayes.errors import JudgeError, UsageError
from rcp_bayes.io import PoolFolder
from rcp_bayes.judge.asking import CallError, Embedded, Judge, Reply
from rcp_bayes.judge.client import Client, Settings
from rcp_bayes.judge.decode import DECODER_VERSION
from rcp_bayes.judge.embedded import EmbeddedJudge
from rcp_bayes.judge.export import Exported, export
from rcp_bayes.judge.material import Material, PoolQuery, in_shard
from rcp_bayes.judge.prompts import cut_text, joined, render
from rcp_bayes.judge.reading import read_answer
from rcp_bayes.judge.store import Store, storage_errors
from rcp_bayes.judge.stored import MAX_ATTEMPTS, Attempt, StoredWindow, settles
from rcp_bayes.judge.task import Task
from rcp_bayes.judge.writer import Writer
from rcp_bayes.schedule import Answer, Rate, Stage, plan_batch

_TOLD_EVERY = 0.5  # seconds between two lines of progress


@dataclass(frozen=True)
class JudgeResult:
    """What a run did.

    Attributes
    ----------
    judge : str
    windows : dict
        Windows settled, by stage; those of earlier runs included.
    resumed : int
        Of these, settled before this run.
    calls : int
        Answers that this run paid for; an unreadable one counts.
    prompt_tokens, completion_tokens : int
        As the server counted them, of this run.
    seconds : float
    report : dict
        What was learned of the server: ``structured``, ``changed``, ``repeated``.
    exported : Exported
        Tables written, invalid windows by stage, phase and category.
    """

    judge: str
    windows: dict[str, int]
    resumed: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    report: dict[str, Any]
    exported: Exported


def judge_pool(
    pool: PoolFolder | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    judge: Settings | EmbeddedJudge,
    rate_a: Rate,
    rate_b: Rate,
    task: Task | None = None,
    concurrency: int = 16,
    pool_digests: bool = False,
    progress: Callable[[str], None] | None = None,
) -> JudgeResult:
    """Judge a pool, or what is left of it, and export the tables that `fit` reads.

    Parameters
    ----------
    pool : PoolFolder or path
    out : path
        The judgments folder, made where it is not there.
    judge : Settings or EmbeddedJudge
        A served model, or a judge inside the process.
    rate_a, rate_b : Rate
        Preliminary fits of a query (`schedule.Rate`), handed in: judging imports no model.
    concurrency : int
        Windows in flight.
    pool_digests : bool
        Export all answers of a judge together, whatever prompt or settings they were made under.
    progress : callable, optional
        Is given a line of text, twice a second at most.

    Raises
    ------
    UsageError, InputError
        The task, the pool or the folder cannot be used; nothing was asked.
    JudgeError
        The server cannot be used, or the disk is full. What was answered is kept, and the same call
        goes on from there.
    KeyboardInterrupt
        Likewise; the calls in flight were waited for, unless it was raised twice.
    """
    if concurrency < 1:
        raise UsageError("--concurrency must be at least 1")
    task = task or Task()
    material = Material(pool)

    async def main() -> JudgeResult:
        asker: Judge = Client(judge) if isinstance(judge, Settings) else Embedded(judge)
        try:
            with Store.write(out) as store:
                rates = {"a": rate_a, "b": rate_b}
                run = _Run(store, material, task, asker, rates, concurrency, progress)
                return await run.run(Path(out), pool_digests)
        finally:
            await asker.close()

    return _run(main)


@dataclass(eq=False)
class _Chain:
    """One stage of one query: its batches in order."""

    query: PoolQuery
    row: int
    stage: Stage
    stored: dict[int, list[StoredWindow]] = field(default_factory=dict)  # of an earlier run
    batch: int = -1
    open: int = 0  # windows of the batch that are not settled
    failed: bool = False
    answers: list[Answer] = field(default_factory=list)


class _Run:
    def __init__(
        self, store: Store, material: Material, task: Task, judge: Judge, rates: dict[str, Rate],
        concurrency: int, progress: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        self.store, self.material, self.task, self.asker = store, material, task, judge
        self.rates, self.concurrency, self.progress = rates, concurrency, progress
        self.ready: deque[tuple[_Chain, StoredWindow]] = deque()
        self.chains: deque[tuple[PoolQuery, int, Stage]] = deque()
        self.active = 0  # chains that are opened and neither done nor failed
        self.idle: deque[asyncio.Future[None]] = deque()  # workers that wait for a window
        self.failure: BaseException | None = None
        self.unanswered: list[str] = []
        self.stopping = False
        self.counts: Counter[str] = Counter()
        self.total = self.resumed = self.in_flight = 0
        self.started = self.told = time.monotonic()
        self.planner = ThreadPoolExecutor(1, thread_name_prefix="judge-planner")

    async def run(self, out: Path, pool_digests: bool) -> JudgeResult:
        self._prepare()
        self.writer = Writer(self.store)
        try:
            workers = [asyncio.create_task(self._work()) for _ in range(self.concurrency)]
            try:
                await asyncio.wait(workers)
            except asyncio.CancelledError:
                self._stop()
                self._tell(
                    f"finishing {self.in_flight} calls in flight; interrupt again to drop them"
                )
                await asyncio.wait(workers)
                raise
        finally:
            self.planner.shutdown(cancel_futures=True)
            self.writer.close()
            self._note_session()
        if self.failure is not None:
            raise self.failure
        if self.unanswered:
            raise JudgeError(
                f"{len(self.unanswered)} windows were not answered ({self.unanswered[-1]}); the"
                " other answers are kept: run the same command again to go on"
            )
        exported = export(
            self.store, out, current=list(self.configurations.values()), pool_digests=pool_digests
        )
        return JudgeResult(
            judge=self.asker.name,
            windows={stage: self.counts[stage] for stage in self.task.stages},
            resumed=self.resumed,
            calls=self.counts["calls"],
            prompt_tokens=self.counts["prompt"],
            completion_tokens=self.counts["completion"],
            seconds=time.monotonic() - self.started,
            report=self.asker.report(),
            exported=exported,
        )

    def _prepare(self) -> None:
        """Write down what is to be judged, and find what is left of it."""
        made = {stage: self.task.configuration(stage, self.asker) for stage in self.task.stages}
        self.digests = {stage: configuration.digest for stage, configuration in made.items()}
        with storage_errors(self.store.path), self.store.transaction():
            self.configurations = {s: self.store.add_configuration(c) for s, c in made.items()}
            self.session = self.store.begin_session(__version__, list(self.configurations.values()))
            rows = [
                (query, self.store.add_query(
                    query.dataset, query.query_id, query.place, query.documents,
                    self.material.digest(query),
                ))
                for query in self.material.queries
                if in_shard(query, self.task.shard)
            ]  # fmt: skip
            settled = {s: self.store.settled_counts(c) for s, c in self.configurations.items()}
            self.planned = {
                s: self.store.planned_queries(c) for s, c in self.configurations.items()
            }
        for query, row in rows:
            for stage in self.task.stages:
                calls = self.task.schedule.calls(stage, len(query.documents))
                done = settled[stage].get(row, 0)
                self.total += calls
                self.resumed += done
                self.counts[stage] += done
                if done < calls:
                    self.chains.append((query, row, stage))

    def _note_session(self) -> None:
        notes = {**self.asker.report(), "calls": self.counts["calls"], "decoder": DECODER_VERSION}
        with contextlib.suppress(sqlite3.Error), self.store.transaction():
            self.store.note_session(self.session, notes, ended=True)

    # ------------------------------------------------------------------------------------- workers

    async def _work(self) -> None:
        try:
            while (job := await self._take()) is not None:
                await self._settle(*job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = self.failure or error
            self._stop()

    def _stop(self) -> None:
        """Ask nothing new; what is under way is waited for."""
        self.stopping = True
        self.asker.stop()
        self._wake(len(self.idle))

    async def _take(self) -> tuple[_Chain, StoredWindow] | None:
        """The next window to ask, None when there is none left."""
        while not self.stopping:
            if self.ready:
                return self.ready.popleft()
            if self.chains and self.active < max(self.concurrency, 4):
                await self._open(*self.chains.popleft())
            elif not self.active:
                self._wake(len(self.idle))
                return None
            else:
                idle = asyncio.get_running_loop().create_future()
                self.idle.append(idle)
                await idle
        return None

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self.idle))):
            idle = self.idle.popleft()
            if not idle.done():
                idle.set_result(None)

    # -------------------------------------------------------------------------------------- chains

    async def _open(self, query: PoolQuery, row: int, stage: Stage) -> None:
        self.active += 1
        configuration = self.configurations[stage]
        chain = _Chain(query, row, stage)
        if row in self.planned[stage]:
            for window in await self.writer.do(lambda s: s.windows_of(configuration, row, stage)):
                chain.stored.setdefault(window.window.batch, []).append(window)
        await self._advance(chain)

    async def _advance(self, chain: _Chain) -> None:
        """Make the next open windows of a chain ready, or end it."""
        batches = len(self.task.schedule.batches(chain.stage, len(chain.query.documents)))
        while not self.stopping and chain.batch + 1 < batches:
            chain.batch += 1
            windows = chain.stored.pop(chain.batch, None)
            if windows is None:
                windows = await self._plan(chain)
            still_open = [window for window in windows if not window.settled]
            chain.answers += [w.answer for w in windows if w.settled and w.answer is not None]
            if still_open:
                chain.open = len(still_open)
                self.ready.extend((chain, window) for window in still_open)
                self._wake(len(still_open))
                return
        self._end()

    def _end(self) -> None:
        self.active -= 1
        self._wake(1)

    async def _plan(self, chain: _Chain) -> list[StoredWindow]:
        """Plan a chain's batch from its answers and commit the plan."""
        query, stage = chain.query, chain.stage
        planned = await asyncio.get_running_loop().run_in_executor(
            self.planner,
            partial(
                plan_batch, self.task.schedule, stage, chain.batch, query.documents,
                tuple(chain.answers), self.rates[stage],
                dataset=query.dataset, query_id=query.query_id,
            ),
        )  # fmt: skip
        configuration, digest = self.configurations[stage], self.digests[stage]
        cuts = self._cuts(query) if chain.batch == 0 else []

        def write(store: Store) -> list[StoredWindow]:
            store.add_cuts(configuration, cuts)
            names = (query.dataset, query.query_id)
            return store.plan(configuration, digest, chain.row, names, planned)

        return await self.writer.do(write)

    def _cuts(self, query: PoolQuery) -> list[tuple[str, str, int, int]]:
        found = []
        for name in query.documents:
            whole = joined(*self.material.document(query.dataset, name))
            if len(whole) > self.task.budget:
                kept = len(cut_text(whole, self.task.budget))
                found.append((query.dataset, name, len(whole), kept))
        return found

    # ------------------------------------------------------------------------------------- windows

    async def _settle(self, chain: _Chain, stored: StoredWindow) -> None:
        """Ask one window until it is settled, and go on with its chain after the last one."""
        answer = await self._answer(chain, stored)
        chain.open -= 1
        if answer is None:
            chain.failed = True
        else:
            chain.answers.append(answer)
        if chain.open == 0:
            if chain.failed:
                self._end()
            else:
                await self._advance(chain)

    async def _answer(self, chain: _Chain, stored: StoredWindow) -> Answer | None:
        """The window's answer once it is on disk, valid or given up; None where it stays open."""
        task, query, window = self.task, chain.query, stored.window
        question = render(
            window.stage, task.prompts, task.rubric, query.text, query.instruction,
            self.material.documents(query, window.documents), budget=task.budget,
        )  # fmt: skip
        for number in range(stored.attempts + 1, MAX_ATTEMPTS + 1):
            try:
                self.in_flight += 1
                reply = await self.asker.ask(question.messages, question.schema, number)
            except CallError as problem:
                self.unanswered.append(str(problem))
                return None
            finally:
                self.in_flight -= 1
            answer, category = read_answer(
                window, reply.content, reply.reasoning, reply.finish_reason, task.rubric.ids
            )
            final = settles(answer, category, number)
            attempt = _attempt(number, reply, category)
            kept = answer if final else None
            await self.writer.do(lambda s: s.record(self.session, stored.id, attempt, kept))  # noqa: B023
            self._count(stored.window.stage, reply, final, category)
            if self.writer.nearly_full and self.failure is None:
                self.failure = self.writer.full_error()
                self._stop()
            if final:
                return answer
            if self.stopping:
                break
        return None

    def _count(self, stage: Stage, reply: Reply, final: bool, category: str | None) -> None:
        self.counts["calls"] += 1
        self.counts[stage] += final
        self.counts["invalid"] += final and category is not None
        self.counts["prompt"] += reply.prompt_tokens or 0
        self.counts["completion"] += reply.completion_tokens or 0
        now = time.monotonic()
        if self.progress is not None and now - self.told > _TOLD_EVERY and not self.stopping:
            settled = sum(self.counts[stage] for stage in self.task.stages)
            rate = self.counts["calls"] / (now - self.started)
            left = (self.total - settled) / max(
                (settled - self.resumed) / (now - self.started), 1e-9
            )
            self._tell(
                f"judged {settled:,} of {self.total:,} windows, {self.counts['invalid']:,} invalid;"
                f" {rate:.1f} calls/s, {duration(left)} left"
            )

    def _tell(self, text: str) -> None:
        self.told = time.monotonic()
        if self.progress is not None:
            self.progress(text)


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as is easiest to read."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _attempt(number: int, reply: Reply, category: str | None) -> Attempt:
    return Attempt(
        number, reply.asked, reply.latency, reply.content, reply.reasoning, reply.finish_reason,
        reply.model, reply.form, reply.prompt_tokens, reply.completion_tokens, category,
        reply.detail,
    )  # fmt: skip


def _run[T](main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also from within a notebook, whose thread has a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1, thread_name_prefix="judge-loop") as thread:
        loop = asyncio.new_event_loop()

        def run() -> T:
            asyncio.set_event_loop(loop)
            with contextlib.closing(loop):
                return loop.run_until_complete(task)

        task = loop.create_task(main())
        result = thread.submit(run)
        try:
            return result.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(task.cancel)
            raise
