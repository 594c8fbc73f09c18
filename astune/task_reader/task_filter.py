"""`astune.task_reader.filter`: which tasks to take.

>>> keep = TaskFilter("level >= 3 and 'algebra' in subject")
>>> keep = TaskFilter("row['Stufe?'] >= 3")          # a column whose name is no word
"""

from __future__ import annotations

from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import SandboxedEnvironment

from astune.errors import ConfigError, TaskError, nearest
from astune.task_reader.rows import Record

KEY = "astune.task_reader.filter"
TASK_FIELDS = ("task_id", "query", "answer", "messages", "env_type")
ROW = "row"
"""Stands for the whole row in an expression, unless a column is called so."""
RESERVED = {"and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"}
"""Words of Jinja's expressions, which therefore name no column."""


class TaskFilter:
    """A Jinja2 expression over the columns of a row and the fields of the task made from it, which win. `row` is the
    whole row, for columns whose names are no words.

    It runs in Jinja's sandbox. Raises `ConfigError` at birth for what is no expression.
    """

    def __init__(self, expression: str) -> None:
        environment = SandboxedEnvironment(undefined=StrictUndefined)
        self._expression = expression
        try:
            self._compiled = environment.compile_expression(expression, undefined_to_none=False)
            parsed = environment.parse(f"{{{{ ({expression}) }}}}")
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"{KEY}: {expression!r} is no Jinja expression: {error.message}. A column whose name is no word, as "
                f"'Stufe?', is written {_write_name('Stufe?')}"
            ) from error
        self._names = find_undeclared_variables(parsed)
        self._columns = [
            found.arg.value
            for found in parsed.find_all(nodes.Getitem)
            if isinstance(found.node, nodes.Name) and found.node.name == ROW and isinstance(found.arg, nodes.Const)
        ]
        """The columns that are named by `row[...]`."""

    def keeps(self, record: Record, place: str) -> bool:
        """True if the expression holds for the record. Raises `TaskError` that begins with `place` if it fails."""
        task = record.task
        values = {ROW: record.row, **record.row, **{name: getattr(task, name) for name in TASK_FIELDS}}
        try:
            return bool(self._compiled(**values))
        except Exception as error:  # an expression can raise whatever the values of a row do
            raise TaskError(f"{place}: {KEY} {self._expression!r}: {self._cause(error, record, values)}") from error

    def _cause(self, error: Exception, record: Record, values: dict[str, Any]) -> str:
        unknown = sorted(self._names - values.keys())
        unknown += [] if ROW in record.row else [str(name) for name in self._columns if name not in record.row]
        if not unknown:
            return f"{type(error).__name__}: {error}"
        names = {str(name): _write_name(str(name)) for name in values if name != ROW or ROW in record.row}
        close = nearest(unknown[0], names)
        for name, written in names.items():
            close = close.replace(f"{name!r}?", f"{written}?") if written != repr(name) else close
        return f"no column {unknown[0]!r}; there are {', '.join(names.values())}.{close}"


def _write_name(name: str) -> str:
    """Write the name of a column for an expression."""
    return repr(name) if name.isidentifier() and name not in RESERVED else f"{ROW}[{name!r}]"
