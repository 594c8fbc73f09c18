"""Does the judge know right from wrong?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from astune.backbone.parts import NoPolicy
from astune.config.judges import TaskJudgeConfig
from astune.context_tracker.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.doctor.dry_run import Actors, Blocked, Script, in_time
from astune.doctor.errors import code_of, named, place_of
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.packages import how_to_install, imported_by, source_of
from astune.doctor.patient import Patient
from astune.doctor.wordings import MATH_JUDGE, NO_ANSWER, right_answer, wordings, wrong_answer
from astune.errors import PluginError
from astune.resources import tiny_model_dir
from astune.task_judge import Judge, make_judge
from astune.types import Episode, Sampling, StopReason, Task, Verdict, WorkflowOutput

KEY = "astune.task_judge.judge_protocol"
MOST_BUILT_IN, MOST_PLUG_IN = 20, 3
"""Tasks to try a judge on. One of the user's own may be slow, or cost money."""
NETWORK = {"openai", "httpx", "httpx2", "requests", "aiohttp", "urllib", "socket", "anthropic", "dashscope", "litellm"}


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


def check_judge(patient: Patient) -> Iterator[Finding]:
    spec = patient.config.task_judge.judge_protocol
    try:
        judge = make_judge(patient.config.task_judge)
    except PluginError as error:
        mend = (
            how_to_install(str(error)) or "a judge is MathAnswerAsJudge, 'my_judge.py:judge' or 'package.module:Name'"
        )
        yield fail(str(error), where=patient.where(KEY), mend=mend)
        return
    if judge is None:
        patient.judge = judge
        yield ok("no judge: the workflow returns the reward itself (see the dry run)")
        return
    assert spec is not None
    found = set().union(*(_network_packages(named.judge) for named in patient.config.task_judge.judges))
    if patient.offline and found:
        yield skip(f"the judge's file imports {', '.join(sorted(found))}: it may need a network, and this is --offline")
        return
    patient.judge = judge
    tasks = [placed.task for split in patient.tasks.values() for placed in split if placed.task.answer]
    if not tasks:
        yield skip("no task has a reference answer, so there is no right answer to try the judge on")
        return
    try:
        yield from _try(patient, judge, tasks)
    except Blocked as error:
        mend = "make it faster, or raise astune.task_judge.timeout; code that waits must use await"
        yield fail(f"the judge is {error}", where=patient.where(KEY), mend=mend)


def _network_packages(spec: str) -> set[str]:
    file = None if spec == MATH_JUDGE else source_of(spec)
    return set() if file is None else imported_by(file) & NETWORK


def _try(patient: Patient, judge: Judge, tasks: Sequence[Task]) -> Iterator[Finding]:
    config = patient.config.task_judge
    chosen = tasks[: MOST_BUILT_IN if config.judge_protocol == MATH_JUDGE else MOST_PLUG_IN]
    best, wording = _best(judge, chosen, config)
    if best[0].reward > 0:
        patient.wording = wording
    findings = [*_on_right(patient, best)]
    findings += _on_wrong(patient, best, _ask_wrong(judge, chosen, tasks, wording, config.seconds))
    yield from findings
    if not findings:
        yield ok(
            f"{config.judge_protocol}: right on {len(best)} reference answer{'s' * (len(best) > 1)} written as "
            f"{best[0].text!r:.60}; wrong, empty and evasive answers do not pass"
        )


def _best(judge: Judge, chosen: Sequence[Task], config: TaskJudgeConfig) -> tuple[list[Opinion], str]:
    """The opinions of right answers in the words that the judge likes best, and those words."""
    best: tuple[list[Opinion], str] | None = None
    for wording in wordings(config):
        opinions = ask(judge, [(task, right_answer(task, wording)) for task in chosen], config.seconds)
        if best is None or _merit(opinions) > _merit(best[0]):
            best = opinions, wording
        if all(opinion.right for opinion in opinions):
            break
    assert best is not None, "there is always a wording to try"
    return best


def _ask_wrong(
    judge: Judge, chosen: Sequence[Task], tasks: Sequence[Task], wording: str, timeout: float
) -> Mapping[str, Sequence[Opinion]]:
    """What the judge says of answers that must not pass, by their kind."""
    kinds: dict[str, list[tuple[Task, str | None]]] = {
        "a wrong answer": [(task, wrong_answer(task, tasks, wording)) for task in chosen],
        **{name: [(chosen[0], text)] for name, text in NO_ANSWER.items()},
        "the question repeated": [(task, task.query) for task in chosen],
    }
    opinions = iter(ask(judge, [answer for answers in kinds.values() for answer in answers], timeout))
    return {kind: [next(opinions) for _ in answers] for kind, answers in kinds.items()}


def _merit(opinions: Sequence[Opinion]) -> tuple[int, float]:
    return sum(opinion.right for opinion in opinions), sum(max(opinion.reward, -1e9) for opinion in opinions)


def _on_right(patient: Patient, opinions: Sequence[Opinion]) -> Iterator[Finding]:
    failed = [opinion for opinion in opinions if opinion.error is not None]
    if failed:
        yield fail(
            f"the judge fails on {len(failed)} of {len(opinions)} right answers, first on that of "
            f"{patient.place(failed[0].task)}: {failed[0].said}",
            where=place_of(failed[0].error) if failed[0].error and place_of(failed[0].error) else patient.where(KEY),
            mend="mend the judge, or the reference answer of that task: an attempt it fails on gets no reward at all",
        )
    refused = [opinion for opinion in opinions if opinion.error is None and not opinion.right]
    if not refused:
        return
    first, protocol = refused[0], patient.config.task_judge.judge_protocol
    said = (
        f"{len(refused)} of {len(opinions)} reference answers do not count as right; {patient.place(first.task)}: "
        f"{first.text!r:.80} got {first.said}"
    )
    if protocol == MATH_JUDGE:
        yield fail(said, where=patient.where(KEY), mend="correct the reference answers, or take these tasks out")
    elif first.reward > 0:
        yield warn(
            f"{said}, less than the 1 that a right answer is expected to get",
            where=patient.where(KEY),
            mend="fine if your judge grades by degrees; else let a right answer get 1",
        )
    else:
        yield fail(
            f"{said}; no other usual way to write it got more ({', '.join(wordings(patient.config.task_judge))})",
            where=patient.where(KEY),
            mend="let the judge give the task's own reference answer 1 (True), however the agent is to write it",
        )


def _on_wrong(
    patient: Patient, rights: Sequence[Opinion], wrongs: Mapping[str, Sequence[Opinion]]
) -> Iterator[Finding]:
    """One finding for each kind of wrong answer; where the judge fails on every answer, that is said already."""
    least = min((right.reward for right in rights if right.reward > 0), default=float("inf"))
    for kind, opinions in wrongs.items():
        broken = next((opinion for opinion in opinions if opinion.error is not None), None)
        passed = next((opinion for opinion in opinions if opinion.right or opinion.reward >= least), None)
        if passed is not None:
            yield fail(
                f"{kind} passes: {passed.text!r:.80} got {passed.said}, for {patient.place(passed.task)}, whose "
                f"answer is {passed.task.answer!r:.60}",
                where=patient.where(KEY),
                mend="make the judge compare with task.answer more strictly: the agent would learn to say just that",
            )
        elif broken is not None and all(right.error is None for right in rights):
            is_ours = patient.config.task_judge.judge_protocol == MATH_JUDGE
            yield warn(
                f"the judge fails on {kind}: {broken.said}",
                where=place_of(broken.error or "") or patient.where(KEY),
                mend="correct the reference answer of that task, or take it out"
                if is_ours
                else "return 0 there: an attempt it fails on is left out, so the agent never learns to avoid it",
            )


def ask(judge: Judge, answers: Sequence[tuple[Task, str | None]], timeout: float) -> list[Opinion]:
    """What a judge says of answers, each the last message of an episode with one model call; None is an episode that
    ran out of turns."""

    chat_format = ChatFormat.load(tiny_model_dir())

    async def all_of_them() -> list[Opinion]:
        return [await _opinion(judge, task, await _episode(task, text, chat_format), timeout) for task, text in answers]

    return in_time(all_of_them(), timeout * len(answers) + timeout)


async def _opinion(judge: Judge, task: Task, episode: Episode, timeout: float) -> Opinion:
    text = None if episode.output is None else str(episode.output.answer)
    try:
        verdict = await asyncio.wait_for(judge.judge(task, episode), timeout + 1)
    except Exception as error:
        return Opinion(task, text, error=error)
    if not isinstance(verdict, Verdict):
        return Opinion(task, text, error=TypeError(f"returned {verdict!r:.80}, expected a Verdict"))
    return Opinion(task, text, verdict)


async def _episode(task: Task, text: str | None, chat_format: ChatFormat) -> Episode:
    """An episode whose one answer was `text`, in the tokens of the shipped tiny model."""
    tracker = ContextTracker(
        NoPolicy(2**20),
        chat_format,
        Sampling(2**16),
        max_turns=1,
        seed=0,
        wrap=Actors(chat_format, Script(text or "")).source,
    )
    await tracker.chat("agent", ChatRequest([{"role": "user", "content": task.query}]))
    ended = StopReason.MAX_TURNS if text is None else StopReason.COMPLETED
    output = None if text is None else WorkflowOutput(answer=text)
    return Episode("doctor", task, tracker.turns, tracker.timelines(), ended, output=output)
