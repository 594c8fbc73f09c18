"""How large the house is: files that a task and a model call pass, lines by ring, and what is longest.

    python -m scripts.figures

One task is played, rewarded and learned from, on the local backbone with the tiny model. Counted are the files of the
innermost ring of which a function runs, of a model call what runs within `await tuner.chat(...)`.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from astune import Task, Tuner, WorkflowOutput
from astune.cli import main as astune
from astune.context_tracker.request import ChatRequest
from tests.test_architecture import MODULES, PACKAGE, RINGS, home

RING = {name: ring for ring, layers in RINGS.items() for layer in layers for name in layer}
ASIDE = ("config", "monitor", "support", "plugins")
"""What is passed whatever is done."""


class Passed(set[CodeType]):
    """The functions that are called."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # and no body of a class or module
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            self.add(code)

    def told(self) -> str:
        files = {Path(code.co_filename).relative_to(PACKAGE) for code in self}
        found = Counter(home(file) for file in files if RING[home(file)] == "line" and home(file) not in ASIDE)
        parts = ", ".join(f"{name} {count}" for name, count in found.most_common())
        return f"{found.total()} files ({parts})"


task_passes, call_passes = Passed(), Passed()


async def one_call(task: Task, tuner: Tuner) -> WorkflowOutput:
    sys.setprofile(call_passes)
    answer = await tuner.chat(ChatRequest([{"role": "user", "content": task.query}]))
    sys.setprofile(task_passes)
    return WorkflowOutput(answer=answer.message["content"], reward=float(tuner.episode_id.endswith("0")))


def play(folder: str) -> None:
    conf, tasks = Path(folder, "x.yaml"), Path(folder, "tasks.jsonl")
    tasks.write_text('{"query": "6 * 7?", "answer": "42"}\n')
    agent = {"agentscope_learn_protocol": f"{__name__}:one_call", "max_concurrent": 1, "max_tokens": 8}
    reader = {"jsonl": {"training": {"file_path": str(tasks)}}}
    trainer = {"total_steps": 1, "tasks_per_step": 1}
    section = {"runs_dir": folder, "rollout": agent, "task_reader": reader, "trainer": trainer}
    conf.write_text(json.dumps({"astune": {**section, "monitor": {"progress": "off"}}}))
    threading.setprofile(task_passes)
    sys.setprofile(task_passes)
    code = astune(["run", "--conf", str(conf)])
    sys.setprofile(None)
    assert code == 0, f"the run ended with {code}"


def main() -> None:
    lines, functions, folders = {}, {}, Counter(str(module.parent) for module in MODULES)
    for module in MODULES:
        text = (PACKAGE / module).read_text(encoding="utf-8")
        lines[module] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[f"{module}:{node.name}"] = (node.end_lineno or 0) - node.lineno + 1
    with tempfile.TemporaryDirectory() as folder:
        play(folder)
    print(f"\na task passes {task_passes.told()}\na model call passes {call_passes.told()}")
    for ring in RINGS:
        print(f"ring {ring}: {sum(lines[module] for module in MODULES if RING[home(module)] == ring):,} lines")
    for what, sizes in (("module", lines), ("function", functions), ("folder", folders)):
        print(f"longest {what}:", *max(sizes.items(), key=lambda item: item[1]))


if __name__ == "__main__":
    main()
