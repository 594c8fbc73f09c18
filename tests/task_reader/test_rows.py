import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.tasks import FieldsConfig
from astune.errors import TaskError
from astune.task_reader.rows import RowMapping
from astune.types import Task
from tests.rows import each_row

Row = dict[str, Any]


def read(*rows: Row, **fields: str) -> list[Task]:
    mapping = RowMapping(FieldsConfig(**fields))
    return [mapping.record(row, f"data.jsonl:{number}").task for number, row in enumerate(rows, start=1)]


def message_of(*rows: Row, **fields: str) -> str:
    with pytest.raises(TaskError) as error:
        read(*rows, **fields)
    return str(error.value)


def test_the_documented_columns_are_found_without_configuration() -> None:
    row = {"id": 7, "question": "6 * 12?", "answer": 72, "difficulty": "easy"}
    assert read(row) == [Task("7", "6 * 12?", answer="72", metadata=row)]
    row = {"task_id": "seven", "query": "6 * 12?", "question": "not this one", "id": 7}
    assert read(row) == [Task("seven", "6 * 12?", metadata=row)]


def test_configured_columns_win_over_the_documented_ones() -> None:
    row = {"query": "wrong", "q": "6 * 12?", "key": 3, "answer": "wrong", "gold": 72, "chat": []}
    [task] = read(row, query="q", task_id="key", answer="gold", messages="chat")
    assert (task.query, task.task_id, task.answer, task.messages) == ("6 * 12?", "3", "72", ())


@each_row(
    ("answer", "text"), [(72, "72"), (0.5, "0.5"), (True, "True"), ("#### 72", "#### 72"), (None, None), (0, "0")]
)
def test_an_answer_becomes_text(answer: object, text: str | None) -> None:
    assert read({"query": "?", "answer": answer})[0].answer == text


def test_messages_keep_everything_but_null_entries() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief.", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    [task] = read({"query": "?", "messages": messages})
    assert task.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    )


def test_of_a_row_with_nothing_but_a_conversation_the_query_is_what_the_user_said_last() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "well"},
        {"role": "user", "content": "last"},
    ]
    assert read({"messages": messages})[0].query == "last"


ROWS = st.lists(st.fixed_dictionaries({"query": st.sampled_from("abc"), "n": st.integers(0, 2)}), max_size=8)


@given(ROWS, st.randoms(use_true_random=False))
def test_made_ids_depend_on_the_content_and_on_nothing_else(rows: list[Row], random: Any) -> None:
    ids = [task.task_id for task in read(*rows)]
    assert len(set(ids)) == len({(row["query"], row["n"]) for row in rows})
    shuffled = [dict(reversed(row.items())) for row in rows]
    random.shuffle(shuffled)
    assert sorted(task.task_id for task in read(*shuffled)) == sorted(ids)


def test_an_id_says_whether_it_was_given_or_made() -> None:
    mapping = RowMapping(FieldsConfig())
    assert mapping.record({"query": "?", "id": 1}, "").has_id
    assert not mapping.record({"query": "?", "id": None}, "").has_id


def test_dates_and_bytes_do_not_stand_in_the_way_of_an_id() -> None:
    row = {"query": "?", "when": datetime.date(2026, 11, 20), "raw": b"\x00"}
    assert read(row)[0].task_id == read(dict(row))[0].task_id


def test_a_row_without_query_says_what_it_has_and_which_key_to_set() -> None:
    assert message_of({"query": "ok"}, {"questoin": "6 * 12?", "answer": 72}) == (
        "data.jsonl:2: no query: the row has 'questoin', 'answer', none of 'query', 'question', 'messages' with a "
        "value. Did you mean 'questoin'? Name the column with astune.task_reader.fields.query"
    )
    assert "the row has no columns" in message_of({})
    assert "no query" in message_of({"query": None})


BAD_ROWS = [
    ({"query": ""}, "data.jsonl:1: the query in column 'query' is empty"),
    ({"question": " \n"}, "data.jsonl:1: the query in column 'question' is empty"),
    ({"query": 72}, "data.jsonl:1: column 'query' must hold the question as text, found int 72"),
    ({"query": "?", "id": ""}, "column 'id' must hold an id, text or a whole number, found str ''"),
    ({"query": "?", "id": 1.5}, "column 'id' must hold an id, text or a whole number, found float 1.5"),
    ({"query": "?", "answer": ["72"]}, "column 'answer' must hold text, a number or a truth value, found list ['72']"),
    ({"query": "?", "messages": "hi"}, "column 'messages' must hold a list of messages, found str 'hi'"),
    ({"query": "?", "messages": ["hi"]}, "messages[0] must be an object with 'role' and 'content', found str 'hi'"),
    (
        {"query": "?", "messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]},
        "messages[1].role must be one of system, developer, user, assistant, tool, found str 'bot'",
    ),
    ({"query": "?", "messages": [{"content": "a"}]}, "messages[0].role must be one of"),
    (
        {"query": "?", "messages": [{"role": "user"}]},
        "messages[0].content must be text or a list of parts, found NoneType None",
    ),
    (
        {"messages": [{"role": "system", "content": "a"}]},
        "no query: there is no column 'query' and 'messages' hold no text of a user",
    ),
    (
        {"query": "?", "image": object()},
        "cannot make a task id from a value of type object; "
        "name a column of ids with astune.task_reader.fields.task_id",
    ),
]


@each_row(("row", "message"), BAD_ROWS)
def test_a_bad_value_is_an_error_that_shows_it(row: Row, message: str) -> None:
    assert message in message_of(row)


def test_a_configured_query_of_null_is_not_replaced_by_another_column() -> None:
    assert "column 'q' must hold the question as text, found NoneType None" in message_of(
        {"q": None, "query": "?"}, query="q"
    )


EPISODE = {"task_id": "t", "answer": "71", "task": {"task_id": "t", "query": "6 * 12?", "answer": "72"}} | {
    "turns": [],
    "timelines": [],
}
SAID = {"role": "assistant", "content": "72"}
ASKED = {"role": "user", "content": "6 * 12?"}


@pytest.mark.fault("Input files and settings", "a file of another kind is read as tasks", "error with the right place")
@each_row(
    ("row", "wanted"),
    [
        (EPISODE, "recorded episodes.*answer: task.answer"),
        ({"messages": [ASKED], "chosen": SAID, "rejected": SAID}, "astune.trainer.examples.*dpo"),
        ({"messages": [ASKED], "answer": SAID, "good": True, "tools": []}, "astune.trainer.examples.*kto"),
        ({"messages": [ASKED, SAID], "tools": []}, "astune.trainer.examples.*sft"),
        ({"query": "6 * 12?", "answer": "71", "score": 0}, "astune.rubrics.examples.*fields.query and .*fields.answer"),
        ({"query": "6 * 12?", "chosen": "72", "rejected": "71"}, "astune.rubrics.examples.*fields.query"),
    ],
)
def test_a_row_of_a_file_of_another_kind_is_no_task(row: Row, wanted: str) -> None:
    with pytest.raises(TaskError, match=f"data.jsonl:1: .*{wanted}"):
        read(row)


def test_the_task_of_a_recorded_episode_is_read_where_the_fields_say_so() -> None:
    (task,) = read(EPISODE, task_id="task.task_id", query="task.query", answer="task.answer")
    assert (task.task_id, task.query, task.answer) == ("t", "6 * 12?", "72")
