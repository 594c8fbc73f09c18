import pytest

from astune.online.agent.client import OnlineClient
from astune.store import tables
from astune.store.requests import load_conversation
from tests.online.service.conftest import user

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
RECORD = {
    "conversation_id": "talk-1",
    "messages": [
        user("1 + 1?"),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
        user("Thanks"),
        {"role": "assistant", "content": "Bye"},
    ],
    "thoughts": [{"step": 1, "content": "I add."}],
    "user": "ana",
    "model": "other",
    "rewards": {"task": 0.5},
    "feedback": {"thumb": "up"},
}


async def test_a_recorded_conversation_is_in_the_store_and_takes_the_place_of_what_was_sent_before(store, make_service):
    async with make_service(store) as client:
        agents = OnlineClient("http://service")
        agents._http = client
        for messages in (RECORD["messages"][:4], RECORD["messages"]):
            said = await agents.record({**RECORD, "messages": messages})
        assert said == "3 answers of 'talk-1' are recorded"
        status = (await client.get("/v1/astune/status")).json()
        assert sum(status["feedback"].values()) >= 2
        with client.service.database.reading() as connection:
            (conversation,) = connection.scalars(tables.conversations.select())
            requests = load_conversation(connection, conversation)
    assert [request.exchange for request in requests] == [requests[0].msg_id, requests[0].msg_id, requests[2].msg_id]
    assert [request.version for request in requests] == [-1, -1, -1]
    assert requests[0].turns[0].turn.response["reasoning_content"] == "I add."
    assert [message["role"] for message in requests[2].messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert not any(request.turns[0].turn.trainable for request in requests)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**RECORD, "messages": [user("Hi")]}, None),
        ({**RECORD, "mesages": []}, "mesages"),
        ({**RECORD, "rewards": {"task": 7.0}}, "rewards.task"),
    ],
)
async def test_a_record_that_is_none_is_refused(body, param, tmp_path, make_service):
    async with make_service(f"sqlite:///{tmp_path}/s.db") as client:
        refused = await client.post("/v1/astune/records", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] in (param, "messages", "thoughts", None)
