"""What clients send that is odd, broken or meant for another server: answered in OpenAI's shape, never with a 500."""

import asyncio
import gc
import json
import logging

import httpx
import pytest

from astune.context_tracker.tracker import ChatRequest
from tests.rows import each_row

AREA = "The OpenAI-compatible endpoint"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def user(text):
    return {"role": "user", "content": text}


def call(call_id, text=None):
    made = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": "{}"}}
    return {"role": "assistant", "content": text, "tool_calls": [made]}


def result(call_id):
    return {"role": "tool", "tool_call_id": call_id, "content": "4"}


def nested(depth, opening="[", closing="]", inside=""):
    return opening * depth + inside + closing * depth


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
