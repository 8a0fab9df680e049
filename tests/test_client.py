"""The client against a scripted HTTP server, through the real openai package.

Every test states what the server does and checks what was sent, in which order, and what came out.
Waits are shortened by Retry-After or by a small backoff; no test asserts seconds from above.
"""

import asyncio
import time

import pytest
from judging import completion, refusal, scripted

import rcp_bayes.judge.client as module
from rcp_bayes.errors import JudgeError, UsageError
from rcp_bayes.judge.asking import CallError
from rcp_bayes.judge.client import Client, Settings

MESSAGES = [{"role": "user", "content": "score D1"}]
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
GOOD = (200, completion('{"scores": {"D1": 1}}'), {})


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "_BACKOFF", 0.01)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def ask(server, *, times=1, attempt=1, **settings):
    """Ask one after the other; the replies and the client."""
    given = {"model": "m-1", "base_url": server.url, **settings}

    async def run():
        client = Client(Settings(**given))
        try:
            return [await client.ask(MESSAGES, SCHEMA, attempt) for _ in range(times)], client
        finally:
            await client.close()

    return asyncio.run(run())


def forms(server):
    return [r.get("response_format", {}).get("type", "text") for r in server.requests]


def test_what_is_sent_and_what_is_kept():
    settings = dict(
        temperature=0.7, top_p=0.9, max_tokens=99, seed=5, extra_body={"top_k": 3}, api_key="k-1"
    )
    with scripted(lambda body, n: GOOD) as server:
        (reply,), client = ask(server, attempt=2, **settings)
    (body,), (headers,) = server.requests, server.headers
    assert body["messages"] == MESSAGES and body["model"] == "m-1"
    sent = {name: body[name] for name in ("temperature", "top_p", "max_tokens", "seed", "top_k")}
    assert sent == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 99, "seed": 6, "top_k": 3}
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert headers["authorization"] == "Bearer k-1"
    assert reply.content == '{"scores": {"D1": 1}}' and reply.finish_reason == "stop"
    assert (reply.prompt_tokens, reply.completion_tokens, reply.model) == (11, 7, "m-1")
    assert reply.form == "json_schema" and reply.latency > 0
    assert "k-1" not in repr((client.describe(), client.report(), client.settings))


def test_address_and_key_from_the_environment(monkeypatch):
    with scripted(lambda body, n: GOOD) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k-env")
        ask(server, base_url=None)
    assert server.headers[0]["authorization"] == "Bearer k-env"


def test_user_and_password_of_an_address_are_not_recorded():
    settings = Settings(model="m", base_url="http://me:secret@example.test:81/v1?key=hidden")
    assert Client(settings).endpoint == "http://example.test:81/v1"


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize(
    ("refused", "tried"),
    [
        (["json_schema"], ["json_schema", "json_object"]),
        (["json_schema", "json_object"], ["json_schema", "json_object", "text"]),
    ],
)
def test_forms_of_structured_output_are_probed_once(status, refused, tried):
    def answer(body, n):
        form = body.get("response_format", {}).get("type")
        if form in refused:
            return status, refusal(f"response_format type {form} is unavailable"), {}
        return GOOD

    with scripted(answer) as server:
        replies, client = ask(server, times=3)
    assert forms(server) == tried + 2 * tried[-1:]
    assert {reply.form for reply in replies} == {tried[-1]}
    assert client.report()["structured"] == tried[-1]


def test_an_error_500_that_names_no_form_falls_back_after_some_tries():
    def answer(body, n):
        schema = body.get("response_format", {}).get("type") == "json_schema"
        return (500, refusal("internal error"), {}) if schema else GOOD

    with scripted(answer) as server:
        ask(server, times=2)
    assert forms(server) == ["json_schema"] * module.FORM_TRIES + ["json_object"] * 2


def test_a_form_that_once_worked_is_not_given_up_for_a_passing_500():
    with scripted(lambda body, n: (500, refusal("oops"), {}) if 2 <= n <= 6 else GOOD) as server:
        ask(server, times=2)
    assert set(forms(server)) == {"json_schema"} and len(server.requests) == 7


def test_a_context_that_is_too_long_has_its_own_message_and_no_fallback():
    text = "This model's maximum context length is 10 tokens"
    with (
        scripted(
            lambda body, n: (400, refusal(text, code="context_length_exceeded"), {})
        ) as server,
        pytest.raises(JudgeError, match=r"context.*--max-document-chars"),
    ):
        ask(server)
    assert len(server.requests) == 1


def test_max_tokens_is_renamed_once():
    def answer(body, n):
        if "max_tokens" in body:
            return 400, refusal("Unsupported parameter: 'max_tokens'", param="max_tokens"), {}
        return GOOD

    with scripted(answer) as server:
        ask(server, times=2, max_tokens=50)
    assert [r.get("max_completion_tokens") for r in server.requests] == [None, 50, 50]


def test_both_names_of_the_token_limit_refused_is_one_message():
    def answer(body, n):
        name = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
        return 400, refusal(f"Unsupported parameter: '{name}'", param=name), {}

    with scripted(answer) as server, pytest.raises(JudgeError, match="--max-tokens"):
        ask(server, max_tokens=50)
    assert len(server.requests) == 2


def test_the_default_temperature_is_dropped_and_a_chosen_one_is_not():
    def answer(body, n):
        if "temperature" in body:
            return 400, refusal("temperature is not supported", param="temperature"), {}
        return GOOD

    with scripted(answer) as server:
        _, client = ask(server, times=2)
        assert ["temperature" in r for r in server.requests] == [True, False, False]
        assert any("temperature" in note for note in client.notes)
        with pytest.raises(JudgeError, match="--temperature"):
            ask(server, temperature=0.3)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, refusal("Incorrect API key provided"), "refuses the key"),
        (403, refusal("no"), "refuses the key"),
        (404, refusal("The model 'm-2' does not exist", code="model_not_found"), "'m-1'"),
        (402, refusal("Payment required"), "credit"),
        (429, refusal("You exceeded your quota", code="insufficient_quota"), "credit"),
    ],
)
def test_errors_that_no_retry_heals_are_one_line(status, body, message):
    with scripted(lambda b, n: (status, body, {})) as server:
        with pytest.raises(JudgeError, match=message) as error:
            ask(server, model="m-2", api_key="sk-secret")
        assert len(server.requests) == 1
    assert "\n" not in str(error.value) and "sk-secret" not in str(error.value)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_passing_failures_are_asked_again(status):
    failing = (status, "<html>busy</html>", {"content-type": "text/html"})
    with scripted(lambda body, n: GOOD if n in (1, 4) else failing) as server:
        replies, client = ask(server, times=2)
    assert len(replies) == 2 and client.failures == {str(status): 2}


def test_retry_after_is_waited_for():
    with scripted(
        lambda body, n: (429, refusal("slow down"), {"retry-after": "0.6"}) if n == 1 else GOOD
    ) as server:
        started = time.monotonic()
        ask(server)
    assert time.monotonic() - started >= 0.6


def test_a_wait_beyond_patience_ends_the_run_at_once():
    with (
        scripted(lambda body, n: (429, refusal("no"), {"retry-after": "3600"})) as server,
        pytest.raises(JudgeError, match=r"3600 s.*same command"),
    ):
        ask(server, patience=5)


def test_cut_connections_and_garbage_are_asked_again():
    replies = {1: None, 2: (200, "not json", {}), 3: (200, refusal("overloaded"), {}),
               4: (200, '"text"', {})}  # fmt: skip
    with scripted(lambda body, n: replies.get(n, GOOD)) as server:
        _, client = ask(server)
    assert client.failures == {"connection": 1, "garbled": 3}


def test_a_slow_answer_times_out_and_is_asked_again():
    def answer(body, n):
        if n == 1:
            time.sleep(0.6)
        return GOOD

    with scripted(answer) as server:
        _, client = ask(server, timeout=0.3)
    assert client.failures == {"timeout": 1}


def test_a_server_that_stays_silent_ends_the_run():
    with (
        scripted(lambda body, n: (503, refusal("loading"), {})) as server,
        pytest.raises(JudgeError, match=r"503.*nothing for .*same command again"),
    ):
        ask(server, patience=0.2)
    with pytest.raises(JudgeError, match="cannot be reached"):
        ask(server, patience=0.2)  # closed by now: nobody listens


def test_a_call_that_alone_keeps_failing_gives_up_its_window_only():
    async def run(server):
        client = Client(Settings(model="m-1", base_url=server.url, patience=0.5))
        poisoned = [{"role": "user", "content": "poison"}]
        try:
            await client.ask(MESSAGES, SCHEMA, 1)
            failing = asyncio.create_task(client.ask(poisoned, SCHEMA, 1))
            while not failing.done():
                await client.ask(MESSAGES, SCHEMA, 1)
                await asyncio.sleep(0.05)
            await failing
        finally:
            await client.close()

    def answer(body, n):
        return (500, refusal("crash"), {}) if body["messages"] != MESSAGES else GOOD

    with scripted(answer) as server, pytest.raises(CallError, match="crash"):
        asyncio.run(run(server))


def test_filters_are_answers_and_not_failures():
    filtered = refusal("Blocked by the content management policy", code="content_filter")
    replies = {1: (400, filtered, {}), 2: (200, completion(None, "content_filter"), {}),
               3: (200, completion(None, refusal="I cannot help."), {})}  # fmt: skip
    with scripted(lambda body, n: replies[n]) as server:
        found, _ = ask(server, times=3)
    assert [reply.finish_reason for reply in found] == ["content_filter"] * 3
    assert found[2].detail == "I cannot help."


def test_reasoning_fields_and_parts_of_content():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    replies = {1: (200, completion("", reasoning_content="thought"), {}),
               2: (200, completion("x", reasoning="thought"), {}),
               3: (200, completion(parts), {}),
               4: (200, completion("x") | {"usage": None}, {})}  # fmt: skip
    with scripted(lambda body, n: replies[n]) as server:
        found, _ = ask(server, times=4)
    assert [(r.content, r.reasoning) for r in found] == [
        ("", "thought"), ("x", "thought"), ("ab", None), ("x", None)
    ]  # fmt: skip
    assert found[3].prompt_tokens is None


def test_only_one_call_probes_while_others_wait():
    def answer(body, n):
        if body.get("response_format", {}).get("type") == "json_schema":
            return 400, refusal("response_format is not supported"), {}
        return GOOD

    async def run(url):
        client = Client(Settings(model="m-1", base_url=url))
        try:
            await asyncio.gather(*(client.ask(MESSAGES, SCHEMA, 1) for _ in range(20)))
        finally:
            await client.close()

    with scripted(answer) as server:
        asyncio.run(run(server.url))
    assert forms(server) == ["json_schema"] + ["json_object"] * 20


def test_unusable_settings_are_refused():
    with pytest.raises(UsageError, match="--model"):
        Client(Settings(model=""))
    for url in ("localhost:8000/v1", "http:///v1", "ftp://host/v1"):
        with pytest.raises(UsageError, match="--base-url"):
            Client(Settings(model="m", base_url=url))


def test_a_refused_part_of_the_extra_body_is_not_asked_for_ever():
    def answer(body, n):
        return 400, refusal("temperature is not supported", param="temperature"), {}

    with (
        scripted(answer) as server,
        pytest.raises(JudgeError, match="--extra-body"),
    ):
        ask(server, extra_body={"temperature": 1.0})
    assert len(server.requests) == 1
