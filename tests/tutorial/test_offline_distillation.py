"""A teacher answers the training tasks, and what the judge passes is learned: the two commands of docs/sft_dpo.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.config.load import load_config
from astune.context_tracker.model_dir import load_chat_format
from astune.examples.conversation import conversation_rows
from astune.examples.read import read_examples
from astune.monitor.metrics import read_metrics
from astune.support.resources import tiny_model_dir
from astune.testing import ScriptedChatServer

AGENT = """
from astune import WorkflowOutput

async def agent(task, tuner):
    client = tuner.openai_client("solver")
    messages = [{"role": "user", "content": task.query}]
    reply = await client.chat.completions.create(model="policy", messages=messages)
    return WorkflowOutput(answer=reply.choices[0].message.content)
"""


def answer(body: dict[str, Any]) -> str:
    """Right but for 3."""
    number = int(re.findall(r"\d+", body["messages"][-1]["content"])[0])
    return f"The answer is {2 * number if number != 3 else 0}."


def write_files(folder: Path) -> None:
    (folder / "agent.py").write_text(AGENT)
    tasks = [{"query": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(4)]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    common = {"project_name": "p", "monitor": {"progress": "off", "trackers": []}}
    ask = {
        **common,
        "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": "agent.py:agent", "max_tokens": 32},
        "task_judge": {"judge_protocol": "MathAnswerAsJudge", "answer_format": "the_answer_is"},
    }
    learn = {
        **common,
        "backbone": "local",
        "algorithm": {"method": "sft"},
        "trainer": {
            "examples": "runs/p/ask-debug/episodes/debug.jsonl",
            "examples_filter": "reward>=1",
            "total_steps": 2,
            "tasks_per_step": 3,
            "learning_rate": 1e-3,
        },
    }
    for name, config in (("ask", ask), ("learn", learn)):
        (folder / f"{name}.yaml").write_text(json.dumps({"astune": config}))


def test_what_a_teacher_said_and_the_judge_passed_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    with ScriptedChatServer(answer, models=["teacher"]) as server:
        assert main(["--conf", "ask.yaml", "--backbone=debug", f"--model={server.base_url}", "--limit=4"]) == 0
    loaded = load_config(Path("learn.yaml")).config.astune
    chat_format = load_chat_format(loaded.model, tiny_model_dir())
    examples = read_examples(loaded, chat_format)
    said = []
    for example in examples:
        (row,) = example.rows
        said.append(chat_format.decode([row.token_ids[place] for place, loss in enumerate(row.loss_mask) if loss]))
        asked = {"role": "user", "content": f"What is {len(said) - 1} plus {len(said) - 1}?"}
        (same,) = conversation_rows(chat_format, [asked, {"role": "assistant", "content": said[-1][:-10]}])
        assert (row.token_ids, row.loss_mask) == (same.token_ids, same.loss_mask)
    assert said == [f"The answer is {2 * n}.<|im_end|>" for n in range(3)]
    assert main(["--conf", "learn.yaml"]) == 0
    steps = [row for row in read_metrics(Path("runs/p/learn/metrics.jsonl")) if "loss" in row]
    assert [row["examples/total"] for row in steps] == [3, 3] and steps[1]["loss"] < steps[0]["loss"]
