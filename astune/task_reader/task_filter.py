"""`astune.task_reader.filter`: which tasks to take.

>>> keep = TaskFilter("level >= 3 and 'algebra' in subject")
"""

from __future__ import annotations

from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import SandboxedEnvironment

from astune.errors import ConfigError, TaskError, nearest
from astune.task_reader.rows import Record

KEY = "astune.task_reader.filter"
TASK_FIELDS = ("task_id", "query", "answer", "messages", "env_type")


class TaskFilter:
    """A Jinja2 expression over the columns of a row and the fields of the task made from it, which win.

    It runs in Jinja's sandbox. Raises `ConfigError` at birth for what is no expression.
    """

    def __init__(self, expression: str) -> None:
        environment = SandboxedEnvironment(undefined=StrictUndefined)
        self._expression = expression
        try:
            self._compiled = environment.compile_expression(expression, undefined_to_none=False)
            self._names = find_undeclared_variables(environment.parse(f"{{{{ ({expression}) }}}}"))
        except TemplateSyntaxError as error:
            raise ConfigError(f"{KEY}: {expression!r} is no Jinja expression: {error.message}") from error

    def keeps(self, record: Record, place: str) -> bool:
        """True if the expression holds for the record. Raises `TaskError` that begins with `place` if it fails."""
        task = record.task
        values = {**record.row, **{name: getattr(task, name) for name in TASK_FIELDS}}
        try:
            return bool(self._compiled(**values))
        except Exception as error:  # an expression can raise whatever the values of a row do
            raise TaskError(f"{place}: {KEY} {self._expression!r}: {self._cause(error, values)}") from error

    def _cause(self, error: Exception, values: dict[str, Any]) -> str:
        unknown = sorted(self._names - values.keys())
        if not unknown:
            return f"{type(error).__name__}: {error}"
        there = ", ".join(map(repr, values))
        return f"no column {unknown[0]!r}; there are {there}.{nearest(unknown[0], values)}"
