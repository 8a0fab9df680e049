"""What the store keeps, as values: configurations, attempts, planned windows; their identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcp_bayes.schedule import Answer, PlannedWindow, Stage

MAX_ATTEMPTS = 3
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that answers must share to be pooled in one fit.

    Attributes
    ----------
    stage : {"a", "b"}
    judge : str
        Name in the ``judge`` column of the tables; the model's name for a served LLM.
    prompt, rubric : str
        Texts whose digests are recorded. ``rubric`` is JSON, and None where the stage's prompt does
        not show it: Stage A is not paid again because a criterion was reworded.
    settings, schedule : mapping
        JSON types: model, sampling settings, document budget; the stage's part of the schedule.
    """

    stage: Stage
    judge: str
    prompt: str
    rubric: str | None
    settings: Mapping[str, Any]
    schedule: Mapping[str, Any]

    @property
    def digest(self) -> str:
        rubric = None if self.rubric is None else text_digest(self.rubric)
        return digest_of(
            [self.stage, self.judge, text_digest(self.prompt), rubric,
             dict(self.settings), dict(self.schedule)]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of the judge as it came, and how it was read.

    ``category`` is None where it was readable; ``asked`` is a Unix time, ``latency`` in seconds.
    """

    number: int
    asked: float
    latency: float
    content: str | None
    reasoning: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    form: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    category: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """A planned window and where it stands; ``answer`` is None while ``settled`` is false."""

    id: int
    window: PlannedWindow
    attempts: int
    answer: Answer | None
    category: str | None

    @property
    def settled(self) -> bool:
        """No further call will be made: read, refused, or unreadable as often as is allowed."""
        return self.answer is not None and settles(self.answer, self.category, self.attempts)


def settles(answer: Answer, category: str | None, attempts: int) -> bool:
    """Whether an answer that came after so many attempts ends a window."""
    return answer.valid or category == REFUSED or attempts >= MAX_ATTEMPTS


def text_digest(text: str) -> str:
    """SHA-256 of UTF-8 text, hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value's canonical text, hex."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return text_digest(text)


def window_key(configuration: str, dataset: str, query_id: str, window: PlannedWindow) -> str:
    """Digest that identifies a call: configuration digest, query, documents in order, place."""
    return digest_of(
        [configuration, dataset, query_id, list(window.documents),
         window.phase, window.batch, window.index, window.mirrored]
    )  # fmt: skip


def encode_answer(answer: Answer) -> str | None:
    """JSON of an answer's values, None where there is no valid one."""
    for name in ("scores", "ranks", "passes"):
        values = getattr(answer, name)
        if values is not None:
            return json.dumps({name: values}, separators=(",", ":"))
    return None


def decode_answer(window: PlannedWindow, text: str | None) -> Answer:
    """Inverse of `encode_answer`."""
    if text is None:
        return Answer(window)
    ((name, values),) = json.loads(text).items()
    if name == "passes":
        return Answer(window, passes=tuple(tuple(row) for row in values))
    return Answer(window, **{name: tuple(values)})
