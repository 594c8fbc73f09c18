"""`astune eval`: checkpoints played on held-out tasks without a run, and two of them compared. On an engine without a
model."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.config.load import load_config
from astune.monitor import read_episodes, read_metrics
from astune.plugins import load_plugin
from astune.support.file_kinds import Kind, kind_of, kind_of_path
from astune.testing import ScriptedChatServer
from astune.training.candidates import candidate_of, load_candidate
from astune.training.model_calls import read_calls
from astune.training.start import run_training
from tests.rows import each_row

TASKS = 12


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a run of eight steps, each a checkpoint that knows one task more."""
    monkeypatch.chdir(tmp_path)
    agent = shutil.copyfile(Path(__file__).with_name("eval_agent.py"), tmp_path / "eval_agent.py")
    for name, count in (("train", 4), ("held", TASKS), ("hard", 3)):
        rows = [{"query": f"{name} {n}?", "answer": str(n), "stop": str(tmp_path / f"stop-{n}")} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "project_name": "p",
        "runs_dir": str(tmp_path / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "task_judge": {"judge_protocol": f"{agent}:judge"},
        "rollout": {"agentscope_learn_protocol": f"{agent}:asker", "num_repeat": 2, "max_tokens": 4},
        "trainer": {"total_steps": 8, "tasks_per_step": 2, "save_every": 4, "keep_checkpoints": 9},
        "evaluation": {"before": False, "after": False},
        "monitor": {"progress": "plain", "trackers": []},
    }
    (tmp_path / "job.yaml").write_text(json.dumps({"astune": config}))
    run_training(load_config(tmp_path / "job.yaml"), engine(tmp_path).load)
    engine(tmp_path).LOADED.clear()
    engine(tmp_path).PLAYED.clear()
    return tmp_path / "job.yaml"


def engine(folder: Path) -> Any:
    """The module of the agent and the engine, as the command imports it."""
    import sys

    load_plugin(f"{folder}/eval_agent.py:load", kind="engine")
    return next(m for m in list(sys.modules.values()) if getattr(m, "__file__", "") == str(folder / "eval_agent.py"))


def evaluate(job: Path, *arguments: str) -> int:
    return main(["eval", "--conf", str(job), *arguments, "--engine", f"{job.parent}/eval_agent.py:load"])


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_checkpoint_is_played_without_a_run(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(job, "--checkpoint", "runs/p/job@4", "astune.evaluation.attempts=2") == 0
    folder = job.parent / "runs" / "p" / "job-eval" / "job_step_000004"
    (row, greedy) = read_metrics(folder / "metrics.jsonl")
    assert row["eval/sampled/success"] == 4 / TASKS and row["step"] == 4
    assert (row["eval/sampled/attempts"], greedy["eval/greedy/attempts"]) == (2 * TASKS, TASKS)
    assert len(list(read_episodes(folder / "episodes" / "eval_sampled.jsonl"))) == 2 * TASKS
    assert (folder / "report.html").is_file()
    text = shown(capsys)
    assert "sampled success 33.3 %" in text and "12 of 12 tasks, 24 attempts" in text and "pass@2" in text


def test_two_checkpoints_are_compared_on_the_same_tasks_with_the_same_seeds(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(job, "--checkpoint", "none", "runs/p/job", "--json", "astune.evaluation.decoding=[greedy]") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["evaluated"]] == ["base", "job/step_000008"]
    row = found["compared"][0]
    assert (row["evaluation"], row["figure"], row["tasks"], row["exact"]) == ("greedy", "success", TASKS, True)
    assert (row["first"]["mean"], row["second"]["mean"]) == (0.0, 8 / TASKS)
    assert row["p"] == pytest.approx(2 / 2**8) and row["difference"]["mean"] == 8 / TASKS
    low, high = row["difference"]["interval"]
    assert 0 < low < 8 / TASKS < high <= 1
    base, trained = (Path(one["folder"]) for one in found["evaluated"])
    assert evaluations_of(base) == evaluations_of(trained)
    assert main(["eval", "--compare", str(trained), str(base)]) == 0
    text = shown(capsys)
    assert "base against job/step_000008, on the same tasks" in text
    assert "-66.7 %" in text and "0.008" in text and "McNemar" in text


def evaluations_of(folder: Path) -> list[str]:
    return sorted(record.episode.episode_id for record in read_episodes(folder / "episodes" / "eval_greedy.jsonl"))


TABLES = """\
base
held-out   figure          mean   95 % interval    tasks
greedy     success        0.0 %   0.0 to 28.5 %       11
greedy     judge/depth    205.0   202.3 to 208.0       6
greedy     judge/format   0.455   0.227 to 0.682      11
greedy     turns          1.000   -                   11
greedy: 11 of 12 tasks, 1 of them unjudged
job/step_000008
held-out   figure           mean   95 % interval    tasks
greedy     success        63.6 %   36.4 to 90.9 %      11
greedy     judge/depth     205.0   202.3 to 208.0       6
greedy     judge/format    0.455   0.227 to 0.682      11
greedy     turns           1.000   -                   11
greedy: 11 of 12 tasks, 1 of them unjudged
greedy: job/step_000008 against base, on the same tasks
figure        first  second   change  95 % interval       p  tasks
success       0.0 %  63.6 %  +63.6 %  36.4 to 90.9 %  0.016     11
judge/depth   205.0   205.0    0.000  -               1.000      6
judge/format  0.455   0.455    0.000  -               1.000     11
turns         1.000   1.000    0.000  -               1.000     11
wins of job/step_000008 over base
held-out   by               share   95 % interval        p   tasks
greedy     reward   won    63.6 %   36.4 to 90.9 %   0.016      11
greedy     reward   tied   36.4 %   9.1 to 63.6 %               11
greedy     reward   lost    0.0 %   0.0 to 28.5 %               11
pairs of attempts that nothing compares: 1 (greedy, reward)
p: paired permutation test over tasks, two-sided (of single attempts at a task:
McNemar's exact test). Interval: bootstrap over tasks. Judge by success and
reward: each p is of its figure alone, and of 20 figures that did not change one
has p below 0.05.
"""
IN_PARTS = ("astune.evaluation.decoding=[greedy]", "astune.task_judge.judge_protocol=eval_agent.py:judge_in_parts")
CHOSEN = ("--figures", "success", "judge/depth", "judge/format", "turns")


def test_each_figure_has_its_mean_its_interval_and_its_number_of_tasks(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 tasks the judge cannot tell of one, and half of the others have no `depth`. That is no 0."""
    monkeypatch.setenv("COLUMNS", "80")
    assert evaluate(job, "--checkpoint", "none", "runs/p/job", *CHOSEN, *IN_PARTS) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start, end = (len(lines) - lines[::-1].index(line) - 1 for line in ("base", "has p below 0.05."))
    assert "\n".join(lines[start : end + 1]) + "\n" == TABLES
    folders = [str(job.parent / "runs" / "p" / "job-eval" / name) for name in ("base", "job_step_000008")]
    assert main(["eval", "--compare", *folders, "--json", *CHOSEN]) == 0
    found = json.loads(capsys.readouterr().out)
    assert kind_of(found) is Kind.EVAL
    assert {kind_of_path(Path(folder)) for folder in folders} == {Kind.PLAYED}
    assert found["evaluated"][1]["figures"]["greedy"] == {
        "success": 7 / 11,
        "success_low": pytest.approx(4 / 11),
        "success_high": pytest.approx(10 / 11),
        "success_tasks": 11.0,
        "judge/depth": 205.0,
        "judge/depth_low": pytest.approx(202 + 1 / 3),
        "judge/depth_high": 208.0,
        "judge/depth_tasks": 6.0,
        "judge/format": 5 / 11,
        "judge/format_low": pytest.approx(2.5 / 11),
        "judge/format_high": pytest.approx(7.5 / 11),
        "judge/format_tasks": 11.0,
        "turns": 1.0,
        "turns_tasks": 11.0,
        "tasks": 12.0,
        "attempts": 12.0,
        "unjudged": 1.0,
    }
    assert [(row["figure"], row["tasks"]) for row in found["compared"]] == [
        ("success", 11),
        ("judge/depth", 6),
        ("judge/format", 11),
        ("turns", 11),
    ]
    (wins,) = found["wins"]
    assert wins["won"]["mean"] == 7 / 11 and (wins["tasks"], wins["left_out"]) == (11, 1)
    assert wins["won"]["mean"] + wins["tied"]["mean"] + wins["lost"]["mean"] == pytest.approx(1)


def test_more_than_two_are_each_compared_with_the_first(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--figures", "success", "--json", "astune.evaluation.decoding=[greedy]")
    assert evaluate(job, "--checkpoint", "none", "runs/p/job@4", "runs/p/job", *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["names"] for row in found["compared"]] == [["base", f"job/step_00000{n}"] for n in (4, 8)]
    assert [row["second"]["mean"] for row in found["compared"]] == [4 / TASKS, 8 / TASKS]
    assert evaluate(job, "--checkpoint", "none", "runs/p/job@4", "runs/p/job", *arguments[:2], *arguments[3:]) == 0
    assert "greedy success 0.0 % 33.3 % 66.7 %" in shown(capsys)


def test_a_figure_that_no_attempt_has_is_named_with_those_that_there_are(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(job, "--checkpoint", "none", "--figures", "judge/formt", *IN_PARTS) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the evaluation has no 'judge/formt'. Did you mean 'judge/format'? It has: success, reward" in said


def test_a_judge_that_compares_is_shown_the_attempts_of_both(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`Larger` judges nothing that is alone, so that no attempt has a reward; of task 5 it cannot tell."""
    settings = ("astune.evaluation.decoding=[greedy]", "astune.task_judge.judge_protocol=eval_agent.py:Larger")
    arguments = ("--checkpoint", "runs/p/job@4", "runs/p/job", "--judge-pairs", "--json", *settings)
    assert evaluate(job, *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    (wins,) = found["wins"]
    assert (wins["by"], wins["tasks"], wins["left_out"]) == ("judge", TASKS - 1, 1)
    assert wins["won"]["mean"] == 1.0 and wins["won"]["interval"][0] < 1.0 and wins["p"] < 0.01
    folders = [one["folder"] for one in found["evaluated"]]
    assert main(["eval", "--compare", *folders[::-1], "--judge-pairs"]) == 0
    assert "greedy judge won 0.0 %" in shown(capsys)


def test_a_judge_that_compares_nothing_is_refused_before_anything_is_played(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(job, "--checkpoint", "none", "runs/p/job", "--judge-pairs") == 2
    assert "judges each attempt by itself" in capsys.readouterr().err
    assert engine(job.parent).LOADED == []


def test_a_comparison_of_different_tasks_is_over_those_in_common(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(job, "--checkpoint", "none", "--limit", "5", "--out", "a") == 0
    assert evaluate(job, "--checkpoint", "runs/p/job", "--out", "b") == 0
    capsys.readouterr()
    assert main(["eval", "--compare", "a", "b", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["compared"][0]
    assert (row["tasks"], row["left_out"]) == (5, 7)


@pytest.mark.fault(
    "Runs and resuming",
    "an evaluation of a checkpoint is stopped by Ctrl-C or killed",
    "every episode that ended is kept; the same command plays the rest",
)
def test_an_evaluation_that_was_stopped_goes_on_where_it_was(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("astune.rollout.max_concurrent=1", "astune.evaluation.decoding=[greedy]")
    (job.parent / "stop-7").touch()
    module = engine(job.parent)
    assert evaluate(job, "--checkpoint", "runs/p/job@4", *settings) in (0, 1, 130)
    folder = job.parent / "runs" / "p" / "job-eval" / "job_step_000004"
    path = folder / "episodes" / "eval_greedy.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:40])  # as a kill leaves it
    (job.parent / "stop-7").unlink()
    module.PLAYED.clear()
    assert evaluate(job, "--checkpoint", "runs/p/job@4", *settings) == 0
    assert len(module.PLAYED) == TASKS - 5
    assert read_metrics(folder / "metrics.jsonl")[0]["eval/greedy/success"] == 4 / TASKS
    module.PLAYED.clear()
    assert evaluate(job, "--checkpoint", "runs/p/job@4", *settings) == 0
    assert module.PLAYED == [] and "33.3 %" in shown(capsys)


def test_other_options_or_other_weights_get_a_folder_of_their_own(job: Path) -> None:
    folder = job.parent / "runs" / "p" / "job-eval"
    for more in ((), ("--limit", "2"), ("astune.seed=7",), ()):
        assert evaluate(job, "--checkpoint", "runs/p/job", *more) == 0
    assert sorted(path.name for path in folder.iterdir()) == [f"job_step_000008{end}" for end in ("", "-2", "-3")]


def test_a_model_is_loaded_in_the_place_of_the_configured_one(job: Path) -> None:
    model = job.parent / "models" / "mine"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert evaluate(job, "--checkpoint", str(model)) == 0
    assert [str(model)] == engine(job.parent).LOADED
    assert (job.parent / "runs" / "p" / "job-eval" / "mine" / "evaluation.json").is_file()


def test_a_damaged_checkpoint_is_refused_by_the_name_of_its_file(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job.parent / "runs" / "p" / "job" / "checkpoints" / "step_000008" / "counts.json").unlink()
    assert evaluate(job, "--checkpoint", "runs/p/job") == 1
    assert "step_000008 is broken: counts.json is missing" in capsys.readouterr().err
    assert engine(job.parent).LOADED == []


def test_an_adapter_wants_the_settings_of_its_run(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job.parent / "runs" / "p" / "job" / "checkpoints" / "step_000008" / "adapter_config.json").write_text("{}")
    assert evaluate(job, "--checkpoint", "runs/p/job") == 2
    assert "holds an adapter, and astune.model.lora.rank is not set" in capsys.readouterr().err
    assert evaluate(job, "--checkpoint", "runs/p/job", "astune.model.lora.rank=4") == 0


def test_nothing_judged_is_exit_code_1(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = "astune.task_judge.judge_protocol=eval_agent.py:cannot_tell"
    assert evaluate(job, "--checkpoint", "none", "--limit", "2", broken) == 1
    assert "2 of them unjudged" in shown(capsys)


@each_row(
    ("arguments", "said"),
    [
        (["--conf", "x.yaml", "--checkpoint", "a", "--judge-pairs"], "name a second one at --checkpoint"),
        (["--compare", "a", "b", "--figures", "sucess"], "there is no figure 'sucess'. Did you mean 'success'?"),
        (["--conf", "x.yaml", "--checkpoint", "a", "--limit", "0"], "a number of tasks from 1 on, got 0"),
        (["--checkpoint", "a"], "name the configuration too"),
        (["--conf", "x.yaml", "--compare", "a", "b", "astune.seed=1"], "has no use for conf, astune.seed=1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["eval", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_is_no_evaluation_cannot_be_compared(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--compare", "runs/p/job", "runs/p/job"]) == 2
    assert "expected the folder of an evaluation, and this is the folder of a run" in capsys.readouterr().err


def test_to_the_engines_that_ship_a_checkpoint_is_a_model_whoever_wrote_it(job: Path) -> None:
    config, folder = load_config(job).config.astune, job.parent / "runs" / "p" / "job" / "checkpoints" / "step_000004"
    load_candidate(config, candidate_of(str(folder), config), engine(job.parent).load, as_model=True)
    assert [str(folder)] == engine(job.parent).LOADED


def test_an_engine_that_is_lost_ends_the_evaluation_with_the_cause(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "eval",
        "--conf",
        str(job),
        "--checkpoint",
        "none",
        "--engine",
        f"{job.parent}/eval_agent.py:load_lost",
    ]
    assert main(arguments) == 1
    assert "error: server 0 died" in capsys.readouterr().err


def test_a_backbone_that_plays_no_checkpoints_is_refused_by_name(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("trinity", "debug"):
        assert main(["eval", "--conf", str(job), "--checkpoint", "none", "--backbone", name]) == 2
        assert f"--backbone {name}: it plays no checkpoints; expected local or verl" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")
def test_a_file_for_verl_is_played_by_verl_or_not_at_all(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never by another engine, without the keys of its section."""
    assert main(["eval", "--conf", str(job), "--checkpoint", "none", "astune.backbone=verl"]) == 2
    assert "--backbone=verl cannot start" in capsys.readouterr().err
    wrong = ["--backbone", "verl", "verl.actor_rollout_ref.actor.strategy=megatron"]
    assert main(["eval", "--conf", str(job), "--checkpoint", "none", *wrong]) == 2
    assert "expected 'fsdp2'" in capsys.readouterr().err


def test_folders_that_were_played_need_no_engine(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--compare", "a", "b", "--backbone", "verl"]) == 2
    assert "it plays nothing, and has no use for backbone" in capsys.readouterr().err


def test_a_chat_api_plays_in_the_place_of_the_policy_and_its_calls_are_kept(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It knows the tasks below 6, and gets what the run draws with."""
    with ScriptedChatServer(lambda body: "6", usage=True) as server:
        priced = {"base_url": server.base_url, "model": "m", "prompt_price": 1e6, "completion_price": 0}
        named = f"astune.rollout.auxiliary_models={{six: {json.dumps(priced)}}}"
        assert evaluate(job, "--checkpoint", "six", f"{server.base_url}#other", "--json", named) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["evaluated"]] == ["six", f"{server.base_url}#other"]
    assert found["evaluated"][0]["figures"]["greedy"]["success"] == 6 / TASKS
    assert {body["model"] for body in server.requests} == {"m", "other"}
    assert {(body["temperature"], body["max_tokens"]) for body in server.requests} == {(1.0, 4), (0.0, 4)}
    calls, unpriced = (read_calls(Path(one["folder"])) for one in found["evaluated"])
    assert len(calls) == 2 * TASKS and {each.error for each, _ in calls.values()} == {None}
    assert {(each.prompt_tokens, each.completion_tokens, each.cost) for each, _ in calls.values()} == {(2, 1, 2.0)}
    assert {each.cost for each, _ in unpriced.values()} == {None}
    assert engine(job.parent).LOADED == []
