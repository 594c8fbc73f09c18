"""What clients send that is odd, broken or meant for another server: answered in OpenAI's shape, never with a 500."""

import asyncio
import gc
import json
import logging

import httpx
import openai
import pytest

from astune.context_tracker.tracker import ChatRequest
from tests.rows import each_row

AREA = "The OpenAI-compatible endpoint"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object"}}
PATHS = {"chat/completions": {"messages": HI}, "responses": {"input": HI}, "completions": {"prompt": "Hi"}}


def user(text):
    return {"role": "user", "content": text}


def call(call_id, text=None):
    made = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": "{}"}}
    return {"role": "assistant", "content": text, "tool_calls": [made]}


def result(call_id):
    return {"role": "tool", "tool_call_id": call_id, "content": "4"}


def nested(depth, opening="[", closing="]", inside=""):
    return opening * depth + inside + closing * depth


def schema(depth):
    return {"type": "object", "properties": {"a": schema(depth - 1)}} if depth else {}


BODIES = {
    "not JSON": b"{",
    "no object": b"[]",
    "NaN": b'{%s, "temperature": NaN}',
    "Infinity": b'{%s, "metadata": {"a": -Infinity}}',
    "a number too large for a float": b'{%s, "temperature": 1e999}',
    "a number of 5000 digits": b'{%%s, "max_tokens": %s}' % (b"9" * 5000),
    "an integer of 400 digits": b'{%%s, "top_p": %s}' % (b"9" * 400),
    "a temperature of 400 digits": b'{%%s, "temperature": %s}' % (b"9" * 400),
    "a name twice": b'{%s, "user": "a", "user": "b"}',
    "a name twice deep inside": b'{%s, "metadata": {"a": [{"b": 1, "b": 2}]}}',
    "half of a character": b'{%s, "user": "\\ud83d"}',
    "half of a character as bytes": b'{%s, "user": "\xed\xa0\xbd"}',
    "no UTF-8": b'{%s, "user": "\xff\xfe"}',
    "nested 400 deep": b'{%%s, "metadata": %s}' % nested(400).encode(),
    "nested 400 deep, objects": b'{%%s, "metadata": %s}' % nested(400, '{"a":', "}", "1").encode(),
    "nested 100,000 deep": b'{%%s, "metadata": %s}' % nested(100_000).encode(),
}


@pytest.mark.fault(AREA, "a body is no JSON, or JSON that no client means", "a bad request in OpenAI's shape")
@each_row("name", BODIES)
@each_row("path", PATHS)
async def test_a_body_that_cannot_be_meant_is_a_bad_request(make_tuner, path, name):
    tuner, tracker, _ = make_tuner(["Hello"])
    rest = json.dumps(PATHS[path])[1:-1].encode()
    body = BODIES[name].replace(b"%s", rest)
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{tuner.base_url()}/{path}", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["code"] in ("invalid_json", "invalid_value") and error["message"]
    assert tracker.turns == () and tuner.failures == []


@each_row(
    ("path", "field", "value"),
    [
        ("chat/completions", "max_tokens", 10**400),
        ("chat/completions", "n", 10**400),
        ("chat/completions", "seed", -(10**400)),
        ("completions", "logprobs", 10**400),
        ("responses", "max_output_tokens", 10**400),
        ("chat/completions", "tools", [{**TOOL, "function": {"name": "f", "parameters": schema(200)}}]),
        ("responses", "tools", [{**FLAT, "parameters": schema(200)}]),
        ("chat/completions", "messages", [{**user("Hi"), "tool_call_id": {}}]),
        ("chat/completions", "messages", [*HI, {**call("a"), "tool_calls": [{**call({})["tool_calls"][0]}]}]),
        ("chat/completions", "response_format", {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}),
        ("chat/completions", "response_format", {"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}),
        ("responses", "text", {"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": "yes"}}),
        ("chat/completions", "tools", [{**TOOL, "function": {"name": "f", "strict": "yes"}}]),
        ("responses", "tools", [{**FLAT, "strict": "yes"}]),
    ],
)
async def test_a_field_that_cannot_be_meant_is_a_bad_request(make_tuner, path, field, value):
    tuner, tracker, _ = make_tuner(["Hello"])
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{tuner.base_url()}/{path}", json={**PATHS[path], field: value})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert tracker.turns == ()


async def test_what_is_nested_as_deep_as_people_do_is_answered(make_tuner):
    tuner, tracker, _ = make_tuner(["Hello"] * 2, context_length=100_000)
    async with httpx.AsyncClient() as client:
        tools = [{**TOOL, "function": {"name": "f", "parameters": schema(40)}}]
        for body in ({"tools": tools}, {"messages": [*HI, call("a") | {"content": nested(3000)}, result("a")]}):
            answer = await client.post(f"{tuner.base_url()}/chat/completions", json={"messages": HI} | body)
            assert answer.status_code == 200, answer.text
    assert len(tracker.turns) == 2


@pytest.mark.parametrize("depth", [400, 100_000])
async def test_arguments_nested_deeply_are_text(make_tuner, chat_format, depth):
    """In a history, and as the model wrote them."""
    text = nested(depth, '{"a":', "}", "1")
    history = [*HI, call("a"), result("a")]
    history[1]["tool_calls"][0]["function"]["arguments"] = text
    sampled = f'<tool_call>\n{{"name": "add", "arguments": {text}}}\n</tool_call>'
    tuner, tracker, _ = make_tuner(["Hello", sampled, "Bye"], context_length=2_000_000, max_tokens=1_000_000)
    await tuner.chat(ChatRequest(history))
    answer = await tuner.chat(ChatRequest(HI, tools=[TOOL]))
    await tuner.chat(ChatRequest([*HI, answer.message, user("Go on")], tools=[TOOL]))
    shown, called, last = tracker.turns
    assert text in chat_format.decode(shown.prompt_ids).replace(" ", "")
    assert text in (answer.message["content"] or answer.message["tool_calls"][0]["function"]["arguments"])
    before = [*called.prompt_ids, *called.output_ids]
    assert [*last.prompt_ids[: len(before)]] == before


@pytest.mark.fault(AREA, "an agent in the process sends what no template can write", "an error of the workflow")
@pytest.mark.parametrize("messages", [[user("\ud83d")], [{**user("x"), "extra": json.loads(nested(900))}]])
async def test_in_the_process_it_is_an_error_of_the_workflow(make_tuner, messages):
    tuner, tracker, _ = make_tuner(["Hello"])
    with pytest.raises(Exception, match=r"UTF-8|nested too deeply") as error:
        await tuner.chat(ChatRequest(messages))
    assert type(error.value).__name__ == "WorkflowError"
    assert tracker.turns == ()


@pytest.mark.fault(AREA, "a client hangs up", "nothing is printed, and its call is cancelled")
async def test_a_client_that_hangs_up_leaves_no_traceback(endless, caplog):
    tuner, tracker, endless_call = endless
    async with httpx.AsyncClient() as client:
        asked = asyncio.create_task(client.post(f"{tuner.base_url()}/chat/completions", json={"messages": HI}))
        await asyncio.wait_for(endless_call.begun.wait(), 60)
        asked.cancel()
        await asyncio.wait([asked])
    await asyncio.wait_for(endless_call.cancelled.wait(), 60)
    async with httpx.AsyncClient() as client:  # by its answer the loop of the server has gone on
        assert (await client.get(f"{tuner.base_url()}/models")).status_code == 200
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert (tracker.turns, tracker.lost_calls) == ((), 1)


@pytest.mark.fault(AREA, "a prompt is too long", "an error in the words that frameworks look for")
@pytest.mark.parametrize("path", PATHS)
async def test_an_overflow_has_openais_words(make_tuner, path):
    tuner, _, _ = make_tuner([], context_length=20)
    body = {next(iter(PATHS[path])): [user("too long " * 50)] if path != "completions" else "too long " * 50}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{tuner.base_url()}/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "This model's maximum context length is 20 tokens" in error["message"]
    assert error["param"] == next(iter(PATHS[path]))


async def test_the_bytes_of_a_token_are_its_own(make_tuner):
    """A character of several tokens: each has its part of it."""
    tuner, _, _ = make_tuner(["🌍 Grüße"] * 2)
    client = tuner.openai_client()
    answer = await client.chat.completions.create(model="m", messages=HI, logprobs=True)
    response = await client.responses.create(model="m", input="Hi", include=["message.output_text.logprobs"])
    for tokens in (answer.choices[0].logprobs.content, response.output[0].content[0].logprobs):
        parts = [bytes(token.bytes) for token in tokens]
        assert b"".join(parts) == "🌍 Grüße<|im_end|>".encode()
        assert parts[:4] == [bytes([byte]) for byte in "🌍".encode()]


async def test_a_model_is_found_by_its_name(make_tuner):
    tuner, _, _ = make_tuner([])
    client = tuner.openai_client("team/solver")
    listed = [model async for model in client.models.list()]
    assert await client.models.retrieve("team/solver") == listed[0]
    with pytest.raises(openai.NotFoundError, match="'gpt-4o' does not exist: there is 'team/solver'") as missing:
        await client.models.retrieve("gpt-4o")
    assert missing.value.code == "model_not_found"


async def test_ids_of_answers_are_of_one_answer_of_one_episode(make_tuner):
    ids = []
    for _ in range(2):
        tuner, _, _ = make_tuner(["Hello"] * 8)
        for name in ("solver", "critic"):
            client = tuner.openai_client(name)
            ids += [(await client.chat.completions.create(model="m", messages=HI)).id for _ in range(2)]
            ids.append((await client.completions.create(model="m", prompt="Hi")).id)
            response = await client.responses.create(model="m", input="Hi")
            ids += [response.id, response.output[0].id]
    assert len(set(ids)) == len(ids) == 20
    assert {text.partition("-")[0].partition("_")[0] for text in ids} == {"chatcmpl", "cmpl", "resp", "msg"}


@pytest.mark.fault(
    AREA, "a client asks for an effort, a verbosity or a strict schema", "ignored, with one note per run"
)
async def test_wishes_that_can_be_ignored_are_noted_once(make_tuner, caplog):
    tuner, tracker, _ = make_tuner(["Hello"] * 8)
    client = tuner.openai_client()
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    for _ in range(2):
        chat = await client.chat.completions.create(
            model="m", messages=HI, reasoning_effort="low", verbosity="low", tools=[strict]
        )
        response = await client.responses.create(
            model="m",
            input=HI,
            reasoning={"effort": "low", "summary": "auto"},
            text={"verbosity": "low"},
            tools=[{**FLAT, "strict": True}],
        )
    assert (chat.choices[0].message.content, response.output_text) == ("Hello", "Hello")
    assert len({tuple(turn.prompt_ids) for turn in tracker.turns}) == 1  # the model sees the same in both APIs
    assert "strict" not in str(tracker.turns[0].tools)
    notes = [record.getMessage() for record in caplog.records if record.name.startswith("astune.")]
    assert [note.partition(": ")[2].partition(" is ")[0] for note in notes] == [
        "reasoning_effort",
        "verbosity",
        "strict",
        "reasoning.effort",
        "reasoning.summary",
        "text.verbosity",
    ]
    assert all(note.startswith("test/t1/0, agent 'agent': ") for note in notes)


@pytest.mark.fault(AREA, "a history has results without calls, or calls without results", "one warning per run")
@each_row(
    ("messages", "said"),
    [
        ([*HI, result("gone")], ["messages[1] is the result of a call 'gone' that nobody made"]),
        ([*HI, {"role": "tool", "content": "4"}], ["messages[1] is a tool result without a tool_call_id"]),
        ([*HI, call("a"), user("Well?")], ["the call 'a' of messages[1] has no result"]),
        ([*HI, call("a"), call("b"), result("b"), result("a")], ["the call 'a' of messages[1] has no result"]),
        (
            [*HI, call("a"), result("a"), call("a"), result("a")],
            ["messages[3] has a call with the id 'a', as has messages[1]"],
        ),
        (
            [*HI, result("x"), result("y"), call("a")],
            ["messages[1] is the result of a call 'x' that nobody made", "the call 'a' of messages[3] has no result"],
        ),
        ([*HI, call("a"), result("a"), call("b"), user("!"), result("b")], []),
    ],
)
async def test_a_broken_history_is_named_once(make_tuner, caplog, messages, said):
    tuner, tracker, _ = make_tuner(["Hello"] * 3)
    for name in ("solver", "critic"):
        await tuner.chat(ChatRequest(messages), name=name)
    await tuner.openai_client("judge").chat.completions.create(model="m", messages=messages)
    assert len(tracker.turns) == 3
    notes = [record.getMessage() for record in caplog.records if record.name == "astune.workflow.notes"]
    assert [note.partition(". ")[0] for note in notes] == [f"test/t1/0, agent 'solver': {text}" for text in said]
