"""The tutorial's agent that is a program of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.plugins import load_plugin
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedPolicy
from astune.types import Sampling, StopReason, Task
from astune.workflow.tuner import Tuner

FOLDER = tutorial_dir() / "any_agent"
ANSWERS = [
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 * 5"}}\n</tool_call>',
    "The answer is 15.",
]


async def attempt(answers):
    """The tracker after one episode, and what the workflow returned."""
    chat_format = ChatFormat.load(tiny_model_dir())
    policy = ScriptedPolicy(answers, chat_format)
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=64), max_turns=6, seed=1)
    tuner = Tuner(Task("t", "3 packs of 5?"), "e", tracker)
    try:
        workflow = load_plugin(f"{FOLDER / 'workflow.py'}:CommandLineAgent", kind="workflow")()
        return tracker, await workflow.execute(tuner.task, tuner)
    finally:
        tuner.close()


async def test_the_program_is_captured_as_one_exact_timeline():
    tracker, output = await attempt(ANSWERS)
    assert output.answer == "The answer is 15."
    (line,) = tracker.timelines()
    assert (len(line.spans), line.fork) == (2, None)
    assert line.trained_tokens == sum(len(turn.output_ids) for turn in tracker.turns)


async def test_a_program_that_fails_ends_its_episode_with_what_it_said():
    with pytest.raises(RuntimeError, match=r"(?s)agent.py ended with 1: .*HTTP Error 500"):
        await attempt([])


async def test_a_program_whose_episode_is_stopped_does_not_outlive_it(tmp_path: Path, monkeypatch):
    workflow = load_plugin(f"{FOLDER / 'workflow.py'}:CommandLineAgent", kind="workflow")
    pid = tmp_path / "pid"
    program = tmp_path / "agent.py"
    program.write_text(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    monkeypatch.setitem(workflow.execute.__globals__, "AGENT", program)
    work = asyncio.ensure_future(attempt(ANSWERS))
    while not (pid.exists() and pid.read_text()):
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.slow
def test_the_program_is_trained(tmp_path: Path):
    pytest.importorskip("torch")
    from astune.cli import main
    from astune.monitor.episodes import read_episodes

    overrides = ["trainer.total_steps=1", "trainer.tasks_per_step=2", "rollout.num_repeat=2", "evaluation.before=false"]
    overrides += ["evaluation.after=false", "monitor.check_invariants=true", f"runs_dir={tmp_path}"]
    conf = str(FOLDER / "any_agent.yaml")
    assert main(["--conf", conf, *(f"astune.{override}" for override in overrides)]) in (0, 3)  # 3: no signal in a step
    records = list(read_episodes(tmp_path / "any_agent" / "any_agent" / "episodes" / "train.jsonl"))
    assert [record.episode.stop_reason for record in records] == [StopReason.COMPLETED] * 4
    assert all(len(record.episode.timelines) == 1 for record in records)
