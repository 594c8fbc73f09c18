"""The tutorial after Trinity's "ReAct Agent Training", on whichever AgentScope is installed."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.trinity.conversion.convert import convert
from astune.cli import main
from astune.config.keys import value_at
from astune.config.load import load_config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor.episodes import read_episodes
from astune.rollout.episode import run_episode
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedPolicy
from astune.training.rollout_setup import rollout_setup
from astune.types import Episode, Sampling, StopReason, Task

pytest.importorskip("agentscope")

FOLDER = tutorial_dir() / "react_agent"
AGENTSCOPE_1 = metadata.version("agentscope").startswith("1.")
WORKFLOW = "workflow.py" if AGENTSCOPE_1 else "workflow_agentscope2.py"
TASK = Task("t", "3 packs of 5?", answer="15")


def call(expression: str) -> str:
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


async def attempt(answers: Any, context_length: int = 4096) -> Episode:
    """An episode of the demo in which the model answers from a script."""
    chosen = f"astune.rollout.agentscope_learn_protocol={FOLDER / WORKFLOW}:ReActMath"
    config = load_config(FOLDER / "demo.yaml", [chosen]).config.astune
    chat_format = ChatFormat.load(tiny_model_dir())
    setup = rollout_setup(config, ScriptedPolicy(answers, chat_format, context_length=context_length), chat_format)
    return await run_episode(TASK, setup, episode_id="e", seed=1, sampling=Sampling(max_tokens=48))


async def test_the_agent_on_our_client_calls_its_tool_and_every_turn_is_trained_in_one_timeline() -> None:
    episode = await attempt([call("3 * 5"), "The answer is 15."])
    assert (episode.stop_reason, episode.reward) == (StopReason.COMPLETED, 1.0)
    (line,) = episode.timelines
    assert {turn.agent for turn in episode.turns} == {"react_agent"}
    assert line.trained_tokens == sum(len(turn.output_ids) for turn in episode.turns)
    assert "<tool_response>\n15\n</tool_response>" in ChatFormat.load(tiny_model_dir()).decode(line.token_ids)


async def test_turns_have_no_limit() -> None:
    """More than ASTune's 20, and than AgentScope's own 10 or 50, unless they are told otherwise."""
    episode = await attempt([call("3 * 5")] * 60 + ["The answer is 15."], context_length=100_000)
    assert (episode.stop_reason, episode.reward, len(episode.turns)) == (StopReason.COMPLETED, 1.0, 61)
    assert len(episode.timelines) == 1


async def test_the_context_ends_a_conversation_that_goes_round_in_circles_and_it_is_judged() -> None:
    episode = await attempt(lambda prompt: call("3 * 5"), context_length=1000)
    assert (episode.stop_reason, episode.reward) == (StopReason.CONTEXT_OVERFLOW, 0.0)
    assert len(episode.turns) > 10


@pytest.mark.parametrize("name", ["agent.py", "agent_agentscope2.py"])
def test_the_agent_imports_nothing_of_ours(name: str) -> None:
    tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.split(".")[0] for module in modules} == {"openai", "agentscope"}


def test_the_agent_differs_from_the_documents_listing_only_where_the_readme_says() -> None:
    ours = [line.strip() for line in (FOLDER / "agent.py").read_text(encoding="utf-8").splitlines()]
    (listing,) = re.findall(r"^```python\n(.*?)^```", read_me(), re.MULTILINE | re.DOTALL)
    theirs = [line.strip().replace("Trinity-RFT", "ASTune") for line in listing.splitlines()]
    place = 0
    for line in theirs:
        if line and line != "# some other params":
            place = ours.index(line, place) + 1  # in the same order
    assert place == len(ours)


def read_me() -> str:
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The table below a heading of the README, cell by cell."""
    section = read_me().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_what_the_readme_says_of_the_documents_settings_is_in_the_configuration_and_reaches_trinity() -> None:
    loaded = load_config(FOLDER / "gsm8k.yaml")
    tree = convert(loaded, Path("runs/react_agent/gsm8k")).tree
    table = rows("The document's settings")
    assert len(table) >= 14
    seen = 0
    for _, ours, *_ in table:
        for key, value in re.findall(r"`((?:astune|trinity)\.[\w.]+): ([^`]+)`", ours):
            section, _, rest = key.partition(".")
            found: Any = tree
            if section == "astune":
                found = value_at(loaded.config, key)
            else:
                for name in rest.split("."):
                    found = found[name]
            assert str(found).lower() == value.lower(), key
            seen += 1
    assert seen >= 12
    assert tree["synchronizer"]["sync_style"] == "dynamic_by_explorer" and tree["synchronizer"]["sync_interval"] == 2
    assert (tree["algorithm"]["repeat_times"], tree["buffer"]["batch_size"]) == (8, 32)
    assert tree["buffer"]["train_batch_size"] == 256


@pytest.mark.slow
def test_the_demo_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    overrides = [
        f"rollout.agentscope_learn_protocol={FOLDER / WORKFLOW}:ReActMath",
        "trainer.total_steps=2",
        "trainer.tasks_per_step=4",
        "evaluation.before=false",
        "evaluation.after=false",
        "monitor.check_invariants=true",
        f"runs_dir={tmp_path}",
    ]
    assert main(["--conf", str(FOLDER / "demo.yaml"), *(f"astune.{override}" for override in overrides)]) == 0
    episodes = [record.episode for record in read_episodes(tmp_path / "react_agent/demo/episodes/train.jsonl")]
    assert {episode.stop_reason for episode in episodes} == {StopReason.COMPLETED} and len(episodes) == 64
    assert all(len(episode.timelines) == 1 for episode in episodes)
    assert max(len(episode.turns) for episode in episodes) > 1
    assert {episode.reward for episode in episodes} == {0.0, 1.0}
