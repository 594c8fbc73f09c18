import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.tasks import FieldsConfig
from astune.errors import ConfigError, TaskError
from astune.task_reader.fields import FieldPath, Template, parse_selector
from astune.task_reader.rows import RowMapping
from astune.types import Task
from tests.rows import each_row

ROW: dict[str, Any] = {
    "question": "Which?",
    "a.b": "a column with a dot",
    "a": {"b": "not this one", "c": [{"d": "deep"}, ["x", "y"]], "odd.name": 1},
    "options": ["red", "blue"],
    "n": 7,
    "nothing": None,
}


def task(row: dict[str, Any], **fields: Any) -> Task:
    return RowMapping(FieldsConfig(**fields)).record(row, "data.jsonl:3").task


def problem(row: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(TaskError) as error:
        task(row, **fields)
    return str(error.value)


@each_row(
    ("path", "value"),
    [
        ("question", "Which?"),
        ("a.b", "a column with a dot"),
        ("a.c[0].d", "deep"),
        ("a.c[-1][0]", "x"),
        ("a.c[1][-1]", "y"),
        ('a["odd.name"]', 1),
        ('["n"]', 7),
    ],
)
def test_a_path_leads_to_its_value_and_a_column_of_that_name_wins(path: str, value: object) -> None:
    assert FieldPath.parse(path, "query").value(ROW, "data.jsonl:3") == value


NAMES = st.sampled_from(["a", "b", "c d", "e-f", "ä"])
TREES = st.recursive(
    st.integers(),
    lambda inside: st.lists(inside, min_size=1, max_size=3) | st.dictionaries(NAMES, inside, min_size=1),
    max_leaves=8,
)


def leaves(tree: Any, steps: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """Every way down, with what is at its end."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = [(steps, tree)] if steps else []
    for step, inside in entries:
        found += leaves(inside, (*steps, step))
        if isinstance(step, int):
            found += leaves(inside, (*steps, step - len(tree)))
    return found


@given(st.dictionaries(NAMES, TREES, min_size=1))
def test_every_value_in_a_row_has_a_path(row: dict[str, Any]) -> None:
    for steps, value in leaves(row):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)[1:]
        assert FieldPath.parse(path, "answer").value(row, "") == value


@each_row("path", ["", ".a", "a.", "a..b", "a[", "a[x]", "a[1", "[0]", "a]", "a b}", "a[0]b", "a[1.5]"])
@each_row("key", ["task_id", "query", "answer", "messages", "env_type"])
def test_what_is_no_path_is_an_error_before_any_row_is_read(path: str, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        RowMapping(FieldsConfig(**{key: path}))
    assert str(error.value).startswith(f"astune.task_reader.fields.{key}: {path!r} is no column or path")


@each_row(
    ("path", "message"),
    [
        (
            "qeustion",
            "no column 'qeustion', which astune.task_reader.fields.answer names; the row has 'question', 'a.b'",
        ),
        ("a.d", "astune.task_reader.fields.answer names 'a.d', but 'a' has 'b', 'c', 'odd.name', no 'd'."),
        ("a.cc[0]", "no 'cc'. Did you mean 'c'?"),
        ("a.c[2]", "but 'a.c' has 2 entries, none [2]"),
        ("a.c[-3]", "but 'a.c' has 2 entries, none [-3]"),
        ("a.c[0][0]", "but 'a.c[0]' must hold a list, found dict {'d': 'deep'}"),
        ("options.red", "but 'options' must hold an object, found list ['red', 'blue']"),
        ("nothing.more", "but 'nothing' must hold an object, found NoneType None"),
    ],
)
def test_a_path_that_leads_nowhere_says_how_far_it_came(path: str, message: str) -> None:
    text = problem(ROW, answer=path)
    assert text.startswith("data.jsonl:3: ") and message in text


def test_a_template_puts_values_into_text() -> None:
    assert task(ROW, query="{question}\nOptions: {options}").query == 'Which?\nOptions: ["red", "blue"]'
    assert task(ROW, query="{question} {options:lines}").query == "Which? red\nblue"
    assert task(ROW, query="{options:letters}\n{{{n}}} {a.c[0].d} {a.b}").query == (
        "A. red\nB. blue\n{7} deep a column with a dot"
    )
    assert task(ROW, answer="{n}/{a.c[1]}").answer == '7/["x", "y"]'
    assert task(ROW, task_id="{question}-{n}").task_id == "Which?-7"


def test_what_json_does_not_have_is_written_as_text() -> None:
    day = datetime.date(2026, 11, 20)
    assert task({"day": day, "days": [day]}, query="{day} {days} {days:lines}").query == (
        '2026-11-20 ["2026-11-20"] 2026-11-20'
    )


VALUES = (
    st.text(max_size=5)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.lists(st.integers() | st.text(max_size=3), max_size=4)
)


@given(
    st.lists(
        st.text(max_size=5) | st.tuples(st.sampled_from(["p", "q", "r s"]), st.sampled_from(["", ":lines", ":letters"]))
    ),
    st.fixed_dictionaries({"p": VALUES, "q": VALUES, "r s": st.lists(st.integers() | st.text(max_size=3), max_size=4)}),
)
def test_templates_are_what_joining_their_parts_gives(parts: list[Any], row: dict[str, Any]) -> None:
    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)

    template, expected = "{{", "{"
    for part in parts:
        if isinstance(part, str):
            template += part.replace("{", "{{").replace("}", "}}")
            expected += part
            continue
        name, form = part
        value = row[name]
        form = form if isinstance(value, list) else ""
        template += f"{{{name}{form}}}"
        if form == ":lines":
            expected += "\n".join(map(written, value))
        elif form == ":letters":
            expected += "\n".join(f"{'ABCD'[index]}. {written(entry)}" for index, entry in enumerate(value))
        else:
            expected += written(value)
    assert Template.parse(template, "query").value(row, "") == expected


@each_row(
    ("template", "message"),
    [
        ("{question", "has a single '{' at '{question'"),
        ("{question} }", "has a single '}' at '}'"),
        ("{}", "'' is no column or path"),
        ("{a.b[}", "'a.b[' is no column or path, from '[' on"),
        (
            "{options:letter}",
            "unknown format 'letter' in '{options:letter}'; there are lines, letters. Did you mean 'letters'",
        ),
    ],
)
def test_what_is_no_template_is_an_error_before_any_row_is_read(template: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        RowMapping(FieldsConfig(query=template))
    assert str(error.value).startswith("astune.task_reader.fields.query: ") and message in str(error.value)


@pytest.mark.parametrize("key", ["messages", "env_type"])
def test_only_texts_take_a_template(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"fields\.{key}: '.a.' is a template, expected a column or a path"):
        parse_selector("{a}", key)


@each_row(
    ("template", "message"),
    [
        ("{questoin}", "no column 'questoin', which astune.task_reader.fields.query names; "),
        ("{nothing}", "column 'nothing' must hold something to write into a template, found NoneType None"),
        ("{question:lines}", "column 'question' must hold a list for :lines, found str 'Which?'"),
        ("{many:letters}", "column 'many' has 27 entries, and there are 26 letters"),
        ("{image}", "column 'image' must hold something to write into a template, found bytes"),
        ("{blank}", "the query in template '{blank}' is empty"),
        ("{thing}", "column 'thing' cannot be written into a template: a value of type object"),
    ],
)
def test_a_template_that_a_row_does_not_fit_names_the_column(template: str, message: str) -> None:
    row = {**ROW, "many": list(range(27)), "image": b"png", "blank": " ", "thing": object(), "id": 1}
    text = problem(row, query=template)
    assert text.startswith(f"data.jsonl:3: {message}")


@each_row(
    ("regex", "answer", "found"),
    [
        (r"####\s*(.+)", "6 * 12 = 72\n#### 72", "72"),
        (r"-?\d+$", "so it is -3", "-3"),
        (r"(\d+)/(\d+)", "3/4", "3"),
        (r"\d", 72, "7"),
        (r"\d", None, None),
    ],
)
def test_of_an_answer_the_first_group_is_taken_or_all_that_matches(regex: str, answer: Any, found: str | None) -> None:
    assert task({"query": "?", "answer": answer}, answer_regex=regex).answer == found


@pytest.mark.parametrize("regex", [r"#### (.+)", r"(x)|72"])
def test_an_answer_without_a_match_is_a_bad_record_that_shows_it(regex: str) -> None:
    assert problem({"query": "?", "answer": "so: 72"}, answer_regex=regex) == (
        f"data.jsonl:3: astune.task_reader.fields.answer_regex {regex!r} finds nothing in the answer, str 'so: 72'"
    )


def test_a_broken_regex_is_an_error_before_any_row_is_read() -> None:
    with pytest.raises(ConfigError, match=r"^astune\.task_reader\.fields\.answer_regex: '\(' is no regular expression"):
        RowMapping(FieldsConfig(answer_regex="("))


def test_metadata_is_the_row_or_the_columns_that_are_named() -> None:
    assert task(ROW).metadata == ROW
    assert task(ROW, metadata=("n", "a.b")).metadata == {"n": 7, "a.b": "a column with a dot"}
    assert task(ROW, metadata=()).metadata == {}
    assert "no column 'option', which astune.task_reader.fields.metadata names" in problem(ROW, metadata=("option",))
    assert task(ROW, metadata=("n",)).task_id == task(ROW).task_id


def test_a_row_with_an_environment_needs_no_query() -> None:
    assert task({"id": 1, "env_type": "maze"}) == Task("1", "", env_type="maze", metadata={"id": 1, "env_type": "maze"})
    rules = [{"role": "system", "content": "Be quick."}]
    assert task({"env_type": "maze", "messages": rules}).query == ""
    assert task({"env_type": None, "query": "?"}).env_type is None
    assert task({"world": {"kind": "maze"}, "env_type": "other"}, env_type="world.kind").env_type == "maze"
    assert "no query" in problem({"id": 1, "env_type": None})
    assert "column 'env_type' must hold a type of environment as text, found int 3" in problem({"env_type": 3})
