"""An embedded judge behind a real HTTP endpoint on this machine, OpenAI-compatible, with faults.

For tests and for trying out a pass without a model: chat completions, the list of models, token
counts (a token is taken as four characters), and the limits of servers in the field on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rcp_bayes.errors import UsageError
from rcp_bayes.judge.embedded import EmbeddedJudge
from rcp_bayes.judge.faults import Faults, Limits, digest_bytes, spoilt

MOST_BYTES = 64 << 20  # of a request
_STATUS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Content Too Large", 429: "Too Many Requests", 500: "Internal Server Error",
}  # fmt: skip


class Problem(Exception):  # noqa: N818
    """A request that is answered with an error, in OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Endpoint:
    """The service apart from HTTP: bytes of a request in, a JSON document out.

    Attributes
    ----------
    counts : Counter
        ``requests``, ``answers`` and each fault, so far; also at ``GET /stats``.
    """

    def __init__(self, judge: EmbeddedJudge, faults: Faults, limits: Limits) -> None:
        self.judge, self.faults, self.limits = judge, faults, limits
        self.counts: Counter[str] = Counter()
        self._failed: Counter[bytes] = Counter()

    def models(self) -> dict[str, Any]:
        entry = {"id": self.judge.name, "object": "model", "created": 0, "owned_by": "rcp-bayes"}
        return {"object": "list", "data": [entry]}

    def complete(self, body: bytes) -> dict[str, Any] | None:
        """A chat completion; None: cut the connection.

        Raises
        ------
        Problem
            The request is refused, or a fault wants it so.
        """
        self.counts["requests"] += 1
        request = _request(body)
        self._refuse(request)
        digest = digest_bytes(body)
        fault = self.faults.transport(digest, self._failed[digest])
        if fault is not None:
            self._failed[digest] += 1
            self.counts[fault] += 1
            if fault == "rate_limit":
                wait = {"retry-after": f"{self.faults.retry_after:g}"}
                raise Problem(429, "rate limit reached", code="rate_limit_exceeded", headers=wait)
            if fault == "error":
                raise Problem(500, "something went wrong in here")
            return None
        self.counts["answers"] += 1
        try:
            content: str | None = self.judge.reply(request["messages"])
        except (ValueError, KeyError) as error:
            raise Problem(
                400, f"the {self.judge.name} judge cannot read the prompt: {error}"
            ) from None
        finish = "stop"
        reasoning = None
        fault = self.faults.text(digest)
        if fault is not None:
            self.counts[fault] += 1
        if fault == "reasoning_field":
            content, reasoning = "", content
        elif fault is not None:
            content, finish = spoilt(content or "", fault)
        limit = request.get("max_completion_tokens", request.get("max_tokens"))
        if content and isinstance(limit, int) and _tokens(content) > limit:
            content, finish = content[: 4 * limit], "length"
        return self._completion(request, content, reasoning, finish)

    def _refuse(self, request: Mapping[str, Any]) -> None:
        limits = self.limits
        for name in limits.options:
            if name in request:
                instead = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
                raise Problem(
                    400, f"Unsupported parameter: '{name}' is not supported here.{instead}",
                    code="unsupported_parameter", param=name,
                )  # fmt: skip
        if request.get("model") != self.judge.name:
            raise Problem(
                404, f"The model {request.get('model')!r} does not exist", code="model_not_found"
            )
        if request.get("stream"):
            raise Problem(400, "streaming is not supported", param="stream")
        form = request.get("response_format") or {"type": "text"}
        kind = form.get("type") if isinstance(form, dict) else None
        if kind not in ("text", "json_object", "json_schema") or kind in limits.forms:
            raise Problem(
                limits.form_status, f"response_format type {kind!r} is unavailable",
                param="response_format",
            )  # fmt: skip
        length = _tokens(json.dumps(request["messages"]))
        if limits.context is not None and length > limits.context:
            raise Problem(
                400, f"This model's maximum context length is {limits.context}, not {length}",
                code="context_length_exceeded", param="messages",
            )  # fmt: skip

    def _completion(
        self, request: Mapping[str, Any], content: str | None, reasoning: str | None, finish: str
    ) -> dict[str, Any]:
        asked, answered = (
            _tokens(json.dumps(request["messages"])),
            _tokens((content or "") + (reasoning or "")),
        )
        message = {"role": "assistant", "content": content, "refusal": None}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        usage = {"prompt_tokens": asked, "completion_tokens": answered,
                 "total_tokens": asked + answered}  # fmt: skip
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return {
            "id": f"chatcmpl-{self.counts['answers']}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.judge.name,
            "choices": [choice],
            "usage": usage,
        }


def serve(
    judge: EmbeddedJudge,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    faults: Faults | None = None,
    limits: Limits | None = None,
    on_ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    judge : EmbeddedJudge
        Its name is the model's.
    port : int
        0: any free one.
    on_ready : callable, optional
        Is given the port once requests are answered.

    Raises
    ------
    UsageError
        The port is taken or not allowed.
    """
    endpoint = Endpoint(judge, faults or Faults(), limits or Limits())

    async def run() -> None:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: _Connection(endpoint), host, port, backlog=1024
            )
        except (OSError, OverflowError) as error:  # OverflowError: beyond 65535
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"port {port} of {host} cannot be used ({reason})") from None
        if on_ready is not None:
            on_ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive: just what JSON over POST and GET needs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (request := self._next_request()) is not None:
            self._answer(*request)

    def _next_request(self) -> tuple[str, str, dict[str, str], bytes] | None:
        """The next whole request in the buffer: method, path, headers, body."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = headers.get("content-length", "0")
        parts = first.split(" ")
        if len(parts) != 3 or not length.isdecimal() or int(length) > MOST_BYTES:
            self._buffer.clear()
            large = length.isdecimal() and int(length) > MOST_BYTES
            self._send(413 if large else 400, {"error": {"message": "bad request"}})
            if self._transport is not None:
                self._transport.close()
            return None
        total = end + 4 + int(length)
        if len(self._buffer) < total:
            return None
        body = bytes(self._buffer[end + 4 : total])
        del self._buffer[:total]
        return parts[0], parts[1].partition("?")[0].rstrip("/"), headers, body

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        endpoint = self._endpoint
        key = endpoint.limits.api_key
        try:
            if path == "/stats" and method == "GET":
                return self._send(200, dict(endpoint.counts))
            if key is not None and headers.get("authorization") != f"Bearer {key}":
                raise Problem(401, "Incorrect API key provided", code="invalid_api_key")
            if path == "/v1/models" and method == "GET":
                return self._send(200, endpoint.models())
            if path != "/v1/chat/completions":
                raise Problem(404, f"there is no {path}")
            if method != "POST":
                raise Problem(405, f"{method} is not allowed here")
            completion = endpoint.complete(body)
        except Problem as problem:
            return self._send(problem.status, problem.body, problem.headers)
        if completion is None:
            if self._transport is not None:
                self._transport.abort()
        elif endpoint.faults.delay:
            asyncio.get_running_loop().call_later(
                endpoint.faults.delay, self._send, 200, completion
            )
        else:
            self._send(200, completion)

    def _send(
        self, status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        body = json.dumps(document).encode()
        head = [
            f"HTTP/1.1 {status} {_STATUS[status]}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self._transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)


def _request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not JSON") from None
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise Problem(400, "'messages' must be a list of objects", param="messages")
    return request


def _tokens(text: str) -> int:
    return -(-len(text) // 4)
