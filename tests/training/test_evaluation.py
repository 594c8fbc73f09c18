"""Held-out tasks: several sets, several attempts, when each is played. On an engine without a model."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from astune.config.load import load_config
from astune.errors import ConfigError, RunFolderError, TaskError
from astune.monitor import read_episodes, read_metrics
from astune.monitor.checkpoint_names import find_checkpoint
from astune.viewer import write_report, write_view
from tests.training.conftest import RunJob


def more_sets(conf: Path, attempts: int = 1, **sets: dict[str, Any]) -> Path:
    """The job with sets of held-out tasks by name, from files that this writes."""
    job = json.loads(conf.read_text())
    hard = [{"query": f"{n} - 1?", "answer": "4", "level": n} for n in range(3)]
    (conf.parent / "hard.jsonl").write_text("\n".join(map(json.dumps, hard)))
    job["astune"]["evaluation"] |= {"attempts": attempts, "sets": sets}
    conf.write_text(json.dumps(job))
    return conf


def logged(run: Path, figure: str) -> list[int]:
    return [row["step"] for row in read_metrics(run / "metrics.jsonl") if figure in row]


def test_a_set_with_a_name_has_figures_and_episodes_of_its_own(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    more_sets(
        conf, 4, hard={"file_path": "hard.jsonl", "every": 1}, odd={"file_path": "hard.jsonl", "filter": "level==1"}
    )
    report = run_job(conf)
    rows = read_metrics(report.run_dir / "metrics.jsonl")
    assert logged(report.run_dir, "eval/hard/greedy/reward") == [1, 2, 3]
    assert logged(report.run_dir, "eval/odd/greedy/reward") == logged(report.run_dir, "eval/greedy/reward") == [3]
    last = {key: value for row in rows for key, value in row.items() if row["step"] == 3}
    assert (last["eval/hard/sampled/tasks"], last["eval/hard/sampled/attempts"]) == (3.0, 12.0)
    assert (last["eval/hard/greedy/attempts"], last["eval/odd/sampled/attempts"]) == (3.0, 4.0)
    assert last["eval/sampled/attempts"] == 4.0
    assert last["eval/hard/sampled/reward"] == 0.5  # attempts 0 and 2 of each four get 1
    episodes = list(read_episodes(report.run_dir / "episodes" / "eval_hard_sampled.jsonl"))
    assert len(episodes) == 36 and {record.phase for record in episodes} == {"eval/hard/sampled"}
    assert len({record.episode.episode_id for record in episodes}) == 36
    assert set(report.summary["held_out"]) == {
        f"{name}{decoding}" for name in ("", "hard/", "odd/") for decoding in ("sampled", "greedy")
    }
    assert report.summary["held_out"]["hard/sampled"]["last"]["tasks"] == 3.0
    told = " ".join(capsys.readouterr().out.split())
    assert "held-out at step 3 hard/sampled reward 0.500 of 3 tasks, 12 attempts" in told


def test_a_run_that_is_resumed_plays_only_the_sets_that_are_left(conf: Path, run_job: RunJob) -> None:
    more_sets(conf, hard={"file_path": "hard.jsonl"})
    run = run_job(conf).run_dir
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert "eval/hard/greedy" in lines[-1]
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    run_job(conf, resume=True)
    assert logged(run, "eval/hard/greedy/reward") == logged(run, "eval/hard/sampled/reward") == [3]
    assert len(list(read_episodes(run / "episodes" / "eval_hard_greedy.jsonl"))) == 3


def test_one_attempt_and_no_more_sets_give_the_figures_of_before(conf: Path, run_job: RunJob) -> None:
    row = read_metrics(run_job(conf).run_dir / "metrics.jsonl")[-1]
    assert (row["eval/greedy/reward"], row["eval/greedy/unjudged"]) == (1.0, 0.0)
    first = next(iter(read_episodes(conf.parent / "runs" / "test" / "job" / "episodes" / "eval_sampled.jsonl")))
    assert first.episode.episode_id.startswith("eval/sampled/3/")


def test_a_set_that_is_trained_on_is_refused(conf: Path, run_job: RunJob) -> None:
    more_sets(conf, known={"file_path": "train.jsonl"})
    with pytest.raises(TaskError, match=r"4 of 4 held-out tasks are trained on too"):
        run_job(conf)


@pytest.mark.parametrize(
    ("sets", "attempts", "said"),
    [
        ({"greedy": {"file_path": "hard.jsonl"}}, 1, "a set cannot be called as a way of decoding"),
        ({"hard": {"file_pat": "hard.jsonl"}}, 1, r"sets.hard.file_pat: unknown key. Did you mean '.*file_path'"),
        ({"hard": {"split": "test"}}, 1, "whose tasks have no named splits; expected file_path"),
        ({"hard": {"file_path": "hard.jsonl", "split": "test"}}, 1, "take one of the two out"),
        (
            {"a/b": {"file_path": "hard.jsonl"}},
            1,
            "expected names of letters, digits, - and _, 64 at most, and 'a/b' is none",
        ),
        ({}, 0, "attempts: expected greater than 0"),
    ],
)
def test_a_set_that_makes_no_sense_is_refused(conf: Path, sets: dict[str, Any], attempts: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(more_sets(conf, attempts, **sets))


def test_several_greedy_attempts_are_refused(conf: Path) -> None:
    with pytest.raises(ConfigError, match="attempts at a task are equal under greedy decoding"):
        load_config(more_sets(conf, 4), ["astune.evaluation.decoding=[greedy]"])


def keeps_best(conf: Path, *settings: str) -> list[str]:
    """Settings of a run that keeps one checkpoint and the best."""
    agents = conf.parent / "agents.py"
    return [
        f"astune.rollout.agentscope_learn_protocol={agents}:by_step",
        "astune.trainer.keep_best=eval/greedy/reward",
        "astune.evaluation.every=1",
        "astune.trainer.keep_checkpoints=1",
        "astune.trainer.total_steps=6",
        *settings,
    ]


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_best_checkpoint_outlives_newer_ones_and_is_named(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """`by_step` is best after step 2, and as good again after step 4."""
    report = run_job(conf, *keeps_best(conf))
    assert kept(report.run_dir) == ["step_000002", "step_000006"]
    best = report.summary["best_checkpoint"]
    assert (best["step"], best["value"], best["figure"]) == (2, 0.9, "eval/greedy/reward")
    assert find_checkpoint(f"{report.run_dir}@best") == report.run_dir / "checkpoints" / "step_000002"
    assert find_checkpoint(str(report.run_dir)) == report.run_dir / "checkpoints" / "step_000006"
    assert find_checkpoint(f"{report.run_dir}@2") == find_checkpoint(best["path"]) == Path(best["path"])
    assert find_checkpoint("Qwen/Qwen3-0.6B") is None and find_checkpoint(str(conf.parent)) is None
    told = " ".join(capsys.readouterr().out.split())
    assert "best step 2, by eval/greedy/reward 0.900: " in told
    assert "step 2, by eval/greedy/reward 0.900: checkpoints/step_000002" in write_report(report.run_dir).read_text()


def test_a_stage_may_keep_the_best_alone(conf: Path, run_job: RunJob) -> None:
    """What was as good in the stage before is gone: it kept nothing but its last."""
    stages = "[{trainer: {total_steps: 3}}, {trainer: {total_steps: 3, keep_best: eval/greedy/reward}}]"
    settings = keeps_best(conf, f"astune.stages={stages}", "astune.trainer.keep_best=null")
    report = run_job(conf, *settings)
    assert kept(report.run_dir) == ["step_000003", "step_000004", "step_000006"]
    assert report.summary["best_checkpoint"]["step"] == 4
    assert find_checkpoint(f"{report.run_dir}@best") == report.run_dir / "checkpoints" / "step_000004"
    assert "step 4, by eval/greedy/reward 0.900: checkpoints/step_000004" in write_report(report.run_dir).read_text()
    (report.run_dir / "checkpoints" / "step_000003" / "counts.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"stage 2 began with .*step_000003, which is broken: counts.json is not"):
        run_job(conf, *settings, resume=True)


def test_a_best_step_is_saved_though_no_checkpoint_was_due(conf: Path, run_job: RunJob) -> None:
    run = run_job(conf, *keeps_best(conf, "astune.trainer.save_every=0")).run_dir
    assert kept(run) == ["step_000002", "step_000006"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["astune.trainer.keep_best=eval/greedy/rewrd"], "no evaluation gives 'eval/greedy/rewrd'. Did you mean"),
        (["astune.trainer.keep_best=eval/sampled/pass_at_4"], "There are: eval/sampled/success"),
        (["astune.trainer.keep_best=lowest eval/greedy/judge/"], "no evaluation gives 'eval/greedy/judge/'"),
        (["astune.trainer.keep_best=eval/hard/greedy/judge/format"], "There are: .*eval/greedy/judge/..., "),
        (["astune.trainer.keep_best=eval/greedy/judg/format"], "There are: .*eval/greedy/judge/..., "),
        (["astune.trainer.keep_best=eval/greedy/judge/format", "astune.evaluation.every=0"], "would always be the"),
        (
            ["astune.evaluation.every=0"],
            "astune.evaluation.every is 0, so the last checkpoint would always",
        ),
        (["astune.evaluation.every=6"], "not known between the first and the last step"),
        (["astune.task_reader.jsonl.validation.file_path=null"], "There are no held-out tasks"),
    ],
)
def test_a_best_that_could_not_be_found_is_refused(conf: Path, settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(conf, keeps_best(conf, *settings))


def test_a_judge_that_knows_no_success_is_told_of(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run_job(conf, *keeps_best(conf, "astune.trainer.keep_best=eval/greedy/success"))
    assert "has no eval/greedy/success" in " ".join(capsys.readouterr().out.split())
    assert kept(report.run_dir) == ["step_000006"] and "best_checkpoint" not in report.summary


def judged_in_parts(conf: Path, keep_best: str, *settings: str) -> list[str]:
    agents = conf.parent / "agents.py"
    more = (
        f"astune.rollout.agentscope_learn_protocol={agents}:by_step_with_metrics",
        f"astune.task_judge.judge_protocol={agents}:in_parts",
        f"astune.trainer.keep_best={keep_best}",
    )
    return [*keeps_best(conf), *more, *settings]


@pytest.mark.parametrize(
    ("keep_best", "step", "said"),
    [
        ("eval/greedy/reward", 2, "by eval/greedy/reward 0.900"),
        ("eval/greedy/judge/format", 5, "by eval/greedy/judge/format 1.000"),
        ("lowest eval/greedy/judge/length", 3, "by the lowest eval/greedy/judge/length 1.000"),
        ("eval/greedy/workflow/told", 2, "by eval/greedy/workflow/told 0.900"),
        ("eval/greedy/turns", 1, "by the lowest eval/greedy/turns 1.000"),
        ("highest eval/greedy/tokens/sampled", 1, "by eval/greedy/tokens/sampled 2.000"),
    ],
)
def test_any_figure_may_say_which_checkpoint_is_the_best(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str], keep_best: str, step: int, said: str
) -> None:
    """Of the same run another checkpoint is the best by another figure."""
    report = run_job(conf, *judged_in_parts(conf, keep_best))
    assert report.summary["best_checkpoint"]["step"] == step
    assert kept(report.run_dir) == [f"step_00000{step}", "step_000006"]
    assert find_checkpoint(f"{report.run_dir}@best") == report.run_dir / "checkpoints" / f"step_00000{step}"
    assert f"best step {step}, {said}: " in " ".join(capsys.readouterr().out.split())
    assert said in write_report(report.run_dir).read_text()


@pytest.mark.parametrize("before", ["true", "false"])
def test_a_figure_that_the_judge_does_not_give_stops_the_run_at_its_first_evaluation(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str], before: str
) -> None:
    settings = judged_in_parts(conf, "eval/greedy/judge/formt", f"astune.evaluation.before={before}")
    report = run_job(conf, *settings)
    assert (report.status, report.steps) == ("failed", 0 if before == "true" else 1)
    told = " ".join(capsys.readouterr().out.split())
    assert "stopped: astune.trainer.keep_best: the evaluation at step" in told
    assert "has no eval/greedy/judge/formt. Did you mean 'eval/greedy/judge/format'? It has: eval/greedy/reward" in told


def test_an_evaluation_of_which_nothing_was_judged_stops_no_run(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    (conf.parent / "held.jsonl").write_text('{"query": "8 - 4?", "answer": "4", "broken": true}')
    report = run_job(conf, *judged_in_parts(conf, "eval/greedy/judge/format"))
    assert (report.status, report.steps) == ("completed", 6) and "best_checkpoint" not in report.summary
    assert "has no eval/greedy/judge/format. It has: nothing, as no attempt was judged" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_run_logs_the_figures_of_its_evaluations_and_the_pages_show_them(conf: Path, run_job: RunJob) -> None:
    more_sets(conf, 2, hard={"file_path": "hard.jsonl", "every": 1})
    run = run_job(conf, *judged_in_parts(conf, "eval/greedy/reward")).run_dir
    last = {key: value for row in read_metrics(run / "metrics.jsonl") for key, value in row.items()}
    assert (last["eval/hard/greedy/judge/length"], last["eval/hard/greedy/judge/length_tasks"]) == (4.0, 3.0)
    assert last["eval/sampled/workflow/told"] == 0.6 and last["eval/sampled/turns_tasks"] == 1.0
    for page in (write_report(run), write_view(run, run / "view.html")):
        shown = json.dumps(head_of_view(page.read_text())["held_out"])
        for told in ("hard/sampled", "judge/length", "workflow/told", "tokens/sampled"):
            assert told in shown, (page, told)


def head_of_view(text: str) -> Any:
    (packed,) = re.findall(r'<script type="text/plain" id="head">([^<]+)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("@best", "keep_best of the run is not set"),
        ("@17", "there is no complete checkpoint .*step_000017; checkpoints of steps: 1, 2, 3"),
        ("@last", "expected @best or the number of a step"),
    ],
)
def test_a_checkpoint_that_a_run_does_not_have_is_an_error(conf: Path, run_job: RunJob, which: str, said: str) -> None:
    run = run_job(conf).run_dir
    with pytest.raises(ConfigError, match=said):
        find_checkpoint(f"{run}{which}")
