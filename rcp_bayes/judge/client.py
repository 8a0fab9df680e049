"""Asking a served LLM: one call, retried until it is answered, on any OpenAI-compatible server.

The only module that imports openai. What a server understands is learned from its first answers
and remembered for the run: the form of structured output (`FORMS`, tried in that order), the name
of the token limit, and whether a temperature may be sent. The first call is made alone, so that
this costs no call of its own: once it is answered, its answer counts.

Failures of transport (no connection, timeouts, 408, 409, 425, 429, 5xx) are asked again with
exponential backoff and jitter, or when the server's Retry-After says. A call is given up only when
the server has answered nobody for `Settings.patience` seconds, or keeps failing on this call alone
for that long while it answers others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rcp_bayes.errors import JudgeError, UsageError
from rcp_bayes.judge.asking import CallError, Reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

FORMS = ("json_schema", "json_object", "text")
FIRST_PATIENCE = 20.0  # seconds; a server that never answered is more likely a wrong URL
FORM_TRIES = 3  # answers of 500 to a form never yet accepted, before the next form is tried
_POOLS = 8  # httpx looks through a pool's connections at every call: smaller ones cost less
_BACKOFF, _LONGEST = 0.5, 30.0  # seconds: first wait, and the cap of the doubling
_RETRIED = {408, 409, 425, 429}

_CONTEXT = re.compile(
    r"context[ _-]?(length|size|window)|maximum context|prompt is too long|input is too long"
    r"|too many (input )?tokens|longer than the (model|maximum)|exceeds? the (available|model)",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"response_?format|json_?schema|json_object|structured|guided|grammar|schema", re.IGNORECASE
)
_FILTER = re.compile(r"content_filter|content management policy|responsible ?ai", re.IGNORECASE)
_UNKNOWN = re.compile(r"unsupported|not supported|unrecogni|unknown|max_completion", re.IGNORECASE)
_OURS = ("model", "messages", "stream")  # an answer would be stored under a false name, or unread
_OPTIONS = {"top_p": "--top-p", "seed": "--seed", "temperature": "--temperature"}


@dataclass(frozen=True)
class Settings:
    """How to reach a model and how it samples.

    Attributes
    ----------
    model : str
    base_url : str, optional
        Of the API, ending in ``/v1`` as a rule; else ``OPENAI_BASE_URL``, else the vendor's own.
    api_key : str, optional
        Else ``OPENAI_API_KEY``; local servers need none. Never stored, shown or logged.
    temperature, top_p, max_tokens, seed, extra_body
        Passed through; None leaves the server's default. Another attempt at a window sends
        ``seed + 1``, ``seed + 2``, since the same seed would bring the same answer.
    timeout : float
        Seconds for one call.
    patience : float
        Seconds for which a silent server is waited for.

    Raises
    ------
    UsageError
        A value that no server could follow, or an `extra_body` that replaces the question.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = 1.0
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0
    patience: float = 300.0

    def __post_init__(self) -> None:
        limits: dict[str, tuple[str, Callable[[Any], bool]]] = {
            "temperature": ("a number from 0", lambda x: 0 <= x < math.inf),
            "top_p": ("above 0, at most 1", lambda x: 0 < x <= 1),
            "max_tokens": ("at least 1", lambda x: x >= 1),
            "timeout": ("above 0 seconds", lambda x: x > 0),
            "patience": ("0 seconds or more", lambda x: x >= 0),
        }
        for name, (wanted, good) in limits.items():
            value = getattr(self, name)
            if value is not None and not good(value):  # NaN fails every comparison
                raise UsageError(f"--{name.replace('_', '-')} must be {wanted}, not {value}")
        for name in _OURS:
            if name in self.extra_body:
                raise UsageError(f"--extra-body cannot hold {name!r}: the call itself sets it")
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--extra-body is not JSON: {error}") from None

    def sampling(self) -> dict[str, Any]:
        """What identifies an answer's distribution: the part that is stored and digested."""
        names = ("model", "temperature", "top_p", "max_tokens", "seed", "extra_body")
        return {
            name: dict(value) if name == "extra_body" else value
            for name in names
            if (value := getattr(self, name)) is not None and value != {}
        }


class Client:
    """A served LLM as a judge (see `asking.Judge`).

    Attributes
    ----------
    form : str
        Form of structured output in use.
    failures : Counter
        Calls that had to be repeated, by kind (``429``, ``500``, ``connection``, ``timeout``, …).
    notes : list of str
        What was changed to suit the server.
    """

    def __init__(self, settings: Settings) -> None:
        if not settings.model:
            raise UsageError("name the model to ask (--model)")
        self.name = settings.model
        self.settings = settings
        self.form = FORMS[0]
        self.failures: Counter[str] = Counter()
        self.notes: list[str] = []
        self._limit_name = "max_tokens"
        self._dropped: set[str] = set()
        self._proven: set[str] = set()
        self._first = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._answered: float | None = None  # when the server last answered anyone, monotonic
        self._clients = [_connect(settings) for _ in range(_POOLS)]
        self._turn = itertools.cycle(self._clients)
        self.endpoint = _public_url(str(self._clients[0].base_url))

    def describe(self) -> dict[str, Any]:
        return self.settings.sampling()

    def report(self) -> dict[str, Any]:
        """What the session's record keeps: where, how, and how often calls were repeated."""
        return {
            "endpoint": self.endpoint,
            "structured": self.form,
            "changed": self.notes,
            "repeated": dict(self.failures),
        }

    def stop(self) -> None:
        self._stopped.set()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def ask(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], attempt: int
    ) -> Reply:
        """The answer to one question.

        Parameters
        ----------
        messages : sequence of {"role", "content"}
        schema : mapping
            JSON schema of a good answer.
        attempt : int
            1 for the first time that the window is asked.

        Raises
        ------
        JudgeError
            No call will succeed: wrong key or model, refused options, a window beyond the model's
            context, or a server that stays silent.
        CallError
            This call keeps failing while others succeed.
        """
        if self._answered is None:
            async with self._first:
                if self._answered is None:
                    return await self._ask(messages, schema, attempt)
        return await self._ask(messages, schema, attempt)

    async def _ask(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], attempt: int
    ) -> Reply:
        import openai
        from openai.types.chat import ChatCompletion

        failing_since: float | None = None
        tries = 0
        while True:
            form = self.form
            body = self._body(form, schema, attempt)
            asked, started = time.time(), time.monotonic()
            try:
                # As `chat.completions.create`, which copies every message field by field first.
                completion = await next(self._turn).post(
                    "/chat/completions",
                    cast_to=ChatCompletion,
                    body={"model": self.settings.model, "messages": messages, **body},
                )
                reply = _reply(completion, form, asked, time.monotonic() - started)
                self._answered = time.monotonic()
                self._proven.add(form)
                return reply
            except openai.APIStatusError as error:
                if error.status_code < 500 and error.status_code not in _RETRIED:
                    reply_or_none = await self._refused(error, form, body, asked, started)
                    if reply_or_none is not None:
                        return reply_or_none
                    continue
                kind, wait = str(error.status_code), _retry_after(error.response.headers)
                problem = f"answered {kind}: {_message(error)}"
                self._give_up_if_broke(error)
                if error.status_code >= 500:
                    named = _FORM.search(_message(error)) is not None
                    if self._next_form(form, error, at_once=named, tries=tries + 1):
                        tries = 0
                        continue
            except openai.APITimeoutError:
                kind, wait = "timeout", None
                problem = f"did not answer within {self.settings.timeout:g} s"
            except openai.APIConnectionError as error:
                kind, wait = "connection", None
                problem = f"cannot be reached ({error.__cause__ or error})"
            except (
                _GarbledError,
                openai.APIResponseValidationError,
                json.JSONDecodeError,
            ) as error:
                kind, wait, problem = "garbled", None, f"sent no chat completion: {error}"
            self.failures[kind] += 1
            now = time.monotonic()
            failing_since = now if failing_since is None else failing_since
            self._check_patience(kind, problem, wait, failing_since, now)
            tries += 1
            if wait is None:
                longest = min(_BACKOFF * 2.0 ** min(tries - 1, 10), _LONGEST)
                wait = longest * random.uniform(0.5, 1.0)
            else:  # the server told everyone the same: do not come back all at once
                wait *= random.uniform(1.0, 1.1)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), wait)
            if self._stopped.is_set():
                raise CallError(f"{self.endpoint} {problem}")

    def _body(self, form: str, schema: Mapping[str, Any], attempt: int) -> dict[str, Any]:
        s = self.settings
        body: dict[str, Any] = {}
        if s.temperature is not None and "temperature" not in self._dropped:
            body["temperature"] = s.temperature
        if s.top_p is not None:
            body["top_p"] = s.top_p
        if s.max_tokens is not None:
            body[self._limit_name] = s.max_tokens
        if s.seed is not None:
            body["seed"] = s.seed + attempt - 1
        if form == "json_schema":
            inner = {"name": "answer", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": inner}
        elif form == "json_object":
            # llama.cpp and others read the schema here; servers that do not know it ignore it.
            body["response_format"] = {"type": "json_object", "schema": schema}
        return body | dict(s.extra_body)

    async def _refused(
        self, error: Any, form: str, body: Mapping[str, Any], asked: float, started: float
    ) -> Reply | None:
        """What a 4xx means: adapt (None: ask again), an answer in itself, or the end of the run."""
        status, text, where = error.status_code, _message(error), self.endpoint
        model = self.settings.model
        self._give_up_if_broke(error)
        if status in (401, 403):
            raise JudgeError(
                f"{where} refuses the key ({status}: {text}); set OPENAI_API_KEY or --api-key"
            ) from None
        if status == 404:
            known = await self._models()
            raise JudgeError(
                f"{where} does not serve model {model!r} ({text});"
                f" {known or 'check --base-url and --model'}"
            ) from None
        if _FILTER.search(f"{error.code} {text}"):
            self._answered = time.monotonic()
            latency = self._answered - started
            return Reply(
                None, asked, latency, finish_reason="content_filter", form=form, detail=text
            )
        if _CONTEXT.search(text) or error.code == "context_length_exceeded" or status == 413:
            raise JudgeError(
                f"a window does not fit in the context of {model!r} ({text}); lower"
                " --max-document-chars or --max-tokens, or serve the model with a longer context"
            ) from None
        if self._option_refused(error, text, body):
            return None
        if self._next_form(form, error, at_once=True, tries=1):
            return None
        raise JudgeError(f"{where} refuses the call ({status}: {text})") from None

    def _option_refused(self, error: Any, text: str, body: Mapping[str, Any]) -> bool:
        """Adapt an option that the server names; whether that was possible.

        Only what keeps the meaning is changed: the name of the token limit, and a temperature of
        1, which is the default everywhere. Other options are the user's, who is told.
        """
        for name in self.settings.extra_body:
            if error.param == name or re.search(rf"\b{re.escape(name)}\b", text):
                raise JudgeError(
                    f"{self.endpoint} refuses {name!r} of --extra-body ({text})"
                ) from None
        limit, other = self._limit_name, "max_completion_tokens"
        if limit in body and (error.param == limit or re.search(rf"\b{limit}\b", text)):
            known = re.search(
                r"unsupported|not supported|unrecogni|unknown|max_completion", text, re.I
            )
            if limit != other and known:
                self._limit_name = other
                self.notes.append(f"the token limit is sent as {other}")
                return True
            raise JudgeError(
                f"{self.endpoint} refuses --max-tokens ({text}); give another or none"
            ) from None
        for name, option in _OPTIONS.items():
            if name not in body or not (error.param == name or re.search(rf"\b{name}\b", text)):
                continue
            if name == "temperature" and body[name] == 1.0:
                self._dropped.add(name)
                self.notes.append("no temperature is sent; the server's default is taken")
                return True
            raise JudgeError(
                f"{self.endpoint} refuses {option} {body[name]} ({text}); leave it out or change it"
            ) from None
        # Another call may have changed it while this one was under way.
        return "temperature" in body and "temperature" in self._dropped

    def _next_form(self, form: str, error: Any, *, at_once: bool, tries: int) -> bool:
        """Go down to the next form of structured output, where the refused one may be at fault."""
        if form != self.form:  # another call has already moved on
            return True
        blamed = _FORM.search(_message(error)) is not None
        unproven = form not in self._proven
        if form == FORMS[-1] or not (blamed if not unproven else at_once or tries >= FORM_TRIES):
            return False
        self.form = FORMS[FORMS.index(form) + 1]
        self.notes.append(f"{form} is refused ({error.status_code}); using {self.form}")
        return True

    def _give_up_if_broke(self, error: Any) -> None:
        if error.code == "insufficient_quota" or error.status_code == 402:
            raise JudgeError(
                f"{self.endpoint}: {_message(error)}; what was answered is kept: add credit and run"
                " the same command again"
            ) from None

    def _check_patience(
        self, kind: str, problem: str, wait: float | None, failing_since: float, now: float
    ) -> None:
        patience = self.settings.patience
        again = "the answers so far are kept: run the same command again to go on"
        if wait is not None and wait > patience:
            raise JudgeError(f"{self.endpoint} asks to wait {wait:.0f} s; {again} then") from None
        if self._answered is None and kind == "connection":
            patience = min(patience, FIRST_PATIENCE)
        silent_since = failing_since if self._answered is None else self._answered
        if now - failing_since < patience:
            return
        if now - silent_since >= patience:
            raise JudgeError(
                f"{self.endpoint} {problem}; nothing for {now - silent_since:.0f} s; {again}"
            ) from None
        if kind != "429":  # a limit of the rate is no fault of this call: its turn will come
            raise CallError(f"{self.endpoint} {problem}")

    async def _models(self) -> str:
        """What the server says it serves, for a message; empty where it does not tell."""
        try:
            names = [model.id async for model in self._clients[0].models.list()][:8]
        except Exception:
            return ""
        return f"it serves {', '.join(map(repr, names))}" if names else ""


class _GarbledError(Exception):
    """An answer with status 200 that is no chat completion."""


def _connect(settings: Settings) -> AsyncOpenAI:
    import openai

    key = settings.api_key or os.environ.get("OPENAI_API_KEY") or "none"
    url = settings.base_url or os.environ.get("OPENAI_BASE_URL")
    if url is not None and not re.match(r"https?://[^/\s]", url):
        raise UsageError(f"--base-url {url!r}: write it as http://HOST:PORT/v1")
    try:
        return openai.AsyncOpenAI(
            base_url=url,
            api_key=key,
            timeout=settings.timeout,
            max_retries=0,  # the loop above knows more
        )
    except (openai.OpenAIError, ValueError, TypeError) as error:
        raise UsageError(f"--base-url {url!r}: {error}") from None


def _public_url(url: str) -> str:
    """A URL without user, password and query, for messages and records."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def _reply(completion: Any, form: str, asked: float, latency: float) -> Reply:
    """The parts of a chat completion that are kept.

    Raises
    ------
    _GarbledError
        The body is something else: text, or an error sent with status 200.
    """
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list):
        raise _GarbledError(f"{completion!r:.200}")
    usage = completion.usage
    parts: dict[str, Any] = {
        "asked": asked,
        "latency": latency,
        "form": form,
        "model": _text(completion.model),
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
    }
    if not choices:
        if (completion.model_extra or {}).get("error"):
            raise _GarbledError(f"{completion.model_extra['error']!r:.200}")
        return Reply(None, **parts)
    message = choices[0].message
    extra = getattr(message, "model_extra", None) or {}
    reasoning = extra.get("reasoning_content") or extra.get("reasoning")
    finish, detail = _text(choices[0].finish_reason), _text(getattr(message, "refusal", None))
    content = _text(getattr(message, "content", None))
    if detail and not content:
        finish = "content_filter"
    return Reply(
        content, reasoning=_text(reasoning), finish_reason=finish, detail=detail or None, **parts
    )


def _text(value: Any) -> str | None:
    """Text of a field that some servers send as a list of parts."""
    if isinstance(value, list):
        value = "".join(part.get("text") or "" for part in value if isinstance(part, dict))
    return value if value is None or isinstance(value, str) else str(value)


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else None


def _message(error: Any) -> str:
    """The server's own words, on one line and not long."""
    body = error.body
    words = body.get("message") or body.get("detail") if isinstance(body, dict) else None
    text = (
        words if isinstance(words, str) else json.dumps(body, default=str) if body else str(error)
    )
    return " ".join(text.split())[:300]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, by any of the three ways to say it."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None
