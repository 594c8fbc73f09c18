"""All that a commit learns, as samples: rewards, thumbs, comparisons and corrections, each with its weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

from astune.algorithm import BatchRules, Receipt, StepEstimator, check_step, split_samples, to_samples
from astune.config.online import CommitConfig
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import WorkflowError
from astune.examples.conversation import conversation_rows
from astune.examples.example import TrainingExample
from astune.examples.samples import imitation_samples
from astune.monitor.tool_failures import failing_tools
from astune.online.clock import format_at
from astune.online.store.learned import TrainedEpisode
from astune.online.store.recorded import RecordedAnswer
from astune.online.training.episodes import OnlineEpisode, episode_of
from astune.online.training.hints import HINT, pair_with_hint
from astune.online.training.plan import ComparedPair, Item, Plan, RatedAnswers
from astune.online.training.weighing import Author, are_enough
from astune.rollout.metrics import tool_metrics
from astune.training.rollout_setup import weighting_for
from astune.types import Episode, Group, Sample, Timeline

Method: TypeAlias = Literal["policy", "kto", "dpo", "sft", "distill"]


@dataclass(frozen=True)
class SampleSource:
    """The origin of a sample: the method by which it is learned, the row ids of its turns, and the authors of the
    feedback that it is learned from."""

    method: Method
    turn_ids: tuple[int, ...]
    authors: tuple[Author, ...]


CORRECTION = "correction"
"""`Sample.task_id` of what a user wrote in the answer's place."""


@dataclass
class CommitData:
    """`parts` are the updates' samples of rewards; `thumbs`, `comparisons`, `corrections` and `hints` are learned in
    the first update too. `items` says by id of episode what it came of, `sources` the same by the episode and task of a
    sample."""

    parts: list[list[Sample]] = field(default_factory=list)
    thumbs: list[Sample] = field(default_factory=list)
    comparisons: list[Sample] = field(default_factory=list)
    corrections: list[Sample] = field(default_factory=list)
    hints: list[tuple[Sample, Sample]] = field(default_factory=list)
    """Answers of which a judge said what would have been better: as they are, and after a prompt that says it."""
    groups: list[Group] = field(default_factory=list)
    receipt: Receipt = field(default_factory=Receipt)
    items: dict[str, Item] = field(default_factory=dict)
    sources: dict[tuple[str, str], SampleSource] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Why by id of episode, of those that give no sample."""
    probes: list[Sample] = field(default_factory=list)
    """Recent answers of the models in production, on which the step from the version before is measured; where there
    are none, the corrections."""
    is_probed_by_answers: bool = True
    metrics: dict[str, float] = field(default_factory=dict)
    failing_tools: str = ""
    """The tools of which every call failed, with the first message of each."""

    @property
    def samples(self) -> list[Sample]:
        """All that there is to learn in it."""
        of_rewards = (sample for part in self.parts for sample in part)
        hinted = (own for own, _ in self.hints)
        return [*of_rewards, *self.thumbs, *self.comparisons, *self.corrections, *hinted]

    def is_enough(self, rules: CommitConfig) -> bool:
        """Tell whether a version may be made from it: there is something to learn, and not of too few authors."""
        authors = self.authors
        return bool(authors) and are_enough(authors, rules)

    @property
    def authors(self) -> set[Author]:
        """The authors of all feedback in it."""
        return {author for sample in self.samples for author in self.authors_of(sample)}

    def authors_of(self, sample: Sample) -> Sequence[Author]:
        """The authors of the feedback that a sample is learned from."""
        return self.sources[sample.episode_id, sample.task_id].authors


@dataclass(frozen=True)
class DataSetup:
    """The parts that the data are made with. `context_length` is the model's; None if it is not known."""

    config: AstuneConfig
    chat_format: ChatFormat
    estimator: StepEstimator
    context_length: int | None


def make_commit_data(
    plan: Plan,
    recorded: Mapping[str, RecordedAnswer],
    paths: Mapping[str, Sequence[str]],
    used: set[int],
    commit: int,
    setup: DataSetup,
    replayed: Sequence[Sequence[TrainedEpisode]] = (),
) -> CommitData:
    """The data of a plan. `paths` says which answers led to each that was compared; `used` are the numbers of turns
    that were trained before; `replayed` are groups of earlier commits that are learned from again. Changes nothing; the
    same rows give the same data, bit for bit."""
    data, groups, used = CommitData(), [], set(used)
    rated: list[Episode] = []
    hinted: list[tuple[str, OnlineEpisode]] = []
    corrected: list[Sample] = []
    for number, group in enumerate(plan.groups):
        episodes = []
        for place, candidate in enumerate(group):
            made = _episode(data, candidate, recorded, used, f"commit-{commit}/{number}-{place}")
            rated.append(made.episode)
            if candidate.by_reward:
                episodes.append(made.episode)
            if candidate.by_thumb:
                task_id = made.episode.task.task_id
                data.thumbs += _whole(made.episode, bool(candidate.judgement.thumb), task_id)
                data.sources[made.episode.episode_id, task_id] = _source("kto", made, candidate.judgement.raters)
            if candidate.by_correction:
                _add_correction(data, candidate, made, setup)
                corrected += _whole(made.episode, True, made.episode.task.task_id)
            if candidate.judgement.hint is not None and setup.config.online.commit.weight_hints:
                hinted.append((candidate.judgement.hint, made))
        if episodes:
            groups.append(Group(episodes[0].task, tuple(episodes)))
    for number, pair in enumerate(plan.pairs):
        _add_comparison(data, pair, recorded, paths, used, f"commit-{commit}/pair-{number}")
    groups += [_add_replayed(data, group, recorded) for group in replayed]
    _add_rewards(data, groups, setup)
    for hint, made in hinted:
        _add_hint(data, hint, made, setup)
    data.metrics |= tool_metrics(rated)
    data.failing_tools = "; ".join(failing_tools(rated))
    most = setup.config.trainer.micro_batch_tokens
    sampled = [*chain.from_iterable(data.parts), *data.thumbs, *data.comparisons]
    data.probes = _probes(sampled, most) or _probes(corrected, most)
    data.is_probed_by_answers = bool(data.probes)
    data.probes = data.probes or _probes(data.corrections, most)
    return data


def _episode(
    data: CommitData,
    candidate: RatedAnswers,
    recorded: Mapping[str, RecordedAnswer],
    used: set[int],
    episode_id: str,
) -> OnlineEpisode:
    said, samples_it = candidate.judgement, candidate.by_reward or candidate.by_thumb
    answers = [recorded[msg_id] for msg_id in candidate.msg_ids]
    reward = said.reward if candidate.by_reward else None
    made = episode_of(episode_id, answers, reward, used, said.task_id)
    used |= made.trained if samples_it else set()
    data.items[episode_id] = candidate
    if candidate.by_reward:
        data.sources[episode_id, made.episode.task.task_id] = _source("policy", made, said.raters)
    if samples_it and not made.trainable and not candidate.by_correction:
        data.left_out[episode_id] = made.why_not
    return made


def _add_replayed(data: CommitData, group: Sequence[TrainedEpisode], recorded: Mapping[str, RecordedAnswer]) -> Group:
    episodes = []
    for each in group:
        answers = [recorded[msg_id] for msg_id in each.msg_ids]
        made = episode_of(each.episode_id, answers, each.reward, set(), each.task_id)
        data.sources[each.episode_id, made.episode.task.task_id] = _source("policy", made, each.raters)
        episodes.append(made.episode)
    data.metrics["episodes/replayed"] = data.metrics.get("episodes/replayed", 0.0) + len(episodes)
    return Group(episodes[0].task, tuple(episodes))


def _add_rewards(data: CommitData, groups: Sequence[Group], setup: DataSetup) -> None:
    config = setup.config
    ruled = BatchRules.of(config, setup.context_length)(groups)
    samples, receipt = to_samples(ruled.groups, setup.estimator, weighting_for(config), ruled.left_out)
    if config.monitor.check_invariants:
        check_step(groups, samples, receipt)
    samples = _merge_shared(samples, data)
    data.groups, data.receipt, data.metrics = ruled.groups, receipt, data.metrics | ruled.metrics
    data.parts = split_samples(samples, config.trainer.updates_per_step, config.algorithm.loss_aggregation)
    learned = {sample.episode_id for sample in (*samples, *data.corrections)}
    why = {episode.episode_id: reason for reason, episode in ruled.left_out}
    for group in groups:
        for episode in group.episodes:
            if episode.episode_id not in learned and episode.episode_id in data.items:
                data.left_out.setdefault(episode.episode_id, why.get(episode.episode_id, "no_signal"))


def _merge_shared(samples: Sequence[Sample], data: CommitData) -> list[Sample]:
    """An answer that several episodes hold, as runs went on from the same one, is trained once, in the first: with the
    mean of the advantages of all. A reward is of a whole episode, and so is its advantage."""
    advantage_of = {sample.episode_id: sample.advantages[0] for sample in samples}
    held: dict[int, list[float]] = {}
    for (episode_id, _), source in data.sources.items():
        for turn_id in source.turn_ids if episode_id in advantage_of else ():
            held.setdefault(turn_id, []).append(advantage_of[episode_id])
    found = []
    for sample in samples:
        turn_ids = data.sources[sample.episode_id, sample.task_id].turn_ids
        several = [held[turn_ids[span.turn]] for span in sample.timeline.spans]
        pairs = zip(several, sample.advantages, strict=True)
        means = (math.fsum(each) / len(each) if len(each) > 1 else own for each, own in pairs)
        found.append(replace(sample, advantages=tuple(means)))
    return found


def _add_comparison(
    data: CommitData,
    pair: ComparedPair,
    recorded: Mapping[str, RecordedAnswer],
    paths: Mapping[str, Sequence[str]],
    used: set[int],
    episode_id: str,
) -> None:
    """Rewards and a comparison may both be learned from an answer, in one commit; no second one of either."""
    data.items[episode_id] = pair
    found: list[Sample] = []
    sides = ((pair.preference.better, True), (pair.preference.worse, False))
    for msg_id, better in sides:
        made = episode_of(episode_id, [recorded[each] for each in paths[msg_id]], None, set())
        if not made.trainable:
            data.left_out[episode_id] = made.why_not
            return
        found += _whole(made.episode, better, msg_id)
        data.sources[episode_id, msg_id] = _source("dpo", made, pair.preference.raters)
    data.comparisons += found


def _add_correction(data: CommitData, candidate: RatedAnswers, made: OnlineEpisode, setup: DataSetup) -> None:
    """The newest correction, after the prompt of the last answer that it is about."""
    episode_id, said = made.episode.episode_id, made.answers[-1]
    wanted = {"role": "assistant", "content": candidate.judgement.corrections[-1]}
    try:
        chat_format = format_at(setup.chat_format, setup.config.model, said.began)
        rows = conversation_rows(chat_format, [*said.messages, wanted], said.tools, len(said.messages))
    except WorkflowError:
        rows = ()
    limit = setup.context_length
    rows = tuple(row for row in rows if limit is None or len(row.token_ids) <= limit)
    if not rows:
        if not candidate.by_reward and not candidate.by_thumb:
            data.left_out[episode_id] = "cannot_be_written"
        return
    config = setup.config
    examples = [TrainingExample((row,), episode_id) for row in rows]
    for sample in imitation_samples(examples, config.algorithm.loss_aggregation, config.rollout.max_tokens):
        data.corrections.append(replace(sample, task_id=CORRECTION, episode_id=episode_id))
    authors = _source("sft", made, candidate.judgement.correctors).authors
    data.sources[episode_id, CORRECTION] = SampleSource("sft", (), authors)


def _add_hint(data: CommitData, hint: str, made: OnlineEpisode, setup: DataSetup) -> None:
    """Add what a hint teaches. It hangs on what the user said next, who is its author."""
    found = list(pair_with_hint(made, hint, setup.chat_format, setup.config.model, setup.context_length))
    if found:
        data.hints += [(own, prompted) for own, prompted, _ in found]
        source = _source("distill", made, ("",))
        data.sources[made.episode.episode_id, HINT] = replace(source, turn_ids=(found[-1][2],))


def _source(method: Method, made: OnlineEpisode, names: Sequence[str]) -> SampleSource:
    """`names` are those of users, empty of everybody else: then it is of whom the answer was for."""
    last = made.answers[-1].heading
    users = dict.fromkeys(name or last.user or "" for name in names)
    authors = tuple(Author(last.client, user, "" if user else last.conversation_id) for user in users)
    return SampleSource(method, made.turn_ids, authors)


def _whole(episode: Episode, liked: bool, task_id: str) -> list[Sample]:
    """The rows of an answer that is learned from as a whole, good or bad."""
    return [
        Sample(line, (1.0 if liked else -1.0,) * len(line.spans), _mask_of(line), task_id, episode.episode_id)
        for line in episode.timelines
        if line.trained_tokens
    ]


def _mask_of(line: Timeline) -> tuple[float, ...]:
    return tuple(float(span.trainable and not span.shared) for span in line.spans)


def _probes(samples: Sequence[Sample], most_tokens: int) -> list[Sample]:
    """The rows, evenly chosen where they have more than so many tokens: a mean over these tells as much."""
    rows = [(sample, weights) for sample in samples if any(weights := _mask_of(sample.timeline))]
    every = math.ceil(sum(len(sample.timeline.token_ids) for sample, _ in rows) / most_tokens)
    return [
        replace(sample, advantages=(1.0,) * len(weights), weights=weights, rewards=(), imitated=False)
        for sample, weights in rows[:: every or 1]
    ]
