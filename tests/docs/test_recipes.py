"""The recipes of CONTRIBUTING work as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {
    "default_config/default.yaml",
    "default_config/schema.json",
    "default_config/config_auto_convertion_trinity.json",
    "default_config/config_auto_convertion_verl.json",
    "docs/configuration.md",
}
NEIGHBOUR = '    max_turns: PositiveInt = Field(20, description="most model calls in one episode")\n'
KEY = '    max_tool_calls: PositiveInt | None = Field(None, description="most calls of tools; null: no limit")\n'
TEST = """
from astune.config.keys import FIELDS

def test_the_new_key_is_there() -> None:
    assert "astune.rollout.max_tool_calls" in FIELDS
"""


JOB = """
astune:
  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}
  rollout: {agentscope_learn_protocol: agent.py:agent, num_repeat: 2}
  trainer: {total_steps: 1, tasks_per_step: 1}
"""
AGENT = """
from itertools import count
from astune import WorkflowOutput

rewards = count()

async def agent(task, tuner):
    reply = await tuner.openai_client("a").chat.completions.create(
        model="policy", messages=[{"role": "user", "content": task.query}]
    )
    return WorkflowOutput(answer=reply.choices[0].message.content, reward=float(next(rewards)))
"""
SCRIPTED = "--backbone=astune.testing:ScriptedBackbone"


@dataclass(frozen=True)
class Recipe:
    """How `file` of CONTRIBUTING is shipped: it stands at `place`, and each of `edits`, in a file an old text and the
    new one, is made. Then each of `commands` ends with its exit code."""

    file: str
    place: str
    edits: tuple[tuple[str, str, str], ...]
    commands: tuple[tuple[str, int], ...]


RECIPES = {
    "a task reader": Recipe(
        "times_tables.py",
        "astune/task_reader/times_tables.py",
        (
            (
                "astune/config/tasks.py",
                "READERS = {\n",
                'READERS = {\n    "times_tables": "astune.task_reader.times_tables:TimesTables",\n',
            ),
            (
                "astune/config/tasks.py",
                "    fields: FieldsConfig = ",
                '    times_tables: Section = Field(default_factory=Section, description="used by type times_tables")\n'
                "    fields: FieldsConfig = ",
            ),
        ),
        (("tasks preview --conf job.yaml astune.task_reader.type=times_tables", 0),),
    ),
    "an environment": Recipe(
        "doubles.py",
        "astune/worlds/doubles.py",
        (
            (
                "astune/environment/registry.py",
                "BUILT_IN = {\n",
                'BUILT_IN = {\n    "doubles": BuiltIn("astune.worlds.doubles:Doubles", "twice a number"),\n',
            ),
        ),
        (("env check doubles", 0),),
    ),
    "a judge": Recipe(
        "sentence.py",
        "astune/task_judge/sentence.py",
        (
            (
                "astune/task_judge/registry.py",
                "BUILTIN_JUDGES = {\n",
                'BUILTIN_JUDGES = {\n    "SentenceAsJudge": "astune.task_judge.sentence:SentenceAsJudge",\n',
            ),
            (
                "astune/config/rules/beside.py",
                '    "EnvServiceJudge": (),\n',
                '    "EnvServiceJudge": (),\n    "SentenceAsJudge": (),\n',
            ),
        ),
        (
            ("check-tasks --conf job.yaml astune.task_judge.judge_protocol=SentenceAsJudge", 0),
            (
                f"--conf job.yaml {SCRIPTED} astune.task_judge.judge_protocol=SentenceAsJudge "
                "astune.task_judge.answer_format=boxed",
                2,
            ),
        ),
    ),
    "an advantage": Recipe(
        "ranks.py",
        "astune/algorithm/ranks.py",
        (
            (
                "astune/algorithm/advantage.py",
                "ADVANTAGES = {\n",
                'ADVANTAGES = {\n    "ranks": "astune.algorithm.ranks:ranks",\n',
            ),
            (
                "astune/config/rules/algorithm.py",
                'GROUP_ADVANTAGES = ("grpo", ',
                'GROUP_ADVANTAGES = ("ranks", "grpo", ',
            ),
        ),
        (
            (f"--conf job.yaml {SCRIPTED} astune.algorithm.advantage=ranks", 0),
            (f"--conf job.yaml {SCRIPTED} astune.algorithm.advantage=ranks astune.rollout.num_repeat=1", 2),
        ),
    ),
    "an engine": Recipe(
        "eighty_four.py",
        "astune/backbone/eighty_four.py",
        (
            (
                "astune/backbone/base.py",
                "BACKBONES = {\n",
                'BACKBONES = {\n    "eighty_four": "astune.backbone.eighty_four:EightyFour",\n',
            ),
        ),
        (("--conf job.yaml --backbone=eighty_four", 0),),
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project, to be changed, with what was compiled of it."""
    for name in ("astune", "default_config", "docs", "tutorial", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def block(name: str) -> str:
    """The code that CONTRIBUTING shows as this file."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```python file={re.escape(name)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(code)


def run(copy: Path, *command: str, ends_with: int = 0) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == ends_with, done.stdout + done.stderr


def test_a_configuration_key_touches_the_schema_its_user_and_its_test(copy: Path) -> None:
    schema = copy / "astune" / "config" / "rollout.py"
    text = schema.read_text(encoding="utf-8")
    assert text.count(NEIGHBOUR) == 1
    schema.write_text(text.replace(NEIGHBOUR, NEIGHBOUR + KEY), encoding="utf-8")
    (copy / "tests" / "config" / "test_new_key.py").write_text(TEST, encoding="utf-8")
    run(copy, "docs/write_tables.py")
    checks = [
        "tests/config/test_generated.py",
        "tests/config/test_new_key.py",
        "tests/config/test_verl_settings.py::test_every_key_says_what_becomes_of_it_and_every_conversion_is_there",
        "tests/trinity/test_convert.py::test_an_entry_says_one_thing",
        "tests/trinity/test_convert.py::test_the_whole_configuration_travels_along",
    ]
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *checks)
    changed = {
        str(path.relative_to(copy))
        for name in ("astune", "default_config", "docs")
        for path in (copy / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not cmp(path, ROOT / path.relative_to(copy), shallow=False)
    }
    assert changed == {"astune/config/rollout.py", *GENERATED}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_what_a_recipe_shows_ships_once_it_has_a_name(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("astune", "default_config"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / recipe.place).write_text(block(recipe.file), encoding="utf-8")
    for file, old, new in recipe.edits:
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file}: {old!r}"
        (tmp_path / file).write_text(text.replace(old, new), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"query": "What is 12 times 7?", "answer": "84"}\n', encoding="utf-8")
    for command, ends_with in recipe.commands:
        run(tmp_path, "-m", "astune", *command.split(), ends_with=ends_with)
