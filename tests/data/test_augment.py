"""`astune.task_reader.augment`: made once before a run, read beside the training tasks, listed in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import astune
from astune.config.load import load_config
from astune.errors import TaskError
from astune.task_reader.task_sets import read_task_sets, stream_tasks
from astune.testing import ScriptedBackbone
from astune.types import Task
from tests.data.planted import PlantedTasks
from tests.data.runs import rows_of, serve, write_tasks


async def answer(task: Task, tuner: Any) -> astune.WorkflowOutput:
    question = [{"role": "user", "content": task.query}]
    said = (await tuner.openai_client().chat.completions.create(model="m", messages=question)).choices[0].message
    return astune.WorkflowOutput(answer=said.content, reward=float(said.content == task.answer))


def tune(world: PlantedTasks, folder: Path, **augment: Any) -> astune.Run:
    with serve(world) as server:
        api = {"base_url": server.base_url, "model": "planted"}
        given = {"target": 8, "checks": ["agree"], "solutions": 2, "cache": str(folder / "r.sqlite"), **augment}
        return astune.tune(
            answer,
            tasks=str(write_tasks(folder / "seeds.jsonl", world.seeds)),
            validation_tasks=str(write_tasks(folder / "held_out.jsonl", world.held_out)),
            backbone=ScriptedBackbone,
            model="tiny",
            runs_dir=str(folder / "runs"),
            task_reader={"augment": {"models": [api], **given}},
            trainer={"total_steps": 1, "tasks_per_step": 2},
            rollout={"num_repeat": 2},
            monitor={"progress": "off", "trackers": []},
        )


def test_tasks_are_made_once_before_a_run_and_listed_in_its_folder(tmp_path: Path) -> None:
    world = PlantedTasks(seed=6, shares={"leak": 0.3, "wrong answer": 0.2})
    run = tune(world, tmp_path)
    made = rows_of(run.folder / "made_tasks.jsonl")
    assert len(made) == 8 and not any(world.planted[row["query"]] for row in made)
    assert {row["reason"] for row in rows_of(run.folder / "made_tasks.dropped.jsonl")} >= {"leak", "wrong answer"}
    reader = load_config(run.folder / "config.yaml").config.astune.task_reader
    sets = read_task_sets(reader)
    queries = [*(task.query for task in world.seeds), *(row["query"] for row in made)]
    assert [task.query for task in sets.training] == queries and len(sets.held_out) == len(world.held_out)
    assert [task.query for task in stream_tasks(reader, "training")] == queries
    assert sets.training[9:11][1].query == made[0]["query"]
    paid = sum(world.calls.values())
    tune(world, tmp_path)
    assert sum(world.calls.values()) == paid  # an equal run has made them
    tune(world, tmp_path, solutions=3)
    assert sum(world.calls.values()) > paid  # another is not equal


def test_a_limit_that_is_reached_leaves_a_set_that_is_used_and_completed_by_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = PlantedTasks(seed=7)
    run = tune(world, tmp_path, target=16, max_calls=24)
    assert "of 16 tasks were made: all 24 model calls" in capsys.readouterr().out
    assert 0 < len(rows_of(run.folder / "made_tasks.jsonl")) < 16
    assert '"complete": false' in (run.folder / "made_tasks.report.json").read_text()
    assert len(rows_of(tune(world, tmp_path, target=16).folder / "made_tasks.jsonl")) == 16


def test_a_made_task_that_is_held_out_is_an_error(tmp_path: Path) -> None:
    world = PlantedTasks()
    files = {
        name: write_tasks(tmp_path / f"{name}.jsonl", tasks)
        for name, tasks in (("training", world.seeds), ("validation", world.held_out), ("made", world.held_out[:1]))
    }
    config = load_config(
        None,
        arguments={
            **{f"astune.task_reader.jsonl.{name}.file_path": str(files[name]) for name in ("training", "validation")},
            "astune.task_reader.augment.file": str(files["made"]),
        },
        for_run=False,
    )
    with pytest.raises(TaskError, match=r"validation\.jsonl:1: is trained on too, as .*made\.jsonl:1, which was made"):
        read_task_sets(config.config.astune.task_reader)
