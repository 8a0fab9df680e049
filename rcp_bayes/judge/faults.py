"""What can go wrong with a served judge, reproducibly: faults and limits of a local server.

Faults are a function of the seed and the request's bytes. Those of an answer's text hit the same
request again and again; those of transport hit it a drawn number of times and then let it through,
so that whoever asks again gets the answer that a sound server would have given.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

from rcp_bayes.errors import UsageError

_TRANSPORT = ("rate_limit", "error", "drop")
_TEXT = (
    "truncate", "bad_json", "prose", "empty", "content_filter", "repeat",
    "reasoning", "reasoning_field",
)  # fmt: skip


@dataclass(frozen=True)
class Faults:
    """What goes wrong, how often.

    Attributes
    ----------
    rate_limit, error, drop : float
        Probability of a 429 with Retry-After, of a 500, of a connection cut without an answer.
    truncate, bad_json, prose, empty, content_filter, repeat : float
        Probability that an answer ends at half its length (``finish_reason: length``), is JSON
        with a brace too few, is prose, is empty, is withheld by a filter, or names a document twice
        with two values.
    reasoning, reasoning_field : float
        Probability that a good answer comes after a block of reasoning, or in the field
        ``reasoning_content`` beside an empty content.
    delay : float
        Seconds before every answer.
    retry_after : float
        Seconds that a 429 asks to wait.
    seed : int
    """

    rate_limit: float = 0.0
    error: float = 0.0
    drop: float = 0.0
    truncate: float = 0.0
    bad_json: float = 0.0
    prose: float = 0.0
    empty: float = 0.0
    content_filter: float = 0.0
    repeat: float = 0.0
    reasoning: float = 0.0
    reasoning_field: float = 0.0
    delay: float = 0.0
    retry_after: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for names in (_TRANSPORT, _TEXT):
            chances = [getattr(self, name) for name in names]
            if min(chances) < 0 or sum(chances) > 1:
                raise UsageError(f"chances of {', '.join(names)}: from 0 to 1, and so their sum")
        if sum(getattr(self, name) for name in _TRANSPORT) >= 1:
            raise UsageError("a server that always fails answers nobody: lower the chances")
        if self.delay < 0 or self.retry_after < 0:
            raise UsageError("a delay cannot be negative")

    @classmethod
    def of_every_kind(cls, chance: float, **more: Any) -> Faults:
        """Each kind of fault with the same chance."""
        return cls(**{**dict.fromkeys((*_TRANSPORT, *_TEXT), chance), **more})

    def transport(self, request: bytes, before: int) -> str | None:
        """The fault of the next time that a request comes, after so many faults of transport."""
        return self._pick(_TRANSPORT, request, before)

    def text(self, request: bytes) -> str | None:
        return self._pick(_TEXT, request, -1)

    def _pick(self, names: tuple[str, ...], request: bytes, turn: int) -> str | None:
        u = int.from_bytes(digest_bytes(b"%d %d " % (self.seed, turn) + request)[:7]) / 2.0**56
        for name in names:
            u -= getattr(self, name)
            if u < 0:
                return name
        return None


@dataclass(frozen=True)
class Limits:
    """What a server does not accept.

    Attributes
    ----------
    forms : tuple of str
        Types of ``response_format`` that are refused, with status `form_status`.
    form_status : int
        400 as most servers, or 500 as llama.cpp's Python server.
    options : tuple of str
        Refused, by the name of the request's field (``max_tokens``, ``temperature``, …).
    context : int, optional
        Tokens of the longest prompt.
    api_key : str, optional
        Asked for where given.
    """

    forms: tuple[str, ...] = ()
    form_status: int = 400
    options: tuple[str, ...] = ()
    context: int | None = None
    api_key: str | None = None


def spoilt(content: str, fault: str) -> tuple[str | None, str]:
    """An answer's text and finish reason after a fault."""
    if fault == "truncate":
        return content[: len(content) // 2], "length"
    if fault == "bad_json":
        return content.rstrip().removesuffix("}"), "stop"
    if fault == "prose":
        return "None of these documents relates to the query, so I give all of them 1 of 5.", "stop"
    if fault == "empty":
        return "", "stop"
    if fault == "content_filter":
        return None, "content_filter"
    if fault == "reasoning":
        thought = 'D1 might deserve {"scores": {"D1": 5}}. Or not.'
        return f"<think>{thought}</think>\n{content}", "stop"
    # The first document again, with another value.
    head, _, rest = content.partition(': {"D1": ')
    return f'{head}: {{"D1": "both", "D1": {rest}', "stop"


def digest_bytes(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


FAULT_NAMES = tuple(field.name for field in fields(Faults))
