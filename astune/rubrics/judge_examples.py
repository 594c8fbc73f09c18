"""Judge the answers of examples while a rubric is learned. The labels of people are never in a prompt here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from astune.clients.asking import Inquiry
from astune.config.judges import LlmJudgeConfig
from astune.rubrics.examples import RubricExample
from astune.rubrics.measure import Key
from astune.rubrics.prompts import HOLISTIC_MAX, HolisticReply, holistic_messages
from astune.support.concurrency import all_ended
from astune.task_judge.llm.pointwise import CriteriaReply, check_scores, rubric_messages, rubric_reward
from astune.task_judge.llm.rubric import Criterion, Rubric

MOST_CRITERIA_OF_A_CALL = 10


@dataclass
class Asking(Inquiry):
    """Asks judges."""

    llm: LlmJudgeConfig


@dataclass(frozen=True)
class Judged:
    """An answer judged by a rubric: one reply for each vote."""

    rubric: Rubric
    replies: tuple[CriteriaReply, ...]

    @cached_property
    def scores(self) -> tuple[dict[str, int], ...]:
        """The scores of each reply, by criterion. Read once: choosing among criteria asks for them again and again."""
        return tuple(check_scores(self.rubric, reply) for reply in self.replies)

    @property
    def reward(self) -> float:
        """The mean over votes."""
        rewards = [rubric_reward(self.rubric, scores) for scores in self.scores]
        return sum(rewards) / len(rewards)

    def share(self, criterion: Criterion) -> float:
        """Share of the criterion's scale that the answer earned, from 0 to 1: the mean over votes."""
        return sum(criterion.share(scores[criterion.id]) for scores in self.scores) / len(self.scores)

    def reason(self, criterion: Criterion) -> str:
        return next(entry.reason for entry in self.replies[0].criteria if entry.id == criterion.id)


async def judge_by_rubric(
    asking: Asking, rubric: Rubric, examples: Sequence[RubricExample], stage: str
) -> dict[Key, Judged | None]:
    """The answers of `examples` as `RubricsAsJudge` judges them; None where a reply could not be used."""
    named = list(_answers(examples))
    judged = await asking.stage(stage, [_judge(asking, rubric, example, answer) for _, example, answer in named])
    return {key: one for (key, _, _), one in zip(named, judged, strict=True)}


async def judge_as_a_whole(asking: Asking, examples: Sequence[RubricExample], stage: str) -> dict[Key, float | None]:
    """Rewards of a judge without criteria."""
    named = list(_answers(examples))
    rewards = await asking.stage(stage, [_score(asking, example, answer) for _, example, answer in named])
    return {key: reward for (key, _, _), reward in zip(named, rewards, strict=True)}


def rewards_of(judged: Mapping[Key, Judged | None]) -> dict[Key, float | None]:
    return {key: None if one is None else one.reward for key, one in judged.items()}


class Scores:
    """Scores of each answer by each criterion of a pool that grows; a call asks about at most ten criteria."""

    def __init__(self, asking: Asking, examples: Sequence[RubricExample]) -> None:
        self._asking = asking
        self._examples = examples
        self._judged: dict[str, dict[Key, Judged | None]] = {}

    async def add(self, criteria: Sequence[Criterion], stage: str) -> None:
        """Judges all answers by criteria that are new to it."""
        size = MOST_CRITERIA_OF_A_CALL
        batches = [
            Rubric(name="candidates", criteria=tuple(reset_weight(one) for one in criteria[at : at + size]))
            for at in range(0, len(criteria), size)
        ]
        named = [(batch, key, one, answer) for batch in batches for key, one, answer in _answers(self._examples)]
        questions = [_judge(self._asking, batch, one, answer) for batch, _, one, answer in named]
        for (batch, key, _, _), judged in zip(named, await self._asking.stage(stage, questions), strict=True):
            for criterion in batch.criteria:
                self._judged.setdefault(criterion.id, {})[key] = judged

    def of(self, criterion: Criterion, key: Key) -> float | None:
        """From 0 to 1; None where it could not be judged."""
        judged = self._judged[criterion.id][key]
        return None if judged is None else judged.share(criterion)

    def reason(self, criterion: Criterion, key: Key) -> str:
        judged = self._judged[criterion.id][key]
        return "" if judged is None else judged.reason(criterion)

    def column(self, criterion: Criterion, keys: Sequence[Key]) -> list[float | None]:
        return [self.of(criterion, key) for key in keys]

    def rewards(self, criteria: Sequence[Criterion], keys: Sequence[Key]) -> dict[Key, float | None]:
        """The reward of each answer by a rubric of these criteria; None where one of them could not be judged."""
        rewards: dict[Key, float | None] = {}
        total = sum(criterion.weight for criterion in criteria)
        for key in keys:
            shares = [(criterion.weight, self.of(criterion, key)) for criterion in criteria]
            known = [weight * share for weight, share in shares if share is not None]
            rewards[key] = sum(known) / total if len(known) == len(shares) else None
        return rewards


def reset_weight(criterion: Criterion) -> Criterion:
    """Give a criterion weight 1: a candidate to which a person gave weight 0 is judged all the same."""
    return criterion.model_copy(update={"weight": 1.0})


def _answers(examples: Sequence[RubricExample]) -> list[tuple[Key, RubricExample, str]]:
    return [((one.id, number), one, answer) for one in examples for number, answer in enumerate(one.answers)]


async def _judge(asking: Asking, rubric: Rubric, example: RubricExample, answer: str) -> Judged | None:
    messages = rubric_messages(rubric, example.query, answer, example.reference, asking.llm.instructions)

    def check(reply: CriteriaReply) -> None:
        check_scores(rubric, reply)

    votes = asking.llm.votes
    replies = await all_ended([asking.ask(messages, CriteriaReply, check, vote) for vote in range(votes)])
    usable = tuple(reply.value for reply in replies if reply is not None)
    return Judged(rubric, usable) if len(usable) == votes else None


async def _score(asking: Asking, example: RubricExample, answer: str) -> float | None:
    messages = holistic_messages(example.query, answer, example.reference, asking.llm.instructions)
    reply = await asking.ask(messages, HolisticReply)
    return None if reply is None else reply.value.score / HOLISTIC_MAX
