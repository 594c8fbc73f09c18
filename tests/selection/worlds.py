"""Chat APIs of known success, price and slowness, and an agent that says what they say."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from astune import Episode, Task, Tuner, Verdict, WorkflowOutput

TASKS = 40
FILES = {"training": "train.jsonl", "validation": "held.jsonl"}


async def asker(task: Task, tuner: Tuner) -> WorkflowOutput:
    ask = [{"role": "user", "content": task.query}]
    reply = await tuner.openai_client().chat.completions.create(model="m", messages=ask)
    said = reply.choices[0].message.content
    if said == "broken":
        raise KeyError("no answer in it")
    return WorkflowOutput(answer=said)


async def judge(task: Task, episode: Episode) -> Verdict:
    await asyncio.sleep(0)
    assert episode.output is not None
    return Verdict(float(episode.output.answer == "right"), episode.output.answer == "right")


def knows(solved: Callable[[int], bool], otherwise: str = "wrong") -> Callable[[dict[str, Any]], str]:
    """Answers of a model that solves the tasks of those numbers."""

    def answer(body: dict[str, Any]) -> str:
        (number,) = re.findall(r"\d+", body["messages"][-1]["content"])
        return "right" if solved(int(number)) else otherwise

    return answer


def write_job(folder: Path, models: dict[str, dict[str, Any]], tasks: int = TASKS) -> Path:
    """A configuration whose auxiliary models are these."""
    rows = [{"query": f"task {number}", "task_id": f"t{number}"} for number in range(tasks)]
    (folder / "held.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "train.jsonl").write_text(json.dumps({"query": "another task"}))
    config = {
        "project_name": "p",
        "runs_dir": str(folder / "runs"),
        "task_reader": {
            "jsonl": {kind: {"file_path": str(folder / name)} for kind, name in FILES.items()},
        },
        "task_judge": {"judge_protocol": f"{__file__}:judge"},
        "rollout": {
            "agentscope_learn_protocol": f"{__file__}:asker",
            "auxiliary_models": {name: {"model": name, "max_retries": 0} | each for name, each in models.items()},
        },
        "evaluation": {"decoding": ["sampled"]},
        "monitor": {"progress": "off", "trackers": []},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps({"astune": config}))
    return path
