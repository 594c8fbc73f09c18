import asyncio
import contextlib
import threading

import pytest

from astune.clients.chat import ChatClient, TokenUsage
from astune.config.chat_models import AuxiliaryModelConfig
from astune.errors import ConfigError, PolicyError, WorkflowError
from astune.testing import ScriptedChatServer
from astune.testing.chat_server import chat_completion
from tests.passing_time import pass_time
from tests.rows import each_row

HI = {"messages": [{"role": "user", "content": "Hi"}]}
SOON = {"Retry-After": "0.01"}
CALLS = [{"id": "x1", "type": "function", "function": {"name": "calc", "arguments": "{}"}}]


def client_of(url, **options):
    settings = AuxiliaryModelConfig(base_url=url, model="m", **{"max_retries": 0, **options})
    return ChatClient("gpt", settings, key="astune.rollout.auxiliary_models.gpt")


async def failure(answer, **options):
    with ScriptedChatServer(answer if callable(answer) else [answer] * 9, headers=SOON) as server:
        with pytest.raises((PolicyError, WorkflowError)) as caught:
            await client_of(server.base_url, **options).complete(HI)
        return caught.value, server


async def test_an_answer_is_a_message_and_the_request_names_the_model():
    with ScriptedChatServer(["Hello"]) as server:
        reply = await client_of(server.base_url).complete({**HI, "temperature": 0.5})
    assert reply.message == {"role": "assistant", "content": "Hello"}
    assert (reply.finish_reason, reply.prompt_ids, reply.output_ids, reply.logprobs) == ("stop", None, None, None)
    assert server.requests == [{**HI, "model": "m", "temperature": 0.5}]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_tool_calls_and_token_ids_are_read_where_engines_put_them(name):
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}], "refusal": None}
    body = chat_completion(
        {"content": None, name: "Hm.", "tool_calls": CALLS},
        finish_reason="tool_calls",
        choice={"token_ids": [7, 8], "logprobs": logprobs},
        prompt_token_ids=[1, 2, 3],
    )
    with ScriptedChatServer([body]) as server:
        reply = await client_of(server.base_url).complete(HI)
    assert reply.message == {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": CALLS}
    assert (reply.prompt_ids, reply.output_ids, reply.logprobs) == ((1, 2, 3), (7, 8), (("a", -0.5),))


@each_row(
    ("reported", "read"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}, TokenUsage(9, 2)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}},
            TokenUsage(9, 2, cached_prompt_tokens=8),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {}}, TokenUsage(9, 2)),
        ({"prompt_tokens": 9}, None),
        (None, None),
    ],
)
async def test_the_tokens_are_those_that_the_api_counts(reported, read):
    with ScriptedChatServer([chat_completion({"content": "Hello"}, usage=reported)]) as server:
        assert (await client_of(server.base_url).complete(HI)).usage == read


async def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with ScriptedChatServer(["Hello"]) as server:
        await client_of(server.base_url, api_key_env="MY_KEY").complete(HI)
    assert server.headers[0]["authorization"] == "Bearer secret"


def test_a_key_that_is_not_in_the_environment_is_named(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"auxiliary_models\.gpt\.api_key_env: the environment variable MY_KEY is"):
        client_of("http://127.0.0.1:1/v1", api_key_env="MY_KEY")


async def test_a_busy_api_is_asked_again():
    with ScriptedChatServer([429, 503, "Hello"], headers=SOON) as server:
        reply = await client_of(server.base_url, max_retries=2).complete(HI)
    assert (reply.message["content"], len(server.requests)) == ("Hello", 3)


@pytest.mark.fault("Foreign servers", "nothing listens at the address of an API", "an error that names the address")
async def test_an_api_that_nobody_serves_is_named_with_its_address():
    with ScriptedChatServer([]) as server:
        url = server.base_url
    with pytest.raises(PolicyError, match=rf"auxiliary_models\.gpt: cannot reach {url} .*1 attempt\)\. Is the server"):
        await client_of(url).complete(HI)


async def test_a_refused_key_says_where_it_came_from(monkeypatch):
    error, _ = await failure(401)
    assert isinstance(error, PolicyError)
    assert "refused a call without an API key: set api_key_env (401: " in str(error)
    monkeypatch.setenv("MY_KEY", "secret")
    error, _ = await failure(401, api_key_env="MY_KEY")
    assert "refused the API key in MY_KEY" in str(error)
    assert "secret" not in str(error)


async def test_what_the_api_does_not_accept_is_the_agents_request():
    error, _ = await failure(400)
    assert isinstance(error, WorkflowError)
    assert "m did not accept the request (400: " in str(error)


async def test_an_unknown_model_a_failing_server_and_a_wrong_address_are_told_apart():
    assert "has no model 'm', or no such path" in str((await failure(404))[0])
    error, server = await failure(500, max_retries=1)
    assert "failed (2 attempts)" in str(error) and len(server.requests) == 2
    assert "is no chat completion; does base_url end" in str((await failure({"detail": "a web page"}))[0])


@pytest.mark.fault("Foreign servers", "an API answers with no completion", "told, and the next is asked")
@each_row(
    "body",
    [
        *(b"", b"{", b"[]", b"3", b"[" * 100_000, b'{"choices": [{"message": {"content": "\xff"}}]}'),
        *(b'{"choices": null}', b'{"choices": [null]}', b'{"choices": "abc"}', b'{"choices": {"a": 1}}'),
        *(b'{"choices": [{}]}', b'{"choices": [{"message": "hi"}]}', b'{"choices": [{"message": {"content": 3}}]}'),
        b'{"choices": [{"message": {"content": "x", "tool_calls": "y"}}]}',
        b'{"choices": [{"message": {"content": "x"}}], "usage": "many"}',
        b'{"choices": [{"message": {"content": "x"}, "logprobs": 3}]}',
    ],
)
async def test_whatever_an_api_answers_with_is_no_fault_of_ours(body):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = client_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        with pytest.raises(PolicyError, match="is no chat completion; does base_url end"):
            await client.complete(HI)


@pytest.mark.fault("Foreign servers", "an API does not answer", "given up after its time")
async def test_an_api_that_is_too_slow_is_given_up():
    given_up = threading.Event()
    with ScriptedChatServer(lambda body: given_up.wait(60) and "late") as server:
        with pytest.raises(PolicyError, match=r"no answer within 0\.05 s \(1 attempt; see timeout\)"):
            await client_of(server.base_url, timeout=0.05, max_retries=0).complete(HI)
        given_up.set()


HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.fault("Foreign servers", "an API drips its answer, byte by byte", "given up after its time, as a whole")
@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", HEADERS])
async def test_a_server_that_drips_is_given_up_after_the_time_of_the_whole_call(start):
    calls = []

    async def drip(reader, writer):
        calls.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        pass_time(61)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        client = client_of(url, timeout=60, max_retries=1)
        with pytest.raises(PolicyError, match=r"no answer within 60 s \(2 attempts; see timeout\)"):
            await client.complete(HI)
        assert len(calls) == 2
        with pytest.raises(PolicyError, match=r"no answer within 60 s \(1 attempt; see timeout\)"):
            await client.models(60)
        await asyncio.gather(*calls)
