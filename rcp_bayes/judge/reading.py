"""A stored answer's text as an answer to its window: the decoder applied to what was planned."""

from __future__ import annotations

from collections.abc import Sequence

from rcp_bayes.judge.decode import Response, decode
from rcp_bayes.judge.prompts import window_labels
from rcp_bayes.schedule import Answer, PlannedWindow


def read_answer(
    window: PlannedWindow,
    content: str | None,
    reasoning: str | None,
    finish_reason: str | None,
    criteria: Sequence[str],
) -> tuple[Answer, str | None]:
    """The answer, empty where it is unreadable, and the category that says why."""
    response = Response(content, reasoning, finish_reason)
    found = decode(window.stage, response, window_labels(len(window.documents)), criteria)
    answer = Answer(window, scores=found.scores, ranks=found.ranks, passes=found.passes)
    return answer, found.category
