"""The simulator of schedules against what can be computed by hand."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cluster_model
import pytest
from cluster.clock import Clock, Process
from cluster.engine import Engine, Speed
from cluster.recorded import read_run, rollout_seconds, train_seconds_per_token, with_fitted_calls
from cluster.rollout import Explorer
from cluster.schedule import Schedule, Simulation, Trainer, limit, simulate
from cluster.workload import Attempt, Batch, Call, LogNormal, Shape, drawn, resampled
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rows import each_row

ROOT = Path(__file__).parents[2]
SYNC = 3.0
SECOND_PER_TOKEN = Speed(step=1.0, per_call_running=0.0)
ONE_ENGINE = Explorer(engines=1, runners_per_engine=4, attempts_per_runner=1, speed=SECOND_PER_TOKEN)
SYNCHRONOUS = Schedule("fixed")
ONE_STEP_OFF = Schedule("fixed", offset=1)
ASYNCHRONOUS = Schedule("fully_async")
DYNAMIC = Schedule("explorer_driven")
ALL = [SYNCHRONOUS, ONE_STEP_OFF, DYNAMIC, replace(DYNAMIC, interval=3), ASYNCHRONOUS, replace(ASYNCHRONOUS, buffer=2)]


def batch(*output_tokens: int) -> Batch:
    """Tasks of one attempt of one call; without a prompt, so that a training row is the answer."""
    return tuple((Attempt((Call(0, tokens),)),) for tokens in output_tokens)


def step_seconds(schedule: Schedule, *, rollout: int, train: float, sync: float = SYNC) -> float:
    """With batches that all take so long."""
    trainer = Trainer(gpus=1, gpu_seconds_per_token=0.0, fixed_seconds=train)
    return simulate(ONE_ENGINE, trainer, schedule, sync, [batch(rollout)] * 18, margin=6).step_seconds


SHAPE = Shape(
    turns=LogNormal(2.0, 0.8),
    output_tokens=LogNormal(20.0, 0.8),
    prompt_tokens=30,
    tool_tokens=10,
    tool_seconds=LogNormal(0.5, 1.0),
    judge_seconds=0.1,
    max_turns=8,
    max_tokens=200,
)


def test_a_synchronous_step_is_rollout_and_training_and_synchronisation() -> None:
    assert step_seconds(SYNCHRONOUS, rollout=10, train=7) == pytest.approx(10 + 7 + SYNC)


@pytest.mark.parametrize(("rollout", "train"), [(10, 7), (7, 10), (8, 8)])
def test_one_step_off_takes_the_longer_of_rollout_and_training_and_synchronisation(rollout: int, train: int) -> None:
    assert step_seconds(ONE_STEP_OFF, rollout=rollout, train=train) == pytest.approx(max(rollout, train) + SYNC)


def test_asynchronous_batches_fill_the_engines_up_to_the_limit() -> None:
    """Engines whose steps grow with the calls running give the same tokens however many run: nothing is lost to
    waiting, so the step takes the limit."""
    explorer = replace(ONE_ENGINE, speed=Speed(step=0.0, per_call_running=1.0))
    trainer = Trainer(1, 0.0, 5.0)
    batches = [batch(3, 4, 30)] * 24
    outcome = simulate(explorer, trainer, ASYNCHRONOUS, 0.0, batches, margin=6)
    assert limit(explorer, trainer, batches) == pytest.approx(37)
    assert outcome.step_seconds == pytest.approx(37)
    assert outcome.explorer_work == pytest.approx(1)
    assert simulate(explorer, trainer, SYNCHRONOUS, 0.0, batches, margin=6).step_seconds == pytest.approx(37 + 5)


def test_dynamic_synchronisation_explores_an_interval_of_batches_at_a_time() -> None:
    """Three batches of 10 s beside each other. Weights travel as soon as the first of them is trained; the other two
    are trained beside the next three."""
    three = replace(DYNAMIC, interval=3, buffer=3)
    assert step_seconds(three, rollout=10, train=0.5) == pytest.approx((10 + 0.5 + SYNC) / 3)


def test_the_limit_is_full_engines_or_a_trainer_that_never_waits() -> None:
    """Two attempts of 100 prompt and 8 answer tokens: the prompt is read once, decoding is with four running."""
    explorer = replace(ONE_ENGINE, engines=2, speed=Speed(2.0, 0.5, per_prompt_token=0.1, per_call=3.0))
    batches: list[Batch] = [((Attempt((Call(100, 8),)),) * 2,)]
    assert limit(explorer, Trainer(1, 0.0), batches) == pytest.approx((2 * 3 + 100 * 0.1 + 16 * (2 + 4 * 0.5) / 4) / 2)
    assert limit(explorer, Trainer(4, 1.0, 7.0), batches) == pytest.approx(7 + 216 / 4)


def test_fewer_runners_than_tasks_make_them_wait_in_line() -> None:
    assert rollout_seconds(replace(ONE_ENGINE, runners_per_engine=1), batch(10, 10, 10)) == pytest.approx(30)
    assert rollout_seconds(replace(ONE_ENGINE, runners_per_engine=2), batch(10, 10, 10)) == pytest.approx(20)
    assert rollout_seconds(replace(ONE_ENGINE, runners_per_engine=1, engines=3), batch(10, 10, 10)) == pytest.approx(10)


def test_the_prompt_of_a_task_is_read_once_by_the_engine_and_trained_in_every_row() -> None:
    attempts = (Attempt((Call(100, 1),)),) * 3
    explorer = replace(ONE_ENGINE, speed=Speed(1.0, 0.0, per_prompt_token=0.1))
    assert rollout_seconds(explorer, (attempts,)) == pytest.approx(100 * 0.1 + 1)
    trainer = Trainer(gpus=2, gpu_seconds_per_token=1.0)
    simulation = Simulation(explorer, trainer, SYNCHRONOUS, 0.0, [(attempts,)])
    simulation.run()
    assert simulation.snapshots[-1].trained == pytest.approx(3 * 101 / 2)


def test_calls_of_an_engine_share_its_rate() -> None:
    """Alone 2 + 1 seconds a token, two together 2 + 2. The second comes after one token of the first."""
    clock = Clock()
    engine = Engine(clock, Speed(step=2.0, per_call_running=1.0), most=2)
    ends: dict[str, float] = {}

    def call(name: str, start: float, tokens: int) -> Process:
        yield clock.sleep(start)
        yield engine.call(0, tokens)
        ends[name] = clock.now

    clock.start(call("first", 0.0, 3))
    clock.start(call("second", 3.0, 3))
    clock.run()
    assert ends == {"first": pytest.approx(3 + 2 * 4), "second": pytest.approx(3 + 2 * 4 + 3)}
    assert (engine.decoded, engine.busy) == (pytest.approx(6), pytest.approx(14))


def test_reading_prompts_and_pauses_hold_up_every_call_of_the_engine() -> None:
    clock = Clock()
    engine = Engine(clock, Speed(1.0, 0.0, per_prompt_token=0.5, per_call=0.25), most=4)
    ends: list[float] = []

    def go() -> Process:
        first, second = engine.call(4, 2), engine.call(0, 1)
        engine.pause(10.0)
        yield second
        ends.append(clock.now)
        yield first
        ends.append(clock.now)

    clock.start(go())
    clock.run()
    assert ends == [pytest.approx(10 + 2.0 + 0.5 + 1), pytest.approx(10 + 2.0 + 0.5 + 2)]


def test_age_counts_the_updates_between_sampling_and_training() -> None:
    def ages(schedule: Schedule) -> tuple[float, int]:
        outcome = simulate(ONE_ENGINE, Trainer(1, 0.0, 7.0), schedule, SYNC, [batch(10)] * 18, margin=6)
        return outcome.age_mean, outcome.age_max

    assert ages(SYNCHRONOUS) == (0, 0)
    assert ages(ONE_STEP_OFF) == (1, 1)
    assert ages(Schedule("fixed", offset=2)) == (2, 2)
    assert ages(Schedule("fixed", interval=3)) == (1, 2)  # 0, 1 and 2 updates after the weights were taken
    assert ages(Schedule("fixed", interval=2, offset=1)) == (1.5, 2)  # batches 4 and 5 have the weights of step 2
    assert ages(DYNAMIC) == (0, 0)


def test_over_rollout_stops_waiting_for_the_last_tasks() -> None:
    trainer = Trainer(1, 0.0, 0.0)
    batches = [batch(10, 10, 10, 1000)] * 4
    hurried = replace(ONE_ENGINE, over_rollout=0.25, grace=5.0)
    outcome = simulate(hurried, trainer, DYNAMIC, 0.0, batches)
    assert outcome.step_seconds == pytest.approx(15)
    assert outcome.episodes_per_hour == pytest.approx(3600 * 3 / 15)
    patient = replace(hurried, grace=2000.0)
    assert simulate(patient, trainer, DYNAMIC, 0.0, batches).step_seconds == pytest.approx(1000)


def random_case(seed: int) -> tuple[Explorer, Trainer, list[Batch]]:
    chance = random.Random(seed)
    repeat = chance.randint(1, 4)
    explorer = Explorer(
        engines=chance.randint(1, 4),
        runners_per_engine=chance.randint(1, 6),
        attempts_per_runner=chance.choice([1, repeat]),
        speed=Speed(chance.uniform(0.001, 0.1), chance.uniform(0, 0.02), chance.uniform(0, 0.01), chance.uniform(0, 1)),
    )
    trainer = Trainer(chance.randint(1, 4), chance.uniform(0, 0.05), chance.uniform(0, 5))
    return explorer, trainer, drawn(SHAPE, 8, chance.randint(1, 8), repeat, seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ALL), st.floats(0, 5))
def test_every_episode_is_trained_once_within_what_is_possible(seed: int, schedule: Schedule, sync: float) -> None:
    explorer, trainer, batches = random_case(seed)
    simulation = Simulation(explorer, trainer, schedule, sync, batches)
    simulation.run()
    attempts = [attempt for batch in batches for task in batch for attempt in task]
    last = simulation.snapshots[-1]
    assert len(simulation.ages) == len(batches)
    assert last.episodes == len(attempts)
    assert last.decoded == pytest.approx(sum(attempt.output_tokens for attempt in attempts))
    for step, explored in zip(simulation.ages, batches, strict=True):
        assert sum(step.values()) == sum(attempt.output_tokens for task in explored for attempt in task)
        assert min(step) >= 0
    outcome = simulate(explorer, trainer, schedule, sync, batches)
    for share in (outcome.explorer_busy, outcome.explorer_work, outcome.trainer):
        assert 0 <= share <= 1 + 1e-9
    assert outcome.explorer_work <= outcome.explorer_busy + 1e-9
    assert outcome.step_seconds >= limit(explorer, trainer, batches) - 1e-9


SMALL = ["--gpus=8", "--explorer-gpus=4", "--tasks=4", "--repeat=2", "--steps=4", "--turns=2", "--output-tokens=20"]


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cluster_model.main([*SMALL, *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_depends_on_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    first = table(capsys, "--seed=3")
    assert first == table(capsys, "--seed=3") != table(capsys, "--seed=4")
    assert [line.split("  ")[0] for line in first.splitlines()[3:]] == [
        "synchronous",
        "one step off",
        "dynamic, every 4",
        "asynchronous, 2 in flight",
    ]


@each_row(
    ("arguments", "message"),
    [
        (["--explorer-gpus=8"], "expected 1 to 7 of --gpus 8, as at least one has to train"),
        (["--explorer-gpus=3", "--gpus-per-engine=2"], "not a multiple of --gpus-per-engine 2"),
        (["--tasks=0"], "--tasks 0: expected at least 1"),
        (["--steps=5"], "--steps 5: expected a multiple of --interval 4"),
        (["--engine-points", "8:100", "8:200"], "two different numbers of running calls"),
        (["--engine-points", "8:100", "16:800"], "rise slower than the calls running"),
        (["--against=x"], "as --run FOLDER"),
        (["--run=nowhere"], "there is no such file"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster_model.main([*SMALL, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of three steps, the first slow; two tasks with two attempts of two calls each."""
    return record(tmp_path / "run", rollout=[9.0, 4.0, 4.0], train=[5.0, 1.2, 1.2])


def record(folder: Path, rollout: Sequence[float], train: Sequence[float]) -> Path:
    from astune.monitor import EpisodeLog, RunDir
    from astune.types import Episode, Span, StopReason, Task, Timeline, Turn

    first = Turn("agent", (1, 2, 3), (4, 5), (-1.0, -1.0), 0, "stop")
    second = Turn("agent", (1, 2, 3, 4, 5, 6, 7), (8,), (-1.0,), 0, "stop", call=1)
    spans = (Span(0, 3, 5, 0, 1.0, True, (-1.0, -1.0)), Span(1, 7, 8, 0, 1.0, True, (-1.0,)))
    lines = (Timeline("agent", (1, 2, 3, 4, 5, 6, 7, 8), spans),)
    run = RunDir(folder)
    run.episodes_dir.mkdir(parents=True)
    run.config_path.write_text("astune: {rollout: {max_concurrent: 4}}\n", encoding="utf-8")
    with EpisodeLog(run) as log:
        for step in range(1, len(rollout) + 1):
            for name in ("a", "b"):
                for attempt in range(2):
                    episode = Episode(
                        f"{step}/{name}/{attempt}", Task(name, name), (first, second), lines, StopReason.COMPLETED
                    )
                    log.write(episode, step=step, phase="train")
    rows: list[dict[str, Any]] = [
        {"step": number, "time": 0.0, "time/rollout": seconds[0], "time/train": seconds[1]}
        for number, seconds in enumerate(zip(rollout, train, strict=True), start=1)
    ]
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_a_recorded_run_gives_its_lengths_and_its_seconds(recorded: Path) -> None:
    steps = read_run(recorded)
    assert [step.step for step in steps] == [2, 3]  # the first warms up
    attempt = Attempt((Call(3, 2), Call(2, 1)))
    assert steps[0].batch == ((attempt, attempt), (attempt, attempt))
    assert (steps[0].rollout_seconds, steps[0].train_seconds, steps[0].tokens) == (4.0, 1.2, 32)
    assert train_seconds_per_token(steps) == pytest.approx(1.2 / 32)


def test_fitted_seconds_per_call_explain_the_recorded_rollout(recorded: Path) -> None:
    """Four episodes at a time, three decode steps of 0.1 s, and eight calls: 4.0 = 3 x 0.1 + 8 x per_call."""
    steps = read_run(recorded)
    explorer = with_fitted_calls(Explorer(1, 4, 1, Speed(0.1, 0.0)), steps)
    assert explorer.speed.per_call == pytest.approx((4.0 - 0.3) / 8)
    assert rollout_seconds(explorer, steps[0].batch) == pytest.approx(4.0)


def test_the_times_of_a_run_are_laid_beside_those_of_another(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = record(tmp_path / "other", rollout=[8.0, 8.0], train=[1.2, 1.2])
    assert cluster_model.main(["--run", str(recorded), "--against", str(other), "--step-ms=100"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["run", "4", "2", "4.00", "4.00", "1.20", "1.20", "5.20", "5.20", "1.00"]
    assert rows[1] == ["other", "4", "1", "4.00", "8.00", "1.20", "1.20", "5.20", "9.20", "0.57"]


def test_a_recorded_run_is_what_the_schedules_are_compared_with(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "2 x 2 episodes" not in table(capsys, "--run", str(recorded))
    tasks = [task for step in read_run(recorded) for task in step.batch]
    batches = resampled(tasks, 2, 3, 4, LogNormal(0.5, 0.0), seed=0)
    assert [len(task) for task in batches[0]] == [4, 4, 4]
    calls = {attempt.calls for batch in batches for task in batch for attempt in task}
    assert calls == {(Call(3, 2, 0.5), Call(2, 1, 0.0))}


def simulations() -> dict[str, str]:
    """The commands of docs/scaling.md that need no recorded run, and what the page shows for them."""
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    shown = r"^python benchmarks/cluster_model\.py (.*)\n```\n\n```text\n((?:.+\n)+)```"
    return {command: output for command, output in re.findall(shown, page, re.M) if "--run" not in command}


def test_the_first_table_of_the_page_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = next(iter(simulations().items()))
    assert cluster_model.main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown


def rows(table: str) -> dict[str, list[str]]:
    """The cells of each line by its first cell, without the marks of what is best."""
    cells = [re.split(" {2,}", line.replace("*", " ").strip()) for line in table.splitlines()]
    return {first: others for first, *others in cells}


@pytest.mark.parametrize(
    ("table", "function", "only"), [(1, "splits", [4]), (2, "schedules", {})], ids=["one split", "for fewer tasks"]
)
def test_lines_of_the_longer_tables_are_what_their_commands_print(
    table: int, function: str, only: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line of each: the whole tables take a minute, and the schedules in them are those of the first."""
    assert len(simulations()) == 3
    command, shown = list(simulations().items())[table]
    monkeypatch.setattr(cluster_model, function, lambda options: only)
    assert cluster_model.main(shlex.split(command)) == 0
    printed = rows(capsys.readouterr().out)
    assert len(printed) >= 3
    assert printed.items() <= rows(shown).items()
