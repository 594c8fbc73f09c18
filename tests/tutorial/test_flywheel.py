"""The flywheel of tutorial/flywheel in small, by its real processes, and the model that writes tasks for it."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("agentscope.middleware", reason="the agent is one of AgentScope 2.x")
pytest.importorskip("torch")
pytest.importorskip("datasketch")
from astune.cli import main
from astune.data.prompts import solve_messages, vary_messages
from astune.support.resources import tutorial_dir
from tutorial.flywheel.run import CERTAIN, CONF, follow, spin
from tutorial.flywheel.teacher import Teacher, read_problem
from tutorial.math_agent.make_tasks import problems
from tutorial.online.run import read_lines

SMALL = (
    "astune.trainer.total_steps=2",
    "astune.trainer.tasks_per_step=4",
    "astune.trainer.warmup_steps=0",
    "astune.rollout.num_repeat=4",
    "astune.task_reader.max_validation_tasks=16",
)


@pytest.mark.release  # half a minute; in CI: tests/data, tests/traces and test_online_loop.py, each by itself
def test_two_turns_leave_a_way_from_each_version_back_to_the_answers_that_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tutorial_dir().parent))
    folder = tmp_path / "wheel"
    habits = {"questions": 32, "corrects": 1.0, "wrong": 0.0, "variants": 1}
    turns = spin(Namespace(folder=folder, turns=2, seed=1, options=list(SMALL), **habits))
    held_out = {task["query"] for task in read_lines(tutorial_dir() / "math_agent" / "data" / "heldout.jsonl")}
    champion = 0
    for turn in turns:
        assert turn.asked == 32 and turn.tasks > 0 and turn.made > 0 and turn.pairs > 0
        assert turn.promoted is (turn.gain > 0 and turn.p < CERTAIN)
        trained = list(follow(folder, turn.number))
        assert {line["how"] for line in trained} <= {"correction", "liked answer", "variant"}
        assert trained and not held_out & {line["query"] for line in trained}
        assert all(line["version"] <= champion and line["signs"] for line in trained)
        champion = turn.number if turn.promoted else champion
    assert turns[1].tasks > turns[0].tasks  # those of both turns
    assert read_lines(folder / "turns.jsonl")[1]["number"] == 2 and (folder / "chart.svg").exists()
    capsys.readouterr()
    keys = [f"astune.online.folder={folder / 'online'}"]
    assert main(["online", "versions", "--json", "--conf", str(CONF), *keys]) == 0
    registry = json.loads(capsys.readouterr().out)
    assert len(registry["versions"]) == 3 and registry["aliases"]["champion"] == champion


def test_the_teacher_varies_the_example_and_knows_all_answers() -> None:
    teacher = Teacher()
    asked = wrong = leaked = 0
    held_out = {problem.query for problem in teacher.held_out}
    for problem in islice(problems("train", 5), 80):
        assert read_problem(problem.query) == (problem.kind, problem.answer)
        solved = teacher({"messages": solve_messages(problem.query, None)})
        assert json.loads(solved)["answer"] == str(problem.answer)
        varied = teacher({"messages": vary_messages(problem.query, None, "numbers", 4, 0)})
        for task in json.loads(varied)["tasks"]:
            kind, answer = read_problem(task["question"])
            asked += 1
            wrong += task["answer"] != str(answer)
            leaked += task["question"] in held_out
            assert kind == problem.kind or task["question"] in held_out
    assert asked == 320 and 16 < wrong < 48 and 16 < leaked < 48
