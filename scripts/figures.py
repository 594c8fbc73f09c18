"""How large the house is: functions and files on the way of a task, an episode and a model call, lines by ring, and
what is longest.

    python -m scripts.figures

The agent of README's till.yaml plays one step on the local backbone with the tiny model, one episode at a time, and
learns from it. An episode and a model call are those that come last, when all is warm: an episode from its start to its
verdict, a model call from the agent's client to the answer. Files are those of which a function runs.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import chdir
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from astune.cli import main as astune
from astune.gateway import client
from astune.rollout import group
from tests.test_architecture import MODULES, PACKAGE, RINGS, ROOT, home

RING = {name: ring for ring, layers in RINGS.items() for layer in layers for name in layer}
ASIDE = ("config", "monitor", "support", "plugins")
"""What is passed whatever is done."""
Result = TypeVar("Result")


class Passed(set[CodeType]):
    """The functions that are called."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # and no body of a class or module
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            self.add(code)

    def describe(self, *, line_alone: bool = False) -> str:
        """Functions and files; with `line_alone` those of the innermost ring, without what is passed anyway."""
        places = {code: Path(code.co_filename).relative_to(PACKAGE) for code in self if code.co_name[0] != "<"}
        if line_alone:
            places = {code: file for code, file in places.items() if RING[home(file)] == "line"}
            places = {code: file for code, file in places.items() if home(file) not in ASIDE}
        files = Counter(home(file) for file in set(places.values()))
        parts = ", ".join(f"{name} {count}" for name, count in files.most_common())
        return f"{len(places)} functions in {files.total()} files ({parts})"


task_passes, episode_passes, call_passes = Passed(), Passed(), Passed()


def watch(function: Callable[..., Awaitable[Result]], passed: Passed) -> Callable[..., Awaitable[Result]]:
    """`function`, of whose last call `passed` has the functions."""

    async def watched(*given: Any, **named: Any) -> Result:
        outside = sys.getprofile()
        passed.clear()

        def note(frame: FrameType, event: str, argument: object) -> None:
            passed(frame, event, argument)
            if outside is not None:
                outside(frame, event, argument)

        sys.setprofile(note)
        try:
            return await function(*given, **named)
        finally:
            sys.setprofile(outside)

    return watched


def in_process_client(*given: Any) -> Any:
    made = own_client(*given)
    made.chat.completions.create = watch(made.chat.completions.create, call_passes)
    return made


own_client = client.in_process_client


def play(folder: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("till.py", "tasks.jsonl", "till.yaml"):
        found = re.search(rf"```\w+ file={re.escape(name)}\n(.*?)```", readme, re.DOTALL)
        assert found, f"README has no {name}"
        Path(folder, name).write_text(found[1], encoding="utf-8")
    client.in_process_client = in_process_client
    group.run_episode = watch(group.run_episode, episode_passes)  # type: ignore[assignment]
    settings = {"trainer.total_steps": 1, "trainer.tasks_per_step": 2, "rollout.max_concurrent": 1}
    changes = [f"astune.{key}={value}" for key, value in settings.items()]
    with chdir(folder):
        threading.setprofile(task_passes)
        sys.setprofile(task_passes)
        code = astune(["run", "--conf", "till.yaml", *changes, "astune.monitor.progress=off"])
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
    print(f"\na run of one step passes {task_passes.describe()}")
    print(f"a task passes {task_passes.describe(line_alone=True)}")
    print(f"an episode passes {episode_passes.describe()}")
    print(f"a model call passes {call_passes.describe()}")
    for ring in RINGS:
        print(f"ring {ring}: {sum(lines[module] for module in MODULES if RING[home(module)] == ring):,} lines")
    for what, sizes in (("module", lines), ("function", functions), ("folder", folders)):
        print(f"longest {what}:", *max(sizes.items(), key=lambda item: item[1]))


if __name__ == "__main__":
    main()
