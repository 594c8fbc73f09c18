"""What `/ready` says when a part of the service is away, and what `/health` says then."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from astune.online.service import readiness
from astune.online.store.audit import lines
from astune.online.training.log import status_of
from astune.store import tables
from tests.online.service.conftest import user
from tests.store.databases import new_url
from tests.store.test_hardening import limit_pages

OK = {"store": "ok", "disk": "ok", "engine": "ok"}


@pytest.fixture(autouse=True)
def each_look_is_new(monkeypatch):
    monkeypatch.setattr(readiness, "KNOWN_SECONDS", 0.0)


async def test_a_service_is_ready_and_its_looks_leave_nothing(store, make_service):
    async with make_service(store, tokens={}) as client:
        for _ in range(3):
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()) == (200, {"ready": True, "version": 0, **OK})
        with client.service.database.reading() as connection:
            assert (
                list(lines(connection)) == [] and connection.scalar(sa.select(sa.func.count(tables.turns.c.call))) == 0
            )


@pytest.mark.fault(
    "Online training",
    "a server is told to end (SIGTERM) while others are there",
    "`/ready` says 503 at once, and requests are answered until a balancer has seen it",
)
async def test_a_server_that_drains_is_not_ready_and_answers_if_others_are_there(store, make_service):
    async with make_service(store) as one, make_service(store) as other:
        for client, url in ((one, "http://one"), (other, "http://other")):
            client.service.presence.url = url
            assert client.service.presence.others == 0
        for client in (one, other, one):
            client.service.presence._beaten = -math.inf
            await client.service.poll()
        assert one.service.presence.others == other.service.presence.others == 1
        assert (await one.get("/ready")).status_code == 200
        assert one.service.drain(7.0) == 7.0
        assert ((await one.get("/ready")).status_code, (await one.get("/health")).status_code) == (503, 200)
        assert (await one.chat([user("Hi")]))["choices"]
        await one.service.poll()
        servers = status_of(one.service.database, 0.0).servers
        assert [(server.url, server.state, server.versions) for server in servers] == [
            ("http://one", "draining", (0,)),
            ("http://other", "serving", (0,)),
        ]
        one.service.presence.leave()
        assert [row.url for row in status_of(one.service.database, 0.0).servers] == ["http://other"]


async def test_one_server_at_a_time_loads_a_new_version(store, make_service):
    async with make_service(store) as one, make_service(store) as other:
        async with one.service.presence.may_load() as first, other.service.presence.may_load() as second:
            assert (first, second) == (True, False)
        async with other.service.presence.may_load() as again:
            assert again


@pytest.mark.fault(
    "Online training",
    "the disk of the service is full",
    "`/ready` says so and why; it is ready again when there is room",
)
async def test_a_service_that_cannot_write_is_not_ready_and_says_so(tmp_path, make_service):
    async with make_service(new_url("sqlite", tmp_path)) as client:
        limit_pages(client.service.database, 0)
        ready = await client.get("/ready")
        assert ready.status_code == 503 and ready.json() == {
            "ready": False,
            "version": 0,
            **OK,
            "store": ready.json()["store"],
        }
        assert "takes nothing: database or disk is full" in ready.json()["store"]
        alive = await client.get("/health")
        assert (alive.status_code, alive.json()["state"]) == (200, "cannot write")
        assert alive.json()["reason"] == ready.json()["store"]
        limit_pages(client.service.database, None)
        assert (await client.get("/ready")).json() == {"ready": True, "version": 0, **OK}
        assert (await client.get("/health")).json() == {"state": "well", "version": 0}


async def test_a_disk_with_little_room_and_a_file_that_is_gone_are_told(tmp_path, make_service, monkeypatch):
    async with make_service(new_url("sqlite", tmp_path)) as client:
        monkeypatch.setattr(readiness.shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
        assert "5 MiB are free, fewer than 32" in (await client.get("/ready")).json()["disk"]
        monkeypatch.undo()
        monkeypatch.setattr(readiness, "KNOWN_SECONDS", 0.0)
        Path(client.service.database.url.database).unlink()
        assert "is gone" in (await client.get("/ready")).json()["disk"]


@pytest.mark.fault("Online training", "the model of the service does not answer", "`/ready` says so and why")
async def test_a_model_that_fails_or_hangs_makes_it_not_ready_and_a_busy_one_does_not(
    tmp_path, make_service, monkeypatch
):
    monkeypatch.setattr(readiness, "LOOK_SECONDS", 0.2)
    policies, asked, never = [], [], asyncio.Event()
    async with make_service(new_url("sqlite", tmp_path), policies=policies) as client:

        async def fail(prompt_ids, sampling):
            raise RuntimeError("CUDA error")

        async def hang(prompt_ids, sampling):
            asked.append(prompt_ids)
            await never.wait()

        policies[0].generate = fail
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["engine"]) == (503, "RuntimeError: CUDA error")
        policies[0].generate = hang
        slow = [(await client.get("/ready")).json()["engine"] for _ in range(2)]
        assert slow == ["nothing happened within 0.2 seconds"] * 2 and len(asked) == 2
        look = asyncio.create_task(client.service.app._parts.readiness.look())
        while len(asked) < 3:
            await asyncio.sleep(0)
        client.service.versions.answers += 1  # somebody else was answered meanwhile
        assert (await look).parts["engine"] == "ok"


async def test_many_who_ask_at_once_make_one_look(tmp_path, make_service, monkeypatch):
    monkeypatch.setattr(readiness, "KNOWN_SECONDS", 60.0)
    asked = []
    async with make_service(new_url("sqlite", tmp_path), lambda prompt: asked.append(prompt) or "4") as client:
        found = await asyncio.gather(*(client.get("/ready") for _ in range(20)))
        assert {each.status_code for each in [*found, await client.get("/ready")]} == {200}
    assert len(asked) == 1
