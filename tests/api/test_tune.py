"""`astune.tune`: objects of the program in place of names and files, on an engine without a model."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

import astune
from astune import Episode, Run, Task, Tuner, Verdict, Workflow, WorkflowOutput
from astune.api.settings import configure
from astune.cli import main
from astune.config.keys import value_at
from astune.errors import AstuneError, ConfigError, PluginError, TaskError
from astune.monitor import read_episodes, read_metrics
from astune.plugins import LiveObjects, load_plugin
from astune.testing import ScriptedBackbone
from tests.api.agents import TwoTasks, ask, first_is_best
from tests.rows import each_row

ROWS = [{"query": f"{n} + 2?", "answer": str(n + 2)} for n in range(4)]
HELD_OUT = [{"query": "1 + 3?", "answer": "4"}, {"query": "2 + 3?", "answer": "5"}]
SMALL: dict[str, Any] = {
    "backbone": ScriptedBackbone,
    "trainer": {"total_steps": 3, "tasks_per_step": 2},
    "rollout.num_repeat": 2,
    "monitor": {"progress": "off", "trackers": []},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exact(task: dict[str, Any], response: str) -> float:
    """In the form of AgentScope 1.x."""
    assert {"query", "answer"} <= task.keys()
    return float(task["answer"] == response)


def without_time(row: Mapping[str, Any]) -> dict[str, Any]:
    parts = ("time", "seconds", "throughput", "latency", "blocked")
    return {key: value for key, value in row.items() if not any(part in key for part in parts)}


def test_a_call_with_objects_is_the_run_of_a_command_with_files() -> None:
    """The same episodes, token by token, and the same figures."""
    run = astune.tune(ask, tasks=ROWS, judge=first_is_best, validation_tasks=HELD_OUT, **SMALL)
    for name, rows in (("train", ROWS), ("held", HELD_OUT)):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "runs_dir": "by_command",
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": "tests.api.agents:ask", "num_repeat": 2},
        "task_judge": {"judge_protocol": "tests.api.agents:first_is_best"},
        "trainer": SMALL["trainer"],
        "monitor": SMALL["monitor"],
    }
    Path("ask.yaml").write_text(json.dumps({"astune": config}))
    assert main(["run", "--conf", "ask.yaml", "--backbone", "astune.testing:ScriptedBackbone"]) == 0

    other = Path("by_command/astune/ask")
    assert run.folder.name == "ask" and run.outcome == "completed"
    assert list(map(without_time, run.metrics)) == list(map(without_time, read_metrics(other / "metrics.jsonl")))
    for phase in ("train", "eval/sampled", "eval/greedy"):
        ours, theirs = run.episodes(phase), read_episodes(other / "episodes" / f"{phase.replace('/', '_')}.jsonl")
        assert [(e.step, e.episode.episode_id, e.episode.timelines) for e in ours] == [
            (e.step, e.episode.episode_id, e.episode.timelines) for e in theirs
        ]


def test_what_a_run_left_is_there_at_once_and_when_it_is_opened_later() -> None:
    ended = astune.tune(ask, tasks=ROWS, judge=first_is_best, validation_tasks=HELD_OUT, **SMALL)
    for run in (ended, Run(ended.folder)):
        assert (run.outcome, run.steps, run.metrics[-1]["step"]) == ("completed", 3, 3)
        assert run.held_out["greedy"]["last"]["step"] == 3 and run.held_out["greedy"]["figure"] == "reward"
        assert run.report.read_text().startswith("<!DOCTYPE html>")
        assert {each.step for each in run.episodes()} == {1, 2, 3}
        assert "<svg" in run.plot()._repr_svg_() and run.plot() in run._repr_html_()
        assert "<td>greedy</td>" in run._repr_html_() and "completed after 3 steps" in repr(run)
    with pytest.raises(ConfigError, match="no episodes of 'eval'; there are those of eval/greedy, eval/sampled, train"):
        ended.episodes("eval")
    assert "the run is over: completed after step 3" in (ended.folder / "run.log").read_text()


def test_a_run_that_taught_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = astune.tune(ask, tasks=ROWS, judge=lambda task, response: 1.0, **SMALL)
    assert run.outcome == Run(run.folder).outcome == "learned_nothing"
    assert "nothing was learned" in capsys.readouterr().err


class InAClass(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        return await ask(task, tuner)


class Strict:
    def __init__(self, config: Any = None) -> None:
        self.config = config

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        return Verdict(first_is_best(task, episode))


def give_model(task: Task, model: Any) -> WorkflowOutput:
    return WorkflowOutput(answer="4", reward=float(task["task_id"] != ""))


@each_row(
    ("workflow", "tasks", "judge", "answers"),
    [
        pytest.param(InAClass, TwoTasks, Strict, 12, id="classes"),
        pytest.param(InAClass, TwoTasks(), Strict(), 12, id="objects"),
        pytest.param("tests.api.agents:ask", "tests.api.agents:TwoTasks", first_is_best, 12, id="names"),
        pytest.param(ask, datasets.Dataset.from_list(ROWS), [(first_is_best), {"judge": exact}], 12, id="data set"),
        pytest.param(ask, [Task("a", "1 + 2?"), Task("b", "2 + 2?")], first_is_best, 12, id="tasks"),
        pytest.param(ask, iter(ROWS), "tests.api.agents:first_is_best", 12, id="an iterator"),
        pytest.param(give_model, ROWS, None, 12, id="no judge"),
    ],
)
def test_each_argument_has_several_forms(workflow: Any, tasks: Any, judge: Any, answers: int, tmp_path: Path) -> None:
    run = astune.tune(workflow, tasks=tasks, judge=judge, runs_dir=tmp_path, **SMALL)
    episodes = list(run.episodes())
    assert len(episodes) == answers and {each.episode.error for each in episodes} == {None}
    assert all(each.episode.reward is not None for each in episodes)


@each_row(
    ("keys", "key", "value"),
    [
        ({"trainer": {"total_steps": 5}}, "astune.trainer.total_steps", 5),
        ({"trainer.total_steps": 5}, "astune.trainer.total_steps", 5),
        ({"astune.trainer.total_steps": 5}, "astune.trainer.total_steps", 5),
        ({"astune": {"trainer": {"total_steps": 5}}}, "astune.trainer.total_steps", 5),
        ({"trainer": {"total_steps": 5}, "trainer.max_grad_norm": 2}, "astune.trainer.total_steps", 5),
        ({"trainer.total_steps": 5, "trainer": {"max_grad_norm": 2}}, "astune.trainer.total_steps", 5),
        ({"seed": 7}, "astune.seed", 7),
        ({"trinity": {"a": {"b": 1}}}, "trinity", {"a": {"b": 1}}),
        ({"trainer": {"betas": (0.8, 0.9)}}, "astune.trainer.betas", (0.8, 0.9)),
        ({"runs_dir": Path("elsewhere")}, "astune.runs_dir", "elsewhere"),
        ({"model": {"lora": {"rank": 4}}}, "astune.model.lora.rank", 4),
        ({"model": Path("/some/model")}, "astune.model.path", "/some/model"),
        ({"model": "scripted:answers.yaml", "backbone": "debug"}, "astune.debug.model", None),
        ({"validation_tasks": 0.25}, "astune.task_reader.validation_fraction", 0.25),
        ({"tasks": "org/data"}, "astune.task_reader.huggingface.dataset_path", "org/data"),
        ({"tasks": "a.csv", "validation_tasks": Path("b.csv")}, "astune.task_reader.type", "jsonl"),
        ({"judge": "astune.task_judge.math.judge:MathAnswerAsJudge"}, "astune.task_judge.judge_protocol", None),
    ],
)
def test_every_key_may_be_nested_dotted_or_an_argument_of_its_own(keys: dict[str, Any], key: str, value: Any) -> None:
    named = {name: keys.pop(name) for name in ("tasks", "judge", "model", "validation_tasks") if name in keys}
    with configure(ask, named.pop("tasks", ROWS), keys=keys, **named) as loaded:
        found = value_at(loaded.config, key)
    wanted = {"astune.debug.model": f"scripted:{Path('answers.yaml').absolute()}"}
    wanted["astune.task_judge.judge_protocol"] = "MathAnswerAsJudge"
    assert found == (wanted[key] if value is None else value)


def test_a_file_of_the_configuration_is_below_the_arguments() -> None:
    config = {"trainer": {"total_steps": 9, "tasks_per_step": 3}, "seed": 1}
    Path("job.yaml").write_text(json.dumps({"astune": config}))
    with configure(ask, ROWS, conf="job.yaml", keys={"trainer": {"total_steps": 2}}) as loaded:
        trainer = loaded.config.astune.trainer
        assert (trainer.total_steps, trainer.tasks_per_step, loaded.config.astune.seed) == (2, 3, 1)
        assert loaded.config.astune.experiment_name == "job"


def a_wrong(**changed: Any) -> Callable[[], Run]:
    given = {"workflow": ask, "tasks": ROWS, "judge": first_is_best, "trainer.tasks_per_step": 2}
    return lambda: astune.tune(**(given | changed))


def no_judge(task: Task, answer: str) -> float:
    return 1.0


@each_row(
    ("call", "kind", "words"),
    [
        (a_wrong(trainer={"total_step": 5}), ConfigError, "argument: astune.trainer.total_step: unknown key. Did you"),
        (a_wrong(trainr={"total_steps": 5}), ConfigError, "astune.trainr: unknown key. Did you mean 'astune.trainer'?"),
        (a_wrong(seed="x"), ConfigError, "argument: astune.seed: expected a whole number, got 'x'"),
        (a_wrong(seed=exact), ConfigError, "astune.seed"),
        (a_wrong(workflow=3), PluginError, "A workflow is a subclass of astune.Workflow or a function, not 3"),
        (a_wrong(workflow=exact), PluginError, "takes 'response', which is unknown"),
        (a_wrong(workflow="agents.py:ask"), PluginError, "no such file"),
        (a_wrong(workflow=None), ConfigError, "agentscope_learn_protocol: not set; name the workflow"),
        (a_wrong(tasks=[]), TaskError, "tasks: the list is empty"),
        (a_wrong(tasks=datasets.Dataset.from_list([])), TaskError, "tasks: the data set is empty"),
        (a_wrong(tasks=datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)})), TaskError, "data['test']"),
        (
            a_wrong(tasks=datasets.Dataset.from_list(ROWS).to_iterable_dataset()),
            TaskError,
            "a stream has no end",
        ),
        (a_wrong(tasks=[{"query": "1?"}, "2?"]), TaskError, "tasks[1]: got '2?' of type str; expected a dict"),
        (a_wrong(tasks=[Task("a", "?"), {}]), TaskError, "tasks[1]: got {} of type dict; expected a Task"),
        (a_wrong(tasks=ROWS[0]), TaskError, "expected a list of dicts, a path, a datasets.Dataset or a task reader"),
        (a_wrong(tasks=[{"qestion": "1?"}]), TaskError, "tasks[0]"),
        (a_wrong(tasks="nowhere.jsonl"), TaskError, "nowhere.jsonl"),
        (a_wrong(tasks=None), ConfigError, "task_reader.jsonl.training.file_path: not set"),
        (a_wrong(tasks=TwoTasks, validation_tasks=ROWS), ConfigError, "validation_tasks: the reader that is given"),
        (
            a_wrong(validation_tasks="held.jsonl"),
            ConfigError,
            "got a path beside tasks that are rows",
        ),
        (a_wrong(tasks="a.jsonl", validation_tasks=ROWS), ConfigError, "got rows beside tasks that are a path"),
        (a_wrong(tasks="org/data", validation_tasks="test"), ConfigError, "'org/data' has splits of its own"),
        (a_wrong(tasks=None, validation_tasks=ROWS), ConfigError, "validation_tasks: there are no tasks beside them"),
        (a_wrong(validation_tasks=ROWS), TaskError, "held-out tasks are trained on too"),
        (a_wrong(judge=no_judge), PluginError, "judge no_judge: unknown parameter 'answer'"),
        (a_wrong(judge="MathAnswersAsJudge"), PluginError, "Did you mean 'MathAnswerAsJudge'?"),
        (a_wrong(judge=3), PluginError, "is a int, expected a class or a function"),
        (a_wrong(model=5), ConfigError, "model: got 5; expected 'tiny', a folder, a hub id"),
        (a_wrong(backbone="lokal"), PluginError, "Did you mean 'local'?"),
        (a_wrong(resume=True), ConfigError, "there is no run"),
        (lambda: Run("runs/p/none"), ConfigError, "runs/p/none: there is no such folder; expected the folder of a run"),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(call: Callable[[], Run], kind: type, words: str) -> None:
    with pytest.raises(AstuneError) as caught:
        call()
    assert (caught.type, words in str(caught.value)) == (kind, True), str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.fault(
    "Input files and settings",
    "a lambda or a list is given where episodes are played in other processes",
    "the call is refused before anything starts; each is named, and what to do",
)
@each_row(
    ("keys", "words"),
    [
        ({"backbone": "verl"}, ["'<name>' is only in this process, and the backbone 'verl'", "write them to a file"]),
        ({"backbone": "trinity"}, ["the backbone 'trinity'", "put it into a file", "astune.task_reader.type: 'tasks'"]),
        (
            {"backbone": "verl", "algorithm": {"advantage": lambda rewards: rewards}},
            ["astune.algorithm.advantage: 'advantage' is only in this process"],
        ),
        ({"rollout.workers": 2}, ["'ask_here' is only in this process, and astune.rollout.workers=2"]),
    ],
)
def test_what_other_processes_cannot_find_is_refused_by_name(keys: dict[str, Any], words: list[str]) -> None:
    async def ask_here(task: Task, tuner: Tuner) -> WorkflowOutput:
        return await ask(task, tuner)

    with pytest.raises(ConfigError) as caught:
        astune.tune(ask_here, tasks=ROWS, judge=lambda task, response: 1.0, **keys)
    assert all(each.replace("<name>", "ask_here") in str(caught.value) for each in words), str(caught.value)
    with configure(ask, ROWS, lambda task, response: 1.0, keys={"rollout.workers": 2}) as loaded:  # judged here
        assert loaded.config.astune.rollout.agentscope_learn_protocol == "tests.api.agents:ask"


def test_it_runs_where_an_event_loop_runs_already() -> None:
    """As in a notebook, whose loop goes on afterwards."""

    async def cell() -> tuple[Run, Verdict]:
        before = asyncio.get_running_loop()
        run = astune.tune(ask, tasks=ROWS, judge=first_is_best, **SMALL)
        verdict = astune.judge(exact, ROWS[0], "2")
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is before
        return run, verdict

    run, verdict = asyncio.run(cell())
    assert run.outcome == "completed" and verdict.reward == 1.0


@pytest.mark.fault(
    "Runs and resuming",
    "Ctrl-C in a call of `astune.tune`, as a notebook's stop is",
    "the call returns the run, which is saved, and goes on with `resume=True`",
)
def test_ctrl_c_returns_what_was_done_and_the_same_call_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    stop = [True]

    def judge(task: Task, episode: Episode) -> float:
        if stop and episode.episode_id.startswith("train/2"):
            stop.clear()
            signal.raise_signal(signal.SIGINT)
        return first_is_best(task, episode)

    given: dict[str, Any] = {"tasks": ROWS, "judge": judge, "trainer.save_every": 1}
    run = astune.tune(ask, **given, **SMALL)
    assert run.outcome == Run(run.folder).outcome == "interrupted" and run.steps < 3
    assert "to go on:\n  the same call with resume=True" in capsys.readouterr().err
    again = astune.tune(ask, **given, **SMALL, resume=True)
    assert (again.folder, again.outcome, again.steps) == (run.folder, "completed", 3)


def test_a_run_that_cannot_go_on_has_failed() -> None:
    def broken(task: Task, episode: Episode) -> float:
        raise ValueError("no")

    run = astune.tune(ask, tasks=ROWS, judge=broken, **{**SMALL, "trainer.max_unjudged_steps": 2})
    assert run.outcome == Run("runs/astune/ask").outcome == "failed"
    assert "stopped: nothing could be judged in 2 steps in a row" in (run.folder / "run.log").read_text()


@pytest.mark.fault(
    "Input files and settings",
    "a command takes up the folder of a run whose judge was an object of a Python program",
    "exit code 2; the judge is named, and what to do",
)
def test_names_of_objects_end_with_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    """What only the program had is missing when a command takes up the folder, and that is said."""
    astune.tune(ask, tasks=ROWS, judge=lambda task, response: 1.0, **SMALL)
    assert main(["eval", "--conf", "runs/astune/ask/config.yaml", "--checkpoint", "none"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "judge 'live:judge' was an object of the Python program that gave it to ASTune" in error
    with LiveObjects() as live:
        names = [live.name_of(value, "x") for value in (exact, Strict, 1, 2, 1, lambda: 1)]
        assert names[:2] == [f"{__name__}:{name}" for name in ("exact", "Strict")]
        assert names[2:] == ["live:x", "live:x_2", "live:x", "live:x_3"]
    with pytest.raises(PluginError, match="was an object of the Python program"):
        load_plugin("live:x", kind="judge")
