import pytest
import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.agent.client import OnlineClient
from astune.online.store.feedback.judgements import judgements
from astune.online.store.requests import load_conversation
from astune.store import tables
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
    async with make_service(store, online={"feedback": {"rewards": {"task": 1.0}}}) as client:
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


async def test_a_long_record_costs_as_many_statements_as_a_short_one_and_each_message_once(tmp_path, make_service):
    """So that chats go on meanwhile. What is said of it is about all of its answers, also beyond the thousand that a
    body may name."""
    counts = []
    async with make_service(f"sqlite:///{tmp_path}/s.db") as client:
        database = client.service.database
        sa.event.listen(database.engine, "before_cursor_execute", lambda *told: counts.__setitem__(-1, counts[-1] + 1))
        for size in (20, 900, 1100):
            messages = [{"role": "assistant", "content": "."}, user("On."), user("On.")] * size
            counts.append(0)
            body = {"conversation_id": str(size), "messages": messages, "feedback": {"thumb": "up"}}
            assert (await client.post("/v1/astune/records", json=body)).status_code == 200
        assert counts[0] == counts[1] <= counts[2] <= counts[0] + 10, "but for what is looked up a thousand at a time"
        with database.reading() as connection:
            rows = connection.execute(tables.requests.select()).all()
            (short, middle, long) = (each.msg_ids for each in judgements(connection, FeedbackConfig()))
        assert sum(len(row.messages) for row in rows) < 3 * 2020
        assert (len(short), len(middle), len(long)) == (20, 900, 1100)
        shown = (await client.get(f"/v1/astune/conversations/{rows[0].conversation_id}")).json()["requests"]
    assert [len(each["messages"]) for each in shown] == [0, *[2] * 19]
    assert [each["messages_kept"] for each in shown] == [0, *range(1, 58, 3)]


async def test_a_call_never_goes_on_in_a_recorded_conversation(store, make_service):
    """It would be lost when the record is sent anew."""
    async with make_service(store) as client:
        for _ in range(2):
            body = {**RECORD, "rewards": None}
            assert (await client.post("/v1/astune/records", json=body)).status_code == 200
            reply = await client.chat([*RECORD["messages"], user("Wait!")], user="ana")
            with client.service.database.reading() as connection:
                assert len(load_conversation(connection, reply["conversation"])) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**RECORD, "messages": [user("Hi")]}, None),
        ({**RECORD, "mesages": []}, "mesages"),
        ({**RECORD, "rewards": {"task": 7.0}}, "rewards.task"),
        ({**RECORD, "rewards": {"task": 1.0}}, "rewards.task"),
    ],
)
async def test_a_record_that_is_none_is_refused(body, param, tmp_path, make_service):
    async with make_service(f"sqlite:///{tmp_path}/s.db") as client:
        refused = await client.post("/v1/astune/records", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] in (param, "messages", "thoughts", None)
        with client.service.database.reading() as connection:
            assert not connection.execute(tables.requests.select()).all(), "nothing is half written"
