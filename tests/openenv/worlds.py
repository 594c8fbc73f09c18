"""Worlds behind the real OpenEnv server. Runs in the environment that `make test-openenv` builds:

python worlds.py guess 8 8000      # the world, its places, the port
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

WORDS = {"train": ["lake", "ice", "goal"], "test": ["hole"]}


class Word(Action):
    """Guess the word."""

    word: str = Field(min_length=1, description="your guess")


class Told(Observation):
    said: str


class Guess(Environment[Word, Told, State]):
    """Words with a task API; a wrong guess costs 0.25, the right one gives 1 and ends it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def list_splits(self) -> list[str]:
        return list(WORDS)

    def num_tasks(self, split: str) -> int:
        return len(WORDS[split])

    def list_tasks(self, split: str) -> list[Any]:
        return [self.get_task(split, index) for index in range(len(WORDS[split]))]

    def get_task(self, split: str, index: int) -> Any:
        return {"id": f"{split}/{index}", "rules": f"Guess a word of {len(WORDS[split][index])} letters."}

    def reset(self, seed: int | None = None, split: str = "train", index: int = 0) -> Told:
        self.word = WORDS[split][index]
        return Told(said="I think of a word.")

    def step(self, action: Word, timeout_s: float | None = None) -> Told:
        if action.word == "raise":
            raise RuntimeError("the word is lost")
        right = action.word == self.word
        return Told(said="Yes." if right else "No.", reward=1.0 if right else -0.25, done=right)

    @property
    def state(self) -> State:
        return State()


class Tools(MCPEnvironment):
    """Tools over MCP, without tasks, rewards and an end."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("tools")

        @mcp.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(mcp)

    def reset(self, seed: int | None = None) -> Observation:
        return Observation(metadata={"message": "What is 3 + 4?"})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **more: Any) -> Observation:
        raise AssertionError("all actions are calls of tools")

    @property
    def state(self) -> State:
        return State()


class Harbor(Tools):
    """As `openenv.harbor` has it: tasks, and one tool that lets a harness of its own work with the model of a URL."""

    def __init__(self) -> None:
        super().__init__()

        @self.mcp_server.tool
        async def run_rollout(
            split: str, task_index: int, harness: str, sandbox: str, llm_url: str, model: str, api_key: str
        ) -> str:
            asked = {"model": model, "messages": [{"role": "user", "content": f"{harness}: {self.TASK}"}]}
            async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                reply = await http.post(f"{llm_url}/chat/completions", json=asked)
            assert reply.status_code == 200, reply.text
            return json.dumps({"task_name": f"{split}/{task_index}", "reward": 0.5, "error": None})

    TASK = "Write a file."

    def list_splits(self) -> list[str]:
        return ["terminal-bench"]

    def num_tasks(self, split: str) -> int:
        return 2

    def get_task(self, split: str, index: int) -> Any:
        return {"index": index, "instruction": self.TASK}


def main() -> None:
    name, places, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    world, action, observation = {
        "guess": (Guess, Word, Told),
        "tools": (Tools, CallToolAction, CallToolObservation),
        "harbor": (Harbor, CallToolAction, CallToolObservation),
    }[name]
    app = create_fastapi_app(world, action, observation, max_concurrent_envs=places, env_name=name)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
