"""What a pass over a pool will take, before anything is asked."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from rcp_bayes.io import PoolFolder
from rcp_bayes.judge.material import Material, in_shard
from rcp_bayes.judge.prompts import joined, render
from rcp_bayes.judge.task import Task
from rcp_bayes.schedule import Stage

CHARACTERS_PER_TOKEN = 4.0  # of English prose; other languages and code need more tokens
Prices = tuple[float | None, float | None]


@dataclass(frozen=True)
class Estimate:
    """Calls, tokens and cost of a task.

    Attributes
    ----------
    queries, documents : int
        Judged queries; candidates over all of them.
    calls : dict
        Windows, by stage: exact, if every first answer can be read.
    prompt_tokens, answer_tokens : dict
        By stage, at `CHARACTERS_PER_TOKEN`.
    cost : float or None
        In the unit of the prices, None without them.
    reasoned : bool
        The answer's length was given; else only the JSON asked for is counted.
    """

    queries: int
    documents: int
    calls: dict[Stage, int]
    prompt_tokens: dict[Stage, int]
    answer_tokens: dict[Stage, int]
    cost: float | None
    reasoned: bool

    def lines(self) -> list[str]:
        """The estimate in words, with its assumptions."""
        lines = [f"{self.queries:,} queries, {self.documents:,} candidates"]
        lines += [
            f"stage {stage}: {n:,} calls, {self.prompt_tokens[stage]:,} prompt tokens,"
            f" {self.answer_tokens[stage]:,} answer tokens"
            for stage, n in self.calls.items()
        ]
        asked, answered = sum(self.prompt_tokens.values()), sum(self.answer_tokens.values())
        total = f"total: {sum(self.calls.values()):,} calls, {asked:,} + {answered:,} tokens"
        lines.append(total if self.cost is None else f"{total}, cost {self.cost:,.2f}")
        reasoning = "" if self.reasoned else "; reasoning is not counted (--answer-tokens)"
        lines.append(
            f"a token is taken as {CHARACTERS_PER_TOKEN:g} characters{reasoning};"
            " unreadable answers are asked again, up to three times in all"
        )
        return lines


def estimate(
    pool: PoolFolder | str | os.PathLike[str],
    task: Task | None = None,
    *,
    prices: Prices = (None, None),
    answer_tokens: int | None = None,
) -> Estimate:
    """Calls, tokens and cost of judging a pool, without a call.

    The documents of a window are taken to be of the query's mean length, as balanced windows make
    them; the adaptive windows of Stage A may hold longer or shorter ones.

    Parameters
    ----------
    prices : (float or None, float or None)
        Of a million prompt tokens and of a million answer tokens; a missing one counts 0.
    answer_tokens : int, optional
        Tokens of one answer, where a model reasons before it answers.
    """
    task = task or Task()
    material = Material(pool)
    queries = [query for query in material.queries if in_shard(query, task.shard)]
    calls: dict[Stage, int] = dict.fromkeys(task.stages, 0)
    asked: dict[Stage, float] = dict.fromkeys(task.stages, 0.0)
    answered: dict[Stage, float] = dict.fromkeys(task.stages, 0.0)
    for query in queries:
        n = len(query.documents)
        size = min(task.schedule.window, n)
        shown = sum(
            min(len(joined(*document)), task.budget)
            for document in material.documents(query, query.documents)
        )
        for stage in task.stages:
            count = task.schedule.calls(stage, n)
            empty = render(
                stage, task.prompts, task.rubric, query.text, query.instruction,
                [(None, "")] * size, budget=task.budget,
            )  # fmt: skip
            frame = sum(len(message["content"]) for message in empty.messages)
            calls[stage] += count
            asked[stage] += count * (frame + size * shown / n) / CHARACTERS_PER_TOKEN
            answer = _answer_characters(stage, empty.labels, task.rubric.ids)
            answered[stage] += count * (answer_tokens or answer / CHARACTERS_PER_TOKEN)
    cost = None
    if prices != (None, None):
        per_prompt, per_answer = (price or 0.0 for price in prices)
        cost = (per_prompt * sum(asked.values()) + per_answer * sum(answered.values())) / 1e6
    return Estimate(
        len(queries),
        sum(len(query.documents) for query in queries),
        calls,
        {stage: round(tokens) for stage, tokens in asked.items()},
        {stage: round(tokens) for stage, tokens in answered.items()},
        cost,
        answer_tokens is not None,
    )


def _answer_characters(stage: Stage, labels: tuple[str, ...], criteria: tuple[str, ...]) -> int:
    """Length of the JSON that is asked for."""
    if stage == "a":
        return len(json.dumps({"scores": dict.fromkeys(labels, -1.25)}))
    return len(json.dumps({"answers": dict.fromkeys(labels, dict.fromkeys(criteria, 0))}))
