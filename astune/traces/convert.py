"""Exchanges become tasks, pairs, examples and rewards.

What somebody said of an answer counts; where nobody did, what the user did next, by the judge of what followed. A
correction is the reference of its task and the better answer of a pair; an answer that people liked is the reference of
its task; a question whose answer they did not like, or did not wait for, is a task without one, for a rubric.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from astune.clients.reply_cache import cache_key
from astune.context_tracker.prompt.messages import SYSTEM_ROLES, meaning, show_content
from astune.data.made import Dropped, Harvest, Made, lines_of
from astune.data.personal import NOT_FOUND, Masker
from astune.data.screen import TaskScreen
from astune.errors import JudgeError
from astune.monitor.disk import write_whole, writing
from astune.online.follow.followed import Followed
from astune.online.follow.rules import RulesOfFollowing
from astune.online.follow.verdict import FollowJudge, FollowVerdict
from astune.support.concurrency import all_ended
from astune.support.statistics import pair_apart
from astune.support.words import words_of
from astune.task_judge.llm.shown_attempt import show_task
from astune.traces.record import Message, TracedConversation, TracedExchange, Unread

GOOD = 0.75
"""A reward from which an answer is worth imitating, and a reference: four of five stars."""
NOBODY = frozenset({"user", "assistant", "human", "me", "guest", "anonymous", "default", "admin", "system", "none"})
"""Names that are nobody's."""


@dataclass
class TraceHarvest(Harvest):
    """What came of traces: tasks, as of a job that makes them, and what else there is to learn from."""

    pairs: list[dict[str, Any]] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[dict[str, Any]] = field(default_factory=list)
    exchanges: int = 0
    followed: int = 0
    """Answers of which what followed was judged."""
    masked: Counter[str] = field(default_factory=Counter)

    @property
    def beside(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of the further files, by the end of their names."""
        return {".pairs.jsonl": self.pairs, ".examples.jsonl": self.examples, ".rewards.jsonl": self.rewards}

    def report(self) -> dict[str, Any]:
        return {
            "complete": True,
            "exchanges": self.exchanges,
            "kept": len(self.kept),
            "with_reference": sum(bool(made.answer) for made in self.kept),
            **{name.split(".")[1]: len(rows) for name, rows in self.beside.items()},
            "dropped": self.reasons,
            "masked": dict(sorted(self.masked.items())),
            "not_masked": NOT_FOUND,
        }

    def save(self) -> None:
        super().save()
        with writing(self.out):
            for name, rows in self.beside.items():
                write_whole(self.out.with_suffix(name), lines_of(rows))


@dataclass(frozen=True)
class _Judged:
    """An exchange and its worth: `reward` from 0 to 1, None where nothing tells it. `liked`: people said so."""

    exchange: TracedExchange
    reward: float | None
    correction: str | None
    liked: bool
    remark: bool
    """The user said something of the answer before: a conversation that went on, not a question by itself."""
    lineage: dict[str, Any]

    @property
    def answer(self) -> Message | None:
        """The last message, if it is the answer to the user."""
        last = self.exchange.answer[-1] if self.exchange.answer else {}
        return last if last.get("role") == "assistant" and show_content(last) and not last.get("tool_calls") else None

    def make_task(self) -> Made:
        """The question with its reference, if it has one."""
        liked = show_content(self.answer) if self.liked and self.answer is not None else ""
        reference = self.correction or liked
        how = None if not reference else "correction" if self.correction else "liked answer"
        asked = [one for one in self.exchange.messages if one["role"] not in SYSTEM_ROLES]
        lineage = {**self.lineage, "reference": how}
        return Made(self.exchange.question, reference, lineage, {"messages": asked} if len(asked) > 1 else {})


async def convert(
    found: Iterable[TracedConversation | Unread],
    judge: FollowJudge,
    rules: RulesOfFollowing,
    screen: TaskScreen,
    harvest: TraceHarvest,
    *,
    unrated: bool,
) -> None:
    """Fill `harvest`. Everything is masked before it is looked at. `rules` tell whether what a user said of an answer
    asks for something, too. With `unrated` questions of which nothing tells whether their answers were good are tasks,
    too."""
    judged: list[_Judged] = []
    for one in found:
        if isinstance(one, Unread):
            lineage = Masker().apply({"trace": {"place": one.place}})
            harvest.dropped.append(Dropped(Made("", "", lineage), one.reason, Masker().text(one.why)))
            continue
        harvest.exchanges += len(one.exchanges)
        masker = Masker(one.people - NOBODY)
        traces = [{"source": one.source, "place": each.place, "conversation": one.name} for each in one.exchanges]
        lineages = [{"trace": masker.apply(trace)} for trace in traces]
        if one.consent is False:
            harvest.dropped += [Dropped(Made("", "", each), "no consent", "") for each in lineages]
            continue
        exchanges = [_mask(each, masker) for each in one.exchanges]
        harvest.masked += masker.counts
        harvest.followed += sum(each.followed is not None and bool(each.answer) for each in exchanges)
        verdicts = await all_ended([_ask(judge, each) for each in exchanges])
        remark = False
        for exchange, lineage, verdict in zip(exchanges, lineages, verdicts, strict=True):
            result = _judge(exchange, verdict, lineage, remark=remark)
            remark = _is_remark(exchange.followed, verdict, rules)
            told = result if isinstance(result, Dropped) else _look(result, screen, unrated)
            if told is not None:
                harvest.dropped.append(told)
            elif isinstance(result, _Judged):
                judged.append(result)
    _admit_tasks(judged, screen, harvest)
    _grade(judged, harvest)


def _mask(exchange: TracedExchange, masker: Masker) -> TracedExchange:
    feedback = [replace(one, correction=masker.apply(one.correction)) for one in exchange.feedback]
    masked = replace(exchange, feedback=feedback, place=masker.text(exchange.place))
    for name in ("messages", "answer", "tools"):
        setattr(masked, name, masker.apply(getattr(exchange, name)))
    if exchange.followed is not None:
        texts = {
            name: masker.apply(getattr(exchange.followed, name)) for name in ("question", "answer", "messages", "said")
        }
        masked.followed = replace(exchange.followed, **texts)
    return masked


async def _ask(judge: FollowJudge, exchange: TracedExchange) -> FollowVerdict | None:
    """Ask what followed an answer tells of it."""
    if exchange.followed is None or not exchange.answer:
        return None
    try:
        return await judge.judge(exchange.followed)
    except JudgeError:
        return None


def _is_remark(followed: Followed | None, verdict: FollowVerdict | None, rules: RulesOfFollowing) -> bool:
    """True if the next message is of the answer alone, and asks for nothing."""
    if followed is None or verdict is None or followed.kind != "message" or not verdict.vote:
        return False
    return not rules.asks_more(followed.said, verdict.vote)


def _judge(
    exchange: TracedExchange, verdict: FollowVerdict | None, lineage: dict[str, Any], *, remark: bool
) -> _Judged | Dropped:
    values = [one.value for one in exchange.feedback if one.value is not None]
    corrections = [one.correction for one in exchange.feedback if one.correction is not None]
    signs = [one.how if one.value is None else f"{one.how} {one.value:g}" for one in exchange.feedback]
    good, bad = sum(value > 0.5 for value in values), sum(value < 0.5 for value in values) + bool(corrections)
    if good and good == bad:
        made = Made(exchange.question, "", {**lineage, "signs": signs})
        return Dropped(made, "contradiction", ", ".join(signs))
    reward = fmean(values) if values else 0.0 if corrections else None
    correction = corrections[-1] if corrections and bad > good else None
    if correction is None and exchange.followed is not None and exchange.followed.kind == "corrected" and not values:
        correction = exchange.followed.said
    if reward is None and (not exchange.answer or exchange.stopped):
        signs.append("abandoned")
    elif reward is None and verdict is not None and verdict.vote:
        reward = float(verdict.vote > 0)
        signs.append(verdict.reason)
        if verdict.hint and not correction:
            lineage = {**lineage, "hint": verdict.hint}
    liked = bool(values) and reward is not None and reward >= GOOD
    return _Judged(exchange, reward, correction, liked, remark, {**lineage, "signs": signs, "reward": reward})


def _look(judged: _Judged, screen: TaskScreen, unrated: bool) -> Dropped | None:
    """Why nothing at all may come of an exchange."""
    made = judged.make_task()
    if judged.remark and (judged.reward is None or not judged.exchange.answer):
        return Dropped(made, "remark", "")
    if not judged.lineage["signs"] and not unrated:
        return Dropped(made, "no sign", "")
    dropped = screen.look_at_asked(made)
    return dropped if dropped is not None and dropped.reason != "copy" else None


def _admit_tasks(judged: Sequence[_Judged], screen: TaskScreen, harvest: TraceHarvest) -> None:
    """Keep each question once, corrected ones before others; none whose corrections contradict each other."""
    harvest.dropped += [Dropped(one.make_task(), "remark", "") for one in judged if one.remark]
    tasks = [one.make_task() for one in judged if not one.remark]
    said: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for made in tasks:
        if made.lineage["reference"] == "correction":
            said[words_of(show_task(made.task))].add(words_of(made.answer))
    ranks = ("correction", "liked answer", None)
    for made in sorted(tasks, key=lambda one: ranks.index(one.lineage["reference"])):
        if len(said[words_of(show_task(made.task))]) > 1:
            harvest.dropped.append(Dropped(made, "contradiction", "other users corrected its answer otherwise"))
        elif dropped := screen.admit(made):
            harvest.dropped.append(dropped)
        else:
            harvest.kept.append(made)


@dataclass(frozen=True)
class _Graded:
    """An answer to a prompt. `learned` are the messages that an imitation learns."""

    one: _Judged
    prompt: list[Message]
    message: Message
    reward: float
    learned: int

    @property
    def beside(self) -> dict[str, Any]:
        return {"tools": self.one.exchange.tools, "lineage": {**self.one.lineage, "reward": self.reward}}


def _grade(judged: Sequence[_Judged], harvest: TraceHarvest) -> None:
    """Compare answers to one prompt. Equal answers count once, by their mean; corrections that differ not at all."""
    prompts: dict[str, dict[str, list[_Graded]]] = defaultdict(lambda: defaultdict(list))
    for answer in (answer for one in judged for answer in _answers(one)):
        prompt = cache_key([answer.prompt, answer.one.exchange.tools])
        prompts[prompt][cache_key(answer.message)].append(answer)
    for answers in prompts.values():
        group = [replace(same[0], reward=fmean(one.reward for one in same)) for same in answers.values()]
        if sum(not answer.learned for answer in group) > 1:
            group = [answer for answer in group if answer.learned]
        harvest.pairs += _pair(group)
        harvest.examples += [_example(answer) for answer in group if answer.reward >= GOOD]
        harvest.rewards += [
            {"messages": answer.prompt, "answer": answer.message, "good": answer.reward > 0.5} | answer.beside
            for answer in group
            if answer.learned and answer.reward != 0.5
        ]


def _answers(one: _Judged) -> Iterator[_Graded]:
    """The answer, if its worth is known, and the corrected one."""
    if one.answer is None or one.exchange.stopped:
        return
    prompt = [*one.exchange.messages, *one.exchange.answer[:-1]]
    if one.reward is not None:
        yield _Graded(one, prompt, one.answer, one.reward, len(one.exchange.answer))
    if one.correction is not None:
        yield _Graded(one, prompt, {"role": "assistant", "content": one.correction}, 1.0, 0)


def _pair(group: Sequence[_Graded]) -> Iterator[dict[str, Any]]:
    for best, worst in pair_apart(group, lambda answer: answer.reward):
        if meaning([best.message], 0) != meaning([worst.message], 0):
            lineage = {"chosen": best.beside["lineage"], "rejected": worst.beside["lineage"]}
            pair = {"messages": best.prompt, "chosen": best.message, "rejected": worst.message}
            yield pair | best.beside | {"lineage": lineage}


def _example(answer: _Graded) -> dict[str, Any]:
    """Give earlier answers, and what led to a corrected one, no weight."""
    whole = [*answer.prompt, answer.message]
    start = len(whole) - max(answer.learned, 1)
    history = [{**one, "weight": 0} if one["role"] == "assistant" else one for one in whole[:start]]
    return {"messages": [*history, *whole[start:]]} | answer.beside
