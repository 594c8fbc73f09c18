"""Explorer and trainer beside each other, under Trinity's ways of synchronising them.

The loops are those of Trinity 0.6.0's `Explorer.explore` and `Trainer.train`: batches are numbered from 1, explored
batches reach the trainer in that order, and one explored batch is one step of the trainer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.clock import Clock, Event, Process
from cluster.rollout import Explored, Explorer, Rollout
from cluster.workload import Attempt, Batch, read_prompt_once


@dataclass(frozen=True)
class Trainer:
    gpus: int
    gpu_seconds_per_token: float
    """Of the training rows, context included."""
    fixed_seconds: float = 0.0
    """Of every step, whatever its size."""

    def seconds(self, tokens: int) -> float:
        return self.fixed_seconds + tokens * self.gpu_seconds_per_token / self.gpus


@dataclass(frozen=True)
class Schedule:
    """When weights go from the trainer to the engines. `interval` and `offset` are those of Trinity's synchronizer."""

    style: Literal["fixed", "explorer_driven", "fully_async"]
    interval: int = 1
    offset: int = 0
    """Only `fixed` and `explorer_driven`: batches that the explorer is ahead when it first synchronises."""
    in_flight: int = 2
    """Only `fully_async`: batches that are explored at a time."""
    buffer: int = 1
    """Not `fixed`, which needs no such limit: batches that may wait for the trainer before the explorer waits."""


@dataclass(frozen=True)
class Snapshot:
    """Totals at the end of a training step."""

    time: float
    worked: float
    busy: float
    trained: float
    decoded: float
    episodes: int


class Simulation:
    """Plays all batches; then `snapshots[k]` is the state after k training steps, `ages[k - 1]` what step k learned
    from: output tokens by the number of updates since their call began."""

    def __init__(
        self, explorer: Explorer, trainer: Trainer, schedule: Schedule, sync_seconds: float, batches: Sequence[Batch]
    ) -> None:
        self._clock = Clock()
        self._rollout = Rollout(self._clock, explorer)
        self._trainer = trainer
        self._schedule = schedule
        self._sync_seconds = sync_seconds
        self._batches = batches
        self._changed = Event()
        self._buffer: deque[Explored] = deque()
        self._asked = False
        self._explorer_ended = False
        self._training = 0.0
        self._episodes = 0
        self.ages: list[Counter[int]] = []
        self.snapshots: list[Snapshot] = []

    def run(self) -> None:
        explore = self._explore_on if self._schedule.style == "fully_async" else self._explore_and_wait
        train = self._train_on_request if self._schedule.style == "explorer_driven" else self._train_and_sync
        self._snapshot()
        self._clock.start(explore())
        self._clock.start(train())
        self._clock.run()

    def _until(self, condition: Callable[[], object]) -> Process:
        while not condition():
            yield self._changed

    def _tell(self) -> None:
        """Lets everyone look at their condition again."""
        changed, self._changed = self._changed, Event()
        changed.happen()

    def _explore_and_wait(self) -> Process:
        """Submits batches at once, and every `interval` of them waits for all and synchronises."""
        schedule = self._schedule
        under_way: deque[Explored] = deque()
        for number, batch in enumerate(self._batches, start=1):
            under_way.append(self._rollout.submit(batch))
            if number > schedule.offset and (number - schedule.offset) % schedule.interval == 0:
                yield from self._hand_over(under_way, keep=0)
                self._asked = True
                self._tell()
                yield from self._until(lambda: not self._asked or self._all_trained)
        yield from self._hand_over(under_way, keep=0)
        self._explorer_ended = True
        self._tell()

    def _explore_on(self) -> Process:
        """Submits the next batch whenever there are fewer than `in_flight`."""
        under_way: deque[Explored] = deque()
        for batch in self._batches:
            yield from self._hand_over(under_way, keep=self._schedule.in_flight - 1)
            under_way.append(self._rollout.submit(batch))
        yield from self._hand_over(under_way, keep=0)

    def _hand_over(self, under_way: deque[Explored], keep: int) -> Process:
        """Waits for the oldest batches and gives them to the trainer, until `keep` are left."""
        while len(under_way) > keep:
            explored = under_way.popleft()
            yield explored.done
            if self._schedule.style != "fixed":
                yield from self._until(lambda: len(self._buffer) < self._schedule.buffer)
            self._buffer.append(explored)
            self._tell()

    def _train_and_sync(self) -> Process:
        """A step for every batch, weights after every `interval` steps."""
        while not self._all_trained:
            yield from self._until(lambda: self._buffer)
            yield from self._step()
            if len(self.ages) % self._schedule.interval:
                continue
            if self._schedule.style == "fully_async":
                for engine in self._rollout.engines:
                    engine.pause(self._sync_seconds)
                yield from self._sync()
            else:
                yield from self._until(lambda: self._asked or self._explorer_ended)
                if self._asked:
                    yield from self._sync()

    def _train_on_request(self) -> Process:
        """A step for every batch; weights between two steps, or at once when idle, if the explorer asked."""
        while not self._all_trained:
            yield from self._until(lambda: self._buffer or self._asked)
            yield from self._sync() if self._asked else self._step()

    @property
    def _all_trained(self) -> bool:
        return len(self.ages) == len(self._batches)

    def _step(self) -> Process:
        explored = self._buffer.popleft()
        self._tell()
        seconds = self._trainer.seconds(explored.tokens)
        yield self._clock.sleep(seconds)
        self._training += seconds
        self._episodes += explored.episodes
        version = len(self.ages)
        self.ages.append(Counter({version - before: tokens for before, tokens in explored.versions.items()}))
        self._snapshot()
        self._tell()

    def _sync(self) -> Process:
        yield self._clock.sleep(self._sync_seconds)
        self._rollout.version = len(self.ages)
        self._asked = False
        self._tell()

    def _snapshot(self) -> None:
        engines = self._rollout.engines
        for engine in engines:
            engine.update()
        self.snapshots.append(
            Snapshot(
                time=self._clock.now,
                worked=sum(engine.worked for engine in engines),
                busy=sum(engine.busy for engine in engines),
                trained=self._training,
                decoded=sum(engine.decoded for engine in engines),
                episodes=self._episodes,
            )
        )


@dataclass(frozen=True)
class Outcome:
    """Per second of the measured steps; shares are of all explorer or trainer GPUs."""

    step_seconds: float
    explorer_busy: float
    """With at least one call running."""
    explorer_work: float
    """Of the tokens that full engines would have given."""
    trainer: float
    """Training; waiting and synchronising are the rest."""
    episodes_per_hour: float
    tokens_per_second: float
    age_mean: float
    """Updates between sampling and training, over tokens."""
    age_max: int


def simulate(
    explorer: Explorer,
    trainer: Trainer,
    schedule: Schedule,
    sync_seconds: float,
    batches: Sequence[Batch],
    margin: int = 0,
) -> Outcome:
    """Measured from the end of step `margin` to the end of the step that has `margin` more after it."""
    simulation = Simulation(explorer, trainer, schedule, sync_seconds, batches)
    simulation.run()
    first, last = margin, len(batches) - margin
    before, after = simulation.snapshots[first], simulation.snapshots[last]
    seconds = after.time - before.time
    ages: Counter[int] = Counter()
    for step in simulation.ages[first:last]:
        ages.update(step)
    return Outcome(
        step_seconds=seconds / (last - first),
        explorer_busy=(after.busy - before.busy) / (seconds * explorer.engines),
        explorer_work=(after.worked - before.worked) / (seconds * explorer.engines),
        trainer=(after.trained - before.trained) / seconds,
        episodes_per_hour=3600 * (after.episodes - before.episodes) / seconds,
        tokens_per_second=(after.decoded - before.decoded) / seconds,
        age_mean=sum(age * tokens for age, tokens in ages.items()) / sum(ages.values()),
        age_max=max(ages),
    )


def limit(explorer: Explorer, trainer: Trainer, batches: Sequence[Batch]) -> float:
    """Seconds per step below which no schedule comes: engines always full, or the trainer never waiting; the larger.
    Weights would travel in no time."""
    engine_seconds, train_seconds = 0.0, 0.0
    for batch in batches:
        for task in batch:
            seen = read_prompt_once(task)
            calls = [call for attempt in seen for call in attempt.calls]
            prompt, output = sum(call.prompt_tokens for call in calls), sum(call.output_tokens for call in calls)
            engine_seconds += explorer.speed.work(len(calls), prompt, output, explorer.most_running)
        train_seconds += trainer.seconds(sum(attempt.tokens for task in batch for attempt in task))
    return max(engine_seconds / explorer.engines, train_seconds) / len(batches)


def longest(explorer: Explorer, batches: Sequence[Batch]) -> float:
    """Seconds of the longest episode of a batch, alone on its engine, by the mean over batches: what a schedule waits
    for that waits for every batch. With `over_rollout` it does not."""

    def alone(attempt: Attempt) -> float:
        speed, calls = explorer.speed, attempt.calls
        prompt = sum(call.prompt_tokens for call in calls)
        tools = sum(call.tool_seconds for call in calls)
        return speed.work(len(calls), prompt, attempt.output_tokens, running=1) + tools + attempt.judge_seconds

    return sum(max(alone(attempt) for task in batch for attempt in task) for batch in batches) / len(batches)
