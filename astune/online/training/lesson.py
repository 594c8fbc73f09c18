"""All that a commit learns, as samples: rewards, thumbs, comparisons and corrections, each with its weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from astune.algorithm import BatchRules, Receipt, StepEstimator, check_step, split_samples, to_samples
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import WorkflowError
from astune.examples.conversation import conversation_rows
from astune.examples.example import TrainingExample
from astune.examples.samples import imitated
from astune.online.training.episodes import OnlineEpisode, episode_of
from astune.online.training.plan import ComparedPair, Item, Plan, RatedAnswers
from astune.store.learned import TrainedEpisode
from astune.store.recorded import RecordedAnswer
from astune.training.rollout_setup import weighting_for
from astune.types import Episode, Group, Sample, Timeline

Method: TypeAlias = Literal["policy", "kto", "dpo", "sft"]
CORRECTION = "correction"
"""`Sample.task_id` of what a user wrote in the answer's place."""


@dataclass
class CommitLesson:
    """`parts` are the updates' samples of rewards; `thumbs`, `comparisons` and `corrections` are learned in the first
    update too. `items` says by id of episode what it came of; `sources`, by the episode and task of a sample, by what
    method it is learned and the numbers of its turns in the database."""

    parts: list[list[Sample]] = field(default_factory=list)
    thumbs: list[Sample] = field(default_factory=list)
    comparisons: list[Sample] = field(default_factory=list)
    corrections: list[Sample] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    receipt: Receipt = field(default_factory=Receipt)
    items: dict[str, Item] = field(default_factory=dict)
    sources: dict[tuple[str, str], tuple[Method, tuple[int, ...]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Why by id of episode, of those that give no sample."""
    probes: list[Sample] = field(default_factory=list)
    """What the models in production said of late: where the step from the version before is measured."""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn in it."""
        return not (any(self.parts) or self.thumbs or self.comparisons or self.corrections)


@dataclass(frozen=True)
class Workshop:
    """What lessons are made with. `context_length` is the model's, None where it is not known."""

    config: AstuneConfig
    chat_format: ChatFormat
    estimator: StepEstimator
    context_length: int | None


def lesson_of(
    plan: Plan,
    recorded: Mapping[str, RecordedAnswer],
    paths: Mapping[str, Sequence[str]],
    used: set[int],
    commit: int,
    workshop: Workshop,
    replayed: Sequence[Sequence[TrainedEpisode]] = (),
) -> CommitLesson:
    """The lesson of a plan. `paths` says which answers led to each that was compared; `used` are the numbers of turns
    that were trained before; `replayed` are groups of earlier commits that are learned from again. Changes nothing; the
    same rows give the same lesson, bit for bit."""
    lesson, groups, used = CommitLesson(), [], set(used)
    for number, group in enumerate(plan.groups):
        episodes = []
        for place, candidate in enumerate(group):
            made = _episode(lesson, candidate, recorded, used, f"commit-{commit}/{number}-{place}")
            if candidate.by_reward:
                episodes.append(made.episode)
            if candidate.by_thumb:
                _thumb(lesson, candidate, made)
            if candidate.by_correction:
                _correction(lesson, candidate, made, workshop)
        if episodes:
            groups.append(Group(episodes[0].task, tuple(episodes)))
    for number, pair in enumerate(plan.pairs):
        _comparison(lesson, pair, recorded, paths, used, f"commit-{commit}/pair-{number}")
    groups += [_replayed(lesson, group, recorded) for group in replayed]
    _rewards(lesson, groups, workshop)
    most = workshop.config.trainer.micro_batch_tokens
    lesson.probes = _probes(_sampled(lesson), most) or _probes(lesson.corrections, most)
    return lesson


def _episode(
    lesson: CommitLesson,
    candidate: RatedAnswers,
    recorded: Mapping[str, RecordedAnswer],
    used: set[int],
    episode_id: str,
) -> OnlineEpisode:
    said, samples_it = candidate.judgement, candidate.by_reward or candidate.by_thumb
    answers = [recorded[msg_id] for msg_id in candidate.msg_ids]
    reward = said.reward if candidate.by_reward else None
    made = episode_of(episode_id, answers, reward, used if samples_it else set(used), said.task_id)
    lesson.items[episode_id] = candidate
    if candidate.by_reward:
        lesson.sources[episode_id, made.episode.task.task_id] = ("policy", made.turn_ids)
    if samples_it and not made.trainable and not candidate.by_correction:
        lesson.left_out[episode_id] = made.why_not
    return made


def _replayed(lesson: CommitLesson, group: Sequence[TrainedEpisode], recorded: Mapping[str, RecordedAnswer]) -> Group:
    episodes = []
    for each in group:
        answers = [recorded[msg_id] for msg_id in each.msg_ids]
        made = episode_of(each.episode_id, answers, each.reward, set(), each.task_id)
        lesson.sources[each.episode_id, made.episode.task.task_id] = ("policy", made.turn_ids)
        episodes.append(made.episode)
    lesson.metrics["episodes/replayed"] = lesson.metrics.get("episodes/replayed", 0.0) + len(episodes)
    return Group(episodes[0].task, tuple(episodes))


def _rewards(lesson: CommitLesson, groups: Sequence[Group], workshop: Workshop) -> None:
    config = workshop.config
    ruled = BatchRules.of(config, workshop.context_length)(groups)
    samples, receipt = to_samples(ruled.groups, workshop.estimator, weighting_for(config), ruled.left_out)
    if config.monitor.check_invariants:
        check_step(groups, samples, receipt)
    lesson.groups, lesson.receipt, lesson.metrics = ruled.groups, receipt, lesson.metrics | ruled.metrics
    lesson.parts = split_samples(samples, config.trainer.updates_per_step, config.algorithm.loss_aggregation)
    learned = {sample.episode_id for sample in (*samples, *lesson.corrections)}
    why = {episode.episode_id: reason for reason, episode in ruled.left_out}
    for group in groups:
        for episode in group.episodes:
            if episode.episode_id not in learned and episode.episode_id in lesson.items:
                lesson.left_out.setdefault(episode.episode_id, why.get(episode.episode_id, "no_signal"))


def _thumb(lesson: CommitLesson, candidate: RatedAnswers, made: OnlineEpisode) -> None:
    task_id = made.episode.task.task_id
    lesson.thumbs += _whole(made.episode, bool(candidate.judgement.thumb), task_id)
    lesson.sources[made.episode.episode_id, task_id] = ("kto", made.turn_ids)


def _comparison(
    lesson: CommitLesson,
    pair: ComparedPair,
    recorded: Mapping[str, RecordedAnswer],
    paths: Mapping[str, Sequence[str]],
    used: set[int],
    episode_id: str,
) -> None:
    """Rewards and a comparison may both be learned from an answer, in one commit; no second one of either."""
    lesson.items[episode_id] = pair
    found: list[Sample] = []
    sides = ((pair.preference.better, True), (pair.preference.worse, False))
    for msg_id, better in sides:
        made = episode_of(episode_id, [recorded[each] for each in paths[msg_id]], None, set())
        if not made.trainable:
            lesson.left_out[episode_id] = made.why_not
            return
        found += _whole(made.episode, better, msg_id)
        lesson.sources[episode_id, msg_id] = ("dpo", made.turn_ids)
    lesson.comparisons += found


def _correction(lesson: CommitLesson, candidate: RatedAnswers, made: OnlineEpisode, workshop: Workshop) -> None:
    """The newest correction, after the prompt of the last answer that it is about."""
    episode_id, said = made.episode.episode_id, made.answers[-1]
    wanted = {"role": "assistant", "content": candidate.judgement.corrections[-1]}
    try:
        rows = conversation_rows(workshop.chat_format, [*said.messages, wanted], said.tools, len(said.messages))
    except WorkflowError:
        rows = ()
    limit = workshop.context_length
    rows = tuple(row for row in rows if limit is None or len(row.token_ids) <= limit)
    if not rows:
        if not candidate.by_reward and not candidate.by_thumb:
            lesson.left_out[episode_id] = "cannot_be_written"
        return
    config = workshop.config
    examples = [TrainingExample((row,), episode_id) for row in rows]
    for sample in imitated(examples, config.algorithm.loss_aggregation, config.rollout.max_tokens):
        lesson.corrections.append(replace(sample, task_id=CORRECTION, episode_id=episode_id))
    lesson.sources[episode_id, CORRECTION] = ("sft", ())


def _whole(episode: Episode, liked: bool, task_id: str) -> list[Sample]:
    """The rows of an answer that is learned from as a whole, good or bad."""
    return [
        Sample(line, (1.0 if liked else -1.0,) * len(line.spans), _trained(line), task_id, episode.episode_id)
        for line in episode.timelines
        if line.trained_tokens
    ]


def _trained(line: Timeline) -> tuple[float, ...]:
    return tuple(float(span.trainable and not span.shared) for span in line.spans)


def _sampled(lesson: CommitLesson) -> list[Sample]:
    return [*(sample for part in lesson.parts for sample in part), *lesson.thumbs, *lesson.comparisons]


def _probes(samples: Sequence[Sample], most_tokens: int) -> list[Sample]:
    """The rows, evenly chosen where they have more than so many tokens: a mean over these tells as much."""
    rows = [(sample, weights) for sample in samples if any(weights := _trained(sample.timeline))]
    every = math.ceil(sum(len(sample.timeline.token_ids) for sample, _ in rows) / most_tokens)
    return [
        replace(sample, advantages=(1.0,) * len(weights), weights=weights, rewards=(), imitated=False)
        for sample, weights in rows[:: every or 1]
    ]
