"""The tutorial's commands do what its page says, and its script solves the task through every step."""

import re
import shlex
import signal
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from astune.cli import main
from astune.clients.env_service import EnvServiceClient
from astune.config.load import load_config
from astune.monitor import read_episodes
from astune.support.resources import tutorial_dir
from astune.worlds.apps import AppsEnvironment

FOLDER = tutorial_dir() / "apps_world"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|text)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
needs_agentscope_2 = pytest.mark.skipif(
    util.find_spec("agentscope") is None or metadata.version("agentscope")[0] != "2", reason="the agent is for it"
)


def played(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The episode of one of the page's commands, run in an empty folder."""
    monkeypatch.chdir(folder)
    python, launcher, *arguments = shlex.split(command.replace("\\\n", " "))
    assert (python, launcher) == ("python", "launcher.py")
    assert main([word.replace("tutorial/apps_world", str(FOLDER)) for word in arguments]) == 0
    (record,) = read_episodes(folder / "runs" / "apps_world" / "apps_world-debug" / "episodes" / "debug.jsonl")
    return record.episode


@needs_agentscope_2
@pytest.mark.parametrize(("number", "reward", "calls"), [(0, 1.0, 12), (1, 0.5, 3)])
def test_a_command_of_the_page_prints_what_follows_it(number, reward, calls, tmp_path, monkeypatch, capsys) -> None:
    starts = [place for place, (kind, _) in enumerate(BLOCKS) if kind == "bash"]
    episode = played(BLOCKS[starts[number]][1], tmp_path, monkeypatch)
    printed = " ".join(capsys.readouterr().out.split())
    shown = [text for kind, text in BLOCKS[starts[number] + 1 : starts[number + 1]]]
    assert (
        shown and [line for text in shown for line in text.splitlines() if " ".join(line.split()) not in printed] == []
    )
    assert (episode.reward, episode.error, episode.task.task_id) == (reward, None, "train-0-move_meeting")
    used = [call["function"]["name"] for turn in episode.turns for call in turn.response.get("tool_calls") or ()]
    assert len(used) == calls and used[-1] == "finish"
    (timeline,) = episode.timelines
    assert timeline.trained_tokens == sum(len(turn.output_ids) for turn in episode.turns)


def test_the_service_of_the_training_comes_up_and_the_training_is_a_configuration() -> None:
    (*_, last) = commands = [text for kind, text in BLOCKS if kind == "bash"]
    assert len(commands) == 3
    serve, train = (shlex.split(line)[2:] for line in last.splitlines())
    with subprocess.Popen(
        [sys.executable, "-m", "astune", *serve, "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().split()[-1]
        assert len(EnvServiceClient(url).task_ids("train", "apps")) == 1000
        process.send_signal(signal.SIGINT)
    config = load_config(FOLDER / Path(train[-1]).name).config.astune
    assert config.task_reader.env_service.env_url == "http://127.0.0.1:8080"  # where it is without --port
    assert int(serve[serve.index("--max-instances") + 1]) > config.rollout.max_concurrent


def test_what_the_page_says_of_the_world_is_so() -> None:
    splits = [AppsEnvironment(tasks=200, seed=0).task_ids(split) for split in ("train", "validation", "test")]
    assert [len(ids) for ids in splits] == [200, 50, 50]
    (kinds, apis) = re.search(r"4 apps with (\d+) APIs, (\d+) kinds", README).groups()[::-1]
    assert len({task_id.rpartition("-")[2] for task_id in splits[0]}) == int(kinds)
    assert f"with {apis} APIs" in AppsEnvironment.__doc__
