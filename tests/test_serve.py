"""The local endpoint, through the real openai client and by hand-written HTTP."""

import asyncio
import json
import socket
from collections import Counter

import openai
import pytest
from judging import served

from rcp_bayes.errors import UsageError
from rcp_bayes.judge.embedded import LexicalJudge
from rcp_bayes.judge.faults import Faults, Limits
from rcp_bayes.judge.prompts import load_prompts, render
from rcp_bayes.judge.serve import Endpoint, Problem, serve
from rcp_bayes.rubric import DEFAULT_RUBRIC

DOCUMENTS = [(None, "the moon pulls the tide"), (None, "bread needs yeast")]


def question(stage="a", query="why does the tide follow the moon"):
    return render(stage, load_prompts(), DEFAULT_RUBRIC, query, None, DOCUMENTS).messages


def request(**more):
    return json.dumps({"model": "lexical", "messages": question(), **more}).encode()


def client(server, **given):
    return openai.OpenAI(base_url=server.url, api_key="k", max_retries=0, **given)


@pytest.fixture(scope="module")
def sound():
    with served() as server:
        yield server


def test_the_openai_client_gets_completions_and_models(sound):
    with client(sound) as ours:
        assert [model.id for model in ours.models.list()] == ["lexical"]
        reply = ours.chat.completions.create(model="lexical", messages=question())
    assert reply.choices[0].finish_reason == "stop" and reply.choices[0].message.content
    assert json.loads(reply.choices[0].message.content) == json.loads(
        LexicalJudge().reply(question())
    )
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > usage.completion_tokens > 0


def test_a_token_limit_truncates(sound):
    with client(sound) as ours:
        reply = ours.chat.completions.create(model="lexical", messages=question(), max_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert len(reply.choices[0].message.content) == 12


def test_many_requests_at_once_are_all_answered(sound):
    async def run():
        async with openai.AsyncOpenAI(base_url=sound.url, api_key="k", max_retries=0) as ours:
            calls = (
                ours.chat.completions.create(model="lexical", messages=question(query=f"tide {i}"))
                for i in range(100)
            )
            return await asyncio.gather(*calls)

    before = sound.counts()["answers"]
    assert len(asyncio.run(run())) == 100
    assert sound.counts()["answers"] == before + 100


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v1/nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{]", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n[]", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_gets_an_error_and_the_server_lives(sound, sent, status):
    with socket.create_connection(("127.0.0.1", sound.port), timeout=10) as raw:
        raw.sendall(sent)
        assert raw.recv(4096).startswith(b"HTTP/1.1 %d " % status)
    assert sound.counts()["requests"] >= 0


def test_requests_may_come_in_pieces_and_back_to_back(sound):
    body = request()
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    whole = 2 * (head + body)
    received = b""
    with socket.create_connection(("127.0.0.1", sound.port), timeout=10) as raw:
        for at in range(0, len(whole), 700):
            raw.sendall(whole[at : at + 700])
        while received.count(b'"finish_reason"') < 2:
            piece = raw.recv(65536)
            assert piece
            received += piece
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_limits_are_refused_as_servers_in_the_field_do():
    limits = dict(
        forms=["json_schema"], form_status=500, options=["max_tokens"], api_key="k", context=2000
    )
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    with served(limits=limits) as server, client(server) as ours:

        def ask(**more):
            given = {"model": "lexical", "messages": question(), **more}
            return ours.chat.completions.create(**given)

        assert ask(response_format={"type": "json_object"}, max_completion_tokens=500).choices
        with pytest.raises(openai.InternalServerError, match="response_format"):
            ask(response_format=schema)
        with pytest.raises(openai.BadRequestError, match="max_completion_tokens") as error:
            ask(max_tokens=5)
        assert error.value.param == "max_tokens"
        with pytest.raises(openai.BadRequestError) as error:
            ask(messages=[{"role": "user", "content": "long " * 2000}])
        assert error.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            ask(model="other")
        with (
            openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()


def test_transport_faults_come_as_errors_of_the_client():
    kinds = {"rate_limit": openai.RateLimitError, "error": openai.InternalServerError,
             "drop": openai.APIConnectionError}  # fmt: skip
    for name, error in kinds.items():
        with served(faults={name: 0.999, "retry_after": 7}) as server, client(server) as ours:
            with pytest.raises(error) as raised:
                ours.chat.completions.create(model="lexical", messages=question())
            if name == "rate_limit":
                assert raised.value.response.headers["retry-after"] == "7"
            assert server.counts() == {"requests": 1, name: 1}


def test_faults_are_a_function_of_seed_and_request():
    def outcomes(seed):
        endpoint = Endpoint(LexicalJudge(), Faults.of_every_kind(0.06, seed=seed), Limits())
        found = []
        for i in range(60):
            body = request(user=str(i))
            try:
                completion = endpoint.complete(body)
            except Problem as problem:
                found.append(problem.status)
            else:
                found.append(completion and json.dumps(completion["choices"]))
        return found

    assert outcomes(1) == outcomes(1)
    assert outcomes(1) != outcomes(2)


def test_each_fault_has_its_chance():
    endpoint = Endpoint(LexicalJudge(), Faults.of_every_kind(0.05, seed=4), Limits())
    n = 4000
    draws = Counter(endpoint.faults.text(b"%d" % i) for i in range(n))
    turns = Counter(endpoint.faults.transport(b"%d" % i, 0) for i in range(n))
    # Binomial with p = 0.05: sd 13.8 in 4,000; five of them either way.
    for counts, kinds in ((draws, 8), (turns, 3)):
        assert len(counts) == kinds + 1
        assert all(abs(counts[k] - 200) < 70 for k in counts if k is not None)


def test_a_transport_fault_lets_the_request_through_in_the_end():
    endpoint = Endpoint(LexicalJudge(), Faults(error=0.7), Limits())
    body, failed = request(), 0
    while True:
        try:
            completion = endpoint.complete(body)
            break
        except Problem:
            failed += 1
    assert completion["choices"][0]["finish_reason"] == "stop" and failed < 100
    assert endpoint.counts["error"] == failed


@pytest.mark.parametrize(
    ("fault", "content", "finish"),
    [
        ("truncate", '{"scores": {"D1"', "length"),
        ("content_filter", None, "content_filter"),
        ("empty", "", "stop"),
    ],
)
def test_text_faults(fault, content, finish):
    choice = Endpoint(LexicalJudge(), Faults(**{fault: 1.0}), Limits()).complete(request())[
        "choices"
    ][0]
    assert choice["finish_reason"] == finish
    given = choice["message"]["content"]
    assert given == content or (content and given.startswith(content[:10]))


def test_impossible_faults_are_refused():
    with pytest.raises(UsageError, match="from 0 to 1"):
        Faults(truncate=0.7, empty=0.7)
    with pytest.raises(UsageError, match="always fails"):
        Faults(error=0.5, drop=0.5)


def test_a_taken_port_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)):
            serve(LexicalJudge(), port=port)
