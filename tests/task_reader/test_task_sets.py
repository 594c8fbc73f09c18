"""What a run takes of what a reader gives, on real files and on a plug-in's list."""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.tasks import FieldsConfig, JsonlFile, JsonlReaderConfig, TaskReaderConfig
from astune.errors import PluginError, TaskError
from astune.task_reader import task_source
from astune.task_reader.held_out import find_held_out_limit, question_number
from astune.task_reader.task_sets import TaskSet, TaskSets, read_task_sets, stream_tasks
from astune.task_reader.task_source import UniqueIds
from astune.types import Task

Row = dict[str, Any]

PLUGIN = """
from astune import Task

class Listed:
    def __init__(self, config): ...

    def read(self, split):
        if split == "validation":
            return []
        return [Task(str(n % 4), f"{n} * 2?", metadata={"level": n}) for n in range(5)]

class Generated(Listed):
    def read(self, split):
        return (Task(str(n), "?") for n in range(5))

class Strings(Listed):
    def read(self, split):
        return ["one"]

class Nothing(Listed):
    def read(self, split):
        return []
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "readers.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("task_sets")


def write(path: Path, rows: Sequence[Row | str]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def config(
    folder: Path, training: Sequence[Row | str], validation: Sequence[Row | str] | None = None, **settings: Any
) -> TaskReaderConfig:
    files = JsonlReaderConfig(
        training=JsonlFile(file_path=write(folder / "train.jsonl", training)),
        validation=JsonlFile(file_path=None if validation is None else write(folder / "valid.jsonl", validation)),
    )
    return TaskReaderConfig(jsonl=files, **settings)


def read(folder: Path, *rows: Sequence[Row | str], **settings: Any) -> TaskSets:
    return read_task_sets(config(folder, *rows, **settings))


def problem(folder: Path, *rows: Sequence[Row | str], **settings: Any) -> str:
    with pytest.raises(TaskError) as error:
        read(folder, *rows, **settings)
    return str(error.value).replace(f"{folder}/", "")


def queries(tasks: Sequence[Task]) -> list[str]:
    return [task.query for task in tasks]


def asked(*questions: str) -> list[Row]:
    return [{"query": question} for question in questions]


# What holds whatever the rows are.

QUESTIONS = st.sampled_from(["a", "A ", "b", "c", "d", "e", "f"])
ROWS = st.lists(
    st.fixed_dictionaries({"query": QUESTIONS}, optional={"n": st.integers(0, 2), "id": st.integers(0, 5)}),
    min_size=1,
    max_size=12,
)
LENIENT = {"on_duplicate_id": "warn", "on_overlap": "warn"}


def folded(task: Task) -> str:
    return task.query.strip().lower()


@given(ROWS, st.floats(0.01, 0.99), st.integers(0, 3))
def test_no_question_is_on_both_sides_and_every_task_is_on_one(
    folder: Path, rows: list[Row], fraction: float, seed: int
) -> None:
    if len({row["query"].strip().lower() for row in rows}) == 1:
        assert "nothing can be held out" in problem(folder, rows, validation_fraction=fraction, **LENIENT)
        return
    sets = read(folder, rows, validation_fraction=fraction, split_seed=seed, **LENIENT)
    trained, held_out = set(map(folded, sets.training)), set(map(folded, sets.held_out))
    assert not trained & held_out
    assert trained and held_out
    assert sorted(queries([*sets.training, *sets.held_out])) == sorted(row["query"] for row in rows)
    assert len({task.task_id for task in [*sets.training, *sets.held_out]}) == len(rows)


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 3))
def test_of_different_questions_exactly_the_fraction_is_held_out(count: int, fraction: float, seed: int) -> None:
    numbers = [question_number(Task(str(n), f"question {n}"), seed) for n in range(count)]
    below = find_held_out_limit(numbers, fraction)
    assert sum(number < below for number in numbers) == min(max(round(count * fraction), 1), count - 1)


@given(ROWS, st.floats(0.01, 0.99), st.randoms(use_true_random=False))
def test_the_split_does_not_depend_on_the_order_of_rows(
    folder: Path, rows: list[Row], fraction: float, random: Any
) -> None:
    rows = [*rows, *asked("g", "h")]
    shuffled = list(rows)
    random.shuffle(shuffled)
    sides = [
        sorted(queries(read(folder, some, validation_fraction=fraction, **LENIENT).held_out))
        for some in (rows, shuffled)
    ]
    assert sides[0] == sides[1]


@given(st.integers(3, 60), st.integers(1, 5), st.floats(0.05, 0.9))
def test_when_rows_are_added_a_question_changes_sides_only_if_the_count_asks_for_it(
    count: int, more: int, fraction: float
) -> None:
    numbers = [question_number(Task("", f"question {n}"), 0) for n in range(count + more)]
    before, after = find_held_out_limit(numbers[:count], fraction), find_held_out_limit(numbers, fraction)
    moved = sum((number < before) != (number < after) for number in numbers[:count])
    assert moved <= more


@given(
    ROWS,
    ROWS | st.none(),
    st.sampled_from([None, 0.3]),
    st.sampled_from([None, "query != 'b'"]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 2]),
)
def test_a_stream_gives_the_tasks_that_reading_gives(
    folder: Path,
    rows: list[Row],
    held_out: list[Row] | None,
    fraction: float | None,
    expression: str | None,
    most: int | None,
    most_held_out: int | None,
) -> None:
    rows, held_out = [*rows, *asked("g", "h"), {"broken": 1}], held_out and [*held_out, *asked("i")]
    most_of = {"max_training_tasks": most, "max_validation_tasks": most_held_out}
    selected = {"validation_fraction": fraction, "filter": expression, "on_bad_record": "skip"}
    chosen = config(folder, rows, held_out, **most_of, **selected, **LENIENT)
    sets = read_task_sets(chosen)
    assert list(stream_tasks(chosen, "training")) == list(sets.training)
    assert list(stream_tasks(chosen, "validation")) == list(sets.held_out)
    assert [task.place for task in stream_tasks(chosen, "training")] == [task.place for task in sets.training]


@given(ROWS)
def test_ids_are_unique_whatever_the_rows_say(folder: Path, rows: list[Row]) -> None:
    ids = [task.task_id for task in read(folder, rows, on_duplicate_id="warn").training]
    assert len(set(ids)) == len(rows)
    without = [row for row in rows if "id" not in row]
    if without:
        alone = [task.task_id for task in read(folder, without).training]
        assert set(alone) <= set(ids)


@given(st.lists(st.sampled_from(["a", "a-2", "a-3", "b"]), max_size=10))
def test_a_copy_never_takes_an_id_that_is_there(ids: list[str]) -> None:
    unique = UniqueIds()
    given_out = [task_id if unique.add(task_id) else unique.add_copy(task_id) for task_id in ids]
    assert len(set(given_out)) == len(ids)


RECORDS = st.lists(
    st.sampled_from(['{"query": "a"}', '{"query": "b"}', "{", '{"query": ""}', '{"answer": 1}', "[]"]), min_size=1
)


@given(RECORDS, st.sampled_from([None, "query == 'a'"]))
def test_what_is_kept_skipped_and_filtered_is_all(folder: Path, lines: list[str], expression: str | None) -> None:
    good = [line for line in lines if line.startswith('{"query": "') and line != '{"query": ""}']
    kept = [line for line in good if expression is None or '"a"' in line]
    if not kept:
        text = problem(folder, lines, on_bad_record="skip", filter=expression)
        assert "records are bad, the first: train.jsonl:1" in text or "leaves none of the" in text
        return
    training = read(folder, lines, on_bad_record="skip", filter=expression).training
    assert len(training) == len(kept)
    assert len(training.skipped) == len(lines) - len(good)
    assert training.filtered == len(good) - len(kept)
    bad = [number for number, line in enumerate(lines, start=1) if line not in good]
    for number, message in zip(bad, training.skipped, strict=True):
        assert message.startswith(f"{folder}/train.jsonl:{number}:")


# What must stay as it is from one version, machine and Python to the next.

PINNED_LINES = ["1", "10", "20", "21", "31", "34", "42", "50"]
PINNED_IDS = (20, "701614da5ed44a41")
PINNED_FIRST_ID = "622f41c11695d685"
PINNED_NUMBERS = [15081703712194250967, 9323484722122722707, 17858644561524796678, 6864599817297459930]


def test_the_split_and_the_ids_are_pinned(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + {n * n % 17}?", "answer": n, "tags": ["ä", None, 0.1 * n]} for n in range(200)]
    sets = read(tmp_path, rows, validation_fraction=0.1, split_seed=7)
    assert [task.place.rpartition(":")[2] for task in sets.held_out[:8]] == PINNED_LINES
    ids = "\n".join(task.task_id for task in [*sets.training, *sets.held_out])
    assert (len(sets.held_out), hashlib.sha256(ids.encode()).hexdigest()[:16]) == PINNED_IDS
    assert sets.training[0].task_id == PINNED_FIRST_ID


def test_the_numbers_of_questions_are_pinned() -> None:
    talk = ({"role": "user", "content": [{"type": "text", "text": "Straße \n 1"}]},)
    tasks = [
        Task("1", "6 *  12?"),
        Task("1", "", messages=talk),
        Task("1", "", env_type="maze"),
        Task("\ud800", "\ud800"),
    ]
    assert [question_number(task, 3) for task in tasks] == PINNED_NUMBERS


# The filter, limits and bad records.


@pytest.mark.parametrize("settings", [{}, {"validation_fraction": 0.5}], ids=["all", "a fraction"])
def test_whoever_looks_on_sees_every_task_that_stays_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    seen: list[Task] = []
    rows = [*asked("a", "b", "c", "d"), "no row\n"]
    sets = read_task_sets(config(tmp_path, rows, on_bad_record="skip", filter="query != 'b'", **settings), seen.append)
    assert sorted(queries(seen)) == sorted([*queries(sets.training), *queries(sets.held_out)]) == ["a", "c", "d"]


def test_the_limit_counts_what_the_filter_leaves(tmp_path: Path) -> None:
    rows = [{"query": f"{n}?", "level": n} for n in range(10)]
    sets = read(tmp_path, rows, filter="level % 2 == 1", max_training_tasks=3)
    assert queries(sets.training) == ["1?", "3?", "5?"]
    assert sets.training.filtered == 3
    assert "leaves none of the 10 training records" in problem(tmp_path, rows, filter="level > 10")


def test_the_filter_sees_columns_that_the_task_does_not_keep(tmp_path: Path) -> None:
    rows = [{"query": f"{n}?", "level": n} for n in range(4)]
    sets = read(tmp_path, rows, filter="level > 1", fields=FieldsConfig(metadata=()))
    assert [task.metadata for task in sets.training] == [{}, {}]


def test_an_unknown_column_of_the_filter_is_a_bad_record(tmp_path: Path) -> None:
    rows = [{"query": "a", "level": 1}, {"query": "b"}]
    assert problem(tmp_path, rows, filter="level > 0").startswith(
        "train.jsonl:2: astune.task_reader.filter 'level > 0': "
    )
    sets = read(tmp_path, rows, filter="level > 0", on_bad_record="skip")
    assert (queries(sets.training), len(sets.training.skipped), sets.training.filtered) == (["a"], 1, 0)


def test_limits_apply_to_each_side_of_a_fraction(tmp_path: Path) -> None:
    rows = asked(*map(str, range(20)))
    chosen = config(tmp_path, rows, validation_fraction=0.4)
    everything = read_task_sets(chosen)
    few = read_task_sets(chosen.model_copy(update={"max_training_tasks": 3, "max_validation_tasks": 2}))
    assert (len(everything.training), len(everything.held_out)) == (12, 8)
    assert queries(few.training) == queries(everything.training[:3])
    assert queries(few.held_out) == queries(everything.held_out[:2])


def test_a_fraction_is_not_held_out_where_validation_has_a_source(tmp_path: Path) -> None:
    sets = read(tmp_path, asked("a", "b", "c"), asked("d"), validation_fraction=0.5)
    assert (queries(sets.training), queries(sets.held_out)) == (["a", "b", "c"], ["d"])


def test_another_seed_holds_out_other_questions(tmp_path: Path) -> None:
    rows = asked(*map(str, range(50)))
    sides = [queries(read(tmp_path, rows, validation_fraction=0.2, split_seed=seed).held_out) for seed in (0, 0, 1)]
    assert sides[0] == sides[1] != sides[2]


# Ids and overlaps.


def test_an_id_that_is_there_twice_names_both_places(tmp_path: Path) -> None:
    rows = [{"id": "a", "query": "1"}, {"id": "b", "query": "2"}, {"id": "a", "query": "3"}]
    assert problem(tmp_path, rows) == (
        "train.jsonl:3: task id 'a' is already used at train.jsonl:1; ids must be unique"
    )
    assert "already used" in problem(tmp_path, [{"id": 1, "query": "1"}, {"id": "1", "query": "2"}])


def test_ids_may_be_there_twice_if_the_user_says_so(tmp_path: Path) -> None:
    rows = [{"id": id, "query": f"{n}?"} for n, id in enumerate(["a", "a-2", "a", "b", "a"])]
    sets = read(tmp_path, rows, on_duplicate_id="warn")
    assert [task.task_id for task in sets.training] == ["a", "a-2", "a-3", "b", "a-4"]
    assert sets.training[2].task_id == sets.training[1:][1].task_id == "a-3"
    place = f"{tmp_path}/train.jsonl"
    assert sets.warnings == (
        f"{place}:3: task id 'a' is already used at {place}:1; it is called 'a-3' here, and so for 1 more",
    )


def test_a_task_that_the_filter_left_out_has_no_claim_on_its_id(tmp_path: Path) -> None:
    rows = [{"id": "a", "query": "1", "level": 0}, {"id": "a", "query": "2", "level": 1}]
    assert [task.task_id for task in read(tmp_path, rows, filter="level > 0").training] == ["a"]
    rows.append({"id": "a", "query": "3", "level": 1})
    assert "train.jsonl:3: task id 'a' is already used at train.jsonl:2; " in problem(
        tmp_path, rows, filter="level > 0"
    )


def test_equal_rows_without_an_id_are_numbered(tmp_path: Path) -> None:
    sets = read(tmp_path, asked("a", "a", "b", "a"))
    first, second, other, third = (task.task_id for task in sets.training)
    assert (second, third, sets.warnings) == (f"{first}-2", f"{first}-3", ())
    assert other != first


TALK = [{"role": "user", "content": "What is  6 * 12?"}]
SAME = [
    ({"query": "What is 6 * 12?"}, {"question": " what is\n6 * 12? ", "answer": 72}),
    ({"messages": TALK}, {"messages": [{"role": "user", "content": "what is 6 * 12?", "name": None}]}),
    ({"id": 1, "env_type": "maze"}, {"id": "1", "env_type": "maze"}),
]
DIFFERENT = [
    ({"query": "6 * 12?"}, {"query": "6 * 13?"}),
    ({"messages": TALK}, {"query": "What is  6 * 12?"}),
    ({"id": 1, "env_type": "maze"}, {"id": 1, "env_type": "tower"}),
    ({"id": 1, "env_type": "maze", "query": "Go."}, {"id": 2, "env_type": "maze", "query": "Go."}),
]


@pytest.mark.fault(
    "Input files and settings", "a question is both trained on and held out", "an error (or a warning, as configured)"
)
@pytest.mark.parametrize(("trained", "held_out"), SAME)
def test_a_question_that_is_trained_on_and_held_out_is_an_error_or_a_warning(
    tmp_path: Path, trained: Row, held_out: Row
) -> None:
    rows = ([*asked("x"), trained], [*asked("y"), held_out])
    text = problem(tmp_path, *rows)
    assert text == (
        "valid.jsonl:2: 1 of 2 held-out tasks are trained on too, this one as train.jsonl:2: the evaluation would show "
        "memory, not skill. Take them out of one of the two, or set astune.task_reader.on_overlap: warn"
    )
    sets = read(tmp_path, *rows, on_overlap="warn")
    assert (len(sets.training), len(sets.held_out), len(sets.warnings)) == (2, 2, 1)


@pytest.mark.parametrize(("trained", "held_out"), DIFFERENT)
def test_different_questions_do_not_overlap(tmp_path: Path, trained: Row, held_out: Row) -> None:
    assert read(tmp_path, [trained], [held_out]).warnings == ()


def test_what_a_limit_leaves_out_does_not_overlap(tmp_path: Path) -> None:
    assert read(tmp_path, asked("a", "b"), asked("b"), max_training_tasks=1).warnings == ()


def test_one_world_asked_twice_stays_on_one_side(tmp_path: Path) -> None:
    rows = [{"env_type": "maze", "query": "Go.", "n": n} for n in (1, 1, 2, 3, 4)]
    for seed in range(10):
        sets = read(tmp_path, rows, validation_fraction=0.2, split_seed=seed)
        assert not {task.metadata["n"] for task in sets.training} & {task.metadata["n"] for task in sets.held_out}


# Plug-ins, and what sets are.


def test_the_list_of_a_plug_in_is_selected_the_same_way(plugin: str) -> None:
    listed = TaskReaderConfig(type=f"{plugin}:Listed")
    with pytest.raises(TaskError, match=r"^training task 5: task id '0' is already used at training task 1; "):
        read_task_sets(listed)
    sets = read_task_sets(listed.model_copy(update={"filter": "level > 0 and query != '2 * 2?'"}))
    assert [task.task_id for task in sets.training] == ["1", "3", "0"]
    sets = read_task_sets(listed.model_copy(update={"on_duplicate_id": "warn", "validation_fraction": 0.4}))
    assert sorted(task.task_id for task in [*sets.training, *sets.held_out]) == ["0", "0-2", "1", "2", "3"]
    assert len(sets.held_out) == 2


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("Generated", PluginError, "returned a generator, expected a sequence of tasks, such as a list"),
        ("Strings", PluginError, "gave a str, expected astune.Task"),
        ("Nothing", TaskError, "gives no training tasks"),
    ],
)
def test_a_plug_in_that_gives_no_tasks_is_an_error(plugin: str, name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        read_task_sets(TaskReaderConfig(type=f"{plugin}:{name}"))


def test_a_set_is_a_sequence_of_tasks_that_are_made_when_looked_at(tmp_path: Path) -> None:
    training = read(tmp_path, asked("a", "b", "c", "d"), filter="query != 'b'").training
    assert isinstance(training, TaskSet) and len(training) == 3
    assert (training[0].query, training[-1].query) == ("a", "d")
    assert queries(training[1:]) == queries(list(training)[1:]) == ["c", "d"]
    assert training[0] is not training[0] and training[0] == training[0]
    with pytest.raises(IndexError):
        training[3]


def test_reading_that_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_source, "RECORDS_PER_MESSAGE", 2)
    with caplog.at_level(logging.INFO, logger="astune"):
        read(tmp_path, asked("a", "b", "c", "d", "e"))
    assert caplog.messages == ["training tasks: 2 records read", "training tasks: 4 records read"]
