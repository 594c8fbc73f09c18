"""A configuration without a fault, to be broken in one place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from astune.doctor import Finding

BACKBONES = {
    "debug": "astune.backbone.debug:DebugBackbone",
    "local": "astune.backbone.local.engine:LocalBackbone",
    "trinity": "astune.backbone.trinity.backbone:TrinityBackbone",
    "verl": "astune.backbone.verl.backbone:VerlBackbone",
}
TRAINS = f"{Path(__file__).with_name('backbones.py')}:Trains"

AGENT = """
from astune import Task, Tuner, Workflow, WorkflowOutput

async def agent(task: Task, tuner: Tuner) -> WorkflowOutput:
    client = tuner.openai_client("solver")
    messages = [{"role": "user", "content": task.query}]
    reply = await client.chat.completions.create(model="policy", messages=messages)
    return WorkflowOutput(answer=reply.choices[0].message.content)
"""


def rows(start: int, count: int) -> list[dict[str, str]]:
    return [
        {"task_id": f"t{n}", "query": f"What is {n} plus {n + 1}?", "answer": str(2 * n + 1)}
        for n in range(start, start + count)
    ]


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {**base} | {
        name: merged(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }


SOUND: dict[str, Any] = {
    "runs_dir": "runs",
    "backbone": TRAINS,
    "task_reader": {
        "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "heldout.jsonl"}},
    },
    "rollout": {"agentscope_learn_protocol": "agent.py:agent", "max_tokens": 32, "num_repeat": 4},
    "task_judge": {"judge_protocol": "MathAnswerAsJudge", "answer_format": "the_answer_is"},
    "trainer": {"total_steps": 10, "tasks_per_step": 4, "learning_rate": 1e-4},
}

RunDoctor = Callable[..., list[Finding]]


def write_config(folder: Path, changes: Mapping[str, Any]) -> Path:
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump({"astune": merged(SOUND, changes)}, sort_keys=False))
    return path


def problems(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level in ("fail", "warn")]


def the_problem(findings: Sequence[Finding]) -> Finding:
    """The one thing that is wrong; more than one is wrong too."""
    found = problems(findings)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]
