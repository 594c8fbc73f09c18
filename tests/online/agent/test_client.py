"""The client of the service: what it sends, what it takes for an answer, what it says of anything else."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from astune.online import OnlineClient, ServiceAway, ServiceRefused, send_feedback
from astune.online.wire import COMMIT_PATH, FEEDBACK_PATH, Commit, WireError
from astune.testing import ScriptedChatServer, ScriptedOnlineService


async def test_feedback_commits_and_records_arrive_with_the_token() -> None:
    record = {"conversation_id": "c", "messages": [{"role": "user", "content": "x"}]}
    with ScriptedOnlineService([], token="t") as service:
        async with OnlineClient(service.url + "/", token="t") as client:
            await client.health()
            assert await client.feedback(msg_ids=["a"], rewards={"x": 1.0}, user="ana") == "kept"
            await client.commit(time_threshold=5)
            await client.record(record)
        send_feedback(service.url, token="t", better="a", worse="b")
        async with OnlineClient(service.url) as stranger:
            with pytest.raises(ServiceRefused, match="/health answered 401: no token"):
                await stranger.health()
        with pytest.raises(ServiceRefused, match="/feedback answered 401"):
            send_feedback(service.url, msg_ids=["a"], thumb="up")
    assert service.feedback == [
        {"msg_ids": ["a"], "rewards": {"x": 1.0}, "user": "ana"},
        {"msg_ids": [], "better": "a", "worse": "b"},
    ]
    assert service.commits == [{"time_threshold": 5}] and service.records[0]["conversation_id"] == "c"


async def test_what_is_no_feedback_is_not_sent() -> None:
    with ScriptedOnlineService([]) as service:
        async with OnlineClient(service.url) as client:
            with pytest.raises(WireError, match=r"'rateing' is no key of Feedback\. Did you mean 'rating'"):
                await client.feedback(msg_ids=["a"], rateing=4)
        with pytest.raises(WireError, match="nothing that can be learned from"):
            send_feedback(service.url, msg_ids=["a"])
    assert service.feedback == []


async def test_a_service_that_is_away_may_be_asked_again_and_one_that_refuses_may_not() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        async with OnlineClient(nobody) as client:
            for request in (client.health(), client.commit(), client.feedback(msg_ids=["a"], reward=1)):
                with pytest.raises(ServiceAway, match="no answer from http://127") as away:
                    await request
                assert away.value.again and away.value.status is None
        with pytest.raises(ServiceAway):
            send_feedback(nobody, msg_ids=["a"], reward=1)
    with ScriptedOnlineService([]) as service:
        service.fail[COMMIT_PATH] = [429, 500, 409]
        async with OnlineClient(service.url) as client:
            for status in (429, 500):
                with pytest.raises(ServiceAway, match=f"/commit answered {status}: scripted failure") as later:
                    await client.commit()
                assert (later.value.status, later.value.after) == (status, 0.0)
            with pytest.raises(ServiceRefused) as refused:
                await client.commit()
    assert refused.value.status == 409 and not refused.value.again


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": "success"}, None),  # Trinity's
        ({"status": "success", "message": "3 taken"}, None),
        ({"status": "error", "message": "no"}, "answered {'status': 'error', 'message': 'no'} instead of success"),
        ({}, "answered {} instead of success"),
    ],
)
async def test_only_a_status_of_success_is_an_acknowledgement(answer: dict[str, Any], said: str | None) -> None:
    with ScriptedChatServer([answer]) as server:
        async with OnlineClient(server.base_url.removesuffix("/v1")) as client:
            if said is None:
                assert await client.send(FEEDBACK_PATH, Commit()) == answer.get("message", "")
            else:
                with pytest.raises(ServiceRefused) as caught:
                    await client.send(FEEDBACK_PATH, Commit())
                assert said in str(caught.value)
