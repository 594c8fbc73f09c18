"""Requests that are too large: refused early, and nobody else waits for them."""

import asyncio
import json
import threading
import time
from urllib.parse import urlsplit

import openai
import pytest

from astune.context_tracker import tracker as tracker_module
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.encoding import LONG_TEXT
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ContextOverflow
from astune.gateway.http import most_bytes

AREA = "The OpenAI-compatible endpoint"
HI = [{"role": "user", "content": "Hi"}]


def user(text):
    return {"role": "user", "content": text}


async def raw_post(url, head, *pieces):
    """The status and the body of the answer to a POST, of which `pieces` may be only the beginning."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"POST {parts.path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    header = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    length = int(header.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
    return int(header.split(b" ")[1]), body["error"]


@pytest.mark.fault(AREA, "the body of a request is larger than any prompt can be", "refused before it is read")
async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(make_tuner):
    tuner, tracker, _ = make_tuner(["Hello"])
    for size in (most_bytes(4096) + 1, 10**12):
        status, error = await raw_post(tuner.base_url() + "/chat/completions", f"Content-Length: {size}")
        assert (status, error["code"], error["type"]) == (400, "context_length_exceeded", "invalid_request_error")
        assert "maximum context length is 4096 tokens" in error["message"]
    assert [type(error) for error in tuner.failures] == [ContextOverflow] * 2
    assert tracker.turns == ()


async def test_a_body_in_chunks_is_read_no_further_than_a_body_may_be(make_tuner):
    tuner, _, _ = make_tuner(["Hello"])
    size = 2**16
    chunk = f"{size:x}\r\n".encode() + b" " * size + b"\r\n"
    chunks = [chunk] * (most_bytes(4096) // size + 1)  # and no end
    status, error = await raw_post(tuner.base_url() + "/responses", "Transfer-Encoding: chunked", *chunks)
    assert (status, error["code"]) == (400, "context_length_exceeded")


@pytest.mark.fault(AREA, "a request comes with a wrong key", "a 404 before its body is read")
async def test_a_wrong_key_is_refused_before_the_body_comes(make_tuner):
    tuner, _, _ = make_tuner(["Hello"])
    base = tuner.base_url().rsplit("/", 2)[0]
    for path in ("chat/completions", "completions", "responses"):
        for head in (f"Content-Length: {10**9}", "Transfer-Encoding: chunked"):
            status, error = await raw_post(f"{base}/guess/v1/{path}", head)
            assert (status, error["code"]) == (404, "episode_over")


@pytest.mark.parametrize("where", ["in the process", "over HTTP"])
async def test_openai_clients_see_a_body_that_is_too_large_as_their_own_error(make_tuner, where):
    tuner, _, _ = make_tuner(["Hello"])
    own = tuner.openai_client()
    client = own if where == "in the process" else openai.AsyncOpenAI(base_url=tuner.base_url(), api_key="x")
    async with client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=[user("a" * most_bytes(4096))])
        assert (refused.value.status_code, refused.value.code) == (400, "context_length_exceeded")
        answer = await client.chat.completions.create(model="m", messages=HI)
    assert answer.choices[0].message.content == "Hello"


@pytest.mark.fault(AREA, "a prompt that cannot fit by its size", "refused without tokenizing it")
@pytest.mark.parametrize("asked", ["messages", "prompt"])
async def test_a_text_that_cannot_fit_is_refused_without_tokenizing_it(make_tuner, chat_format, monkeypatch, asked):
    text = "a" * (4096 * chat_format._most_bytes + 1)
    request = ChatRequest([user(text)]) if asked == "messages" else ChatRequest([], prompt=text)
    encoded = []
    encode = chat_format.encode
    monkeypatch.setattr(chat_format, "encode", lambda text: encoded.append(len(text)) or encode(text))
    tuner, _, _ = make_tuner([])
    with pytest.raises(ContextOverflow, match=r"at least 4.* This model's maximum context length is 4096 tokens"):
        await tuner.chat(request)
    assert encoded == []


async def test_too_many_token_ids_are_refused_before_they_are_read(make_tuner, chat_format, monkeypatch):
    monkeypatch.setattr(chat_format, "decode", None)
    tuner, _, _ = make_tuner([])
    with pytest.raises(ContextOverflow, match="has 4096 tokens"):
        await tuner.chat(ChatRequest([], prompt=(5,) * 4096))


def threads_of(monkeypatch, name):
    """The threads in which the method of `PromptBuilder` runs, as it is called."""
    seen, method = [], getattr(PromptBuilder, name)

    def watched(*args, **options):
        seen.append(threading.get_ident())
        return method(*args, **options)

    monkeypatch.setattr(PromptBuilder, name, watched)
    return seen


@pytest.mark.fault(AREA, "a long text", "tokenized beside the event loop: the other agents go on")
async def test_long_texts_are_tokenized_in_a_thread_and_short_ones_are_not(make_tuner, monkeypatch):
    tuner, _, _ = make_tuner(["one", "two", "three"], context_length=200_000)
    here, seen = threading.get_ident(), threads_of(monkeypatch, "finish")
    long = "word " * (LONG_TEXT // 5 + 1)
    await tuner.chat(ChatRequest([user(long)]))
    assert here not in seen
    answer = tuner._tracker.turns[0].response
    seen.clear()
    await tuner.chat(ChatRequest([user(long), answer, user("And now?")]))  # only what is new is tokenized
    await tuner.chat(ChatRequest([], prompt="word " * 10_000))
    assert set(seen) == {here}


async def test_a_very_long_conversation_is_rendered_in_a_thread(make_tuner, monkeypatch):
    tuner, _, _ = make_tuner(["one"] * 4, context_length=200_000)
    here, seen = threading.get_ident(), threads_of(monkeypatch, "draft")
    many = tracker_module.MANY_PIECES
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for request in (
        ChatRequest([user("x")] * (many + 1)),
        ChatRequest([user("x"), {"role": "assistant", "content": None, "tool_calls": [call] * many}]),
        ChatRequest([user("x")], tools=[tool] * many),
    ):
        seen.clear()
        await tuner.chat(request)
        assert here not in seen
    seen.clear()
    await tuner.chat(ChatRequest([user("x")] * many))
    assert here in seen


async def test_results_without_calls_cost_time_in_proportion_to_their_number(make_tuner):
    """Each looked through all messages before it: 20,000 took two minutes."""
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": "4"} for number in range(6000)]
    tuner, _, _ = make_tuner([])
    started = time.process_time()
    with pytest.raises(ContextOverflow):
        await tuner.chat(ChatRequest([user("?"), *results]))
    assert time.process_time() - started < 5
