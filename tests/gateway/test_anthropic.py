"""Anthropic's Messages: as its package's types have them, and the same timelines as through chat completions."""

import asyncio
import json

import httpx
import pytest

pytest.importorskip("anthropic", reason="AgentScope brings it, and make test-clients")

import anthropic
import httpx2
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from astune.context_tracker.tracker import ContextTracker
from astune.gateway.anthropic_blocks import content_blocks, fold_messages
from astune.gateway.app import openai_app
from astune.support.http.service import parse_json
from astune.testing import ScriptedPolicy
from astune.types import Sampling
from astune.workflow.tuner import Tuner
from tests.gateway.conftest import TASK
from tests.gateway.test_responses import assert_complete
from tests.rows import each_row

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS = [{"name": "add", "description": "Add.", "input_schema": SCHEMA, "strict": True, "cache_control": None}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}]
THOUGHT = "<think>\nI add.\n</think>\n\n"
ASK = {"role": "user", "content": "Hi"}
USAGE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def call(arguments):
    return f'<tool_call>\n{{"name": "add",  "arguments": {arguments}}}\n</tool_call>'


ONE, TWO = call('{"x":1}'), call('{"x" : 2}')


def client_of(tuner):
    """The package's client, without a socket."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=openai_app().asgi))
    return anthropic.AsyncAnthropic(base_url=tuner.base_url(), api_key="x", max_retries=0, http_client=http)


async def post(tuner, path="messages", **fields):
    body = {"model": "m", "max_tokens": 256, "messages": [ASK], **fields}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=openai_app().asgi)) as http:
        answer = await http.post(f"{tuner.base_url()}/{path}", json=body)
    return answer


async def ask(tuner, **fields):
    """The message as it was sent, after a check that the package's type knows all of it."""
    answer = await post(tuner, **fields)
    assert answer.status_code == 200, answer.text
    message = Message.model_validate(answer.json(), strict=True)
    assert_complete(message)
    return message


# Answers


async def test_a_message_has_its_blocks_its_reason_and_its_usage(make_tuner, chat_format):
    tuner, tracker, _ = make_tuner([f"{THOUGHT}Let me see. Grüße 🌍\n{ONE}\n{TWO}"])
    message = await ask(tuner, system="Add.", tools=TOOLS, temperature=0.5)
    (turn,) = tracker.turns
    name = message.id.removeprefix("msg_")
    assert [block.to_dict() for block in message.content] == [
        {"type": "thinking", "thinking": "I add.", "signature": name},
        {"type": "text", "text": "Let me see. Grüße 🌍", "citations": None},
        {"type": "tool_use", "id": "c00000000", "name": "add", "input": {"x": 1}},
        {"type": "tool_use", "id": "c00000001", "name": "add", "input": {"x": 2}},
    ]
    assert (message.role, message.model, message.stop_reason, message.stop_sequence) == (
        "assistant",
        "m",
        "tool_use",
        None,
    )
    assert message.usage.to_dict() == {
        **USAGE,
        "input_tokens": len(turn.prompt_ids),
        "output_tokens": len(turn.output_ids),
        "output_tokens_details": {"thinking_tokens": len(chat_format.encode("I add."))},
    }
    assert turn.temperature == 0.5


@each_row(
    ("answer", "fields", "reason", "sequence", "text"),
    [
        ("Bye", {}, "end_turn", None, "Bye"),
        ("", {}, "end_turn", None, ""),
        ("one two three four", {"max_tokens": 2}, "max_tokens", None, None),
        ("one. Then two", {"stop_sequences": ["two", "Then"]}, "stop_sequence", "Then", "one. "),
        ("one", {"stop_sequences": ["two"]}, "end_turn", None, "one"),
        (f"{ONE} STOP", {"tools": TOOLS, "stop_sequences": ["STOP"]}, "tool_use", None, ""),
        (f"{ONE}\n{TWO}", {"tools": TOOLS, "tool_choice": {"type": "none"}}, "end_turn", None, f"{ONE}\n{TWO}"),
    ],
)
async def test_the_reason_why_an_answer_ended(make_tuner, answer, fields, reason, sequence, text):
    tuner, _, _ = make_tuner([answer])
    message = await ask(tuner, **fields)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    if text is not None:
        assert "".join(block.text for block in message.content if block.type == "text") == text


async def test_without_parallel_calls_the_agent_gets_the_first(make_tuner):
    tuner, _, _ = make_tuner([f"{ONE}\n{TWO}"])
    message = await ask(tuner, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.input for block in message.content] == [{"x": 1}]


@each_row(("choice", "rest"), [({"type": "any"}, 'add", "arguments":'), ({"type": "tool", "name": "add"}, "")])
async def test_a_forced_call_begins_in_the_prompt(make_tuner, chat_format, choice, rest):
    tuner, tracker, _ = make_tuner([rest + ' {"x": 1}}\n</tool_call>'])
    message = await ask(tuner, tools=TOOLS, tool_choice=choice)
    assert [(block.name, block.input) for block in message.content] == [("add", {"x": 1})]
    assert "<tool_call>" in chat_format.decode(tracker.turns[0].prompt_ids)[-40:]


async def test_a_stream_is_the_sequence_of_events_that_anthropic_sends(make_tuner):
    tuner, _, _ = make_tuner(lambda prompt: f"{THOUGHT}Let me see.\n{ONE}")
    whole = (await post(tuner, tools=TOOLS)).json()
    answer = await post(tuner, tools=TOOLS, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    pairs = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [event["type"] for event in events]
    for event in events:
        assert_complete(TypeAdapter(RawMessageStreamEvent).validate_python(event, strict=True))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = [*block[:2], *block[1:]]
    assert [event["type"] for event in events] == [
        *("message_start", *thinking, *block, *block, "message_delta", "message_stop")
    ]
    begun = events[0]["message"]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["output_tokens"]) == ([], None, 0)
    assert begun["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


# Errors

IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
REFUSED = [
    ({"top_k": 5}, "unknown_parameter", "top_k"),
    ({"stop": ["a"]}, "unknown_parameter", "stop"),
    ({"thread": {"type": "create"}}, "thread_unsupported_request", "thread"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "invalid_value", "tool_choice.name"),
    ({"container": "c1"}, "unknown_parameter", "container"),
    ({"context_management": {"edits": [{"type": "a"}]}}, "unsupported_parameter", "context_management"),
    ({"mcp_servers": [{"url": "http://a"}]}, "unsupported_parameter", "mcp_servers"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [{**TOOLS[0], "defer_loading": True}]}, "unsupported_parameter", "tools[0].defer_loading"),
    ({"tools": [{"name": "add"}]}, "invalid_value", "tools[0]"),
    ({"tools": TOOLS, "tool_choice": {"type": "required"}}, "invalid_value", "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "sub"}}, "invalid_value", "tool_choice"),
    ({"output_config": {"format": {"type": "json_object"}}}, "invalid_value", "output_config.format"),
    ({"output_config": {"task_budget": {}}}, "unsupported_parameter", "output_config.task_budget"),
    ({"thinking": {"type": "long"}}, "invalid_value", "thinking.type"),
    ({"max_tokens": None}, "invalid_value", "max_tokens"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"stop_sequences": [1]}, "invalid_value", "stop_sequences"),
    ({"system": [IMAGE]}, "unsupported_parameter", "system[0].type"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user", "content": []}]}, "invalid_value", "messages[0].content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "unsupported_parameter", "messages[0].content[0].type"),
    ({"messages": [ASK, {"role": "assistant", "content": "It is"}]}, "unsupported_parameter", "messages[1]"),
]


@each_row(("fields", "code", "param"), REFUSED)
async def test_what_cannot_be_honoured_is_refused_by_name(make_tuner, fields, code, param):
    tuner, tracker, _ = make_tuner([])
    answer = await post(tuner, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, answer.json()["type"], error["type"]) == (400, "error", "invalid_request_error")
    assert error["details"]["error_code"] == code and error["details"]["param"] == param
    assert param in error["message"]
    assert not tracker.turns


async def test_what_cannot_change_a_token_is_taken_and_wishes_are_noted(make_tuner):
    tuner, _, _ = make_tuner(lambda prompt: "Bye")
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    await ask(tuner, metadata={"user_id": "a"}, service_tier="auto", context_management={"edits": edits})
    notes = []
    tuner._notes.once = lambda text, _: notes.append(text)
    await ask(tuner, thinking={"type": "enabled", "budget_tokens": 1024}, output_config={"effort": "low"}, tools=TOOLS)
    assert [note.split()[0] for note in notes] == ["output_config.effort", "thinking", "strict"]


# Conversations stay one timeline


def test_messages_become_those_of_chat_completions():
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "c1"}
    given = [
        {"role": "user", "content": [text, text]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, text]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"ü": 1}}]},
        {
            "role": "user",
            "content": [{**result, "content": [text]}, {**result, "is_error": True, "content": "no"}, text],
        },
        {"role": "user", "content": [{**result, "is_error": True, "content": "Error: no"}, result]},
        {"role": "system", "content": [text]},
    ]
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"ü": 1}'}}]
    tool = {"role": "tool", "tool_call_id": "c1"}
    assert fold_messages(given) == [
        {"role": "user", "content": "aa"},
        {"role": "assistant", "content": "a", "reasoning_content": "t", "tool_calls": calls},
        {**tool, "content": "a"},
        {**tool, "content": "Error: no"},
        {"role": "user", "content": "a"},
        {**tool, "content": "Error: no"},
        {**tool, "content": ""},
        {"role": "system", "content": "a"},
    ]


ODD = ["{}", '{"x": 1e2}', "", "7", "{", '{"x": NaN}', '{"x": 1, "x": 2}', '{"INVALID_JSON": "a"}', '{"x": "\\ud83d"}']


@each_row("arguments", [*ODD, '{"x": ' * 95 + "1" + "}" * 95])
def test_arguments_come_back_with_the_meaning_they_had(arguments):
    function = {"name": "f", "arguments": arguments}
    (block,) = content_blocks({"tool_calls": [{"id": "c1", "function": function}]}, "s")
    sent = {"messages": [{"role": "assistant", "content": [block]}, ASK]}
    (back, _) = fold_messages(parse_json(json.dumps(sent).encode())["messages"])
    returned = back["tool_calls"][0]["function"]["arguments"]
    assert returned == arguments or json.loads(returned) == json.loads(arguments)


ARGUMENTS = [
    '{"x":1}',
    "{ }",
    '{"x": 1e2,   "y": [1.50, null]}',
    '{"x": "Z\\u00fcrich 🌍"}',
    "{",
    '{"x": 1, "x": 2}',
    "[1]",
]
ANSWERS = st.builds(
    lambda thought, text, calls: thought + "\n".join([text, *calls]),
    st.sampled_from(["", THOUGHT]),
    st.sampled_from(["", "Let me see.", " Grüße 🌍\n\n"]),
    st.lists(st.sampled_from(ARGUMENTS).map(call), max_size=2),
)
STEPS = st.fixed_dictionaries(
    {
        "answer": ANSWERS,
        "keep_thinking": st.booleans(),
        "edit": st.sampled_from([False, False, False, True]),
        "say": st.booleans(),
        "split": st.booleans(),
        "stream": st.booleans(),
    }
)


async def through_chat(tuner, system, steps):
    client = tuner.openai_client()
    messages = [*([{"role": "system", "content": system}] if system else []), ASK]
    for step in steps:
        answer = await client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)
        message = answer.choices[0].message.model_dump(exclude_none=True)
        if not step["keep_thinking"]:
            message.pop("reasoning_content", None)
        if step["edit"]:
            message["content"] = "Edited."
        calls = message.get("tool_calls", [])
        results = [{"role": "tool", "tool_call_id": each["id"], "content": "5"} for each in calls]
        messages = [*messages, message, *results, *([ASK] if step["say"] or not calls else [])]


async def through_messages(tuner, system, steps):
    messages = [ASK]
    async with client_of(tuner) as client:
        for step in steps:
            fields = {"model": "m", "messages": messages, "tools": TOOLS} | ({"system": system} if system else {})
            counted = (await client.messages.count_tokens(**fields)).input_tokens
            if step["stream"]:
                async with client.messages.stream(max_tokens=256, **fields) as stream:
                    answer = await stream.get_final_message()
            else:
                answer = await client.messages.create(max_tokens=256, **fields)
            assert counted == answer.usage.input_tokens
            content = [each for each in answer.content if step["keep_thinking"] or each.type != "thinking"]
            if step["edit"]:
                content = [{"type": "text", "text": "Edited."}, *(each for each in content if each.type != "text")]
            calls = [each for each in answer.content if each.type == "tool_use"]
            back = [{"type": "tool_result", "tool_use_id": each.id, "content": "5"} for each in calls]
            said = [{"type": "text", "text": "Hi"}] if step["say"] or not calls else []
            pieces = [[each] for each in content] if step["split"] and content else [content]
            replies = [[each] for each in (*back, *said)] if step["split"] else [[*back, *said]]
            messages = [
                *messages,
                *({"role": "assistant", "content": each} for each in pieces),
                *({"role": "user", "content": each} for each in replies),
            ]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["", "Add."]), st.lists(STEPS, min_size=1, max_size=4))
def test_a_conversation_has_the_same_timelines_through_either_door(chat_format, system, steps):
    async def play(talk):
        policy = ScriptedPolicy([step["answer"] for step in steps], chat_format)
        tracker = ContextTracker(policy, chat_format, Sampling(256), max_turns=20, seed=1)
        tuner = Tuner(TASK, "test/t1/0", tracker)
        await talk(tuner, system, steps)
        tuner.close()
        assert tuner.failures == []
        turns = [(tuple(t.prompt_ids), tuple(t.output_ids), t.fork, t.follows, t.excluded) for t in tracker.turns]
        assert [prompt for prompt, *_ in turns] == [prompt for prompt, _ in policy.calls]
        return turns, [(tuple(line.token_ids), line.spans, line.fork) for line in tracker.timelines()]

    assert asyncio.run(play(through_messages)) == asyncio.run(play(through_chat))
