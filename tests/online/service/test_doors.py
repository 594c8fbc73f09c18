"""Tokens, limits, and what a client may say of whose answers."""

import asyncio

import pytest

from astune.config.online import ServeConfig
from astune.errors import ConfigError
from astune.online.service.access import AccessControl, TooManyRequests, read_tokens
from tests.online.service.conftest import user
from tests.store.databases import new_url

TOKENS = {"shop": "SHOP_TOKEN", "desk": "DESK_TOKEN"}
SHOP, DESK = {"Authorization": "Bearer shop-0123456789abc"}, {"Authorization": "Bearer desk-0123456789abc"}


@pytest.fixture
def environ(monkeypatch):
    for name, headers in (("SHOP_TOKEN", SHOP), ("DESK_TOKEN", DESK)):
        monkeypatch.setenv(name, headers["Authorization"].removeprefix("Bearer "))


@pytest.mark.fault("Online training", "the service would be reached by others without a token", "it does not start")
def test_another_host_demands_tokens(monkeypatch):
    assert read_tokens(ServeConfig()) == {}
    for host in ("0.0.0.0", "::", "10.0.0.1"):
        with pytest.raises(ConfigError, match=r"which other machines reach: name a token for each client"):
            read_tokens(ServeConfig(host=host))
    config = ServeConfig(host="0.0.0.0", tokens={"a": "A", "b": "B"})
    for tokens, said in (
        ({}, "is not set"),
        ({"A": "short"}, "does not"),
        ({"A": "x" * 16, "B": "x" * 16}, "same token"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_tokens(config, tokens)
    assert read_tokens(config, {"A": "x" * 16, "B": "y" * 16}) == {"a": "x" * 16, "b": "y" * 16}


async def test_nothing_but_health_is_answered_without_a_token(tmp_path, make_service, environ):
    async with make_service(new_url("sqlite", tmp_path), tokens=TOKENS) as client:
        assert (await client.get("/health")).status_code == 200
        for path in ("/v1/chat/completions", "/v1/responses", "/feedback", "/commit"):
            for headers in ({}, {"Authorization": "Bearer dummy"}, {"Authorization": b"Bearer \xe9"}):
                refused = await client.post(path, content=b"{", headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        for path in ("/v1/models", "/metrics", "/v1/astune/status", "/v1/astune/versions", "/v1/astune/requests/x"):
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers=SHOP)).status_code in (200, 404)


@pytest.mark.fault("Online training", "a client rewards answers that another one got", "403, and nothing counts")
async def test_no_client_rewards_or_sees_what_another_got(tmp_path, make_service, environ):
    async with make_service(new_url("sqlite", tmp_path), tokens=TOKENS) as client:
        mine, theirs = [await client.chat([user("Hi")], headers=headers) for headers in (SHOP, DESK)]
        assert mine["conversation"] != theirs["conversation"]
        for ids in ([theirs["id"]], [mine["id"], theirs["id"]]):
            refused = await client.post("/feedback", json={"msg_ids": ids, "reward": 1}, headers=SHOP)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "feedback_refused")
        taken = await client.post("/feedback", json={"msg_ids": [mine["id"]], "reward": 1}, headers=SHOP)
        assert taken.headers["x-accepted"] == "counts"
        for path in (f"requests/{theirs['id']}", f"conversations/{theirs['conversation']}"):
            assert (await client.get(f"/v1/astune/{path}", headers=SHOP)).status_code == 404
            assert (await client.get(f"/v1/astune/{path}", headers=DESK)).status_code == 200


@pytest.mark.fault(
    "Online training",
    "feedback without a token is about answers that nobody knows",
    "403, and it is counted; with a token it waits for them",
)
async def test_feedback_without_a_token_is_that_of_the_client_whose_answer_it_is_about(tmp_path, make_service, environ):
    more = {"tokens": TOKENS, "feedback_without_token": True}
    async with make_service(new_url("sqlite", tmp_path), **more) as client:
        mine, theirs = [await client.chat([user("Hi")], headers=headers) for headers in (SHOP, DESK)]
        taken = await client.post("/feedback", json={"msg_ids": [theirs["id"]], "reward": 1})
        assert taken.headers["x-accepted"] == "counts"
        part = await client.post("/feedback", json={"msg_ids": [mine["id"], "later"], "reward": 1})
        assert part.headers["x-accepted"] == "waits"
        before = (await client.get("/v1/astune/status", headers=SHOP)).json()["feedback"]
        for ids, said in (([mine["id"], theirs["id"]], "several clients"), (["nobody's"], "with a token it would be")):
            refused = await client.post("/feedback", json={"msg_ids": ids, "reward": 1})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "feedback_refused")
            assert said in refused.json()["error"]["message"]
        assert (await client.get("/v1/astune/status", headers=SHOP)).json()["feedback"] == before
        metrics = (await client.get("/metrics", headers=SHOP)).text
        assert 'astune_errors_total{code="feedback_refused"} 2.0' in metrics
        early = await client.post("/feedback", json={"msg_ids": ["nobody's"], "reward": 1}, headers=SHOP)
        assert (early.status_code, early.headers["x-accepted"]) == (200, "waits")
        wrong = await client.post(
            "/feedback", json={"msg_ids": [mine["id"]], "reward": 1}, headers={"Authorization": "x"}
        )
        assert wrong.status_code == 401
        assert (await client.post("/commit")).status_code == 200
        assert (await client.post("/v1/chat/completions", json={"messages": [user("Hi")]})).status_code == 401


def test_a_minute_holds_so_many_requests_and_fills_evenly():
    now = [0.0]
    doors = AccessControl(ServeConfig(requests_per_minute=30), {}, lambda: now[0])

    def come(client):
        with doors.enter(client):
            pass

    for _ in range(30):
        come("a")
    with pytest.raises(TooManyRequests) as many:
        come("a")
    assert many.value.seconds >= 2
    come("b")
    now[0] += many.value.seconds
    come("a")


@pytest.mark.fault(
    "Online training", "the machine's clock goes back by an hour", "nobody is refused for it, and what is rated counts"
)
async def test_a_clock_that_goes_back_refuses_nobody(tmp_path, make_service):
    now = [2e9]
    async with make_service(new_url("sqlite", tmp_path), clock=lambda: now[0], requests_per_minute=1000) as client:
        await client.chat([user("Hi")])
        now[0] -= 3600
        said = await client.chat([user("Hi")])
        rated = await client.post("/feedback", json={"msg_ids": [said["id"]], "thumb": "up"})
        assert rated.headers["x-accepted"] == "counts"
    doors = AccessControl(ServeConfig(requests_per_minute=2), {}, lambda: now[0])
    with doors.enter("a"):
        now[0] -= 3600
    with doors.enter("a"):
        pass


@pytest.mark.fault("Online training", "more requests come than there is room for", "429 that says when to come back")
async def test_what_is_too_much_is_told_to_come_back(tmp_path, make_service):
    go_on, begun = asyncio.Event(), asyncio.Event()
    policies = []
    async with make_service(new_url("sqlite", tmp_path), policies=policies, max_under_way=1) as client:
        answer = policies[0].generate

        async def slow(prompt_ids, sampling):
            begun.set()
            await go_on.wait()
            return await answer(prompt_ids, sampling)

        policies[0].generate = slow
        first = asyncio.create_task(client.chat([user("Hi")]))
        await begun.wait()
        refused = await client.post("/v1/chat/completions", json={"messages": [user("Hi")]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        go_on.set()
        assert (await first)["choices"]
        policies[0].generate = answer
        await client.chat([user("Hi")])
        metrics = (await client.get("/metrics")).text
        assert 'astune_errors_total{code="rate_limit_exceeded"} 1.0' in metrics
        assert "astune_requests_under_way 0.0" in metrics and 'astune_answers_total{version="0"} 2.0' in metrics
