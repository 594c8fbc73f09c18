"""Servers of tools, started and reached for real."""

import asyncio
import os
import re

import pytest

from astune.errors import ConfigError, SetupError
from astune.tools.results import read_result
from astune.types import Task
from tests.rows import each_row
from tests.tools.conftest import SERVER, TASK, notes, servers_of

pytest.importorskip("mcp")


async def say(tools, name, **arguments):
    return (await tools.call(name, arguments)).text


@pytest.mark.parametrize("kind", ["stdio", "http", "sse"])
async def test_tools_are_called_over_every_transport(kind, serve):
    if kind == "stdio":
        async with servers_of(notes()) as servers:
            tools = await servers.take(TASK)
            assert [await say(tools, "add", note="tea"), await say(tools, "show")] == ["1 notes", "tea"]
        return
    with serve(kind) as url:
        async with servers_of({"notes": {"url": url, "transport": kind, "isolation": "episode"}}) as servers:
            tools = await servers.take(TASK)
            assert [await say(tools, "add", note="tea"), await say(tools, "show")] == ["1 notes", "tea"]
            assert (await tools.call("refuse", {})).cause == "said_no"
            tools.give_back()


async def test_each_failure_has_its_cause_and_a_text_for_the_model():
    async with servers_of(notes(longest_result=10)) as servers:
        tools, pool = await servers.take(TASK), servers.pools["notes"]
        calls = [
            ("refuse", {}, 20, "said_no", "Error executing tool refuse: no such note"[:10]),
            ("add", {}, 20, "malformed", "Error executing"[:10]),
            ("shwo", {}, 20, "unknown", "Error: there is no tool 'shwo'. Did you mean 'show'?"),
            ("sleep", {"seconds": 30}, 0.5, "time_limit", "Error: sleep gave no answer within 0.5 s"),
        ]
        for name, arguments, limit, cause, text in calls:
            pool.config = pool.config.model_copy(update={"time_limit": limit})
            result = await tools.call(name, arguments)
            assert (result.cause, result.text[: len(text)]) == (cause, text)


async def test_a_long_result_is_cut_or_refused():
    for on_longer, expected in (
        ("cut", ("xxxxxxxxxx\n[15 more characters are not shown]", None)),
        ("refuse", ("Error: the result has 25 characters, more than the 10 that are shown. Ask for less", "said_no")),
    ):
        result = read_result({"content": [{"type": "text", "text": "x" * 25}]}, 10, on_longer)
        assert (result.text, result.cause, result.cut_short) == (*expected, True)


def test_what_is_no_text_is_named():
    wire = {
        "content": [
            {"type": "image", "mimeType": "image/png", "data": "abcd"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "in it"}},
        ]
    }
    assert read_result(wire, 100, "cut").text == "[image/png, 4 characters of base64: not shown]\nin it"
    assert read_result({"content": [], "structuredContent": {"n": 1}}, 100, "cut").text == '{"n": 1}'


@pytest.mark.fault(
    "Tools and environments",
    "an MCP server that all episodes share dies during a call",
    "that call is `broke`, and its episode ends as an error; a new server answers the next call",
)
async def test_a_shared_server_that_dies_is_started_anew(tmp_path):
    async with servers_of(notes()) as servers:
        tools, other = await servers.take(TASK), await servers.take(Task("t2", ""))
        before = await say(tools, "pid")
        dead = await tools.call("die", {})
        assert (dead.cause, dead.text) == ("broke", "Error: the tool die is broken")
        assert "notes server starts" in dead.detail
        after = {await say(tools, "pid"), await say(other, "pid")}
        assert len(after) == 1 and before not in after
        again = await tools.call("die_once", {"marker": str(tmp_path / "died")})  # it says that it is idempotent
        assert (again.text, again.cause) == ("alive", None)


async def test_episodes_do_not_see_each_other_and_a_reset_server_is_used_again():
    async with servers_of(notes(isolation="episode", reset="reset", most=2)) as servers:
        assert "reset" not in servers.tools
        one, two = await servers.take(TASK), await servers.take(TASK)
        await say(one, "add", note="tea")
        assert [await say(one, "show"), await say(two, "show")] == ["tea", "none"]
        process = await say(one, "pid")
        waiting = asyncio.ensure_future(servers.take(TASK))
        await asyncio.sleep(0)
        assert not waiting.done()  # two is the most
        one.give_back()
        three = await waiting
        assert [await say(three, "pid"), await say(three, "show")] == [process, "none"]


async def test_a_server_whose_call_was_given_up_is_nobody_elses():
    async with servers_of(notes(isolation="episode", reset="reset", most=1)) as servers:
        one = await servers.take(TASK)
        process = await say(one, "pid")
        call = asyncio.ensure_future(one.call("sleep", {"seconds": 60}))
        await asyncio.sleep(0)
        call.cancel()
        one.give_back()  # at once, as an episode does that ends
        assert await say(await servers.take(TASK), "pid") != process


async def test_the_attempts_at_a_task_share_its_server_which_knows_the_task():
    options = {"isolation": "task", "reset": "reset", "reset_with": {"note": "first"}}
    async with servers_of(notes(**options)) as servers:
        one, two = await servers.take(TASK), await servers.take(TASK)
        other = await servers.take(Task("t2", "", metadata={"first": "bread"}))
        assert [await say(each, "show") for each in (one, two, other)] == ["milk", "milk", "bread"]
        await say(one, "add", note="tea")
        assert await say(two, "show") == "milk tea"


async def test_without_a_reset_tool_a_used_server_is_closed_and_kept_ready_ones_follow():
    async with servers_of(notes(isolation="episode", warm=1, most=2)) as servers:
        one = await servers.take(TASK)
        process = int(await say(one, "pid"))
        one.give_back()
        two = await servers.take(TASK)
        assert await say(two, "pid") != str(process)
        last = int(await say(two, "pid"))
    for each in (process, last):
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


async def test_a_server_has_only_the_variables_that_it_is_given(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("PASSED", "1")
    async with servers_of(notes(env={"GIVEN": "1"}, pass_env=["PASSED"])) as servers:
        names = (await say(await servers.take(TASK), "variables")).split()
    assert {"GIVEN", "PASSED"} <= {*names} and "SECRET" not in names


async def test_names_can_be_chosen_and_tools_left_out():
    async with servers_of(notes(allow=["show", "add"], deny=["add"], rename={"show": "list_notes"})) as servers:
        assert [*servers.tools] == ["list_notes"]
        function = servers.tools["list_notes"].definition["function"]
        assert (function["name"], function["description"]) == ("list_notes", "The notes.")


@each_row(
    ("servers", "error", "message"),
    [
        ({"a": notes()["notes"], "b": notes()["notes"]}, ConfigError, "rename={add: b_add}"),
        (notes(deny=["ad"]), ConfigError, "astune.tools.servers.notes.deny: no tool 'ad'. Did you mean 'add'?"),
        (
            notes(deny=["refuse"], allow=["refuse"]),
            ConfigError,
            "astune.tools.servers.notes: no tool is left for agents",
        ),
        ({"x": {"command": ["no-such-program"]}}, ConfigError, "x.command: there is no program 'no-such-program'"),
        ({"x": {"command": ["./no-such-file"]}}, ConfigError, "x.command: there is no program './no-such-file'"),
        (notes(folder="/nowhere"), ConfigError, "notes.folder: there is no such folder: /nowhere"),
        (
            {"x": {"command": ["python", "-c", "print('hello')"]}},
            SetupError,
            "astune.tools.servers.x: the server does not start",
        ),
        ({"x": {"command": ["python", "-c", "raise SystemExit('no data')"]}}, SetupError, "it said: no data"),
        ({"x": {"url": "http://127.0.0.1:9/mcp"}}, SetupError, "astune.tools.servers.x: the server does not start"),
        (notes(pass_env=["NOT_SET"]), ConfigError, "notes.pass_env: the environment variable NOT_SET is not set"),
    ],
)
async def test_what_is_wrong_is_said_before_the_first_episode(servers, error, message):
    with pytest.raises(error, match=re.escape(message)):
        async with servers_of(servers):
            pass


async def test_text_that_a_server_prints_among_its_answers_is_told_of_once(tmp_path, caplog):
    loud = tmp_path / "loud.py"
    loud.write_text(f"import runpy\nprint('hello', flush=True)\nrunpy.run_path({str(SERVER)!r}, run_name='__main__')\n")
    async with servers_of({"loud": {"command": ["python", str(loud)], "isolation": "task", "warm": 2}}) as servers:
        tools = await servers.take(TASK)
        assert await say(tools, "show") == "none"
    (said,) = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert said.startswith("astune.tools.servers.loud: the server prints to its standard output") and "'hello'" in said


@each_row(
    ("section", "message"),
    [
        ({}, "either a command or a url"),
        ({"command": ["x"], "url": "http://a"}, "either a command or a url"),
        ({"command": ["x"], "transport": "sse"}, "no transport, which does not go with a command"),
        ({"command": ["x"], "reset": "reset"}, "no reset, as all episodes share the server"),
        ({"command": ["x"], "isolation": "episode", "reset_with": {"a": "b"}}, "reset, the tool that"),
        ({"command": ["x"], "isolation": "episode", "warm": 3, "most": 2}, "warm of at most 2, which is most, not 3"),
        ({"command": ["x"], "rename": {"a": "two words"}}, "names of up to 64 letters"),
    ],
)
def test_sections_that_contradict_themselves_are_refused(section, message):
    with pytest.raises(ValueError, match=message):
        servers_of({"x": section})
