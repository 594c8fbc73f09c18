"""Does the judge know right from wrong?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from astune.check_tasks.check import REPEATED
from astune.check_tasks.judged_tasks import NOT_BY_THE_ANSWER, JudgedTasks, by_judge
from astune.check_tasks.try_answers import TriedAnswer, in_best_words, try_answers
from astune.check_tasks.wordings import MATH_JUDGE, NO_ANSWER, wordings, wrong_answer
from astune.config.rules import ASKS_MODELS
from astune.config.rules.beside import AWAY
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.packages import how_to_install
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.scripted_episode import Blocked, in_time
from astune.errors import ConfigError, PluginError, TaskError
from astune.support.user_code import place_of
from astune.training.tasks import judge_keys_that_none_reads
from astune.types import Task

KEY = "astune.task_judge.judge_protocol"
MOST_BUILT_IN, MOST_PLUG_IN = 20, 3
"""Tasks to try a judge on. One of the user's own may be slow, and one that asks models costs money."""


def check_judge(checked: CheckedConfig) -> Iterator[Finding]:
    asking = sorted(ASKS_MODELS.intersection(part.judge for part in checked.config.task_judge.judges))
    if checked.offline and asking:
        yield skip(f"{', '.join(asking)} asks models, and this is --offline")
        return
    try:
        found = by_judge(_tasks(checked), checked.config.task_judge)
    except PluginError as error:
        fix = how_to_install(str(error)) or "a judge is MathAnswerAsJudge, 'my_judge.py:judge' or 'package.module:Name'"
        yield fail(str(error), where=checked.where(KEY), fix=fix)
        return
    except ConfigError as error:
        yield fail(str(error), where=checked.where(KEY), fix="correct that key")
        return
    except TaskError as error:
        yield fail(str(error), where=checked.where(KEY), fix="correct the task, or take its field out")
        return
    evaluated = chain.from_iterable(evaluation.tasks for evaluation in checked.evaluations)
    for key, why in judge_keys_that_none_reads(chain(_tasks(checked), evaluated), checked.config):
        said = why.removesuffix(f"; {AWAY}")
        yield fail(f"no judge reads {key}: {said}", where=checked.where(key), fix=f"{AWAY}: a run refuses it")
    if not checked.config.task_judge.judges:
        checked.judge = None
        if not found:
            yield ok("no judge: the workflow returns the reward itself (see the dry run)")
    for judged in found:
        yield from _check(checked, judged)


def _tasks(checked: CheckedConfig) -> list[Task]:
    return [*chain.from_iterable(checked.tasks.values())]


def _check(checked: CheckedConfig, judged: JudgedTasks) -> Iterator[Finding]:
    if checked.offline and judged.asks_models:
        yield skip(f"{judged.title} asks models, and this is --offline")
        return
    if checked.offline and (found := judged.network_packages):
        yield skip(f"the judge's file imports {', '.join(sorted(found))}: it may need a network, and this is --offline")
        return
    of_dry_run = any(task is checked.first_task() for task in judged.tasks)
    if of_dry_run:
        checked.judge = judged.judge
    if not judged.by_the_answer:
        names = ", ".join(sorted(NOT_BY_THE_ANSWER.intersection(judged.names)))
        yield skip(f"{names} judges what the agent does, not its answer alone: there is no right answer to try it on")
        return
    tasks = [task for task in judged.tasks if task.answer]
    if not tasks:
        yield skip("no task has a reference answer, so there is no right answer to try the judge on")
        return
    chosen = tasks[: MOST_BUILT_IN if judged.names == [MATH_JUDGE] else MOST_PLUG_IN]
    try:
        seconds = judged.config.seconds * (len(wordings(judged.config)) + 2) * (len(chosen) + 1)
        rights, wording, wrongs = in_time(_try_answers(judged, chosen, tasks), seconds)
    except Blocked as error:
        fix = "make it faster, or raise astune.task_judge.timeout; code that waits must use await"
        yield fail(f"the judge is {error}", where=checked.where(KEY), fix=fix)
        return
    if of_dry_run and rights[0].reward > 0:
        checked.wording = wording
    findings = [*_on_right(checked, judged, rights), *_on_wrong(checked, judged, rights, wrongs)]
    yield from findings
    if not findings:
        yield ok(
            f"{judged.title}: right on {len(rights)} reference answer{'s' * (len(rights) > 1)} written as "
            f"{rights[0].text!r:.60}; wrong, empty and evasive answers do not pass"
        )


async def _try_answers(
    judged: JudgedTasks, chosen: Sequence[Task], tasks: Sequence[Task]
) -> tuple[list[TriedAnswer], str, Mapping[str, Sequence[TriedAnswer]]]:
    """The judge's words on right answers, how these are written, and its words on answers that must not pass, by
    kind."""
    rights, wording = await in_best_words(judged, chosen)
    kinds: dict[str, list[tuple[Task, str | None]]] = {
        "a wrong answer": [(task, wrong_answer(task, tasks, wording)) for task in chosen],
        **{name: [(chosen[0], text)] for name, text in NO_ANSWER.items()},
        REPEATED: [(task, task.query) for task in chosen],
    }
    tried = iter(await try_answers(judged, [answer for answers in kinds.values() for answer in answers]))
    return rights, wording, {kind: [next(tried) for _ in answers] for kind, answers in kinds.items()}


def _on_right(checked: CheckedConfig, judged: JudgedTasks, tried: Sequence[TriedAnswer]) -> Iterator[Finding]:
    failed = [one for one in tried if one.error is not None]
    if failed:
        yield fail(
            f"the judge fails on {len(failed)} of {len(tried)} right answers, first on that of "
            f"{checked.place(failed[0].task)}: {failed[0].said}",
            where=place_of(failed[0].error) if failed[0].error and place_of(failed[0].error) else checked.where(KEY),
            fix="fix the judge, or the reference answer of that task: an attempt it fails on gets no reward at all",
        )
    refused = [one for one in tried if one.error is None and not one.right]
    if not refused:
        return
    first = refused[0]
    said = (
        f"{len(refused)} of {len(tried)} reference answers do not count as right; {checked.place(first.task)}: "
        f"{first.text!r} got {first.said}"
    )
    if judged.asks_models:
        yield warn(
            f"{said}; {judged.title} asks models, which may err",
            where=checked.where(KEY),
            fix="read its reason: astune check-tasks shows it for every task; a clearer criterion or a stronger model",
        )
    elif judged.names == [MATH_JUDGE]:
        yield fail(said, where=checked.where(KEY), fix="correct the reference answers, or take these tasks out")
    elif first.reward > 0:
        yield warn(
            f"{said}, less than the 1 that a right answer is expected to get",
            where=checked.where(KEY),
            fix="fine if your judge grades by degrees; else let a right answer get 1",
        )
    else:
        yield fail(
            f"{said}; no other usual way to write it got more ({', '.join(wordings(judged.config))})",
            where=checked.where(KEY),
            fix="let the judge give the task's own reference answer 1 (True), however the agent is to write it",
        )


def _on_wrong(
    checked: CheckedConfig,
    judged: JudgedTasks,
    rights: Sequence[TriedAnswer],
    wrongs: Mapping[str, Sequence[TriedAnswer]],
) -> Iterator[Finding]:
    """One finding for each kind of wrong answer; where the judge fails on every answer, that is said already."""
    least = min((right.reward for right in rights if right.reward > 0), default=float("inf"))
    for kind, tried in wrongs.items():
        broken = next((one for one in tried if one.error is not None), None)
        passed = next((one for one in tried if one.right or one.reward >= least), None)
        if passed is not None:
            yield fail(
                f"{kind} passes: {passed.text!r} got {passed.said}, for {checked.place(passed.task)}, whose "
                f"answer is {passed.task.answer!r}",
                where=checked.where(KEY),
                fix="make the judge compare with task.answer more strictly: the agent would learn to say just that",
            )
        elif broken is not None and all(right.error is None for right in rights):
            is_ours = judged.names == [MATH_JUDGE]
            yield warn(
                f"the judge fails on {kind}: {broken.said}",
                where=place_of(broken.error or "") or checked.where(KEY),
                fix="correct the reference answer of that task, or take it out"
                if is_ours
                else "return 0 there: an attempt it fails on is left out, so the agent never learns to avoid it",
            )
