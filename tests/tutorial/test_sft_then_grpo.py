"""The tutorial's conversations are what its agent says, and its command trains in two stages."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

pytest.importorskip("agentscope")
pytest.importorskip("torch")

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.examples.conversation import conversation_rows
from astune.monitor import read_metrics
from astune.plugins import load_plugin
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedPolicy
from astune.types import Sampling, Task, Timeline
from astune.workflow.tuner import Tuner
from tests.tutorial.small import SMALL, WORKFLOW, commands, run, small_stages
from tutorial.sft_then_grpo.make_conversations import conversations

FOLDER = tutorial_dir() / "sft_then_grpo"
ROWS = [json.loads(line) for line in (FOLDER / "conversations.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_file_is_what_the_script_writes_and_shows_nothing_that_is_held_out() -> None:
    assert list(conversations()) == ROWS
    text = (tutorial_dir() / "math_agent" / "data" / "heldout.jsonl").read_text(encoding="utf-8")
    held_out = {json.loads(line)["query"] for line in text.splitlines()}
    asked = {row["messages"][1]["content"] for row in ROWS}
    assert len(asked) == len(ROWS) == 48 and not asked & held_out


async def played(row: dict, chat_format: ChatFormat, said: list[str]) -> tuple[Timeline, ...]:
    """The rows of the tutorial's agent when its model says what the conversation says."""
    task = Task("t", row["messages"][1]["content"])
    tracker = ContextTracker(
        ScriptedPolicy(said, chat_format), chat_format, Sampling(max_tokens=48), max_turns=6, seed=1
    )
    tuner = Tuner(task, "t/0", tracker)
    workflow = load_plugin(f"{tutorial_dir() / 'math_agent' / WORKFLOW}:MathAgent", kind="workflow")
    try:
        output = await workflow().execute(task, tuner)
    finally:
        tuner.close()
    assert output.answer == row["messages"][-1]["content"]
    return tracker.timelines()


@pytest.mark.skipif(WORKFLOW != "workflow.py", reason="AgentScope 1.x writes the keys of a tool in another order")
async def test_a_conversation_has_the_tokens_of_an_episode_in_which_the_agent_says_it() -> None:
    chat_format = ChatFormat.load(tiny_model_dir())
    for row in ROWS[:8]:  # one of each kind
        (example,) = conversation_rows(chat_format, row["messages"], row["tools"])
        answers = [chat_format.decode(example.token_ids[span.start : span.stop - 1]) for span in example.spans]
        (episode,) = await played(row, chat_format, answers)
        assert list(episode.token_ids) == list(example.token_ids) and episode.loss_mask == example.loss_mask


def test_the_command_trains_in_two_stages_and_says_which_steps_were_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train, *_ = commands(FOLDER / "README.md")
    stages = small_stages(
        FOLDER / "sft_then_grpo.yaml",
        {"total_steps": 2, "warmup_steps": 0},
        {"total_steps": 1, "warmup_steps": 0, "tasks_per_step": 4},
    )
    with redirect_stdout(io.StringIO()) as printed:
        assert run(train, *SMALL, "monitor.progress=plain", stages) == 0
    folder = tmp_path / "runs" / "sft_then_grpo" / "sft_then_grpo"
    steps = [row for row in read_metrics(folder / "metrics.jsonl") if "stage" in row]
    assert [row["stage"] for row in steps] == [1, 1, 2]
    assert steps[0]["examples/total"] == 16 and steps[1]["loss"] < steps[0]["loss"]
    assert steps[2]["episodes/total"] == 32 and steps[2]["kl/sampler"] < 1e-5
    report = (folder / "report.html").read_text(encoding="utf-8")
    for number, what in enumerate(("sft, steps 1 to 2, held-out ", "rl, steps 3 to 3, held-out "), 1):
        assert f"<dt>stage {number}</dt><dd>{what}" in report
        assert f"stage {number}" in printed.getvalue() and what in printed.getvalue()
    assert "rl, not begun" in printed.getvalue()  # in the table at the end of the first stage
