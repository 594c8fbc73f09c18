"""The checks of an answer: a program in the sandbox, independent solutions, the policy's own attempts.

A check that passes adds to the lineage of the task; one that cannot tell leaves it to the next. What no check can tell
is dropped.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.check_tasks.judged_tasks import JudgedTasks
from astune.check_tasks.try_answers import in_best_words, try_answers
from astune.check_tasks.wordings import right_answer
from astune.clients.asking import Inquiry
from astune.config.judges import TaskJudgeConfig
from astune.config.rollout import SandboxLimits
from astune.config.tasks import AugmentConfig
from astune.data.made import Dropped, Made
from astune.data.prompts import Program, Solution, program_messages, solve_messages
from astune.errors import ConfigError, EnvServiceError, SetupError
from astune.support.concurrency import all_ended
from astune.task_judge import TaskJudges, make_judge
from astune.task_judge.math.compare import Relation, compare
from astune.task_judge.math.final_answer import reference_answer
from astune.task_judge.math.normalise import normalise
from astune.workspaces.proof import prove_isolation
from astune.workspaces.sandbox import Sandbox

LIMITS = SandboxLimits(memory_mb=256, cpu_seconds=10.0, command_seconds=10.0, processes=8, output_kb=16)
NONSENSE = "-987654321"
"""An answer that no judge may take for right."""
SANDBOXES = 4
"""Programs that run at the same time."""

Same = Callable[[Made, str], Awaitable[bool]]


async def say_same(made: Made, answer: str) -> bool:
    """True if `answer` is that of the task, as far as that takes no algebra: the same quantity, or the same words.

    >>> asyncio.run(say_same(Made("6 * 7?", "42", {}), "$42.00")), asyncio.run(say_same(Made("1 - 6?", "-5", {}), "5"))
    (True, False)
    """
    relation = compare(normalise(reference_answer(made.answer)), normalise(reference_answer(answer)))
    return relation is Relation.EQUAL or (relation is Relation.UNREAD and _fold(made.answer) == _fold(answer))


def _fold(answer: str) -> str:
    return " ".join(answer.casefold().split()).strip("\"'.! ")


def judge_same(config: TaskJudgeConfig) -> Same:
    """The judge that the configuration, or a task, names; where none does, `say_same`. An error of it is no yes."""
    judge, named = make_judge(config), TaskJudges(config)
    words: dict[int, str] = {}

    async def ask(made: Made, answer: str) -> bool:
        task = made.task
        chosen = named.of(task) or judge
        if chosen is None:
            return await say_same(made, answer)
        judged = JudgedTasks(chosen, named.config_of(task) or config, [task])
        if not judged.by_the_answer:
            raise ConfigError(
                f"{judged.title} judges what an agent does: made tasks are checked by a judge of answers alone"
            )
        if id(chosen) not in words:
            wording = (await in_best_words(judged, [task]))[1]
            if (await try_answers(judged, [(task, wording.format(NONSENSE))]))[0].right:
                raise ConfigError(f"{judged.title} takes any answer for right, as `astune check-tasks` shows too")
            words[id(chosen)] = wording
        text = right_answer(replace(task, answer=answer), words[id(chosen)])
        return (await try_answers(judged, [(task, text)]))[0].right

    return ask


@dataclass
class Checks:
    """`same` tells whether an answer is that of a task. `policy` asks the model that is trained, if there is one."""

    asking: Inquiry
    config: AugmentConfig
    same: Same
    policy: Inquiry | None = None

    def __post_init__(self) -> None:
        self._sandboxes = asyncio.Semaphore(SANDBOXES)

    async def prepare(self) -> None:
        """Raises ConfigError where programs are wanted and no sandbox of this machine holds."""
        if "code" in self.config.checks:
            try:
                await prove_isolation()
            except SetupError as error:
                raise ConfigError(
                    f"astune.task_reader.augment.checks: code that a model writes runs in a sandbox only: {error}; or "
                    "set checks to [agree]"
                ) from error

    async def prove(
        self, made: Made, texts: Sequence[str] | None = None, names: Sequence[str] | None = None
    ) -> Made | Dropped:
        """The task with what proves its answer, or why it is dropped. `names` are checks in the place of the configured
        ones."""
        said = []
        for name in names or self.config.checks:
            found = await (self._compute(made, texts) if name == "code" else self._agree(made, texts))
            if not isinstance(found, str):
                return found
            said.append(f"{name}: {found}")
        return Dropped(made, "unchecked", "; ".join(said))

    async def _compute(self, made: Made, texts: Sequence[str] | None) -> Made | Dropped | str:
        """A text says why it cannot be computed."""
        reply = await self.asking.ask(program_messages(made.query, texts), Program)
        if reply is None:
            return "no program"
        if not _computes(reply.program):
            return "the program computes nothing"
        printed, failed = await self._run(reply.program)
        if failed:
            return failed
        if await self.same(made, printed):
            return add_check(made, "code", {"program": reply.program, "printed": printed})
        return Dropped(made, "wrong answer", f"the program printed {printed!r:.200}")

    async def _run(self, program: str) -> tuple[str, str]:
        """The last line that a program prints, and why there is none."""
        async with self._sandboxes:
            try:
                async with Sandbox(LIMITS) as sandbox:
                    result = await sandbox.run(["python3", "-I", "-c", program])
            except (EnvServiceError, SetupError) as error:
                return "", f"the sandbox broke: {error}"
        lines = result.stdout.decode(errors="replace").strip().splitlines()
        if result.exit_code == 0 and not result.ended and lines:
            return lines[-1].strip(), ""
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return "", f"the program printed no answer {result.ended or last}".strip()

    async def solve(self, asking: Inquiry, query: str, texts: Sequence[str] | None, count: int) -> list[str]:
        """The answers of so many independent solutions; fewer where replies could not be used."""
        messages = solve_messages(query, texts)
        replies = await all_ended([asking.ask(messages, Solution, vote=vote) for vote in range(count)])
        return [reply.answer for reply in replies if reply is not None]

    async def _agree(self, made: Made, texts: Sequence[str] | None) -> Made | Dropped | str:
        """A text says why nothing can be told."""
        count = self.config.solutions
        answers = await self.solve(self.asking, made.query, texts, count)
        if len(answers) < count:
            return f"{len(answers)} of {count} solutions could be read"
        right = [await self.same(made, answer) for answer in answers]
        if all(right):
            return add_check(made, "agree", {"solutions": count})
        reason = "no agreement" if any(right) or not await self._is_one(made, answers) else "wrong answer"
        return Dropped(made, reason, f"solutions say {', '.join(dict.fromkeys(answers))!r:.200}")

    async def _is_one(self, made: Made, answers: Sequence[str]) -> bool:
        """True if the solutions agree with each other."""
        first = replace(made, answer=answers[0])
        return all([await self.same(first, answer) for answer in answers[1:]])

    async def try_policy(self, made: Made, texts: Sequence[str] | None = None) -> Made | Dropped:
        """Keeps what the policy solves at times."""
        if self.policy is None:
            return made
        tries = self.config.tries
        answers = await self.solve(self.policy, made.query, texts, tries)
        solved = sum([await self.same(made, answer) for answer in answers])
        if solved in (0, tries):
            return Dropped(made, "too easy" if solved else "too hard", f"{solved} of {tries} attempts")
        return add_check(made, "policy", {"solved": solved, "of": tries})


def _computes(program: str) -> bool:
    """False for one that only prints an answer that the model had already."""
    try:
        nodes = [*ast.walk(ast.parse(program))]
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(isinstance(node, ast.BinOp | ast.AugAssign | ast.comprehension | ast.For | ast.While) for node in nodes)


def add_check(made: Made, check: str, how: dict[str, Any]) -> Made:
    """The task, having passed a check, with how it did."""
    checks = {**made.lineage.get("checks", {}), check: how}
    return replace(made, lineage={**made.lineage, "checks": checks})
