"""The service over HTTP: what each call gives, and what becomes of calls that cannot be answered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest

from astune.environment import instances, server
from astune.environment.protocol import (
    MAX_ID,
    Created,
    CreateRequest,
    EnvironmentInfo,
    InstanceInfo,
    ServiceReply,
    Stepped,
)
from astune.errors import ConfigError
from astune.testing import EnvServer
from tests.environment.rooms import LOOK, Caller, Rooms, eventually
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
Serve = Callable[..., Caller]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Caller, Rooms]]:
    """A service for tests that leave it as it was."""
    rooms = Rooms()
    with EnvServer([rooms]) as service:
        caller = Caller(service.url)
        yield caller, rooms
        caller.http.close()


def test_an_episode_from_the_first_call_to_the_last(caller: Caller) -> None:
    assert caller.data("get_env_profile", env_type="rooms", params={"split": "train"}) == ["a", "b", "c"]
    created = caller.create("one")
    Created.model_validate(created, strict=True)
    assert [message["role"] for message in created["state"]] == ["system", "user"]
    assert created["info"] == {"instance_id": "one", "tools": [LOOK]} and created["reward"] == 0.0
    first = caller.say("one", "hello")
    Stepped.model_validate(first, strict=True)
    assert first["state"] == [{"role": "user", "content": "hello 1"}]
    assert (first["reward"], first["is_terminated"]) == (0.5, False)
    assert caller.say("one", "done")["is_terminated"] is True
    assert caller.data("evaluate", instance_id="one") == 0.2
    info = caller.data("get_info", instance_id="one")
    InstanceInfo.model_validate(info, strict=True)
    assert (info["steps"], info["is_terminated"], info["task_id"]) == (2, True, "a")
    assert caller.live == 1
    assert caller.data("release", instance_id="one") is True
    assert caller.data("release", instance_id="one") is False
    assert caller.live == 0


def test_tool_calls_reach_the_environment_with_their_arguments(caller: Caller) -> None:
    caller.create("one")
    calls = [
        {"id": "x", "type": "function", "function": {"name": "look", "arguments": '{"thing": "door"}'}},
        {"id": "y", "type": "function", "function": {"name": "jump", "arguments": {"high": 2}}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    told = caller.data("step", instance_id="one", messages=[{"role": "user", "content": "?"}, message])["state"]
    assert [one["tool_call_id"] for one in told] == ["x", "y"]
    assert "'door'" in told[0]["content"] and "'high': 2" in told[1]["content"]


@each_row("arguments", ["{broken", "[1]", '"text"', "[" * 100_000])
def test_arguments_that_are_no_object_are_the_agents_mistake(shared: tuple[Caller, Rooms], arguments: str) -> None:
    caller, rooms = shared
    caller.create("one")
    calls = [
        {"id": "x", "function": {"name": "look", "arguments": arguments}},
        {"id": "y", "function": {"name": "look", "arguments": "{}"}},
    ]
    step = caller.data("step", instance_id="one", messages={"role": "assistant", "tool_calls": calls})
    assert [one["tool_call_id"] for one in step["state"]] == ["x", "y"]
    assert "Error: the arguments of look" in step["state"][0]["content"]
    assert "not carried out" in step["state"][1]["content"]
    assert step["reward"] == 0 and rooms.made[-1].acted == [], "the environment was not asked"
    caller.data("release", instance_id="one")


def test_get_info_without_an_instance_describes_the_type(caller: Caller) -> None:
    info = caller.data("get_info", env_type="rooms")
    EnvironmentInfo.model_validate(info, strict=True)
    assert info == {"env_type": "rooms"} == caller.data("get_info")


@each_row(
    ("name", "body", "status", "code", "message"),
    [
        ("get_env_profile", {"params": {"split": "dev"}}, 404, "unknown_split", "no split 'dev'"),
        ("get_env_profile", {"env_type": "room"}, 404, "unknown_env_type", "Did you mean 'rooms'?"),
        ("create", {"task_id": "nowhere", "instance_id": "i"}, 404, "unknown_task", "no room of this name"),
        ("create", {"task_id": "burnt", "instance_id": "i"}, 500, "environment_failed", "RuntimeError: it has burnt"),
        ("create", {"task_id": "mute", "instance_id": "i"}, 500, "environment_failed", "RuntimeError: nothing to say"),
        ("create", {"task_id": "a"}, 400, "bad_request", "instance_id: Field required"),
        ("create", {"task_id": 7, "instance_id": "i"}, 400, "bad_request", "task_id: Input should be a valid string"),
        ("create", {"task_id": "a", "instance_id": "i" * (MAX_ID + 1)}, 400, "bad_request", "instance_id: String"),
        (
            "create",
            {"task_id": "a", "instance_id": "i", "params": {"colour": "octarine"}},
            400,
            "bad_request",
            "params.colour",
        ),
        ("step", {"instance_id": "i", "messages": {"content": "x"}}, 404, "unknown_instance", "no instance 'i'"),
        ("step", {"instance_id": "i"}, 400, "bad_request", "messages: Field required"),
        ("step", {"instance_id": "i", "messages": []}, 400, "bad_request", "messages: Value error, no message"),
        ("step", {"instance_id": "i", "messages": {"role": "user"}}, 400, "bad_request", "messages.role: String"),
        ("evaluate", {"instance_id": "i"}, 404, "unknown_instance", "no instance 'i'"),
        ("get_info", {"instance_id": "i"}, 404, "unknown_instance", "no instance 'i'"),
        ("release", {}, 400, "bad_request", "instance_id: Field required"),
        ("reset", {}, 404, "unknown_call", "no call 'reset'; there are get_env_profile, create"),
        ("health", {}, 405, "method_not_allowed", "/health is GET, not POST"),
    ],
)
def test_what_cannot_be_answered_says_why(
    shared: tuple[Caller, Rooms], name: str, body: dict[str, Any], status: int, code: str, message: str
) -> None:
    caller, _ = shared
    found = caller.error(name, **body)
    assert found[:2] == (status, code) and message in found[2]
    assert caller.live == 0


@each_row("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"instance_id": "\\ud800"}'])
def test_a_body_that_is_no_object_is_a_bad_request(shared: tuple[Caller, Rooms], body: bytes) -> None:
    response = shared[0].http.post("/evaluate", content=body, headers=JSON)
    assert response.status_code == 400 and response.json()["error"]["code"] == "bad_request"


@pytest.mark.fault("Tools and environments", "a body of the environment service is too large", "refused")
def test_a_body_that_is_too_large_is_refused(shared: tuple[Caller, Rooms]) -> None:
    response = shared[0].http.post("/evaluate", content=b" " * (server.MAX_BODY + 1), headers=JSON)
    assert response.status_code == 413 and response.json()["error"]["code"] == "too_large"


@pytest.mark.fault(
    "Tools and environments", "an environment raises in a step", "the call fails with its message, the instance stays"
)
@each_row(
    ("said", "message"),
    [
        ("raise", "ZeroDivisionError: the floor is missing"),
        ("nan", "a reward must be finite"),
        ("set", "TypeError: Object of type set is not JSON serializable"),
        ("exit", "SystemExit: the environment wanted"),
        ("stop", "StopIteration"),
    ],
)
def test_a_step_that_raises_is_told_without_traceback_and_the_instance_stays(
    shared: tuple[Caller, Rooms], said: str, message: str
) -> None:
    caller, rooms = shared
    failed = caller.metric("failed_total")
    caller.create("one")
    body = {"instance_id": "one", "messages": {"role": "assistant", "content": said}}
    status, code, told = caller.error("step", "k", **body)
    assert (status, code) == (500, "environment_failed") and message in told and "rooms.py" not in told
    assert caller.error("step", "k", **body) == (status, code, told), "the same key gives the same failure"
    assert rooms.made[-1].acted == [said], "and does not act"
    assert caller.data("evaluate", instance_id="one") == 0.1
    assert caller.metric("failed_total") == failed + 1
    caller.data("release", instance_id="one")


def test_a_score_that_is_not_finite_is_a_failure(caller: Caller) -> None:
    caller.create("one")
    caller.say("one", "inf")
    assert caller.error("evaluate", instance_id="one")[1:] == (
        "environment_failed",
        "ValueError: a score must be finite, found inf",
    )


def test_a_repeated_step_acts_once(caller: Caller, rooms: Rooms) -> None:
    caller.create("one")
    first = caller.say("one", "x", key="0")
    assert caller.say("one", "x", key="0") == first
    assert caller.say("one", "x", key="1") != first
    assert caller.say("one", "x") != caller.say("one", "x"), "without a key every step acts"
    assert rooms.made[0].acted == ["x"] * 4
    done = caller.say("one", "done", key="2")
    assert caller.say("one", "done", key="2") == done, "also the last one"
    again = caller.error("step", "3", instance_id="one", messages={"content": "x"})
    assert again[:2] == (409, "terminated")


@pytest.mark.fault("Tools and environments", "a step is sent again while it goes on", "it acts once")
def test_a_step_that_is_repeated_while_it_goes_on_acts_once(caller: Caller, rooms: Rooms) -> None:
    caller.create("one")
    with ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(caller.say, "one", "wait", "0") for _ in range(3)]
        assert rooms.entered.wait(60)
        assert not wait(replies, timeout=0.1).done, "the repeats wait for the first"
        rooms.gate.set()
        assert replies[0].result() == replies[1].result() == replies[2].result()
    assert rooms.made[0].acted == ["wait"]


def test_steps_of_one_instance_go_one_by_one_and_instances_side_by_side(caller: Caller, rooms: Rooms) -> None:
    caller.create("one")
    caller.create("two")
    with ThreadPoolExecutor(4) as pool:
        waiting = pool.submit(caller.say, "one", "wait")
        assert rooms.entered.wait(60)
        others = [pool.submit(caller.say, "one", "next"), pool.submit(caller.data, "evaluate", instance_id="one")]
        assert caller.say("two", "x")["state"][0]["content"] == "x 1"
        assert caller.data("get_info", instance_id="one")["steps"] == 0
        assert not wait(others, timeout=0.1).done
        rooms.gate.set()
        assert waiting.result()["state"][0]["content"] == "wait 1"
        assert others[0].result()["state"][0]["content"] == "next 2"
        others[1].result()
    assert not rooms.made[0].collided


def test_creating_twice_makes_one_instance(caller: Caller, rooms: Rooms) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(caller.create, "one", "slow") for _ in range(2)]
        assert rooms.entered.wait(60)
        rooms.gate.set()
        assert both[0].result() == both[1].result()
    assert caller.create("one", "slow") == both[0].result() and len(rooms.made) == 1
    status, code, message = caller.error("create", task_id="b", instance_id="one")
    assert (status, code) == (409, "instance_exists") and "'slow'" in message


def test_a_failed_create_may_be_repeated(caller: Caller) -> None:
    assert caller.error("create", task_id="burnt", instance_id="one")[0] == 500
    assert caller.create("one", "a")["info"]["instance_id"] == "one"


def test_when_it_is_full_it_says_when_to_come_again(serve: Serve) -> None:
    caller = serve(max_instances=2)
    caller.create("one")
    caller.create("two")
    response = caller.call("create", task_id="a", instance_id="three")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "full")
    assert int(response.headers["Retry-After"]) >= 1
    caller.create("two")  # a repeat needs no room
    assert caller.metric("instances_refused_total") == 1
    caller.data("release", instance_id="one")
    caller.create("three")


def test_release_does_not_wait_for_a_step_and_closes_after_it(serve: Serve, rooms: Rooms) -> None:
    caller = serve(max_instances=1)
    caller.create("one")
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(caller.say, "one", "wait")
        assert rooms.entered.wait(60)
        queued = pool.submit(caller.error, "step", instance_id="one", messages={"content": "x"})
        assert not wait([queued], timeout=0.1).done
        assert caller.data("release", instance_id="one") is True
        assert caller.error("get_info", instance_id="one")[:2] == (404, "unknown_instance")
        assert caller.error("create", task_id="a", instance_id="two")[1] == "full", "its world is still there"
        assert rooms.made[0].closes == 0
        rooms.gate.set()
        assert waiting.result()["state"][0]["content"] == "wait 1"
        assert queued.result()[:2] == (404, "unknown_instance")
    eventually(lambda: caller.live == 0)
    assert (rooms.made[0].closes, rooms.made[0].acted) == (1, ["wait"])


def test_what_is_released_while_it_is_made_is_closed(
    caller: Caller, rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, asked = instances.Instances.create, []

    async def noted(self: instances.Instances, request: CreateRequest) -> ServiceReply:
        asked.append(request)
        return await create(self, request)

    monkeypatch.setattr(instances.Instances, "create", noted)
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(caller.create, "one", "slow")
        assert rooms.entered.wait(60)
        repeat = pool.submit(caller.error, "create", task_id="slow", instance_id="one")
        eventually(lambda: len(asked) == 2)
        assert not repeat.done()
        assert caller.data("release", instance_id="one") is True
        rooms.gate.set()
        making.result()
        assert repeat.result()[:2] == (404, "unknown_instance"), "the repeat makes no second one"
    eventually(lambda: caller.live == 0)
    assert [room.closes for room in rooms.made] == [1]


@pytest.mark.fault(
    "Tools and environments",
    "a client is gone without giving its instance back",
    "the instance is closed after its time",
)
def test_what_nobody_uses_is_closed_in_the_end(serve: Serve, rooms: Rooms) -> None:
    caller = serve(ttl=0.2)
    caller.create("one")
    eventually(lambda: caller.metric("instances_expired_total") == 1)
    assert caller.error("evaluate", instance_id="one")[:2] == (404, "unknown_instance")
    assert (rooms.made[0].closes, caller.live) == (1, 0)


def test_an_instance_whose_close_raises_is_gone_all_the_same(caller: Caller, rooms: Rooms) -> None:
    caller.create("one", "clings")
    assert caller.data("release", instance_id="one") is True
    assert (caller.live, rooms.made[0].closes, caller.metric("failed_total")) == (0, 1, 1)


@pytest.mark.fault("Tools and environments", "a call without the token of an environment service", "refused")
def test_with_a_token_only_health_is_open(serve: Serve) -> None:
    caller = serve(token="geheim-ü")
    assert caller.http.get("/health").json()["status"] == "ok"
    for header in ({}, {"Authorization": "Bearer other"}, {"Authorization": "geheim"}):
        for method, path in (("POST", "/get_env_profile"), ("GET", "/metrics")):
            response = caller.http.request(method, path, json={}, headers=header)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")
    caller.http.headers["Authorization"] = "Bearer geheim-ü"
    assert caller.data("get_env_profile") == ["a", "b", "c"]


def test_health_and_metrics_count(serve: Serve) -> None:
    caller = serve(max_instances=7)
    caller.create("one")
    caller.say("one", "x")
    caller.error("step", instance_id="two", messages={})
    response = caller.http.get("/health")
    assert response.headers["Astune-Env-Protocol"] == "1"
    assert response.json() == {
        "status": "ok",
        "protocol": "1",
        "env_types": ["rooms"],
        "live_instances": 1,
        "max_instances": 7,
    }
    metrics = caller.http.get("/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4"
    samples = dict(line.rsplit(" ", 1) for line in metrics.text.splitlines() if not line.startswith("#"))
    assert samples["astune_env_instances"] == "1.0" and samples["astune_env_instances_limit"] == "7.0"
    assert samples['astune_env_calls_total{call="step"}'] == "2.0"
    assert samples['astune_env_errors_total{code="unknown_instance"}'] == "1.0"
    assert float(samples['astune_env_call_seconds_total{call="step"}']) > 0


def test_several_types_are_told_apart_by_name() -> None:
    first, second = Rooms(), Rooms()
    second.env_type = "other rooms"
    with EnvServer([first, second]) as service:
        caller = Caller(service.url)
        caller.create("one")
        caller.data("create", env_type="other rooms", task_id="a", instance_id="two")
        assert (len(first.made), len(second.made)) == (1, 1)
        status, code, message = caller.error("create", task_id="a", instance_id="three")
        assert (status, code) == (400, "bad_request") and "env_type: one of rooms, other rooms" in message
        assert caller.error("create", env_type="other rooms", task_id="a", instance_id="one")[1] == "instance_exists"
        caller.http.close()
    assert (first.closes, second.closes) == (1, 1)
    with pytest.raises(ConfigError, match="same env_type"):
        EnvServer([Rooms(), Rooms()])


def test_a_service_that_ends_closes_everything_and_a_new_one_knows_nothing(rooms: Rooms) -> None:
    with EnvServer([rooms]) as service:
        caller = Caller(service.url)
        caller.create("one")
        caller.create("two")
        caller.http.close()
    assert [room.closes for room in rooms.made] == [1, 1] and rooms.closes == 1
    with EnvServer([rooms]) as service:
        caller = Caller(service.url)
        assert caller.error("evaluate", instance_id="one")[:2] == (404, "unknown_instance")
        caller.http.close()


def test_a_service_that_ends_waits_for_a_step_and_closes_after_it(rooms: Rooms) -> None:
    with ThreadPoolExecutor(1) as pool:
        with EnvServer([rooms]) as service:
            caller = Caller(service.url)
            caller.create("one")
            waiting = pool.submit(caller.say, "one", "wait")
            assert rooms.entered.wait(60)
            service._thread.server.should_exit = True
            rooms.gate.set()
        assert waiting.result()["state"][0]["content"] == "wait 1"
        caller.http.close()
    assert (rooms.made[0].closes, rooms.made[0].collided) == (1, False)


def test_a_step_that_never_ends_does_not_keep_the_service(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(instances, "STOP_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as pool:
        with EnvServer([rooms]) as service:
            caller = Caller(service.url)
            caller.create("one")
            waiting = pool.submit(caller.call, "step", instance_id="one", messages={"content": "wait"})
            assert rooms.entered.wait(60)
        assert waiting.result().status_code == 503 and waiting.result().json()["error"]["code"] == "stopping"
        rooms.gate.set()
        caller.http.close()
    assert rooms.closes == 1


def test_an_address_in_use_is_an_error_that_says_so(rooms: Rooms) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot serve at 127.0.0.1:{port}: .*in use; --port 0"):
            EnvServer([rooms], port=port)


PLUGIN = """
from pathlib import Path
from astune.environment import Environment, Instance, Observation

class Door(Instance):
    def first_messages(self): return [{"role": "user", "content": "knock"}]
    def step(self, action): return Observation(({"role": "user", "content": "who is there?"},))
    def evaluate(self): return 0.0
    def close(self): Path(__file__).with_suffix(".closed").open("a").write("door\\n")

class Doors(Environment):
    env_type = "doors"
    def __init__(self): print("doors are made")
    def task_ids(self, split): return ["1"]
    def create(self, task_id, params): return Door()
    def close(self): Path(__file__).with_suffix(".closed").open("a").write("all\\n")
"""


@pytest.mark.parametrize("variable", [None, "DOORS_TOKEN"])
def test_a_service_of_code_says_its_token_and_takes_one_that_is_given(tmp_path: Path, variable: str | None) -> None:
    plugin = tmp_path / "doors.py"
    plugin.write_text(PLUGIN.replace('env_type = "doors"', 'env_type, executes_code = "doors", True'))
    command = [sys.executable, "-m", "astune", "env", "serve", "--env", f"{plugin}:Doors", "--port", "0"]
    command += [] if variable is None else ["--token-variable", variable]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "DOORS_TOKEN": "mine"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip().rpartition(" on ")[2]
        token = "mine"
        if variable is None:
            assert process.stderr.readline() == "doors are made\n"
            told, _, token = process.stderr.readline().strip().partition("export ENV_TOKEN=")
            assert told.startswith("it executes code, so it asks for a token")
        status = [
            httpx.post(f"{url}/get_env_profile", json={}, headers={"Authorization": f"Bearer {sent}"}).status_code
            for sent in ("another", token)
        ]
        process.terminate()
        rest = process.stderr.read()
    assert status == [401, 200]
    assert (token in rest, "asks for a token" in rest) == (False, False)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_stop_closes_all_instances(tmp_path: Path, sent: signal.Signals) -> None:
    plugin = tmp_path / "doors.py"
    plugin.write_text(PLUGIN)
    command = [sys.executable, "-m", "astune", "env", "serve", "--env", f"{plugin}:Doors", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        ready, _, url = process.stdout.readline().strip().rpartition(" on ")
        assert ready == f"serving {plugin}:Doors"
        for name in ("one", "two"):
            body = {"task_id": "1", "instance_id": name}
            assert httpx.post(f"{url}/create", json=body).json()["success"]
        os.kill(process.pid, sent)
        assert process.wait(120) == 0
        assert process.stderr.read() == "doors are made\n"
    assert plugin.with_suffix(".closed").read_text() == "door\ndoor\nall\n"


class AgentJetClient:
    """What AgentJet's client does: one envelope with all fields for every call, three tries, `state[0]`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _ask(self, call: str, env_type: str = "default", **fields: Any) -> Any:
        envelope = {"env_type": env_type, "task_id": None, "instance_id": None, "messages": {}, "params": {}, **fields}
        for _ in range(3):
            response = httpx.post(f"{self.url}/{call}", json=envelope, timeout=300.0)
            if response.status_code == 200:
                return response.json()
        raise RuntimeError(response.text)

    def step(self, instance_id: str, action: dict[str, Any]) -> tuple[str, float, bool, dict[str, Any]]:
        data = self._ask("step", instance_id=instance_id, messages=action)["data"]
        state = data["state"][0] if isinstance(data["state"], list) else data["state"]
        return state["content"], data["reward"], data["is_terminated"], data["info"]


def test_a_client_in_agentjets_manner_works(caller: Caller) -> None:
    client = AgentJetClient(caller.url)
    assert client._ask("get_env_profile", "rooms", params={"split": "train"})["data"] == ["a", "b", "c"]
    made = client._ask("create", "rooms", task_id="a", instance_id="episode", params={})["data"]
    assert made["state"][-1]["content"] == "room a" and made["is_terminated"] is False
    assert client._ask("get_info", instance_id="episode", messages={}, params={})["data"]["tools"] == [LOOK]
    assert client.step("episode", {"role": "assistant", "content": "hi"}) == ("hi 1", 0.5, False, {"seen": 1})
    assert client._ask("evaluate", instance_id="episode", params={"sparse": False})["data"] == 0.1
    assert client._ask("release", instance_id="episode")["success"] is True
    with pytest.raises(RuntimeError, match="unknown_instance"):
        client.step("episode", {"role": "assistant", "content": "hi"})


@pytest.mark.fault("Tools and environments", "many clients at once", "every instance is closed in the end")
async def test_many_clients_at_once_leave_nothing_behind(caller: Caller, rooms: Rooms) -> None:
    async def episode(http: httpx.AsyncClient, name: str) -> None:
        assert (await http.post("/create", json={"task_id": "a", "instance_id": name})).status_code == 200
        for number in range(3):
            body = {"instance_id": name, "messages": {"content": f"{name}/{number}"}}
            data = (await http.post("/step", json=body)).json()["data"]
            assert data["state"][0]["content"] == f"{name}/{number} {number + 1}"
        assert (await http.post("/release", json={"instance_id": name})).json()["data"] is True

    async with httpx.AsyncClient(base_url=caller.url, timeout=60.0) as http:
        await asyncio.gather(*(episode(http, f"e{number}") for number in range(40)))
    assert caller.live == 0 and len(rooms.made) == 40


@pytest.mark.fault(
    "Tools and environments", "a page in a browser calls the service, by its Origin or by DNS rebinding", "refused: 403"
)
@each_row(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "10.0.0.7"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_only_programs_reach_the_service_and_only_with_json(headers: dict[str, str], status: int) -> None:
    with EnvServer([Rooms()]) as server:
        body = json.dumps({"env_type": "rooms", "params": {"split": "train"}})
        sent = {"Content-Type": "application/json", **headers}
        reply = httpx.post(f"{server.url}/get_env_profile", content=body, headers=sent)
    assert reply.status_code == status, reply.text


def test_a_body_of_no_type_is_not_taken_for_json(shared: tuple[Caller, Rooms]) -> None:
    """Pages may send one: `fetch` with a `Blob`."""
    reply = shared[0].http.post("/get_env_profile", content=b"{}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "no_json")
    assert "Content-Type: application/json" in reply.json()["error"]["message"]


@pytest.mark.fault("Tools and environments", "an environment that executes code is served", "it asks for a token")
def test_an_environment_that_executes_code_is_served_with_a_token() -> None:
    class Shell(Rooms):
        executes_code = True

    with EnvServer([Rooms()]) as server:
        assert server.token is None
    second = Shell()
    second.env_type = "shell"
    with EnvServer([Rooms(), second]) as server:
        assert server.token is not None and len(server.token) >= 32
        body = {"env_type": "shell", "params": {"split": "train"}}
        for given, status in (({}, 401), ({"Authorization": f"Bearer {server.token}"}, 200)):
            assert httpx.post(f"{server.url}/get_env_profile", json=body, headers=given).status_code == status
    with EnvServer([Shell()], token="mine") as server:
        assert server.token == "mine"


def test_with_a_token_a_service_may_be_asked_for_by_any_name() -> None:
    with EnvServer([Rooms()], token="secret") as server:
        headers = {"Host": "rooms.cluster", "Authorization": "Bearer secret"}
        assert httpx.get(f"{server.url}/metrics", headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/metrics", headers={**headers, "Origin": "http://x"}).status_code == 403
