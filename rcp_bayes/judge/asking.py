"""What the loop over windows needs of a judge, served or embedded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rcp_bayes import __version__
from rcp_bayes.errors import UsageError
from rcp_bayes.judge.embedded import EmbeddedJudge


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as it came, unread.

    ``asked`` is a Unix time and ``latency`` in seconds; ``detail`` holds a server's reason for
    refusing to answer.
    """

    content: str | None
    asked: float
    latency: float
    reasoning: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    form: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    detail: str | None = None


class CallError(Exception):
    """One call is not answered, while others may be: its window stays open."""


class Judge(Protocol):
    """Answers questions; `client.Client` is one, and `Embedded` makes one of a function of text.

    ``name`` stands in the tables' ``judge`` column. ``describe`` gives, as JSON types, all that the
    distribution of an answer depends on besides the question; ``report`` what was learned on the
    way. After ``stop`` no failed call is repeated: it raises `CallError` instead.
    """

    name: str

    def describe(self) -> dict[str, Any]: ...

    def report(self) -> dict[str, Any]: ...

    async def ask(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], attempt: int
    ) -> Reply: ...

    def stop(self) -> None: ...

    async def close(self) -> None: ...


class Embedded:
    """A judge inside the process, without a network."""

    def __init__(self, judge: EmbeddedJudge) -> None:
        self.name = judge.name
        self._judge = judge

    def describe(self) -> dict[str, Any]:
        # Another version may weigh words otherwise, and asking again is free.
        return {"embedded": self.name, "version": __version__}

    def report(self) -> dict[str, Any]:
        return {}

    async def ask(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], attempt: int
    ) -> Reply:
        await asyncio.sleep(0)  # let the writer's results and an interrupt in
        asked, started = time.time(), time.perf_counter()
        try:
            content = self._judge.reply(messages)
        except ValueError as error:
            raise UsageError(
                f"the {self.name} judge cannot read this prompt ({error}); it needs the layout of"
                " the shipped prompts"
            ) from None
        return Reply(content, asked, time.perf_counter() - started, finish_reason="stop")

    def stop(self) -> None: ...

    async def close(self) -> None: ...
