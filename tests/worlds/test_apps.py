"""The apps world: its tasks can be done, and only by doing what they ask for."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.environment.environment_base import Action, Observation, ToolCall
from astune.errors import ConfigError, TaskError
from astune.worlds.apps import AppsEnvironment
from astune.worlds.apps.environment import ANSWER, APPS, NOTHING_ELSE, SPLITS, TEMPLATES, AppsInstance, score_checks
from tests.rows import each_row

WORLD = AppsEnvironment(tasks=24)
TASKS = [task_id for split in SPLITS for task_id in WORLD.task_ids(split)]
ONE_OF_EACH = WORLD.task_ids("train")[: len(TEMPLATES)]


def use(instance: AppsInstance, tool: str, **arguments: Any) -> Observation:
    return instance.step(Action(tool_calls=(ToolCall("c", tool, arguments),)))


def said(instance: AppsInstance, tool: str, **arguments: Any) -> str:
    (message,) = use(instance, tool, **arguments).messages
    assert (message["role"], message["tool_call_id"]) == ("tool", "c")
    return message["content"]


def call(instance: AppsInstance, app: str, api: str, **arguments: Any) -> Any:
    """What an API answers; a refusal fails the test."""
    answer = said(instance, "call", app=app, api=api, arguments=arguments)
    assert not answer.startswith("Error"), answer
    return json.loads(answer)


def solve(instance: AppsInstance, task_id: str, *more: tuple[str, str, dict[str, Any]]) -> Observation:
    """The reference solution, through the tools alone, and then some calls more."""
    answer = WORLD.task(task_id).solve(lambda app, api, **arguments: call(instance, app, api, **arguments))
    for app, api, arguments in more:
        call(instance, app, api, **arguments)
    return use(instance, "finish", answer=answer)


@pytest.fixture
def instance() -> AppsInstance:
    return WORLD.create(TASKS[0], {})


def test_the_reference_solution_of_every_task_of_every_split_scores_1() -> None:
    for task_id in TASKS:
        instance = WORLD.create(task_id, {})
        end = solve(instance, task_id)
        assert end.done and instance.evaluate() == 1.0, (task_id, end.info)
        assert set(end.info["checks"].values()) == {True}
        assert [f"[x] {name}" for name in end.info["checks"]] == end.messages[0]["content"].splitlines()[1:]


@each_row("task_id", ONE_OF_EACH)
@each_row(
    ("app", "api", "arguments"),
    [
        ("contacts", "create_contact", {"name": "Eve", "email": "eve@x.example"}),
        ("contacts", "delete_contact", {"contact_id": 101}),
        ("calendar", "create_event", {"title": "x", "start": "2026-06-21 03:00", "minutes": 5}),
        ("mail", "send_mail", {"to": ["eve@x.example"], "subject": "x", "body": ""}),
        ("files", "write_file", {"path": "/new.txt", "content": ""}),
    ],
)
def test_harm_is_noticed_in_every_app(task_id: str, app: str, api: str, arguments: dict[str, Any]) -> None:
    instance = WORLD.create(task_id, {})
    assert solve(instance, task_id, (app, api, arguments)).info["checks"][NOTHING_ELSE] is False
    assert instance.evaluate() < 1


def test_every_expected_change_is_a_check_of_its_own() -> None:
    for task_id in ONE_OF_EACH:
        instance = WORLD.create(task_id, {})
        checks = solve(instance, task_id).info["checks"]
        asked = WORLD.task(task_id).expected.answer is not None
        assert NOTHING_ELSE in checks and (ANSWER in checks) is asked
        before = score_checks(WORLD.task(task_id), WORLD.task(task_id).start)
        assert [name for name, holds in before.items() if holds] == [NOTHING_ELSE]
        assert len(checks) == len(before) > 1


def test_the_score_is_the_share_of_checks_that_hold() -> None:
    task_id = next(one for one in ONE_OF_EACH if one.endswith("mail_group"))
    task, instance = WORLD.task(task_id), WORLD.create(task_id, {})
    wanted = [mail for mail in task.expected.mails.values() if mail.folder == "sent"]
    call(instance, "mail", "send_mail", to=wanted[0].to, subject=wanted[0].subject, body=wanted[0].body + "\n")
    assert instance.evaluate() == 2 / (len(wanted) + 1)
    call(instance, "mail", "send_mail", to=wanted[0].to, subject=wanted[0].subject, body=wanted[0].body)
    assert instance.evaluate() == 1 / (len(wanted) + 1)  # the second one is one too many


def test_what_is_changed_back_was_not_changed(instance: AppsInstance) -> None:
    contact_id, contact = next(iter(instance.world.contacts.items()))
    before, phone = instance.evaluate(), contact.phone
    for value, expected in (("1", before - 0.5), (phone, before)):
        call(instance, "contacts", "update_contact", contact_id=contact_id, field="phone", value=value)
        assert instance.evaluate() == expected


@each_row("template", TEMPLATES)
def test_a_wrong_answer_is_wrong_and_a_right_one_may_be_written_otherwise(template: str) -> None:
    task = WORLD.task(next(one for one in ONE_OF_EACH if one.endswith(template)))
    if task.expected.answer is None:
        return
    for answer, right in ((f" {task.expected.answer}. ", True), (f"{task.expected.answer}0", False), ("", False)):
        assert score_checks(task, replace(task.start, answer=answer))[ANSWER] is right


def test_equal_ids_give_equal_worlds_and_another_seed_other_ones() -> None:
    again, other = AppsEnvironment(tasks=24), AppsEnvironment(tasks=24, seed=1)
    for task_id in ONE_OF_EACH:
        first = WORLD.create(task_id, {})
        assert again.create(task_id, {}).world == first.world
        assert again.create(task_id, {}).first_messages() == first.first_messages()
        assert other.create(task_id, {}).world != first.world


def test_a_world_is_the_same_in_every_version_of_python() -> None:
    start = AppsEnvironment().task("train-0-move_meeting").start
    assert sha256(repr(start).encode()).hexdigest()[:16] == "aee904780d5d42e0"


def test_splits_share_no_task_and_sizes_are_what_they_are_said_to_be() -> None:
    shown = [(WORLD.task(one).query, repr(WORLD.task(one).start)) for one in TASKS]
    assert len(set(TASKS)) == len({world for _, world in shown}) == 24 + 6 + 6
    assert [len(AppsEnvironment().task_ids(split)) for split in SPLITS] == [200, 50, 50]
    assert [len(AppsEnvironment(tasks=1).task_ids(split)) for split in SPLITS] == [1, 1, 1]


def test_more_tasks_leave_the_others_as_they_were() -> None:
    assert AppsEnvironment(tasks=400).task(TASKS[7]).start == WORLD.task(TASKS[7]).start


def test_names_that_are_not_there_are_errors_with_the_nearest() -> None:
    with pytest.raises(TaskError, match=r"has no split 'valid'\. Did you mean 'validation'"):
        WORLD.task_ids("valid")
    with pytest.raises(TaskError, match=r"has no task 'train-0-move_meting'\. Did you mean 'train-0-move_meeting'"):
        WORLD.create("train-0-move_meting", {})
    with pytest.raises(TaskError, match="has no task 'train-24-move_meeting'"):
        WORLD.create("train-24-move_meeting", {})
    with pytest.raises(ConfigError, match="tasks: expected a whole number from 1, got 0"):
        AppsEnvironment(tasks=0)
    with pytest.raises(ConfigError, match="seed: expected a whole number from 0, got '1'"):
        AppsEnvironment(seed="1")  # type: ignore[arg-type]


def test_the_agent_can_find_out_what_there_is(instance: AppsInstance) -> None:
    apps = [line.partition(":")[0] for line in said(instance, "list_apps").splitlines()]
    assert apps == list(APPS)
    for app in apps:
        names = [line.partition(":")[0] for line in said(instance, "list_apis", app=app).splitlines()]
        assert 6 < len(names) < 10
        for name in names:
            docs = json.loads(said(instance, "api_docs", app=app, api=name))
            assert docs["description"] and all(one["description"] for one in docs["parameters"].values())
    assert "32 APIs" in AppsEnvironment.__doc__ and sum(len(app.apis) for app in APPS.values()) == 32


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("cal", {}, "there is no tool 'cal'. Did you mean 'call'?"),
        ("call", {"app": "mail", "api": "reply"}, "call takes app, api, arguments; it got app, api"),
        ("list_apis", {"app": "mails"}, "there is no app 'mails'. Did you mean 'mail'? There are: calendar"),
        ("list_apis", {"app": 3}, "list_apis: app: expected a text, got 3"),
        ("api_docs", {"app": "mail", "api": "search"}, "mail has no API 'search'. "),
        ("call", {"app": "mail", "api": "reply", "arguments": "{}"}, "arguments: expected an object, got '{}'"),
    ],
)
def test_misused_tools_are_answered_in_words(instance, tool, arguments, expected) -> None:
    assert said(instance, tool, **arguments).startswith(f"Error: {expected}") or expected in said(
        instance, tool, **arguments
    )
    assert instance.world == WORLD.create(TASKS[0], {}).world


@pytest.mark.parametrize(
    ("app", "api", "arguments", "expected"),
    [
        ("mail", "read_mail", {}, "read_mail needs mail_id: number of the mail"),
        ("mail", "read_mail", {"mail_id": "7"}, "mail_id: expected a whole number, got '7'"),
        ("mail", "read_mail", {"mail_id": True}, "mail_id: expected a whole number, got True"),
        ("mail", "read_mail", {"mail_id": 10**12}, "mail_id: larger than"),
        ("mail", "read_mail", {"mail_id": 7}, "there is no mail 7; search_mails shows which are"),
        ("mail", "read_mail", {"mail": 7}, "has no parameter 'mail'. Did you mean 'mail_id'?"),
        ("mail", "search_mails", {"page": 99}, "there is no page 99; the last is"),
        ("mail", "search_mails", {"folder": "trash"}, "expected one of inbox, archive, sent, got 'trash'"),
        ("mail", "send_mail", {"to": ["x"], "subject": "", "body": ""}, "to: expected a mail address, got 'x'"),
        ("mail", "send_mail", {"to": [], "subject": "", "body": ""}, "to: expected at least one mail address"),
        ("mail", "send_mail", {"to": ["a@b.c"], "subject": "", "body": "", "attachments": ["/x"]}, "no file '/x'"),
        ("calendar", "list_events", {"date": "tomorrow"}, "date: expected a time as 2026-03-04"),
        (
            "calendar",
            "create_event",
            {"title": "", "start": "2026-13-01 10:00", "minutes": 9},
            "start: expected a time",
        ),
        ("calendar", "create_event", {"title": "", "start": "9999-12-31 23:59", "minutes": 9}, "more than a year"),
        ("calendar", "create_event", {"title": "", "start": "2026-12-01 10:00", "minutes": 0}, "expected 5 to 480"),
        ("contacts", "list_group", {"group": "ofice"}, "Did you mean 'office'?"),
        ("contacts", "update_contact", {"contact_id": 101, "field": "age", "value": ""}, "expected one of name, email"),
        ("files", "write_file", {"path": "notes.txt", "content": ""}, "expected a path as /documents/notes.txt"),
        ("files", "write_file", {"path": "/tmp", "content": ""}, "/tmp is a folder"),
        ("files", "write_file", {"path": "/a/../b", "content": ""}, "expected a path"),
        ("files", "write_file", {"path": "/a", "content": "x" * 10_001}, "content: more than 10000 characters"),
        ("files", "list_files", {"folder": "/etc"}, "there is no folder '/etc'"),
    ],
)
def test_a_refused_call_says_why_and_changes_nothing(instance, app, api, arguments, expected) -> None:
    answer = said(instance, "call", app=app, api=api, arguments=arguments)
    assert answer.startswith("Error: ") and expected in answer
    assert instance.world == WORLD.create(TASKS[0], {}).world


def test_lists_come_in_pages_that_have_everything_once(instance: AppsInstance) -> None:
    first = call(instance, "contacts", "search_contacts")
    pages = [call(instance, "contacts", "search_contacts", page=number + 1) for number in range(first["pages"])]
    found = [one["contact_id"] for page in pages for one in page["items"]]
    assert found == list(instance.world.contacts) and len(first["items"]) == 5


def test_events_cannot_overlap(instance: AppsInstance) -> None:
    event_id, event = next(iter(instance.world.events.items()))
    start, other = f"{event.start:%Y-%m-%d %H:%M}", max(instance.world.events)
    for api, arguments in {
        "create_event": {"title": "x", "start": start, "minutes": 15},
        "move_event": {"event_id": other, "start": start},
    }.items():
        answer = said(instance, "call", app="calendar", api=api, arguments=arguments)
        assert answer.startswith(f"Error: conflict with event {event_id}")
    call(instance, "calendar", "move_event", event_id=event_id, start=start)  # with itself there is none


def test_an_attachment_is_a_copy_of_the_file(instance: AppsInstance) -> None:
    path, file = next(iter(instance.world.files.items()))
    content = file.content
    sent = call(instance, "mail", "send_mail", to=["a@b.example"], subject="s", body="", attachments=[path])["sent"]
    call(instance, "files", "delete_file", path=path)
    name = path.rpartition("/")[2]
    call(instance, "mail", "save_attachment", mail_id=sent, name=name, path="/copy.txt")
    assert call(instance, "files", "read_file", path="/copy.txt")["content"] == content
    again = {"mail_id": sent, "name": name, "path": "/copy.txt"}
    assert "exists already" in said(instance, "call", app="mail", api="save_attachment", arguments=again)


def test_nothing_counts_after_the_end(instance: AppsInstance) -> None:
    both = Action(tool_calls=(ToolCall("1", "finish", {"answer": "x"}), ToolCall("2", "finish", {"answer": "y"})))
    end = instance.step(both)
    ended, refused = (message["content"] for message in end.messages)
    assert ended.startswith("The task has ended") and refused == "Error: the task has ended; nothing was done"
    assert end.done and instance.world.answer == "x"


def test_a_text_without_a_tool_is_answered(instance: AppsInstance) -> None:
    told = instance.step(Action("I would move it."))
    assert told.messages[0]["role"] == "user" and "finish" in told.messages[0]["content"] and not told.done


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
_WORDS = st.sampled_from(
    ["/tmp/x.txt", "/tmp", "/documents/garden.txt", "a@b.example", "2026-06-01 10:00", "name", "inbox", "choir", ""]
)
_VALUES = st.one_of(_WORDS, st.integers(95, 140), st.booleans(), st.lists(_WORDS, max_size=2), _JSON)


@st.composite
def _tool_calls(draw: st.DrawFn) -> ToolCall:
    """Anything at all, or a call of an API with arguments of the right names."""
    if draw(st.integers(0, 4)) == 0:
        return ToolCall("c", draw(st.text(max_size=5)), draw(st.dictionaries(st.text(max_size=5), _JSON, max_size=3)))
    app = draw(st.sampled_from(list(APPS.values())))
    api = draw(st.sampled_from(list(app.apis.values())))
    arguments = {name: draw(_VALUES) for name in api.parameters if draw(st.integers(0, 9))}
    return ToolCall("c", "call", {"app": app.name, "api": api.name, "arguments": arguments})


@pytest.mark.fault(
    "Tools and environments",
    "a model calls tools with any arguments",
    "answered in words, and no other instance changes",
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(_tool_calls(), min_size=1, max_size=25), task_id=st.sampled_from(ONE_OF_EACH))
def test_no_tool_call_raises_or_reaches_another_instance(calls: list[ToolCall], task_id: str) -> None:
    task = WORLD.task(task_id)
    before = copy.deepcopy(task.start)
    played, beside = AppsInstance(task), AppsInstance(task)
    for one in calls:
        world = copy.deepcopy(played.world)
        observation = played.step(Action(tool_calls=(one,)))
        (message,) = observation.messages
        assert isinstance(message["content"], str)
        if message["content"].startswith("Error"):
            assert played.world == world  # a mistake has no effect
        assert 0 <= played.evaluate() <= 1
    assert beside.world == task.start == before
    assert json.loads(json.dumps(played.first_messages())) == list(map(dict, played.first_messages()))
