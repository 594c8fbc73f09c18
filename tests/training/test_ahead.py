"""Rollouts that go on while the model is trained, on an engine without a model."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.monitor.episodes import read_episodes
from astune.monitor.receipt import receipt_lines
from astune.rollout.episode import play_episode
from astune.rollout.setup import Attempt
from astune.support.concurrency import finish
from astune.support.current_episode import EPISODE
from astune.testing import CountingLearner, ScriptedPolicy, script_engine
from astune.training.ahead import Gate, Places
from astune.training.engine import Engine
from astune.training.rollout_setup import rollout_setup
from astune.training.start import run_training
from astune.types import Episode, Generation, RunReport, Sample, Sampling, StopReason, Update
from tests.training.test_loop import NO_EVALUATION, rows_of, steps_of, timeless

RunJob = Callable[..., RunReport]
WriteJob = Callable[..., Path]
AT_ODDS = ("policy_age/mean", "policy_age/max", "episodes/spanning_versions")


def ahead(most: int) -> tuple[str, ...]:
    """A run whose rollouts are up to so many steps ahead."""
    return ("astune.synchronizer.style=async", f"astune.synchronizer.max_staleness={most}")


class WatchedEngine:
    """`script_engine` that takes its time, in passes of the event loop, and keeps a record."""

    def __init__(self, seed: int, skipped: frozenset[int] = frozenset()) -> None:
        self.draw = random.Random(seed)
        self.skipped = skipped
        self.answering = self.answered = 0
        self.beside = 0
        """Answers that began and ended within an update."""
        self.learned: list[tuple[str, int]] = []
        """Names of episodes, as they were trained, and how many versions their oldest token was behind."""

    async def takes_its_time(self) -> None:
        for _ in range(self.draw.choice([0, 3, 100])):
            await asyncio.sleep(0)

    def load(self, config: AstuneConfig) -> Engine:
        watched = self
        engine = script_engine(lambda prompt: "4")(config)

        class Policy(ScriptedPolicy):
            async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
                watched.answering += 1
                version = self.policy_version
                await watched.takes_its_time()
                answer = await super().generate(prompt_ids, sampling)
                assert version == answer.policy_version, "the weights changed within an answer"
                watched.answering -= 1
                watched.answered += 1
                return answer

        class Learner(CountingLearner):
            async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
                before = watched.answered
                oldest: dict[str, int] = {}
                for sample in samples:
                    versions = [span.policy_version for span in sample.timeline.spans]
                    oldest[sample.episode_id] = min(*versions, oldest.get(sample.episode_id, versions[0]))
                watched.learned += [(name, self.policy_version - version) for name, version in oldest.items()]
                await watched.takes_its_time()
                watched.beside += watched.answered - before
                return await super().update(samples, learning_rate)

            async def publish(self) -> int:
                assert not watched.answering, "an answer was under way"
                return await super().publish()

        policy = Policy(lambda prompt: "4", engine.chat_format)
        return Engine(policy, Learner(policy, self.skipped), engine.chat_format, beside=True)


def run_watched(conf: Path, *overrides: str, seed: int = 0, skipped: frozenset[int] = frozenset()) -> WatchedEngine:
    watched = WatchedEngine(seed, skipped)
    watched.report = run_training(load_config(conf, overrides), watched.load)  # type: ignore[attr-defined]
    return watched


def episodes(report: RunReport) -> list[Any]:
    return [(record.step, record.episode) for record in read_episodes(report.run_dir / "episodes" / "train.jsonl")]


def comparable(report: RunReport) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in AT_ODDS} for row in timeless(report)]


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    most=st.integers(0, 3),
    places=st.sampled_from([1, 4, 64]),
    seed=st.integers(0, 2**32),
    skipped=st.frozensets(st.integers(0, 5), max_size=2),
    refill=st.integers(0, 1),
    evaluated=st.booleans(),
)
def test_whatever_takes_how_long_every_step_learns_its_own_episodes_once_and_none_is_older_than_it_may_be(
    write_job: WriteJob, most: int, places: int, seed: int, skipped: frozenset[int], refill: int, evaluated: bool
) -> None:
    conf = write_job(tasks=5)
    job = [
        f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:uneven",
        f"astune.algorithm.dynamic_sampling={refill}",
        f"astune.rollout.max_concurrent={places}",
        f"astune.evaluation.every={int(evaluated)}",
        "astune.trainer.total_steps=5",
        "astune.trainer.save_every=0",
        "astune.trainer.learning_rate=1.0",
        "astune.monitor.check_invariants=true",
    ]
    watched = run_watched(conf, *job, *ahead(most), seed=seed, skipped=skipped)
    straight = run_watched(conf, *job, seed=seed + 1, skipped=skipped)

    assert all(0 <= age <= most for _, age in watched.learned)
    assert max(Counter(name for name, _ in watched.learned).values()) == 1
    assert [name for name, _ in watched.learned] == [name for name, _ in straight.learned]
    report, other = watched.report, straight.report  # type: ignore[attr-defined]
    assert all(row["policy_age/max"] <= most for row in steps_of(report) if "policy_age/max" in row)
    assert comparable(report) == comparable(other)  # the answers of this policy do not depend on its weights
    played = [[(step, episode.episode_id) for step, episode in episodes(each)] for each in (report, other)]
    assert sorted(played[0]) == sorted(played[1])


def test_answers_go_on_while_the_model_learns(write_job: WriteJob) -> None:
    conf = write_job(tasks=5)
    uneven = f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:uneven"
    job = (uneven, "astune.trainer.total_steps=6", *NO_EVALUATION)
    assert run_watched(conf, *job, *ahead(2)).beside > 0
    assert run_watched(conf, *job, *ahead(0)).beside == 0
    assert run_watched(conf, *job).beside == 0


def test_an_episode_may_span_versions_and_each_turn_knows_its_own(write_job: WriteJob) -> None:
    conf = write_job(tasks=5)
    uneven = f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:uneven"
    watched = run_watched(conf, uneven, "astune.trainer.total_steps=8", *NO_EVALUATION, *ahead(2))
    report = watched.report  # type: ignore[attr-defined]
    spanning = [len({turn.policy_version for turn in episode.turns}) > 1 for _, episode in episodes(report)]
    assert sum(spanning) == sum(row["episodes/spanning_versions"] for row in steps_of(report)) > 0


def test_a_step_that_fails_ahead_ends_the_run_when_its_turn_comes_and_keeps_the_steps_before(
    conf: Path, monkeypatch: pytest.MonkeyPatch, run_job: RunJob
) -> None:
    from astune.training import ahead as module

    play = module.play_groups

    async def fails(run: Any, step: int) -> Any:
        if step == 2:
            raise RuntimeError("no more")
        return await play(run, step)

    monkeypatch.setattr(module, "play_groups", fails)
    report = run_job(conf, *ahead(3), *NO_EVALUATION, "astune.trainer.save_every=0")
    assert (report.status, report.steps, str(report.error)) == ("failed", 2, "no more")
    assert [path.name for path in (report.run_dir / "checkpoints").iterdir()] == ["step_000002"]


@pytest.mark.fault(
    "Agents and the engine",
    "an episode takes so much longer than the others that its step would wait for it",
    "with `astune.synchronizer.quorum` it is cut off and counted, with its tokens; how long the like are is told",
)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("style", [(), ahead(1)])
def test_late_episodes_are_cut_off_counted_and_not_trained(
    conf: Path, run_job: RunJob, style: tuple[str, ...], workers: int
) -> None:
    report = run_job(
        conf,
        f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:slow_third",
        f"astune.rollout.workers={workers}",
        "astune.synchronizer.quorum=0.6",
        "astune.synchronizer.patience=0.01",
        "astune.monitor.check_invariants=true",
        *style,
    )
    assert (report.status, report.steps) == ("completed", 3)
    rows = steps_of(report)
    for row in rows:
        assert (row["episodes/total"], row["stop/late"], row["episodes/failed"]) == (6, 2, 0)
        assert row["tokens/dropped_late"] > 0 and "tokens/dropped_unjudged" not in row
        assert row["late/turns"] == row["in_time/turns"] == 1
        assert row["late/tokens"] == row["in_time/tokens"] > 0
        assert row["late/seconds"] > 0 and row["in_time/seconds"] > 0
    late = [episode for _, episode in episodes(report) if episode.stop_reason is StopReason.LATE]
    assert all(episode.episode_id.endswith("/2") and len(episode.turns) == 1 for episode in late)
    assert len(late) == 6 and not any(episode.verdict for episode in late)
    assert any("eval/greedy/reward" in row for row in rows_of(report))  # an evaluation waits for all
    (line,) = [text for text in receipt_lines(report.summary["receipt"]) if text[0] == "late episodes"]
    assert line[1].startswith("6 of 18 cut off")


def test_weights_change_only_while_workers_that_ask_elsewhere_hold_their_calls(
    write_job: WriteJob,
) -> None:
    """The player of this engine plays in the process, but past its gate, as workers on a cluster do."""
    conf, watched = write_job(tasks=5), WatchedEngine(seed=0)
    shut = 0

    class Elsewhere:
        def __init__(self, config: AstuneConfig, policy: Gate) -> None:
            self.setup = rollout_setup(config, policy, script_engine(lambda prompt: "4")(config).chat_format)
            self.gate = policy

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *exc_info: object) -> None: ...

        async def play(self, attempt: Attempt, late: asyncio.Event | None = None) -> Episode:
            return await play_episode(attempt, self.setup, late)

        @asynccontextmanager
        async def hold_calls(self) -> AsyncIterator[None]:
            nonlocal shut
            async with self.gate.hold_calls():
                shut += 1
                yield

    def load(config: AstuneConfig) -> Engine:
        engine = watched.load(config)  # its learner sees to it that no answer is under way as it publishes
        return replace(engine, player=lambda config, notes: Elsewhere(config, Gate(engine.policy)))

    uneven = f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:uneven"
    job = (uneven, "astune.rollout.workers=1", "astune.trainer.total_steps=6", *NO_EVALUATION)
    report = run_training(load_config(conf, [*ahead(2), *job]), load)
    assert (report.status, report.error, shut) == ("completed", None, report.steps)
    assert watched.beside > 0


@pytest.mark.fault(
    "Runs and resuming",
    "Ctrl-C while a step is learned and rollouts are ahead of training",
    "what is under way is dropped; the step is finished and saved",
)
@pytest.mark.parametrize("ready", [False, True], ids=["answers are under way", "the next step is ready"])
def test_a_step_that_is_learned_as_the_run_is_stopped_is_saved_and_no_other(conf: Path, ready: bool) -> None:
    under_way = asyncio.Event()

    def load(config: AstuneConfig) -> Engine:
        engine = script_engine(lambda prompt: "4")(config)

        class Policy(ScriptedPolicy):
            async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
                episode = EPISODE.get()
                assert episode is not None
                if episode.episode_id.startswith("train/3/"):
                    under_way.set()
                    if not ready:
                        await asyncio.Event().wait()
                return await super().generate(prompt_ids, sampling)

        class Learner(CountingLearner):
            async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
                if self.updates == 1:
                    await under_way.wait()
                    while ready and any("play_groups" in repr(task) for task in asyncio.all_tasks()):
                        await asyncio.sleep(0)
                    signal.raise_signal(signal.SIGINT)
                    await finish(lambda: None)
                return await super().update(samples, learning_rate)

        policy = Policy(lambda prompt: "4", engine.chat_format)
        return Engine(policy, Learner(policy), engine.chat_format, beside=True)

    report = run_training(load_config(conf, [*ahead(1), *NO_EVALUATION, "astune.trainer.save_every=0"]), load)
    assert (report.status, report.error, report.steps) == ("interrupted", None, 2)
    assert [path.name for path in (report.run_dir / "checkpoints").iterdir()] == ["step_000002"]


def test_an_engine_that_cannot_answer_while_it_learns_is_refused(conf: Path) -> None:
    def load(config: AstuneConfig) -> Engine:
        return replace(script_engine(lambda prompt: "4")(config), beside=False)

    with pytest.raises(ConfigError, match=r"astune\.synchronizer\.style: got 'async', but the engine of this backbone"):
        run_training(load_config(conf, ahead(1)), load)
    assert not (conf.parent / "runs").exists()


@given(
    number=st.integers(1, 3),
    work=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=12),
)
def test_places_are_never_more_than_there_are_go_by_rank_and_are_not_lost(
    number: int, work: list[tuple[int, int, bool]]
) -> None:
    """Each piece of work has a rank, takes so many passes, and may be cancelled before or while it waits."""
    taken: list[int] = []
    most = 0
    waiting: list[tuple[int, int]] = []
    got: list[tuple[int, int]] = []

    async def one(places: Places, name: int, rank: int, passes: int) -> None:
        nonlocal most
        waiting.append((rank, name))
        try:
            async with places.of(rank):
                first = min(waiting)
                got.append((rank, name))
                taken.append(name)
                most = max(most, len(taken))
                assert len(got) <= number or (rank, name) == first
                waiting.remove((rank, name))
                for _ in range(passes):
                    await asyncio.sleep(0)
                taken.remove(name)
        except asyncio.CancelledError:
            if (rank, name) in waiting:
                waiting.remove((rank, name))
            if name in taken:
                taken.remove(name)
            raise

    async def all_of_it() -> None:
        places = Places(number)
        tasks = [asyncio.create_task(one(places, name, *each[:2])) for name, each in enumerate(work)]
        await asyncio.sleep(0)
        for task, (_, _, cancelled) in zip(tasks, work, strict=True):
            if cancelled:
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert not any(isinstance(task.exception(), AssertionError) for task in tasks if not task.cancelled())
        for _ in range(number):  # all are free again
            await asyncio.wait_for(places.take(0), 60)

    asyncio.run(all_of_it())
    assert most <= number
