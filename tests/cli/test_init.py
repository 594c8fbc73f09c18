"""`astune init`: each folder that it can write passes its own check, and nothing is written over."""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.config.load import load_config
from astune.monitor import read_episodes
from astune.testing import ScriptedChatServer
from tests.rows import each_row

pytest.importorskip("torch")

AGENT = """
import a_library_that_is_not_installed_here
"""
WORKFLOW = """
from astune import WorkflowOutput

def helper(text): return text

async def solve(task, tuner):
    messages = [{"role": "user", "content": task.query}]
    reply = await tuner.openai_client("a").chat.completions.create(model="policy", messages=messages)
    return WorkflowOutput(answer=helper(reply.choices[0].message.content))
"""
CHOICES = [
    [],
    ["--agent", "own.py", "--judge", "own_judge.py:judge", "--backbone", "verl"],
    ["--agent", "own.py:solve", "--tasks", "own.csv", "--judge", "MathAnswerAsJudge"],
    ["--tasks", "own.csv", "--judge", "own_judge.py:judge", "--model", "Qwen/Qwen3-0.6B"],
    ["--judge", "MathAnswerAsJudge", "--model", "Qwen/Qwen3-0.6B", "--backbone", "trinity"],
]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(WORKFLOW, encoding="utf-8")
    Path("own_judge.py").write_text(
        "def judge(task, episode):\n    return str(episode.output.answer) == f'The answer is {task.answer}.'\n",
        encoding="utf-8",
    )
    Path("own.csv").write_text("query,answer\nWhat is 3 plus 4?,7\nWhat is 3 plus 5?,8\n", encoding="utf-8")


@pytest.mark.parametrize("choices", CHOICES, ids=lambda each: " ".join(each) or "none")
def test_a_folder_passes_its_own_check(choices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["init", "mine", "--yes", *choices]) == 0
    monkeypatch.chdir("mine")
    assert runpy.run_path("check.py")["check"]() == 0
    (episodes,) = Path("runs").glob("*/*/episodes/*.jsonl")
    (record,) = read_episodes(episodes)
    assert record.episode.error is None and record.episode.reward is not None
    first = Path("agent.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert Path(first.rpartition("=")[2]).is_file()
    backbone = choices[choices.index("--backbone") + 1] if "--backbone" in choices else "local"
    assert load_config(Path("agent.yaml")).config.astune.backbone == backbone


def test_a_judge_may_be_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["init", "asks", "--yes", "--judge", "llm"]) == 0
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (model,) = load_config(Path("asks/agent.yaml")).config.astune.task_judge.llm.models
    assert (model.base_url, model.api_key_env) == ("https://api.openai.com/v1", "OPENAI_API_KEY")
    with ScriptedChatServer(grade) as server:
        assert main(["init", "mine", "--yes", "--judge", f"{server.base_url}#grader"]) == 0
        monkeypatch.chdir("mine")
        assert runpy.run_path("check.py")["check"]() == 0
        assert {request["model"] for request in server.requests} == {"grader"}


def grade(body: dict[str, Any]) -> str:
    """Right is the reference answer alone."""
    asked = body["messages"][-1]["content"]
    told = {name: re.findall(rf"<{name}-\w+>\n(.*?)\n?</", asked, re.DOTALL)[0] for name in ("reference", "answer")}
    right = told["answer"] in (told["reference"], f"The answer is {told['reference']}.")
    return json.dumps({"criteria": [{"id": "correct", "reason": "", "score": int(right)}]})


def test_a_folder_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["init", "mine", "--yes"]) == 0
    monkeypatch.chdir("mine")
    assert main(["--conf", "agent.yaml", "astune.trainer.total_steps=2"]) == 0
    lines = Path("runs/astune/agent/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert max(json.loads(line)["step"] for line in lines) == 2


@each_row(
    ("arguments", "said"),
    [
        (["there"], "there is there already; name a new folder"),
        (["mine", "--agent", "none.py"], "--agent: no such file: none.py"),
        (["mine", "--agent", "two.py"], "it has the workflows solve, again; name one, as --agent two.py:solve"),
        (["mine", "--agent", "two.py:slove"], "has no workflow or agent 'slove'. Did you mean 'solve'?"),
        (["mine", "--agent", "agent_alone.py"], "it has no workflow: a function of (task, tuner)"),
        (["mine", "--tasks", "none.jsonl"], "--tasks: no such file: none.jsonl"),
        (["mine", "--judge", "none.py:judge"], "--judge: no such file: none.py"),
        (["mine", "--backbone", "verll"], "Did you mean 'verl'?"),
        (["--from", "frozen_lak"], "Did you mean 'frozen_lake'? There are: any_agent,"),
        (["--from", "frozen_lake", "--model", "tiny"], "a tutorial is copied as it is"),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_is(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    Path("there").mkdir(exist_ok=True)
    Path("two.py").write_text(WORKFLOW + WORKFLOW.replace("solve", "again"), encoding="utf-8")
    Path("agent_alone.py").write_text(AGENT, encoding="utf-8")
    before = sorted(os.listdir())
    assert main(["init", "--yes", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert sorted(os.listdir()) == before


def test_a_copied_page_says_where_what_it_linked_to_is() -> None:
    for name in ("llm_as_judge", "frozen_lake"):
        assert main(["init", name, "--from", name]) == 0
    pages = {path.parent.name: path.read_text(encoding="utf-8") for path in Path().glob("*/*/README.md")}
    assert (
        "](../" not in pages["llm_as_judge"] and "(`docs/llm_judge.md` of ASTune's repository)" in pages["llm_as_judge"]
    )
    assert "![" not in pages["frozen_lake"] and "`apps_world` (`astune init --from apps_world`)" in pages["frozen_lake"]


def test_a_tutorial_is_copied_with_those_that_it_takes_files_of() -> None:
    assert main(["init", "mine", "--from", "react_agent"]) == 0
    assert sorted(path.name for path in Path("mine").iterdir()) == ["math_agent", "react_agent", "schema.json"]
    loaded = load_config(Path("mine/react_agent/demo.yaml"))
    assert loaded.config.astune.task_reader.jsonl.training.file_path == str(
        Path("mine/math_agent/data/train.jsonl").resolve()
    )
    text = Path("mine/react_agent/demo.yaml").read_text(encoding="utf-8")
    assert "astune --conf react_agent/demo.yaml" in text
    assert text.startswith("# yaml-language-server: $schema=../schema")
