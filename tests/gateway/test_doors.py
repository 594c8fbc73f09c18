"""One suite for both doors that speak OpenAI's and Anthropic's API over HTTP: the endpoint of an episode and the online
service."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest

from astune.gateway.http import most_bytes
from astune.testing import ScriptedPolicy
from tests.rows import each_row

AREA = "The OpenAI-compatible endpoint"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object"}}
THEIR_TOOL = {"name": "add", "input_schema": {"type": "object"}}
CHAT, RESPONSES, TEXT, MESSAGES = "chat/completions", "responses", "completions", "messages"
PATHS = {
    CHAT: {"messages": HI},
    RESPONSES: {"input": HI},
    TEXT: {"prompt": "Hi"},
    MESSAGES: {"messages": HI, "max_tokens": 256},
}
CALLS = "\n".join(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>' for a in (1, 2))
ANSWER = f"<think>\nI add.\n</think>\n\nLet me see. Grüße 🌍\n{CALLS}"
LENGTH = 4096


@dataclass(frozen=True)
class Door:
    """`count` tells how many turns were recorded."""

    http: httpx.AsyncClient
    paths: tuple[str, ...]
    model: str
    count: Callable[[], int]

    async def post(self, path: str, body: object) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(path, content=content)


@pytest.fixture
async def gateway(make_tuner) -> AsyncIterator[Door]:
    tuner, tracker, _ = make_tuner(lambda prompt: ANSWER, context_length=LENGTH, max_turns=1000)
    async with httpx.AsyncClient(base_url=tuner.base_url()) as http:
        yield Door(http, tuple(PATHS), "agent", lambda: len(tracker.turns))
    assert tuner.failures == []


@pytest.fixture
async def online(chat_format, tmp_path) -> AsyncIterator[Door]:
    sa = pytest.importorskip("sqlalchemy", reason="the online service needs astune[online]")
    from astune.online.service.serving import Model, OnlineService
    from astune.online.store.versions import ModelVersion
    from astune.store import tables
    from tests.online.service.conftest import configured

    model = Model(
        "agent",
        chat_format,
        lambda version: ScriptedPolicy(lambda prompt: ANSWER, chat_format, context_length=LENGTH),
        ModelVersion(0),
    )
    service = OnlineService(configured(f"sqlite:///{tmp_path}/doors.db", rollout={"max_tokens": 256}), model)

    def count() -> int:
        with service.database.reading() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(tables.turns))

    transport = httpx.ASGITransport(app=service.app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://service/v1") as http:
        yield Door(http, (CHAT, RESPONSES, MESSAGES), "agent", count)
    service.close()


@pytest.fixture(params=["gateway", "online"])
def door(request: pytest.FixtureRequest) -> Door:
    return request.getfixturevalue(request.param)


def nested(depth: int, opening: str = "[", closing: str = "]", inside: str = "") -> str:
    return opening * depth + inside + closing * depth


def schema(depth: int) -> dict:
    return {"type": "object", "properties": {"a": schema(depth - 1)}} if depth else {}


BODIES = {
    "not JSON": b"{",
    "no UTF-8 before it": b"\xff{%s}",
    "no object": b"[]",
    "a number": b"7",
    "NaN": b'{%s, "temperature": NaN}',
    "Infinity": b'{%s, "metadata": {"a": -Infinity}}',
    "a number too large for a float": b'{%s, "temperature": 1e999}',
    "a number of 5000 digits": b'{%%s, "max_tokens": %s}' % (b"9" * 5000),
    "an integer of 400 digits": b'{%%s, "top_p": %s}' % (b"9" * 400),
    "a name twice": b'{%s, "user": "a", "user": "b"}',
    "a name twice deep inside": b'{%s, "metadata": {"a": [{"b": 1, "b": 2}]}}',
    "half of a character": b'{%s, "user": "\\ud83d"}',
    "half of a character as bytes": b'{%s, "user": "\xed\xa0\xbd"}',
    "no UTF-8": b'{%s, "user": "\xff\xfe"}',
    "nested 400 deep": b'{%%s, "metadata": %s}' % nested(400).encode(),
    "nested 400 deep, objects": b'{%%s, "metadata": %s}' % nested(400, '{"a":', "}", "1").encode(),
    "nested 100,000 deep": b'{%%s, "metadata": %s}' % nested(100_000).encode(),
}


def assert_refused(answer: httpx.Response) -> dict:
    """In OpenAI's shape, or where its clients ask in Anthropic's; gives the error."""
    error = answer.json()["error"]
    if answer.request.url.path.endswith(f"/{MESSAGES}"):
        assert (set(answer.json()), answer.json()["type"]) == ({"type", "error"}, "error")
        details = error.pop("details")
        error |= {"param": details["param"], "code": details["error_code"]}
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), answer.text[:300]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert len(answer.content) < 5_000
    return error


@pytest.mark.fault(AREA, "a body is no JSON, or JSON that no client means", "a bad request in OpenAI's shape")
@pytest.mark.fault(AREA, "a request holds half of a surrogate pair", "a bad request in OpenAI's shape")
async def test_a_body_that_cannot_be_meant_is_a_bad_request(door: Door) -> None:
    for path in door.paths:
        rest = json.dumps(PATHS[path])[1:-1].encode()
        for name, body in BODIES.items():
            error = assert_refused(await door.post(path, body.replace(b"%s", rest)))
            assert error["code"] in ("invalid_json", "invalid_value"), (path, name)
    assert door.count() == 0
    whole = {**PATHS[CHAT], "user": "\U0001f600"}  # two halves are a character
    assert (await door.post(CHAT, whole)).status_code == 200


CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
FIELDS = [
    (CHAT, "max_tokens", 10**400),
    (CHAT, "n", 10**400),
    (CHAT, "seed", -(10**400)),
    (CHAT, "frequency_penalty", 1),
    (CHAT, "tools", [{**TOOL, "function": {"name": "f", "parameters": schema(200)}}]),
    (CHAT, "tools", [{**TOOL, "function": {"name": "f", "strict": "yes"}}]),
    (CHAT, "messages", [{**HI[0], "tool_call_id": {}}]),
    (CHAT, "messages", [*HI, {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": {}}]}]),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}),
    (TEXT, "logprobs", 10**400),
    (RESPONSES, "max_output_tokens", 10**400),
    (RESPONSES, "tools", [{**FLAT, "parameters": schema(200)}]),
    (RESPONSES, "tools", [{**FLAT, "strict": "yes"}]),
    (RESPONSES, "text", {"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": "yes"}}),
    (RESPONSES, "truncation", "auto"),
    (RESPONSES, "previous_response_id", "resp_gone"),
    (MESSAGES, "max_tokens", 10**400),
    (MESSAGES, "tools", [{**THEIR_TOOL, "input_schema": schema(200)}]),
    (MESSAGES, "tools", [{**THEIR_TOOL, "strict": "yes"}]),
    (MESSAGES, "messages", [*HI, {"role": "assistant", "content": [{"type": "tool_use", "input": "{}"}]}, *HI]),
    (MESSAGES, "messages", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 1}]}]),
    (MESSAGES, "messages", [{"role": "user", "content": [{"type": "tool_result", "is_error": 1}]}]),
    (MESSAGES, "system", {}),
]


async def test_a_field_that_cannot_be_meant_is_a_bad_request_that_names_it(door: Door) -> None:
    for path, field, value in (row for row in FIELDS if row[0] in door.paths):
        for stream in (False, True):
            error = assert_refused(await door.post(path, {**PATHS[path], field: value, "stream": stream}))
            assert error["param"] is None or error["param"].startswith(field), (path, field)
    assert door.count() == 0


async def test_what_is_nested_as_deep_as_people_do_is_answered(door: Door) -> None:
    tools = [{**TOOL, "function": {"name": "f", "parameters": schema(40)}}]
    history = [*HI, {"role": "assistant", "content": nested(500), "tool_calls": [CALL]}]
    history.append({"role": "tool", "tool_call_id": "a", "content": "4"})
    for body in ({"tools": tools}, {"messages": history}):
        answer = await door.post(CHAT, {"messages": HI} | body)
        assert answer.status_code == 200, answer.text


@pytest.mark.fault(AREA, "a prompt is too long", "an error in the words that frameworks look for")
async def test_an_overflow_has_openais_words(door: Door) -> None:
    long = "too long " * LENGTH
    for path in door.paths:
        field = next(iter(PATHS[path]))
        body = {**PATHS[path], field: long if path == TEXT else [{"role": "user", "content": long}]}
        error = assert_refused(await door.post(path, body))
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)
        assert f"This model's maximum context length is {LENGTH} tokens" in error["message"]
    error = assert_refused(await door.post(CHAT, b"x" * (most_bytes(LENGTH) + 1)))
    assert (error["code"], error["param"]) == ("context_length_exceeded", None)
    assert (await door.post(CHAT, PATHS[CHAT])).status_code == 200


async def test_a_model_is_found_by_its_name_and_nothing_else_is_served(door: Door) -> None:
    listed = (await door.http.get("models")).json()
    assert (listed["object"], [each["id"] for each in listed["data"]]) == ("list", [door.model])
    assert (await door.http.get(f"models/{door.model}")).json() == listed["data"][0]
    for answer, status, code, told in (
        (await door.http.get("models/team/gpt-4o"), 404, "model_not_found", "'team/gpt-4o' does not exist: there is"),
        (await door.http.post("embeddings"), 404, "unknown_url", "v1/embeddings: Not Found"),
        (await door.http.get(CHAT), 405, "unknown_url", f"v1/{CHAT}: Method Not Allowed"),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code) and told in error["message"]


def clean(text: str) -> str:
    """Without what no two replies have in common: the time, and the places of answers and calls in their episode."""
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    text = re.sub(r"(chatcmpl-|resp_|msg_|rs_|fc_|)[0-9a-f]{16}_\d+", r"\1", text)
    return re.sub(r'"c\d{5}(\d{3})"', r'"c\1"', text)


ASKED = [
    (CHAT, {}),
    (CHAT, {"tools": [TOOL], "n": 2, "logprobs": True, "return_token_ids": True, "temperature": 0.5, "seed": 3}),
    (CHAT, {"tools": [TOOL], "stream": True, "n": 2, "stream_options": {"include_usage": True}, "logprobs": True}),
    (CHAT, {"tools": [TOOL], "parallel_tool_calls": False}),
    (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "json_object"}}),
    (CHAT, {"stop": ["see"], "max_completion_tokens": 20}),
    (RESPONSES, {"instructions": "Be brief.", "tools": [FLAT], "include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"tools": [FLAT], "stream": True}),
    (RESPONSES, {"max_output_tokens": 3, "metadata": {"a": "b"}}),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}, "parallel_tool_calls": False}),
    (MESSAGES, {"system": "Be brief.", "tools": [THEIR_TOOL], "temperature": 0.5}),
    (MESSAGES, {"tools": [THEIR_TOOL], "stream": True}),
    (MESSAGES, {"stop_sequences": ["see"], "max_tokens": 20}),
    (f"{MESSAGES}/count_tokens", {"messages": HI, "tools": [THEIR_TOOL]}),
]


@each_row(("path", "more"), ASKED)
async def test_both_doors_give_the_same_reply(gateway: Door, online: Door, path, more) -> None:
    body = {"model": "m", **PATHS.get(path, {}), **more}
    replies = [await each.post(path, body) for each in (gateway, online)]
    (mine, others) = ((each.status_code, each.headers["content-type"], clean(each.text)) for each in replies)
    assert mine == others
    assert mine[0] == 200 and (mine[1] == "application/json") != ("stream" in more)


async def test_a_response_is_continued_by_its_id_and_by_its_items(door: Door) -> None:
    first = (await door.post(RESPONSES, {"input": "Hi", "tools": [FLAT]})).json()
    calls = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": each, "output": "5"} for each in calls]
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    for more in (
        {"input": results, "previous_response_id": first["id"]},
        {"input": [*HI, *first["output"], *results]},
        {"input": [*HI, *references, *results]},
    ):
        answer = await door.post(RESPONSES, {"tools": [FLAT], **more})
        assert answer.status_code == 200, answer.text
    assert len(calls) == 2 and door.count() == 4
    unstored = (await door.post(RESPONSES, {"input": "Hi", "store": False})).json()
    error = assert_refused(await door.post(RESPONSES, {"input": "And?", "previous_response_id": unstored["id"]}))
    assert error["code"] == "previous_response_not_found"
