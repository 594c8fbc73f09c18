"""A corridor of three steps, in which everything can go wrong."""

from __future__ import annotations

import os
import signal
import threading
import time

from astune.environment import Environment, Instance, Observation, function_tool


class Corridor(Environment):
    env_type = "corridor"

    def __init__(self, *, length: int = 3, greeting: str = "Go right.") -> None:
        self.length, self.greeting = length, greeting
        self.something_slow_began = threading.Event()

    def task_ids(self, split):
        return ["a", "b"]

    def create(self, task_id, params):
        if task_id == "broken":
            raise RuntimeError("the walls fell in")
        if "seconds" in params:
            self.something_slow_began.set()
            time.sleep(params["seconds"])
        return Walk(self)


class Walk(Instance):
    tools = (
        function_tool("move", "Walk.", {"direction": {"type": "string", "enum": ["left", "right"]}}),
        function_tool("look", "Look about.", {}),
        {"type": "function", "function": {"name": "wait", "description": "Do nothing."}},
    )

    def __init__(self, corridor: Corridor) -> None:
        self.corridor, self.place = corridor, 0

    def first_messages(self):
        return [
            {"role": "system", "content": "You are in a corridor."},
            {"role": "user", "content": self.corridor.greeting},
        ]

    def step(self, action):
        said = [
            {"role": "tool", "tool_call_id": call.id, "content": self.act(call.arguments.get("direction", call.name))}
            for call in action.tool_calls
        ] or [{"role": "user", "content": self.act(action.text)}]
        return Observation(tuple(said), 0.5, self.place >= self.corridor.length)

    def act(self, word):
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "raise":
            raise RuntimeError("the floor is missing")
        if word == "sleep":
            self.corridor.something_slow_began.set()
            time.sleep(0.3)
        self.place += word == "right"
        return f"place {self.place}"

    def evaluate(self):
        return self.place / self.corridor.length
