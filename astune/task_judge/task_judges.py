"""The judges that tasks name themselves.

{"id": "1", "query": "2+2?", "answer": "4", "scorer": "math", "answer_schema": "boxed"}
{"id": "2", "query": "What is ML?", "answer": "...", "scorer": "llm", "answer_schema": "answer"}

A task with `answer_schema` alone is judged by `astune.task_judge.judge_protocol`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from astune.config.judges import TaskJudgeConfig
from astune.config.rules.beside import OF_JUDGES, READ_BY_JUDGE
from astune.errors import TaskError, nearest
from astune.task_judge.function_judge import FunctionJudge
from astune.task_judge.judge_base import Judge
from astune.task_judge.registry import judge_names, load_judge
from astune.types import Task

SHORT_NAMES: Mapping[str, str] = {
    "math": "MathAnswerAsJudge",
    "math_llm": "MathAnswerAndLlmAsJudge",
    "llm": "LlmAsJudge",
    "agentcpm": "LlmAsJudge",
    "rubrics": "RubricsAsJudge",
    "tool_use": "ToolUseJudge",
    "env": "EnvServiceJudge",
}
"""Names in data sets for the judges that ship; `agentcpm` is AgentRL's name for its LLM judge."""

ANSWER_SCHEMAS: Mapping[str, str] = {"answer": "answer_tag", "boxed": "boxed"}
"""Values of `answer_schema`, and the `astune.task_judge.answer_format` that each stands for."""


class TaskJudges:
    """The judges that tasks name in their field `scorer`, made when the first task asks for one.

    A name is one of `astune.task_judge.scorers`, one of `SHORT_NAMES`, a judge that ships, or a registered one.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        self._config = config
        self._judges: dict[tuple[str | None, str | None], Judge] = {}

    def of(self, task: Task) -> Judge | None:
        """The task's own judge, None if it names none. Raises TaskError for an unknown name or schema, and PluginError
        for a judge that does not load."""
        named = judge_named_by(task)
        if named not in self._judges:
            config = self.config_of(task)
            if config is None:
                return None
            key = f"astune.task_judge.{'judge_protocol' if named[0] is None else f'scorers.{named[0]}'}"
            judge = load_judge(config.judges[0].judge, config, key=key)
            if named[1] is not None and isinstance(judge, FunctionJudge) and not judge.reads_answer_format:
                raise TaskError(
                    f"task {task.task_id!r}: answer_schema {named[1]!r}: the judge {config.judges[0].judge!r} does not "
                    "ask for the final answer: let it take (model_answer, ground_truth), or take answer_schema out"
                )
            self._judges[named] = judge
        return self._judges[named]

    def config_of(self, task: Task) -> TaskJudgeConfig | None:
        """The configuration that the task's own judge is made from: its name as `judge_protocol`, its schema as
        `answer_format`; None if it names neither. Raises TaskError for an unknown name or schema, and for a schema
        alone where `judge_protocol` is not one judge that reads it."""
        name, schema = judge_named_by(task)
        if name is None and schema is None:
            return None
        spec = self._default(task, schema) if name is None else self._find_spec(task, name)
        if schema is not None and schema not in ANSWER_SCHEMAS:
            raise TaskError(
                f"task {task.task_id!r}: unknown answer_schema {schema!r}.{nearest(schema, ANSWER_SCHEMAS)} "
                f"There are: {', '.join(ANSWER_SCHEMAS)}"
            )
        formats = {} if schema is None else {"answer_format": ANSWER_SCHEMAS[schema]}
        return self._config.model_copy(update={"judge_protocol": spec, **formats})

    def _default(self, task: Task, schema: str | None) -> str:
        """The judge of a task that says nothing but where its answer stands."""
        spec = self._config.judge_protocol
        if isinstance(spec, str) and "answer_format" in READ_BY_JUDGE.get(spec, OF_JUDGES):
            return spec
        raise TaskError(
            f"task {task.task_id!r}: answer_schema {schema!r} counts for a judge that reads the final answer; there is "
            f"no scorer, and astune.task_judge.judge_protocol is {spec!r:.60}: "
            'add "scorer": "math", or set astune.task_judge.answer_format for all tasks'
        )

    def _find_spec(self, task: Task, name: str) -> str:
        known = sorted({*self._config.scorers, *SHORT_NAMES, *judge_names()})
        if name not in known:
            raise TaskError(
                f"task {task.task_id!r}: unknown scorer {name!r}.{nearest(name, known)} There are: {', '.join(known)}; "
                "astune.task_judge.scorers gives judges of your own a name"
            )
        return self._spec(name)

    def specs(self, tasks: Iterable[Task]) -> set[str]:
        """The judges that the tasks name, as `astune.task_judge.judge_protocol` would name them."""
        names = {name for task in tasks if (name := judge_named_by(task)[0]) is not None}
        return {self._spec(name) for name in names}

    def check(self, tasks: Iterable[Task]) -> None:
        """Raises as `of` does for the first task that it would raise for."""
        for task in tasks:
            self.of(task)

    def _spec(self, name: str) -> str:
        return self._config.scorers.get(name) or SHORT_NAMES.get(name, name)


def judge_named_by(task: Task) -> tuple[str | None, str | None]:
    """The names of the judge and of the answer's form in a task; None where it has none."""
    return _read_name(task, "scorer"), _read_name(task, "answer_schema")


def _read_name(task: Task, field: str) -> str | None:
    value: Any = task.metadata.get(field)
    if value is not None and not isinstance(value, str):
        raise TaskError(f"task {task.task_id!r}: {field} must be a text, found {value!r:.80}")
    return value or None
