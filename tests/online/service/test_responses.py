"""`/v1/responses` in the service: what is continued by id is what the agent was shown, from the store."""

from __future__ import annotations

from contextlib import closing

import pytest

from astune.online.store.requests import TurnPlace, load_conversation
from astune.store import open_database

TOOLS = [
    {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
]
TWO = "".join(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {n}}}}}\n</tool_call>\n' for n in (1, 2)).strip()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
async def test_calls_that_the_agent_was_shown_are_those_that_it_answers(parallel, restarted, store, make_service):
    def answers(prompt):
        return "Done." if "tool_response" in prompt or "result" in prompt else TWO

    async with make_service(store, answers) as client:
        asked = {"input": "Add", "tools": TOOLS, "parallel_tool_calls": parallel}
        first = await client.post("/v1/responses", json=asked)
        calls = [item for item in first.json()["output"] if item["type"] == "function_call"]
        assert len(calls) == (2 if parallel else 1)
        outputs = [{"type": "function_call_output", "call_id": each["call_id"], "output": "result"} for each in calls]
        more = {"input": outputs, "previous_response_id": first.json()["id"], "tools": TOOLS}
        second = None if restarted else await client.post("/v1/responses", json=more)
    if second is None:
        async with make_service(store, answers) as client:
            second = await client.post("/v1/responses", json=more)
    assert second.status_code == 200, second.text
    assert second.json()["output"][-1]["content"][0]["text"] == "Done."
    assert second.headers["x-astune-conversation-id"] == first.headers["x-astune-conversation-id"]
    with closing(open_database(store)) as database, database.reading() as connection:
        before, after = load_conversation(connection, first.headers["x-astune-conversation-id"])
    assert before.msg_id == first.json()["id"]
    # what goes on from one call of two that were sampled is not what was sampled: it begins a branch
    assert after.follows == (TurnPlace(before.msg_id, 0) if parallel else None)
    assert [len(message["tool_calls"]) for message in after.messages if message["role"] == "assistant"] == [len(calls)]
