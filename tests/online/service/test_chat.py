"""Chat over the service: what is answered is in the store, calls that belong together are together."""

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError
from astune.online.service.serving import OnlineService
from astune.online.store.requests import load_conversation
from astune.store import tables
from tests.online.service.conftest import configured, scripted, user
from tests.store.databases import new_url

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"x":1}}\n</tool_call>'


def stored(client, conversation):
    with client.service.database.reading() as connection:
        return load_conversation(connection, conversation)


async def test_an_answer_is_in_the_store_when_it_is_given(store, make_service):
    async with make_service(store) as client:
        reply = await client.chat([user("2 + 2?")], user="ana", model="training-model")
        (request,) = stored(client, reply["conversation"])
        assert reply["id"] == request.msg_id and request.msg_id.startswith("chatcmpl-")
        assert reply["choices"][0]["message"]["content"] == "4"
        turn = request.turns[0].turn
        assert (request.user, request.model, request.exchange) == ("ana", "training-model", request.msg_id)
        assert (turn.policy_version, turn.response["content"], turn.excluded) == (0, "4", None)
        assert reply["usage"]["prompt_tokens"] == len(turn.prompt_ids)
        looked = (await client.get(f"/v1/astune/requests/{reply['id']}")).json()
        assert looked["answers"][0]["token_ids"] == list(turn.output_ids)
        assert (await client.get("/v1/astune/requests/nobody")).status_code == 404


async def test_calls_belong_together_by_the_history_that_goes_on(store, make_service):
    answers = iter(["Hello", CALL, "It is 2.", "Hello", "Bye"])
    async with make_service(store, lambda prompt: next(answers)) as client:
        first = await client.chat([user("Hi")])
        messages = [user("Hi"), {"role": "assistant", "content": "Hello"}, user("1 + 1?")]
        second = await client.chat(messages, tools=TOOLS)
        call = second["choices"][0]["message"]
        messages += [
            {**call, "refusal": None},
            {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "2"},
        ]
        third = await client.chat(messages, tools=TOOLS)
        other = await client.chat([user("Hi")])
        again = await client.chat([user("Hi"), {"role": "assistant", "content": "Hello"}, user("Bye")], user="bob")
    assert first["conversation"] == second["conversation"] == third["conversation"] != other["conversation"]
    assert again["conversation"] not in (first["conversation"], other["conversation"])
    async with make_service(store) as client:
        requests = stored(client, first["conversation"])
    assert [request.follows and request.follows.msg_id for request in requests] == [None, first["id"], second["id"]]
    assert [request.exchange for request in requests] == [first["id"], second["id"], second["id"]]


@pytest.mark.parametrize(
    "headers",
    [{"X-ASTune-Conversation": "mine"}, {"X-ASTune-Task": "t", "X-ASTune-Run": "0"}, {"X-ASTune-Task": "t"}],
)
async def test_calls_belong_together_by_what_headers_say(headers, tmp_path, make_service):
    async with make_service(new_url("sqlite", tmp_path)) as client:
        replies = [await client.chat([user(text)], headers=headers) for text in "ab"]
        replies.append(await client.chat([user("a")], headers=headers, user="bob"))
        replies.append(await client.chat([user("a")]))
        assert len({reply["conversation"] for reply in replies}) == 3
        assert replies[0]["conversation"] == replies[1]["conversation"]
        (request, _) = stored(client, replies[0]["conversation"])
        assert (request.task_id, request.run_id) == (headers.get("X-ASTune-Task"), headers.get("X-ASTune-Run"))


async def test_a_repeated_request_takes_the_lost_answer_out_of_training_in_the_store_too(store, make_service):
    headers = {"X-ASTune-Conversation": "c"}
    async with make_service(store) as client:
        first = await client.chat([user("Hi")], headers=headers)
        await client.chat([user("Hi")], headers={**headers, "x-stainless-retry-count": "1"})
        requests = stored(client, first["conversation"])
    assert [request.turns[0].turn.excluded for request in requests] == ["retried", None]
    assert requests[1].turns[0].turn.fork == "retry"


async def test_streams_and_several_choices_are_recorded_whole(store, make_service):
    async with make_service(store, lambda prompt: "Hello") as client:
        reply = await client.chat([user("Hi")], n=3)
        (request,) = stored(client, reply["conversation"])
        assert [recorded.turn.fork for recorded in request.turns] == [None, "best_of_n", "best_of_n"]
        body = {"messages": [user("Hi")], "stream": True}
        streamed = (await client.post("/v1/chat/completions", json=body)).text
        assert streamed.endswith("data: [DONE]\n\n") and '"content":"Hello"' in streamed
        with client.service.database.reading() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(tables.turns)) == 4


async def test_a_response_continues_one_of_another_process_and_no_other_users(store, make_service):
    async with make_service(store, lambda prompt: "Hello") as client:
        first = (
            await client.post("/v1/responses", json={"input": "Hi", "instructions": "Be brief.", "user": "ana"})
        ).json()
    async with make_service(store, lambda prompt: "Bye") as client:
        on = {"input": "And?", "previous_response_id": first["id"], "user": "ana"}
        second = (await client.post("/v1/responses", json=on)).json()
        assert second["output"][0]["content"][0]["text"] == "Bye"
        with client.service.database.reading() as connection:
            texts = [row.messages for row in connection.execute(sa.select(tables.requests).order_by("asked"))]
        assert [message["content"] for message in texts[1]] == ["Hi", "Hello", "And?"]
        refused = await client.post("/v1/responses", json={**on, "user": "bob"})
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        item = {"input": [{"type": "item_reference", "id": first["output"][0]["id"]}, user("x")], "user": "ana"}
        assert (await client.post("/v1/responses", json=item)).status_code == 200


async def agent(client, chance, name, number, log):
    """One user's talk: the texts are those of all the others."""
    messages = []
    for _ in range(chance.randint(1, 3)):
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        messages.append(user(chance.choice("ab")))
        reply = await client.chat(messages, user=name)
        log.setdefault(name, set()).add(reply["conversation"])
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})


@settings(max_examples=8)
@given(chance=st.randoms(use_true_random=False))
def test_parallel_users_with_equal_texts_never_mix(chance, tmp_path_factory, chat_format, make_service):
    async def play():
        url, log = new_url("sqlite", tmp_path_factory.mktemp("users")), {}
        async with make_service(url) as one, make_service(url) as two:
            await asyncio.gather(
                *(agent(chance.choice([one, two]), chance, f"u{number % 6}", number, log) for number in range(12))
            )
            for name, conversations in log.items():
                for conversation in conversations:
                    requests = stored(one, conversation)
                    assert {request.user for request in requests} == {name}
                    for request in requests[1:]:
                        assert request.follows is not None
        assert sum(map(len, log.values())) == len(set().union(*log.values())) >= len(log)

    asyncio.run(play())


@pytest.mark.fault("Online training", "a user rates what was answered to another user", "403, and nothing counts")
async def test_a_user_rates_no_answer_to_another_user(tmp_path, make_service):
    async with make_service(new_url("sqlite", tmp_path)) as client:
        hers, nobodys = (await client.chat([user("Hi")], user="ana"))["id"], (await client.chat([user("Hi")]))["id"]

        async def said_by(author, *ids):
            body = {"msg_ids": ids, "thumb": "up"} | ({"user": author} if author else {})
            return await client.post("/feedback", json=body)

        refused = await said_by("bo", hers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "feedback_refused")
        assert refused.json()["error"]["message"] == "it is about another user's answers"
        assert (await said_by("bo", nobodys, hers)).status_code == 403
        for author, about in (("ana", hers), (None, hers), ("bo", nobodys)):
            assert (await said_by(author, about)).headers["x-accepted"] == "counts"
        figures = (await client.get("/metrics")).text
        assert 'astune_feedback{kind="thumb",state="refused"} 2' in figures
        assert 'astune_errors_total{code="feedback_refused"} 2.0' in figures


@pytest.mark.fault(
    "Online training",
    "the database cannot be read for a while",
    "calls are answered with 503 and when to come back, and as before once it is there",
)
async def test_a_database_that_is_away_has_clients_come_back(tmp_path, make_service):
    there, away = tmp_path / "there", tmp_path / "away"
    there.mkdir()
    async with make_service(new_url("sqlite", there)) as client:
        client.service.database.engine.dispose()
        there.rename(away)
        said = await client.post("/v1/chat/completions", json={"messages": [user("Hi")]})
        assert (said.status_code, said.json()["error"]["code"]) == (503, "store_unavailable")
        assert said.headers["retry-after"] == "1"
        away.rename(there)
        assert (await client.chat([user("Hi")]))["choices"]


def test_conversations_are_not_cut(chat_format: ChatFormat, tmp_path: Path) -> None:
    config = configured(f"sqlite:///{tmp_path}/x.db", rollout={"context": {"strategy": "discard"}})
    with pytest.raises(ConfigError, match=r"astune\.rollout\.context\.strategy: got 'discard', but `astune online`"):
        OnlineService(config, scripted(chat_format, ["Hi"]))
