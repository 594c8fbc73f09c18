"""The checks of an answer: a program in the sandbox, independent solutions, the agent in its environment; and those of
a task with a proved answer: a rubric, the policy's own attempts.

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
from astune.data.play import ModelPlayer
from astune.data.prompts import Program, Solution, program_messages, solve_messages
from astune.errors import ConfigError, EnvServiceError, SetupError
from astune.support.concurrency import all_ended
from astune.task_judge import TaskJudges, make_judge
from astune.task_judge.llm.pointwise import CriteriaReply, check_scores, rubric_messages, rubric_reward
from astune.task_judge.llm.rubric import Rubric
from astune.task_judge.math.compare import Relation, compare
from astune.task_judge.math.final_answer import reference_answer
from astune.task_judge.math.normalise import normalise
from astune.workspaces.proof import prove_isolation
from astune.workspaces.sandbox import Sandbox

LIMITS = SandboxLimits(memory_mb=256, cpu_seconds=10.0, command_seconds=10.0, processes=8, output_kb=16)
NONSENSE = "-987654321"
"""An answer that no judge may take for right."""
SANDBOXES = 4  # programs that run at the same time

Same = Callable[[Made, str], Awaitable[bool]]


def say_same(one: str, other: str) -> bool:
    """True if two answers are the same as far as that takes no algebra: the same quantity, or the same words.

    >>> say_same("42", "$42.00"), say_same("-5", "5")
    (True, False)
    """
    relation = compare(normalise(reference_answer(one)), normalise(reference_answer(other)))
    return relation is Relation.EQUAL or (relation is Relation.UNREAD and _fold(one) == _fold(other))


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
            return say_same(made.answer, answer)
        judged = JudgedTasks(chosen, named.config_of(task) or config, [task])
        if not judged.by_the_answer:
            raise ConfigError(f"{judged.title} judges what an agent does: let an agent play, with checks: [agent]")
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
    """`same` tells whether an answer is that of a task. `agent` plays for the check of that name, `policy` is what is
    trained; both are there once they are started."""

    asking: Inquiry
    config: AugmentConfig
    same: Same
    rubric: Rubric | None = None
    agent: ModelPlayer | None = None
    policy: ModelPlayer | None = None

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

    def say_agreement(self) -> str:
        """The agreement of the rubric with people on the test examples of its report; empty without a rubric."""
        if self.rubric is None:
            return ""
        test, name = self.rubric.report.get("test"), self.rubric.name
        if test is None:
            return f"nobody has measured how far {name} agrees with people"
        share = f"{test['accuracy']:.0%} ({test['low']:.0%} to {test['high']:.0%})"
        return f"{name} agrees with people on {share} of {test['n']} rated ones, kappa {test['kappa']}"

    async def prove(
        self, made: Made, texts: Sequence[str] | None = None, names: Sequence[str] | None = None
    ) -> Made | Dropped:
        """The task with what proves its answer, or why it is dropped. `names` take the place of the configured."""
        said = []
        for name in names or self.config.checks:
            found = await {"code": self._compute, "agree": self._agree, "agent": self._play}[name](made, texts)
            if not isinstance(found, str):
                return found
            said.append(f"{name}: {found}")
        return Dropped(made, "unchecked", "; ".join(said))

    async def _compute(self, made: Made, texts: Sequence[str] | None) -> Made | Dropped | str:
        """A text says why it cannot be computed."""
        reply = await self.asking.ask(program_messages(made.query, texts), Program)
        if reply is None:
            return "no program"
        program = reply.value.program
        if not _computes(program):
            return "the program computes nothing"
        printed, failed = await self._run(program)
        if failed:
            return failed
        if await self.same(made, printed):
            return add_check(made, "code", {"program": program, "printed": printed})
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

    async def solve(self, query: str, texts: Sequence[str] | None) -> list[str]:
        """The answers of independent solutions; fewer where replies could not be used."""
        messages, count = solve_messages(query, texts), self.config.solutions
        replies = await all_ended([self.asking.ask(messages, Solution, vote=vote) for vote in range(count)])
        return [reply.value.answer for reply in replies if reply is not None]

    async def _agree(self, made: Made, texts: Sequence[str] | None) -> Made | Dropped | str:
        """A text says why nothing can be told."""
        count = self.config.solutions
        answers = await self.solve(made.query, texts)
        if len(answers) < count:
            return f"{len(answers)} of {count} solutions could be read"
        right = [await self.same(made, answer) for answer in answers]
        if all(right):
            return add_check(made, "agree", {"solutions": count})
        theirs = replace(made, answer=answers[0])
        agree = all([await self.same(theirs, answer) for answer in answers[1:]])
        said = f"solutions say {', '.join(dict.fromkeys(answers))!r:.200}"
        return Dropped(made, "wrong answer" if agree and not any(right) else "no agreement", said)

    async def _play(self, made: Made, texts: Sequence[str] | None) -> Made | Dropped | str:
        """In a world, whose goal is known to be right, the agent has to get there once, else each time."""
        in_world = made.task.env_type is not None
        if not in_world and not await self.same(made, made.answer):
            return "its judge does not take the answer itself for right"
        assert self.agent is not None, "who plays is started before"
        found = await self.agent.play(made.task, self.config.solutions)
        if isinstance(found, str):
            return found
        if all(found) or (in_world and any(found)):
            return add_check(made, "agent", {"solved": sum(found), "of": len(found)})
        reason = "no agreement" if any(found) else "wrong answer"
        return Dropped(made, reason, f"{sum(found)} of {len(found)} attempts of the agent are right")

    async def finish(self, made: Made) -> Made | Dropped:
        """Look at a task whose answer is proved: the rubric has to pass it, and the policy to solve it at times."""
        rated = made if self.rubric is None else await self._rate(made, self.rubric)
        if isinstance(rated, Dropped) or self.policy is None:
            return rated
        found = await self.policy.play(made.task, self.config.tries)
        if isinstance(found, str):
            return Dropped(made, "unchecked", f"policy: {found}")
        if sum(found) in (0, len(found)):
            return Dropped(made, "too easy" if found[0] else "too hard", f"{sum(found)} of {len(found)} attempts")
        return add_check(rated, "policy", {"solved": sum(found), "of": len(found)})

    async def _rate(self, made: Made, rubric: Rubric) -> Made | Dropped:
        def check(reply: CriteriaReply) -> None:
            check_scores(rubric, reply)

        messages = rubric_messages(rubric, made.query, made.answer, None, "")
        reply = await self.asking.ask(messages, CriteriaReply, check, temperature=0.0)
        if reply is None:
            return Dropped(made, "unchecked", "quality: the scores could not be read")
        scores = check_scores(rubric, reply.value)
        reward = rubric_reward(rubric, scores)
        if reward < rubric.pass_at:
            said = ", ".join(f"{name} {score}" for name, score in scores.items())
            return Dropped(made, "quality", f"{reward:.2f}, expected {rubric.pass_at:g}: {said}")
        return add_check(made, "quality", {"rubric": rubric.digest, "reward": round(reward, 4)})


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
