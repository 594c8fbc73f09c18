"""The env service of agentscope-runtime as it stands, with its BFCL and its AppWorld: `python runtime_box.py 8000`.

Its own files answer. Fakes stand in for Ray, for AppWorld's package and for BFCL's evaluator, which are not installed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import agentscope_runtime
import uvicorn

BOX = Path(agentscope_runtime.__file__).parent / "sandbox" / "box"
TOOL = {"type": "function", "function": {"name": "cd", "parameters": {"type": "object", "properties": {}}}}
TEST = {"id": "multi_turn_base_0", "question": [[{"role": "user", "content": "Go to the folder."}]], "function": [TOOL]}


def module(name: str, **content: Any) -> None:
    sys.modules[name] = made = ModuleType(name)
    vars(made).update(content)


class Actor:
    """Ray's, in this process: a class, what it makes, or a method, each called with `remote`."""

    def __init__(self, called: Any, awaited: bool = False) -> None:
        self._called, self._awaited = called, awaited

    def remote(self, *args: Any) -> Any:
        async def result() -> Any:
            return self._called(*args)

        return result() if self._awaited else Actor(self._called(*args))

    def __getattr__(self, name: str) -> Actor:
        return Actor(getattr(self._called, name), awaited=True)


class Handler:
    """BFCL's evaluator: a call of a tool is right, and the next text ends the conversation."""

    def __init__(self, **options: Any) -> None:
        pass

    def interact(self, history: list[Any], test: Any) -> Any:
        calls = history[-1]["tool_calls"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "in it"} for call in calls]
        return {"messages": results or [{"role": "env", "content": "[CONVERSATION_COMPLETED]"}]}

    def evaluate(self, conversation: Any) -> Any:
        said = conversation["messages"]
        right = any(message.get("tool_calls") for message in said)
        broken = {"valid": False, "error": "no such category", "accuracy": 0.0}
        return broken if len(said) == 1 else {"valid": True, "accuracy": float(right)}


class World:
    """AppWorld: the task is done when the agent says so."""

    def __init__(self, task_id: str, experiment_name: str) -> None:
        supervisor = {"first_name": "Ada", "last_name": "Ray", "email": "ada@example.com", "phone_number": "1"}
        needed = SimpleNamespace(required_apis=[])
        self.task = SimpleNamespace(
            supervisor=supervisor, instruction="Do it.", app_descriptions={}, ground_truth=needed
        )
        self.done = False

    def execute(self, code: str) -> str:
        self.done = "complete_task" in code
        return "Marked the active task complete."

    def task_completed(self) -> bool:
        return self.done

    def close(self) -> None:
        pass


def main(port: int) -> None:
    module("ray", is_initialized=lambda: True, init=None, remote=Actor, kill=lambda actor: None)
    module("training_box", __path__=[str(BOX / "training_box")])  # in its image the files stand alone, too
    module("training_box.environments.bfcl.env_handler", EnvHandler=Handler)
    module("appworld", AppWorld=World, load_task_ids=lambda split: [f"{split}_1"])
    scores = SimpleNamespace(passes=[1, 2, 3], failures=[4])
    module("appworld.evaluator", evaluate_task=lambda **options: scores)
    data = Path(tempfile.mkdtemp())
    (data / "tests.jsonl").write_text(json.dumps(TEST))
    (data / "splits.json").write_text(json.dumps({"train": [TEST["id"]], "val": []}))
    os.environ |= {"BFCL_DATA_PATH": str(data / "tests.jsonl"), "BFCL_SPLID_ID_PATH": str(data / "splits.json")}
    from training_box.env_service import app, import_and_register_env

    for name in ("bfcl", "appworld"):
        assert import_and_register_env(name)
    uvicorn.run(app, port=port, log_level="error")


if __name__ == "__main__":
    main(int(sys.argv[1]))
