"""What judges say of answers that must count as right, and of answers that must not.

    for bench in benches(tasks, config):                              # tasks by the judge that judges them
        opinions, wording = await in_best_words(bench, bench.tasks)   # of the reference answers
        wrong = await ask(bench, [(task, "I don't know.") for task in bench.tasks])

No model writes the answers and no workflow runs: an episode is one turn with the answer as its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

from astune.check_tasks.near_misses import KINDS as NEAR
from astune.check_tasks.near_misses import OF_NUMBERS, near_misses
from astune.check_tasks.wordings import MATH_JUDGE, NO_ANSWER, all_at_once, as_answer, right_answer, wordings
from astune.config.judges import TaskJudgeConfig
from astune.config.rules import ASKS_MODELS
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import named
from astune.support.resources import tiny_model_dir
from astune.support.user_code import code_of, imported_by, source_of
from astune.task_judge import BUILTIN_JUDGES, Judge, MathAnswerAsJudge, Scorers, make_judge
from astune.task_judge.math.answer import normalise, reference_answer
from astune.task_judge.math.compare import Relation, compare
from astune.task_judge.math.quantity import read_quantity
from astune.types import Episode, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput

AT_ONCE = 16
"""Answers before a judge at the same time."""
TO_FIND_THE_WORDS = 20
"""Reference answers that are written in one way after the other, until a judge takes them."""
NOT_BY_THE_ANSWER = {"ToolUseJudge", "EnvServiceJudge"}
"""Judges of what an agent does: no answer alone is right before them."""
NETWORK = {"openai", "httpx", "httpx2", "requests", "aiohttp", "urllib", "socket", "anthropic", "dashscope", "litellm"}

GOLD, READ, EMPTY, UNKNOWN, REPEATED, ALL, OTHER = (
    "the reference answer",
    "a readable reference",
    "an empty answer",
    '"I don\'t know"',
    "the question repeated",
    "all options at once",
    "another task's answer",
)
MUST_PASS = (GOLD, READ)
ALWAYS = (GOLD, EMPTY, UNKNOWN, REPEATED, ALL)
"""Answers that `check_tasks` gives to every task."""
KINDS = (GOLD, READ, EMPTY, UNKNOWN, REPEATED, ALL, OTHER, *NEAR)
"""All of them. The first must be right, of the second an answer in other words must be able to be; the others must be
wrong."""


@dataclass(frozen=True)
class Bench:
    """A judge and the tasks that it judges. `config` is the one that it was made from: its `judge_protocol` names it,
    where a task does as well."""

    judge: Judge
    config: TaskJudgeConfig
    tasks: Sequence[Task]

    @property
    def names(self) -> list[str]:
        return [part.judge for part in self.config.judges]

    @property
    def title(self) -> str:
        return " + ".join(self.names)

    @property
    def asks_models(self) -> bool:
        """Whether it costs time and money to ask it, as far as its name tells."""
        return bool(ASKS_MODELS & set(self.names))

    @property
    def by_the_answer(self) -> bool:
        return not NOT_BY_THE_ANSWER & set(self.names)

    @property
    def network_packages(self) -> set[str]:
        """What the files of the user's own judges import that talks to other machines."""
        files = [source_of(name) for name in self.names if name not in BUILTIN_JUDGES]
        return set().union(*(imported_by(file) & NETWORK for file in files if file is not None))


def benches(tasks: Sequence[Task], config: TaskJudgeConfig) -> list[Bench]:
    """The tasks by their judges, in the order of their first tasks; those without any judge are left out. Raises
    PluginError for a judge that does not load and TaskError for a task that names an unknown one."""
    judge, scorers = make_judge(config), Scorers(config)
    found: dict[int, Bench] = {}
    by_judge: dict[int, list[Task]] = {}
    for task in tasks:
        own = scorers.of(task)
        chosen = own or judge
        if chosen is not None:
            by_judge.setdefault(id(chosen), []).append(task)
            made_from = scorers.config_of(task) or config
            found.setdefault(id(chosen), Bench(chosen, made_from, by_judge[id(chosen)]))
    return list(found.values())


@dataclass(frozen=True)
class Opinion:
    """What a judge says of one answer: a verdict, or the error it raised."""

    task: Task
    text: str | None
    verdict: Verdict | None = None
    error: BaseException | None = None

    @property
    def right(self) -> bool:
        """Whether the judge takes the answer for a right one, as far as that can be said without a comparison."""
        return self.verdict is not None and (
            self.verdict.passed if self.verdict.passed is not None else self.verdict.reward >= 1
        )

    @property
    def reward(self) -> float:
        return float("-inf") if self.verdict is None else self.verdict.reward

    @property
    def said(self) -> str:
        if self.verdict is None:
            return "nothing" if self.error is None else f"{named(self.error)}{code_of(self.error)}"
        return f"reward {self.verdict.reward:g}" + (f" ({self.verdict.reason})" if self.verdict.reason else "")

    def passes_beside(self, right: Opinion) -> bool:
        """Whether it counts as right, or as no less than the right answer where rewards have degrees."""
        return self.right or self.reward >= right.reward > 0


Answers = Sequence[tuple[Task, str | None]]
OnOpinion = Callable[[], None]


async def ask(bench: Bench, answers: Answers, on_opinion: OnOpinion = lambda: None) -> list[Opinion]:
    """What the judge says of answers, in their order, each the last message of an episode with one model call; None is
    an episode that ran out of turns."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, text: str | None) -> Opinion:
        async with limit:
            opinion = await _opinion(bench, task, text)
        on_opinion()
        return opinion

    return await asyncio.gather(*(one(task, text) for task, text in answers))


async def _opinion(bench: Bench, task: Task, text: str | None) -> Opinion:
    try:
        verdict = await asyncio.wait_for(bench.judge.judge(task, episode_of(task, text)), bench.config.seconds + 1)
    except Exception as error:
        return Opinion(task, text, error=error)
    if not isinstance(verdict, Verdict):
        return Opinion(task, text, error=TypeError(f"returned {verdict!r:.80}, expected a Verdict"))
    return Opinion(task, text, verdict)


def episode_of(task: Task, text: str | None) -> Episode:
    """An episode whose one answer was `text`, in the tokens of the shipped tiny model."""
    question = {"role": "user", "content": task.query}
    prompt = _ids(task.query)
    output = [*_ids(text or ""), *_tiny_format().stop_token_ids[:1]]
    turn = Turn(
        "agent",
        prompt,
        output,
        [-1.0] * len(output),
        policy_version=0,
        finish_reason="stop",
        messages=(question,),
        response={"role": "assistant", "content": text or ""},
    )
    span = Span(0, len(prompt), len(prompt) + len(output), 0, 1.0, True, turn.logprobs)
    return Episode(
        "doctor",
        task,
        (turn,),
        (Timeline("agent", [*prompt, *output], (span,)),),
        StopReason.MAX_TURNS if text is None else StopReason.COMPLETED,
        output=None if text is None else WorkflowOutput(answer=text),
    )


@lru_cache(maxsize=4096)
def _ids(text: str) -> list[int]:
    return _tiny_format().encode(text)


@cache
def _tiny_format() -> ChatFormat:
    return ChatFormat.load(tiny_model_dir())


async def in_best_words(bench: Bench, tasks: Sequence[Task]) -> tuple[list[Opinion], str]:
    """The opinions of right answers in the words that the judge likes best, and those words."""
    best: tuple[list[Opinion], str] | None = None
    for wording in wordings(bench.config):
        opinions = await ask(bench, [(task, right_answer(task, wording)) for task in tasks])
        if best is None or _merit(opinions) > _merit(best[0]):
            best = opinions, wording
        if all(opinion.right for opinion in opinions):
            break
    assert best is not None, "there is always a wording to try"
    return best


def _merit(opinions: Sequence[Opinion]) -> tuple[int, float]:
    return sum(opinion.right for opinion in opinions), sum(max(opinion.reward, -1e9) for opinion in opinions)


@dataclass(frozen=True)
class CheckedTask:
    """What the judge says of each kind of answer to one task."""

    task: Task
    opinions: Mapping[str, Opinion]

    @property
    def faults(self) -> list[str]:
        """Kinds of answers of which the judge says the wrong thing. An answer that it cannot judge does not pass."""
        right = self.opinions[GOLD]
        return [
            kind
            for kind, opinion in self.opinions.items()
            if (not opinion.right if kind in MUST_PASS else opinion.passes_beside(right))
        ]


NEARLY = Fraction(1, 100)
"""By less may numbers differ of which a judge may take one for the other rounded."""
Probes = Sequence[Mapping[str, str]]
"""For each task of a bench, wrong answers by kind: those of `KINDS` that suit it, beside those that suit all."""


def probes(bench: Bench) -> Probes:
    """A model is asked about two of them for each task, in turn."""
    references = [reference_answer(task.answer or "") for task in bench.tasks]
    found: list[Mapping[str, str]] = []
    for number, task in enumerate(bench.tasks):
        near = near_misses(task)
        if "ReasoningGymJudge" in bench.names:  # which often takes several answers
            found.append({kind: text for kind, text in near.items() if kind in OF_NUMBERS})
            continue
        if bench.asks_models and near:
            kind = [*near][number % len(near)]
            near = {kind: near[kind]}
        other = _another(references[number], [*references[number + 1 : number + 20], *references[:20]])
        found.append(({} if other is None else {OTHER: other}) | near)
    return found


def _another(reference: str, others: Sequence[str]) -> str | None:
    """The first that certainly is another answer: another number, else words that share none."""
    own = normalise(reference)
    normal = {other: normalise(other) for other in dict.fromkeys(others)}
    number = read_quantity(own)
    for other, text in normal.items():
        given = read_quantity(text) if number else None
        if number and given and number.equals(given) is not True and abs(number.value - given.value) > NEARLY:
            return other
    words = {*own.lower().split()}
    for other, text in normal.items():
        if text and not words & {*text.lower().split()} and compare(own, text) in (Relation.UNREAD, Relation.DIFFERENT):
            return other
    return None


async def check_bench(
    bench: Bench, on_opinion: OnOpinion = lambda: None, tried: Probes | None = None
) -> tuple[list[CheckedTask], str]:
    """All its tasks, with the words in which the reference answers were written. `tried` is what `probes` found."""
    first, wording = await in_best_words(bench, bench.tasks[:TO_FIND_THE_WORDS])
    for _ in first:
        on_opinion()
    rest = bench.tasks[len(first) :]
    gold = [*first, *await ask(bench, [(task, right_answer(task, wording)) for task in rest], on_opinion)]
    references = [reference_answer(task.answer or "") for task in bench.tasks]
    wrong: list[tuple[Task, str, str | None]] = []
    for number, (task, probe) in enumerate(zip(bench.tasks, probes(bench) if tried is None else tried, strict=True)):
        others = [*references[number + 1 : number + 20], *references[:20]]
        at_once = all_at_once(task, others, wording, place=number)
        always = (NO_ANSWER[EMPTY], NO_ANSWER[UNKNOWN], task.query, at_once)
        wrong += [(task, kind, text) for kind, text in zip(ALWAYS[1:], always, strict=True)]
        whole = not bench.asks_models  # a model would be confused by a solution that ends with another answer
        wrong += [(task, kind, as_answer(task, text, wording, whole)) for kind, text in probe.items()]
    opinions = await ask(bench, [(task, text) for task, _, text in wrong], on_opinion)
    found = [{GOLD: right} for right in gold]
    for of_task, reading in zip(found, await _readings(bench), strict=False):
        of_task[READ] = reading
    by_task = {id(task): of_task for task, of_task in zip(bench.tasks, found, strict=True)}
    for (task, kind, _), opinion in zip(wrong, opinions, strict=True):
        by_task[id(task)][kind] = opinion
    return [CheckedTask(right.task, of_task) for right, of_task in zip(gold, found, strict=True)], wording


async def _readings(bench: Bench) -> list[Opinion]:
    """Whether an answer in other words than the reference can equal it; none where that is not for mathematics to say.
    A paragraph in a box equals itself."""
    if MATH_JUDGE not in bench.names:
        return []
    judge = MathAnswerAsJudge(bench.config)

    async def one(task: Task) -> Opinion:
        why = await judge.unreadable(task.answer or "")
        return Opinion(task, task.answer, Verdict(float(why is None), why is None, why or ""))

    return await asyncio.gather(*map(one, bench.tasks))
