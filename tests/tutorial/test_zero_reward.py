"""The agent that gets reward 0: it really does, both faults are needed for that, and the debugger shows them."""

import difflib
import io
import re
from importlib import metadata
from pathlib import Path

import pytest

from astune.backbone.debug import DebugBackbone
from astune.config.load import load_config
from astune.monitor import read_episodes
from astune.support.resources import tutorial_dir
from astune.support.terminal import Console

pytest.importorskip("agentscope")
pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(metadata.version("agentscope")[0] != "2", reason="the agent is for AgentScope 2.x")

FOLDER = tutorial_dir() / "zero_reward"
PAGE = Path(__file__).parents[2] / "docs" / "zero_reward.md"
RIGHT = f"astune.debug.model=scripted:{FOLDER / 'answers.yaml'}"
AGENT, FIXED = (f"astune.rollout.agentscope_learn_protocol={FOLDER / name}:Solver" for name in ("agent.py", "fixed.py"))
JUDGE, FIXED_JUDGE = (f"astune.task_judge.judge_protocol={FOLDER / name}:judge" for name in ("agent.py", "fixed.py"))


class Played:
    def __init__(self, screen: str, folder: Path) -> None:
        self.screen = screen
        self.episodes = [record.episode for record in read_episodes(folder / "episodes" / "debug.jsonl")]
        self.rewards = [episode.reward for episode in self.episodes]

    def after(self, command: str) -> str:
        """What stood between the last such command and the next prompt."""
        return self.screen.rpartition(f"(astune) {command}\n")[2].partition("(astune) ")[0]


@pytest.fixture
def play(tmp_path: Path):
    def play(conf: str, *overrides: str, commands: str = "") -> Played:
        console = Console(file=io.StringIO(), width=140)
        stops = [f"astune.debug.commands={FOLDER / commands}"] if commands else []
        settings = [f"astune.runs_dir={tmp_path}", *overrides, *stops]
        report = DebugBackbone(console).run(load_config(FOLDER / conf, settings, backbone="debug"))
        assert isinstance(console.file, io.StringIO)
        return Played(console.file.getvalue(), report.run_dir)

    return play


def test_the_fixed_agent_differs_in_one_line_for_each_fault():
    texts = [(FOLDER / name).read_text(encoding="utf-8").splitlines() for name in ("agent.py", "fixed.py")]
    removed = [line for line in difflib.ndiff(*texts) if line.startswith("- ") and '"""' not in line]
    assert ["calculator" in line or "fullmatch" in line for line in removed] == [True, False]
    assert "re.search" in removed[1]


def test_what_the_page_quotes_stands_in_the_files():
    files = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if path.is_file())
    lines = {line.strip() for line in files.splitlines()}
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    quoted = [re.sub(r" +# (agent|fixed)\.py.*", "", line).strip() for block in blocks for line in block.splitlines()]
    assert len(blocks) == 5 and [line for line in quoted if line not in lines] == []


def test_right_answers_get_0_and_with_the_fixed_judge_1(play):
    before, after = play("zero_reward.yaml", RIGHT), play("fixed.yaml", RIGHT)
    assert [episode.output.answer for episode in before.episodes] == [e.output.answer for e in after.episodes]
    assert (before.rewards, after.rewards) == ([0] * 4, [1] * 4)


def test_the_shipped_model_gets_0_at_every_attempt_and_with_both_fixed_mostly_1(play):
    four = "astune.debug.num_repeat=4"
    assert play("zero_reward.yaml", four).rewards == [0] * 16
    assert sum(play("fixed.yaml", four).rewards) >= 8


def test_each_fault_alone_keeps_the_reward_at_0(play):
    assert play("zero_reward.yaml", FIXED_JUDGE).rewards == [0] * 4
    assert play("fixed.yaml", RIGHT, JUDGE).rewards == [0] * 4
    assert sum(play("zero_reward.yaml", FIXED).rewards) > 0  # the shipped model writes no working


def test_the_way_to_the_judge(play):
    played = play("zero_reward.yaml", RIGHT, "astune.debug.tasks=[buttons]", commands="judge.txt")
    assert "43 + 84 = 127. The answer is 127." in played.after("show messages")
    assert "the workflow returned '43 + 84 = 127. The answer is 127.'" in played.screen
    assert "the reference is '127'" in played.after("show verdict")
    assert "reward 0" in played.after("show verdict")
    assert played.rewards == [0, 1]


def test_the_way_to_the_tool(play):
    played = play("zero_reward.yaml", "astune.debug.tasks=[buttons]", commands="tool.txt")
    assert "Error: cannot calculate that." in played.screen.partition("(astune) show tools")[0]
    assert "calculator(expression: string)" in played.after("show tools")
    assert "Error: cannot calculate that." in played.after("show tokens")
    assert "goes on from a row of solver" in played.after("show timelines")
    assert "in execute:  reply = await agent.reply" in played.after("where")


def test_the_same_call_without_blanks_gets_the_reward(play):
    played = play("zero_reward.yaml", "astune.debug.tasks=[buttons]", commands="guess.txt")
    assert played.rewards == [0, 1]
    assert played.episodes[1].turns[0].excluded == "edited"
