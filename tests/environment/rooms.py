"""An environment that does what it is told to, and remembers what was done to it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from astune.environment import Action, Environment, Instance, Message, Observation, function_tool
from astune.errors import ConfigError, TaskError

LOOK = function_tool("look", "Look at a thing.", {"thing": {"type": "string"}})


class Room(Instance):
    tools = (LOOK,)

    def __init__(self, rooms: Rooms, task_id: str) -> None:
        self.rooms, self.task_id = rooms, task_id
        self.acted: list[str] = []
        self.closes = 0
        self.busy = False
        self.collided = False

    def first_messages(self) -> Sequence[Message]:
        if self.task_id == "mute":
            raise RuntimeError("nothing to say")
        return [{"role": "system", "content": "Rules."}, {"role": "user", "content": f"room {self.task_id}"}]

    def step(self, action: Action) -> Observation:
        self.collided |= self.busy or bool(self.closes)
        self.busy = True
        try:
            return self._step(action)
        finally:
            self.busy = False

    def _step(self, action: Action) -> Observation:
        self.acted.append(action.text)
        if action.text == "wait":
            self.rooms.entered.set()
            assert self.rooms.gate.wait(60)
        elif action.text == "raise":
            raise ZeroDivisionError("the floor is missing")
        elif action.text == "exit":
            sys.exit("the environment wanted to end the process")
        elif action.text == "stop":
            raise StopIteration
        if action.tool_calls:
            said = [{"role": "tool", "tool_call_id": call.id, "content": str(call)} for call in action.tool_calls]
        else:
            said = [{"role": "user", "content": f"{action.text} {len(self.acted)}"}]
        reward = float("nan") if action.text == "nan" else 0.5
        return Observation(tuple(said), reward, action.text == "done", {"seen": {1} if action.text == "set" else 1})

    def evaluate(self) -> float:
        self.collided |= self.busy or bool(self.closes)
        return float("inf") if "inf" in self.acted else len(self.acted) / 10

    def close(self) -> None:
        self.collided |= self.busy
        self.closes += 1
        if self.task_id == "clings":
            raise OSError("the door is stuck")


class Rooms(Environment):
    env_type = "rooms"

    def __init__(self, doors: int = 1, *, colour: str = "white") -> None:
        self.made: list[Room] = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self.closes = 0
        self.doors, self.colour = doors, colour

    def task_ids(self, split: str) -> Sequence[str]:
        if split != "train":
            raise TaskError(f"no split {split!r}")
        return ["a", "b", "c"]

    def create(self, task_id: str, params: Mapping[str, Any]) -> Instance:
        if task_id == "nowhere":
            raise TaskError("no room of this name")
        if task_id == "burnt":
            raise RuntimeError("it has burnt down")
        if params.get("colour") == "octarine":
            raise ConfigError("params.colour: no such colour")
        if task_id == "slow":
            self.entered.set()
            assert self.gate.wait(60)
        self.made.append(Room(self, task_id))
        return self.made[-1]

    def close(self) -> None:
        self.closes += 1


class Caller:
    """Calls over HTTP, as any client would make them."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60.0)

    def call(self, name: str, /, key: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.http.post(f"/{name}", json=body, headers=headers)

    def data(self, name: str, /, key: str | None = None, **body: Any) -> Any:
        response = self.call(name, key, **body)
        assert response.status_code == 200, response.text
        assert response.json()["success"] is True
        return response.json()["data"]

    def error(self, name: str, /, key: str | None = None, **body: Any) -> tuple[int, str, str]:
        """Status, code and message."""
        response = self.call(name, key, **body)
        reply = response.json()
        assert reply["success"] is False and response.headers["Astune-Env-Protocol"] == "1"
        return response.status_code, reply["error"]["code"], reply["error"]["message"]

    def create(self, instance_id: str, task_id: str = "a", **more: Any) -> Any:
        return self.data("create", env_type="rooms", task_id=task_id, instance_id=instance_id, **more)

    def say(self, instance_id: str, text: str, key: str | None = None) -> Any:
        message = {"role": "assistant", "content": text}
        return self.data("step", key, instance_id=instance_id, messages=message)

    def metric(self, name: str) -> float:
        text = self.http.get("/metrics").text
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"astune_env_{name} "))

    @property
    def live(self) -> int:
        return int(self.http.get("/health").json()["live_instances"])


def eventually(holds: Callable[[], bool]) -> None:
    """Waits for it; fails after a minute."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
