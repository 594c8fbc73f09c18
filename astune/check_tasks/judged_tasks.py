"""Judges, each with the tasks that it judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astune.config.judges import TaskJudgeConfig
from astune.config.rules import ASKS_MODELS
from astune.support.user_code import imports_of, source_of
from astune.task_judge import BUILTIN_JUDGES, Judge, TaskJudges, make_judge
from astune.types import Task

NOT_BY_THE_ANSWER = {"ToolUseJudge", "EnvServiceJudge"}
"""Judges of what an agent does: no answer alone is right for them."""
NETWORK = {"openai", "httpx", "httpx2", "requests", "aiohttp", "urllib", "socket", "anthropic", "dashscope", "litellm"}


@dataclass(frozen=True)
class JudgedTasks:
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
        """True if the judge costs time and money to ask, as far as its name tells."""
        return bool(ASKS_MODELS & set(self.names))

    @property
    def by_the_answer(self) -> bool:
        return not NOT_BY_THE_ANSWER & set(self.names)

    @property
    def network_packages(self) -> set[str]:
        """Packages that talk to other machines, of those that the files of the user's own judges import."""
        files = [source_of(name) for name in self.names if name not in BUILTIN_JUDGES]
        return set().union(*(imports_of(file) & NETWORK for file in files if file is not None))


def by_judge(tasks: Sequence[Task], config: TaskJudgeConfig) -> list[JudgedTasks]:
    """The tasks by their judges, in the order of their first tasks; those without any judge are left out. Raises
    PluginError for a judge that does not load and TaskError for a task that names an unknown one."""
    judge, task_judges = make_judge(config), TaskJudges(config)
    found: dict[int, JudgedTasks] = {}
    tasks_of: dict[int, list[Task]] = {}
    for task in tasks:
        own = task_judges.of(task)
        chosen = own or judge
        if chosen is not None:
            tasks_of.setdefault(id(chosen), []).append(task)
            made_from = task_judges.config_of(task) or config
            found.setdefault(id(chosen), JudgedTasks(chosen, made_from, tasks_of[id(chosen)]))
    return list(found.values())
