from typing import Any

import pytest

from astune.config.tasks import FieldsConfig
from astune.errors import ConfigError, TaskError
from astune.task_reader.rows import RowMapping
from astune.task_reader.task_filter import TaskFilter
from tests.rows import each_row

ROW = {"id": 7, "question": "6 * 12?", "answer": 72, "level": 3, "subject": ["algebra"], "meta": {"hard": True}}
ODD = {**ROW, "Stufe?": 2, "Lfd. Nr.": 7, "in": "Bern", "Größe": 4, "a'b": 1}


def keeps(expression: str, row: dict[str, Any] = ROW) -> bool:
    return TaskFilter(expression).keeps(RowMapping(FieldsConfig()).record(row, "data.jsonl:3"), "data.jsonl:3")


@each_row(
    ("expression", "kept"),
    [
        ("level >= 3 and 'algebra' in subject", True),
        ("level > 3", False),
        ("meta.hard and not meta.old is defined", True),
        ("level", True),
        ("''", False),
        ("query == question", True),
        ("answer == '72' and task_id == '7'", True),
        ("env_type is none and messages | length == 0", True),
        ("hint is defined", False),
        ("query | length < 8", True),
    ],
)
def test_an_expression_sees_the_columns_and_the_task(expression: str, kept: bool) -> None:
    assert keeps(expression) is kept


@pytest.mark.parametrize(
    "expression",
    [
        "row['Stufe?'] == 2 and row['Lfd. Nr.'] == 7",
        "row['in'] == 'Bern' and Größe > 3",
        """row["a'b"] == level - 2""",
        "row['no such?'] is not defined",
    ],
)
def test_a_column_whose_name_is_no_word_is_named_by_the_row(expression: str) -> None:
    assert keeps(expression, ODD)
    assert keeps("row == 3", {**ODD, "row": 3})


@each_row(
    ("expression", "hint"),
    [
        ("Stufe > 1", """no column 'Stufe'; there are """),
        ("Stufe > 1", """Did you mean row['Stufe?']?"""),
        ("row['Stufe'] > 1", """no column 'Stufe'; there are """),
        ("row['Stufe'] > 1", """, row['Lfd. Nr.'], row['in'], 'Größe', row["a'b"], """),
        ("row['levle'] > 1", """Did you mean 'level'?"""),
    ],
)
def test_the_hint_says_how_such_a_column_is_written(expression: str, hint: str) -> None:
    with pytest.raises(TaskError) as error:
        keeps(expression, ODD)
    assert hint in str(error.value)


@each_row("expression", ["Stufe? > 1", "level >=", "level = 3", "", "level | nofilter", "a }} {{ b"])
def test_what_is_no_expression_is_an_error_that_names_the_key(expression: str) -> None:
    with pytest.raises(ConfigError) as error:
        TaskFilter(expression)
    assert str(error.value).startswith(f"astune.task_reader.filter: {expression!r} is no Jinja expression: ")


@pytest.mark.parametrize("expression", ["levle > 2", "levle", "not levle", "levle in [1]"])
def test_an_unknown_column_is_named_with_the_nearest(expression: str) -> None:
    with pytest.raises(TaskError) as error:
        keeps(expression)
    text = str(error.value)
    assert text.startswith(
        f"data.jsonl:3: astune.task_reader.filter {expression!r}: no column 'levle'; there are 'id', "
    )
    assert text.endswith("Did you mean 'level'?")


@pytest.mark.parametrize(
    ("expression", "cause"),
    [
        ("level > 'a'", "TypeError: '>' not supported between instances of 'int' and 'str'"),
        ("meta.soft", "UndefinedError: 'dict object' has no attribute 'soft'"),
        ("level / 0", "ZeroDivisionError"),
        ("question.__class__", "SecurityError: access to attribute '__class__' of 'str' object is unsafe."),
    ],
)
def test_an_expression_that_fails_on_a_row_is_a_bad_record_with_its_cause(expression: str, cause: str) -> None:
    with pytest.raises(TaskError) as error:
        keeps(expression)
    assert str(error.value).startswith(f"data.jsonl:3: astune.task_reader.filter {expression!r}: {cause}")
