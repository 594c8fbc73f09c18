"""Anthropic's Messages at the service: the same conversations as through chat completions, for the same clients."""

import itertools

from tests.online.service.conftest import user
from tests.store.databases import new_url

TOOLS = [{"name": "add", "input_schema": {"type": "object", "properties": {}}}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"x":1}}\n</tool_call>'


async def ask(client, messages, *, path="", headers=None, **more):
    answer = await client.post(
        f"/v1/messages{path}", json={"messages": messages, "max_tokens": 64, **more}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return answer.json() | {"conversation": answer.headers.get("x-astune-conversation-id")}


def go_on(reply):
    return [
        {"role": "assistant", "content": reply["content"]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": reply["content"][-1]["id"], "content": "2"}],
        },
    ]


async def test_a_conversation_goes_on_through_either_door_and_is_counted_without_a_trace(tmp_path, make_service):
    store, answers = new_url("sqlite", tmp_path), iter(["<think>\nI add.\n</think>\n\n" + CALL, "It is 2.", "Bye"])
    async with make_service(store, lambda prompt: next(answers), ids=itertools.count()) as client:
        said = [user("1 + 1?")]
        ana = {"metadata": {"user_id": "ana"}, "tools": TOOLS}
        counts = [(await ask(client, said, path="/count_tokens", **ana))["input_tokens"] for _ in range(2)]
        first = await ask(client, said, **ana)
        assert counts == [first["usage"]["input_tokens"]] * 2
        assert first["id"].startswith("msg_") and first["stop_reason"] == "tool_use"
        said += go_on(first)
        counted = await ask(client, said, path="/count_tokens", **ana)
        second = await ask(client, said, **ana)
        assert counted["input_tokens"] == second["usage"]["input_tokens"]
        call = first["content"][-1]
        messages = [
            user("1 + 1?"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": call["id"], "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": call["id"], "content": "2"},
            {"role": "assistant", "content": "It is 2."},
            user("Bye"),
        ]
        third = await client.chat(messages, tools=CHAT_TOOLS, user="ana")
        assert first["conversation"] == second["conversation"] == third["conversation"]
        shown = (await client.get(f"/v1/astune/conversations/{first['conversation']}")).json()["requests"]
        assert [each["msg_id"] for each in shown] == [first["id"], second["id"], third["id"]]
        assert [each["follows"] for each in shown] == [None, first["id"], second["id"]]
        assert [each["answers"][0]["fork"] for each in shown][:2] == [None, None]
        given = await client.post("/feedback", json={"msg_ids": [first["id"]], "thumb": "up", "user": "ana"})
        assert given.headers["x-accepted"] == "counts"


async def test_a_key_is_a_token_and_errors_are_anthropics(tmp_path, make_service, monkeypatch):
    monkeypatch.setenv("SHOP", "shop-0123456789abc")
    async with make_service(new_url("sqlite", tmp_path), tokens={"shop": "SHOP"}) as client:
        for headers in ({"x-api-key": "shop-0123456789abc"}, {"Authorization": "Bearer shop-0123456789abc"}):
            assert (await ask(client, [user("Hi")], headers=headers))["role"] == "assistant"
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            refused = await client.post(path, json={"messages": [user("Hi")]}, headers={"x-api-key": "wrong"})
            error = refused.json()["error"]
            assert (refused.status_code, error["type"]) == (401, "authentication_error")
            assert error["details"]["error_code"] == "invalid_api_key"
