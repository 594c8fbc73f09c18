"""Runs of the tutorials in small."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from astune.cli import main
from astune.support.resources import tutorial_dir

WORKFLOW = "workflow_agentscope1.py" if metadata.version("agentscope").startswith("1.") else "workflow.py"
SMALL = (
    "task_reader.max_validation_tasks=2",
    "evaluation.before=false",
    "evaluation.decoding=[greedy]",
    "monitor.check_invariants=true",
    f"rollout.agentscope_learn_protocol={tutorial_dir() / 'math_agent' / WORKFLOW}:MathAgent",
)


def commands(page: Path) -> list[list[str]]:
    """The words of the page's commands."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("python launcher.py")]


def run(words: list[str], *keys: str) -> int:
    """The exit code of a command of a page, with keys of astune on top."""
    assert words[:2] == ["python", "launcher.py"]
    located = [re.sub(r"(^|=)tutorial/", rf"\g<1>{tutorial_dir()}/", word) for word in words[2:]]
    return main([*located, *(f"astune.{key}" for key in keys)])


def small_stages(conf: Path, *trainers: dict[str, Any]) -> str:
    """The stages of `conf` with other values of their trainers, as a key for the command line, below which they lie."""
    stages = yaml.safe_load(conf.read_text(encoding="utf-8"))["astune"]["stages"]
    for stage, trainer in zip(stages, trainers, strict=True):
        stage["trainer"] |= trainer
        if "examples" in stage["trainer"]:
            stage["trainer"]["examples"] = str(conf.parent / stage["trainer"]["examples"])
    return f"stages={json.dumps(stages)}"
