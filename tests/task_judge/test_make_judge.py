import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.errors import PluginError
from astune.task_judge import FunctionJudge, make_judge
from astune.task_judge.registry import find_judge
from astune.types import Episode
from tests.rows import each_row

MakeEpisode = Callable[..., Episode]

PLUGIN = """
from astune import Verdict

class MyJudge:
    def __init__(self, config):
        self.seconds = config.timeout

    async def judge(self, task, episode):
        return Verdict(self.seconds)

class SyncJudge:
    def __init__(self, config): ...
    def judge(self, task, episode): ...

class Empty:
    def __init__(self, config): ...

def my_judge(task, episode):
    return 0.25

CONSTANT = 3
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "judges.py"
    path.write_text(PLUGIN)
    return str(path)


def test_no_judge_is_none() -> None:
    assert make_judge(TaskJudgeConfig()) is None


@each_row("form", ["{}", "astune.task_judge.{}->{}", "astune.task_judge.{}:{}", "astune/task_judge/{}.py->{}"])
@each_row(
    ("module", "name"),
    [
        ("math_answer_as_judge", "MathAnswerAsJudge"),
        ("math_answer_as_judge", "MathAnswerAndLlmAsJudge"),
        ("env_service_as_judge", "EnvServiceJudge"),
        ("rubrics_judge", "RubricsAsJudge"),
    ],
)
def test_a_judge_that_ships_is_found_by_its_name_and_at_every_place_it_is_said_to_have(
    form: str, module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the path leads nowhere
    spec = name if form == "{}" else form.format(module, name)
    assert find_judge(spec) is find_judge(name)


async def test_a_class_is_constructed_with_its_config(plugin: str, make_episode: MakeEpisode) -> None:
    judge = make_judge(TaskJudgeConfig(judge_protocol=f"{plugin}:MyJudge", timeout=7))
    assert judge is not None
    episode = make_episode()
    assert (await judge.judge(episode.task, episode)).reward == 7


async def test_a_function_is_a_judge(plugin: str, make_episode: MakeEpisode) -> None:
    judge = make_judge(TaskJudgeConfig(judge_protocol=f"{plugin}:my_judge"))
    assert isinstance(judge, FunctionJudge)
    episode = make_episode()
    verdict = await judge.judge(episode.task, episode)
    assert (verdict.reward, verdict.judged_by) == (0.25, f"{plugin}:my_judge")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SyncJudge", "has no method async judge"),
        ("Empty", "has no method async judge"),
        ("CONSTANT", "is a int, expected a class or a function"),
    ],
)
def test_what_is_no_judge_is_an_error_that_names_the_key(plugin: str, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as error:
        make_judge(TaskJudgeConfig(judge_protocol=f"{plugin}:{name}"))
    assert "astune.task_judge.judge_protocol" in str(error.value)


def test_a_mistyped_name_gets_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="Did you mean 'MathAnswerAsJudge'"):
        make_judge(TaskJudgeConfig(judge_protocol="MathAnswerJudge"))


def test_importing_the_judges_loads_no_algebra_and_starts_nothing() -> None:
    code = "import astune.task_judge, sys, threading; print('sympy' in sys.modules, threading.active_count())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "1"]
