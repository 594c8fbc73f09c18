"""The tutorial's commands in small, from the model that follows instructions to the four cells."""

import json
from importlib import metadata
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("agentscope")
pytest.importorskip("torch")
pytest.importorskip("gepa")

from astune.support.resources import tutorial_dir
from tests.tutorial.small import commands, run
from tutorial.prompt_then_weights import make_examples
from tutorial.prompt_then_weights.make_examples import CARE, HASTE, TOOL, conversations

pytestmark = pytest.mark.skipif(metadata.version("agentscope")[0] != "2", reason="the agent is for AgentScope 2.x")
FOLDER = tutorial_dir() / "prompt_then_weights"


def test_examples_do_what_their_prompt_says_and_none_is_held_out() -> None:
    rows = list(islice(conversations(), 400))
    for row in rows:
        system, _, *turns = (message["content"] for message in row["messages"])
        told = any(sentence in system for sentence in TOOL) and not any(sentence in system for sentence in HASTE)
        assert (len(turns) > 1) == told
        assert len(turns) <= 3 or any(sentence in system for sentence in CARE)
    text = (tutorial_dir() / "math_agent" / "data" / "heldout.jsonl").read_text(encoding="utf-8")
    assert not {json.loads(line)["query"] for line in text.splitlines()} & {
        row["messages"][1]["content"] for row in rows
    }


@pytest.mark.slow
@pytest.mark.release
def test_the_commands_lead_to_the_four_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The notebook goes the same way from Python, in CI."""
    monkeypatch.chdir(tmp_path)
    make_examples.main()
    warm_up, export, prompt, train, compare = commands(FOLDER / "README.md")
    few = ("evaluation.attempts=1", "monitor.progress=plain")
    assert run(warm_up, "trainer.total_steps=2", "trainer.warmup_steps=0") == 0
    assert run(export) == 0
    small = ("prompts.rounds=1", "prompts.attempts=1", "task_reader.max_training_tasks=24", *few)
    assert run(prompt, *small) in (0, 3)  # 3: nothing gained
    one = ("trainer.total_steps=1", "trainer.warmup_steps=0", "trainer.tasks_per_step=2", "rollout.num_repeat=2")
    assert run(train, *one, "evaluation.before=false", "evaluation.after=false", *few) in (0, 3)
    assert run([*compare, "--limit", "3"], *few) == 0
    assert "both, less the sum of each alone" in capsys.readouterr().out
    folder = tmp_path / "runs" / "prompt_then_weights" / "solver-compare"
    assert (folder / "cells_sampled_success.svg").is_file()
