"""Frames of suspended workflows, and pdb in them, at model calls made through real clients and real agents."""

import asyncio
import bdb
import importlib.util
import io
import signal
import sys
from importlib import metadata

import pytest

from astune.backbone.debug.workflow_frames import awaited_frames, debug_workflow, end_debugging, user_frames, where
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.rollout.episode import run_episode
from astune.rollout.setup import RolloutSetup
from astune.support.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedPolicy
from astune.types import Sampling, Task, WorkflowOutput
from astune.workflow.tuner import Tuner
from astune.workflow.workflow_base import as_workflow

HELPERS = """\
import asyncio

async def ask(tuner, messages, name="agent"):
    client = tuner.openai_client(name)
    reply = await client.chat.completions.create(model="m", messages=messages)
    return reply.choices[0].message.content

async def execute(task, tuner):
    messages = [{"role": "user", "content": task.query}]
    bonus = 1
    first = await ask(tuner, messages)
    second = await ask(tuner, messages)
    total = int(first) + int(second) + bonus
    return total
"""
ASK = next(number for number, line in enumerate(HELPERS.splitlines(), 1) if "reply = " in line)
FIRST, SECOND, TOTAL, RETURN = (
    next(number for number, line in enumerate(HELPERS.splitlines(), 1) if text in line)
    for text in ("first = ", "second = ", "total = ", "return total")
)


class StoppingPolicy:
    """Tells `stop` of each call before it is answered, from inside of it, with its number."""

    def __init__(self, policy):
        self._policy = policy
        self.stop = None
        self.calls = 0

    @property
    def context_length(self):
        return self._policy.context_length

    async def generate(self, prompt_ids, sampling):
        self.calls += 1
        self.stop(self.calls)
        return await self._policy.generate(prompt_ids, sampling)


class Play:
    """A workflow written to agent.py, whose every model call tells `stop(number, coroutine)`."""

    def __init__(self, folder):
        self.folder = folder
        self.chat_format = ChatFormat.load(tiny_model_dir())
        self.outcomes = []
        self.screen = io.StringIO()

    async def __call__(self, source, answers, stop):
        policy = StoppingPolicy(ScriptedPolicy(answers, self.chat_format))
        tracker = ContextTracker(policy, self.chat_format, Sampling(max_tokens=256), max_turns=20, seed=1)
        task = Task("t1", "What is (2 + 2) * 3?")
        tuner = Tuner(task, "test/t1/0", tracker, self.chat_format, 4096)
        workflow = self.load(source).execute(task, tuner)
        policy.stop = lambda number: stop(number, workflow)
        try:
            return await asyncio.ensure_future(workflow)
        finally:
            tuner.close()

    def load(self, source):
        path = self.folder / "agent.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("agent", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    async def debugged(self, source, answers, commands, at=(1,)):
        """The workflow's result when pdb is opened at some of the calls and reads `commands`."""
        stdin = io.StringIO("".join(f"{command}\n" for command in commands))

        def stop(number, workflow):
            if number in at:
                self.outcomes.append(debug_workflow(awaited_frames(workflow), stdin=stdin, stdout=self.screen))

        return await self(source, answers, stop)

    async def frames(self, source, answers, at=1):
        """`where` of the user's frames at one call."""
        seen = {}

        def stop(number, workflow):
            seen[number] = where(user_frames(awaited_frames(workflow)))

        await self(source, answers, stop)
        return seen[at]

    @property
    def stops(self):
        """The line of agent.py at each place where pdb stopped, moved or was asked for its stack."""
        return [
            int(line.partition("agent.py(")[2].partition(")")[0])
            for line in self.screen.getvalue().splitlines()
            if line.removeprefix("(pdb) ").startswith("> ") and "agent.py(" in line
        ]


@pytest.fixture
def play(tmp_path):
    before = sys.gettrace()
    yield Play(tmp_path)
    end_debugging()
    assert sys.gettrace() is before
    assert not bdb.Breakpoint.bplist


async def test_the_users_frames_of_a_model_call_are_outermost_first(play):
    assert await play.frames(HELPERS, ["4", "8"]) == [
        f"agent.py:{FIRST} in execute:  first = await ask(tuner, messages)",
        f'agent.py:{ASK} in ask:  reply = await client.chat.completions.create(model="m", messages=messages)',
    ]


async def test_next_stops_at_the_next_two_lines_and_continue_takes_the_tracing_back(play):
    before = sys.gettrace()
    assert await play.debugged(HELPERS, ["4", "8"], ["up", "next", "next", "p first, second", "c"]) == 13
    assert play.outcomes == ["stepping"]
    assert play.stops == [ASK, FIRST, SECOND, TOTAL]
    assert "('4', '8')" in play.screen.getvalue()
    assert sys.gettrace() is before


WAYS = {
    "await": "return await work",
    "task": "return await asyncio.create_task(work)",
    "shield": "return await asyncio.shield(work)",
    "wait_for": "return await asyncio.wait_for(work, 60)",
    "gather": "return (await asyncio.gather(asyncio.sleep(0.01), work))[1]",
    "nested gather": "return (await asyncio.gather(asyncio.sleep(0.01), asyncio.gather(work)))[1][0]",
    "wait": "job = asyncio.ensure_future(work); await asyncio.wait({job}); return job.result()",
    "as_completed": "return [await job for job in asyncio.as_completed([work])][0]",
    "async for": "return [one async for one in pieces(work)][0]",
    "anext": "return await pieces(work).__anext__()",
    "context manager": "\n    async with opened(work) as one: return one",
    "awaitable of one's own": "return await Ours(work)",
    "task group": "\n    async with asyncio.TaskGroup() as group: job = group.create_task(work)\n    return await job",
}
THROUGH = """
import contextlib

async def pieces(work):
    yield await work

@contextlib.asynccontextmanager
async def opened(work):
    yield await work

class Ours:
    def __init__(self, work):
        self.work = work

    def __await__(self):
        return (yield from self.work.__await__())

async def through(work):
    """


@pytest.mark.parametrize("way", WAYS)
async def test_the_frames_lead_through_whatever_waits_for_the_helper(play, way):
    if way == "task group" and sys.version_info < (3, 11):
        pytest.skip("asyncio.TaskGroup is new in Python 3.11")
    source = HELPERS.replace("first = await ask(tuner, messages)", "first = await through(ask(tuner, messages))")
    names = [line.split()[2] for line in await play.frames(source + THROUGH + WAYS[way] + "\n", ["4", "8"])]
    assert (names[:2], names[-1]) == (["execute:", "through:"], "ask:")


async def test_of_two_agents_side_by_side_the_frames_are_those_of_the_one_that_calls(play):
    source = HELPERS.replace(
        "first = await ask(tuner, messages)",
        "first, _ = await asyncio.gather(left(tuner, messages), right(tuner, messages))",
    )
    source += (
        '\nasync def left(tuner, messages):\n    return await ask(tuner, messages, "left")\n'
        '\nasync def right(tuner, messages):\n    return await ask(tuner, messages, "right")\n'
    )
    for call, agent in ((1, "left"), (2, "right")):
        frames = await play.frames(source, ["4", "8", "1"], at=call)
        assert [line.split()[2] for line in frames] == ["execute:", f"{agent}:", "ask:"]


async def test_a_task_whose_end_is_told_to_what_it_waits_for_is_followed_once():
    class Desk:
        def __init__(self):
            self.order = asyncio.get_running_loop().create_future()

        async def work(self):
            return await self.order

        def closed(self, task):
            pass

    desk = Desk()
    task = asyncio.ensure_future(desk.work())
    task.add_done_callback(desk.closed)
    await asyncio.sleep(0)
    assert [frame.f_code.co_name for frame in awaited_frames(task)] == ["work"]
    desk.order.set_result(None)
    await task


@pytest.mark.parametrize(("agents", "names"), [(2, ["execute:"]), (1, ["execute:", "agent:"])])
async def test_where_threads_make_the_calls_the_frames_end_where_the_way_is_unknown(play, agents, names):
    source = """
import asyncio, openai

def ask(url, task):
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        messages = [{"role": "user", "content": task.query}]
        return client.chat.completions.create(model="m", messages=messages).choices[0].message.content

async def agent(task, tuner):
    return await asyncio.to_thread(ask, tuner.base_url(), task)

async def execute(task, tuner):
    return await asyncio.gather(*(agent(task, tuner) for _ in range(AGENTS)))
"""
    frames = await play.frames(source.replace("AGENTS", str(agents)), ["4", "4"])
    assert [line.split()[2] for line in frames] == names


def test_user_code_is_neither_ours_nor_installed_and_tutorials_are_the_users(tmp_path):
    def frame_of(file):
        return eval(compile("__import__('sys')._getframe()", str(file), "eval"))

    theirs = [tmp_path / "agent.py", next(tutorial_dir().rglob("*.py"))]
    not_theirs = [
        asyncio.__file__,
        pytest.__file__,
        debug_workflow.__code__.co_filename,
        "<frozen importlib>",
        "<string>",
    ]
    frames = [frame_of(file) for file in (*theirs, *not_theirs)]
    assert user_frames(frames) == frames[: len(theirs)]


async def test_an_object_that_is_changed_is_what_the_workflow_goes_on_with(play):
    commands = ["up", "p task.query", "!messages[0]['content'] = 'What is 1 + 1?'", "c"]
    seen = []

    def answer(prompt):
        seen.append(prompt)
        return "4"

    assert await play.debugged(HELPERS, answer, commands) == 9
    assert play.outcomes == ["continue"]
    assert "'What is (2 + 2) * 3?'" in play.screen.getvalue()
    assert ["1 + 1" in prompt for prompt in seen] == [False, True]


async def test_a_name_that_is_bound_anew_is_what_the_workflow_goes_on_with(play):
    commands = ["up", "!bonus = 100", "bonus += 1", "down", "up", "p bonus", "where", "c"]
    assert await play.debugged(HELPERS, ["4", "8"], commands) == 113
    assert "(pdb) 101\n" in play.screen.getvalue()


async def test_names_that_closures_share_and_names_while_stepping_are_bound_anew_too(play):
    source = HELPERS.replace("bonus = 1\n", "bonus = 1\n    def more(): return bonus\n").replace("+ bonus", "+ more()")
    commands = ["up", "!bonus = 100", "next", "!first = '1000'", "next", "!bonus += 1", "c"]
    assert await play.debugged(source, ["4", "8"], commands) == 1000 + 8 + 101


async def test_a_name_cannot_be_deleted(play):
    assert await play.debugged(HELPERS, ["4", "8"], ["up", "del bonus", "p bonus", "c"]) == 13
    assert "(pdb) 1\n" in play.screen.getvalue()


async def test_a_breakpoint_set_at_a_model_call_is_hit_later(play):
    (play.folder / "prices.py").write_text("def price():\n    return 3\n", encoding="utf-8")
    start = f"import asyncio, sys; sys.path.insert(0, {str(play.folder)!r}); import prices; sys.path.pop(0)\n"
    source = HELPERS.replace("import asyncio\n", start).replace("+ bonus", "+ bonus + prices.price()")
    commands = [
        f"b agent.py:{TOTAL}",
        "b prices.py:2",
        "c",
        "p second",
        "!bonus = 5",
        "clear 1",
        "c",
        "up",
        "step",
        "c",
    ]
    try:
        assert await play.debugged(source, ["4", "8"], commands) == 20
    finally:
        del sys.modules["prices"]
    assert play.outcomes == ["continue"]
    assert play.stops == [ASK, TOTAL, TOTAL, RETURN]
    assert "prices.py(2)price()" in play.screen.getvalue()
    end_debugging()


async def test_a_breakpoint_in_code_that_is_not_the_users_shows_that_frame_too(play):
    commands = ["b tuner.openai_client", "c", "p source", "up", "q"]
    assert await play.debugged(HELPERS, ["4", "8"], commands) == 13
    assert "tuner.py(" in play.screen.getvalue()
    assert "(pdb) None\n" in play.screen.getvalue()
    assert play.stops == [ASK, ASK - 1]


async def test_continue_to_a_breakpoint_forgets_where_next_was_going(play):
    assert await play.debugged(HELPERS, ["4", "8"], ["next", f"b {TOTAL}", "c", "q"]) == 13
    assert play.stops == [ASK, ASK + 1, TOTAL]


async def test_pdb_at_a_later_call_takes_the_place_of_steps_that_were_not_reached(play):
    before = sys.gettrace()
    assert await play.debugged(HELPERS, ["4", "8"], ["up", "return", "c"], at=(1, 2)) == 13
    assert play.outcomes == ["stepping", "continue"]
    assert play.stops == [ASK, FIRST, ASK]
    assert sys.gettrace() is before


async def test_breakpoints_stay_when_pdb_is_opened_at_a_later_call(play):
    commands = [f"b {TOTAL}", "c", "c", "q"]
    assert await play.debugged(HELPERS, ["4", "8"], commands, at=(1, 2)) == 13
    assert play.outcomes == ["continue", "continue"]
    assert play.stops == [ASK, ASK, TOTAL]


async def test_no_frame_is_traced_any_more_once_the_workflow_has_gone_on(play):
    frames = []

    def stop(number, workflow):
        frames.extend(awaited_frames(workflow))
        if number == 1:
            debug_workflow(frames, stdin=io.StringIO("next\nc\n"), stdout=play.screen)
            assert {frame.f_trace is None for frame in user_frames(frames)} == {False}

    assert await play(HELPERS, ["4", "8"], stop) == 13
    assert {frame.f_trace for frame in frames} == {None}


async def test_another_debugger_has_its_trace_function_back(play):
    def other(frame, event, arg):
        return None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        for commands in (["c"], ["next", "c"], [f"b {TOTAL}", "c", "q"]):
            assert await play.debugged(HELPERS, ["4", "8"], commands) == 13
            assert sys.gettrace() is other
    finally:
        sys.settrace(before)


async def test_quit_goes_on_and_forgets_breakpoints_and_so_does_the_end_of_the_commands(play):
    before = sys.gettrace()
    for last in (["q"], []):
        assert await play.debugged(HELPERS, ["4", "8"], [f"b {TOTAL}", "up", *last]) == 13
        assert sys.gettrace() is before
    assert play.outcomes == ["continue"] * 2
    assert play.stops == [ASK, FIRST] * 2


async def test_next_at_the_end_of_a_helper_stops_in_the_coroutine_that_awaits_it(play):
    assert await play.debugged(HELPERS, ["4", "8"], ["next", "next", "next", "c"]) == 13
    assert play.stops == [ASK, ASK + 1, SECOND, TOTAL]


async def test_return_stops_in_the_coroutine_that_awaits_the_frame(play):
    assert await play.debugged(HELPERS, ["4", "8"], ["return", "where", "c"]) == 13
    assert play.stops == [ASK, SECOND, SECOND]
    assert "asyncio" not in play.screen.getvalue().partition("where")[2]


async def test_return_through_a_task_keeps_the_frames_around_it(play):
    source = HELPERS.replace(
        "first = await ask(tuner, messages)", "first = await asyncio.create_task(ask(tuner, messages))"
    )
    assert await play.debugged(source, ["4", "8"], ["next", "up", "down", "return", "c"]) == 13
    assert play.stops == [ASK, ASK + 1, FIRST, ASK + 1, SECOND]


async def test_until_goes_to_the_line_asked_for(play):
    assert await play.debugged(HELPERS, ["4", "8"], ["up", f"until {TOTAL}", "c"]) == 13
    assert play.stops == [ASK, FIRST, TOTAL]


async def test_step_goes_to_the_next_line_of_the_user_and_into_the_users_functions(play):
    commands = ["step"] * 4 + ["where", "c"]
    assert await play.debugged(HELPERS, lambda prompt: "4", commands) == 9  # which runs inside of the call: no stop
    assert play.stops[:5] == [ASK, ASK + 1, SECOND, ASK - 1, ASK]
    assert play.outcomes == ["stepping"]


async def test_step_out_of_a_function_stops_in_its_caller_where_nothing_was_to_stop_before(play):
    (play.folder / "fares.py").write_text("def fare():\n    return 3\n", encoding="utf-8")
    start = f"import asyncio, sys; sys.path.insert(0, {str(play.folder)!r}); import fares; sys.path.pop(0)\n"
    source = HELPERS.replace("import asyncio\n", start).replace("+ bonus", "+ bonus + fares.fare()")
    try:
        assert await play.debugged(source, ["4", "8"], ["b fares.py:2", "c", "clear 1", "step", "q"]) == 16
    finally:
        del sys.modules["fares"]
    assert play.stops == [ASK, RETURN]


async def test_an_error_of_the_workflow_stops_where_it_is_stepped_over(play):
    with pytest.raises(ValueError, match="four"):
        await play.debugged(HELPERS, ["four", "8"], ["up", "next", "next", "next", "p second", "c", "c"])
    assert "ValueError: invalid literal for int() with base 10: 'four'" in play.screen.getvalue()
    assert play.stops[-1] == TOTAL


async def test_interact_reads_and_writes_where_pdb_does(play, capsys):
    commands = ["up", "interact", "task.query.upper()", "1 / 0", "exit()", "p 'back'", "c"]
    assert await play.debugged(HELPERS, ["4", "8"], commands) == 13
    screen = play.screen.getvalue()
    assert "'WHAT IS (2 + 2) * 3?'" in screen
    assert "ZeroDivisionError" in screen
    assert "'back'" in screen
    assert capsys.readouterr() == ("", "")


async def test_the_workflow_cannot_be_started_again_from_pdb(play):
    assert await play.debugged(HELPERS, ["4", "8"], ["run", "restart", "jump 1", "c"]) == 13
    assert play.screen.getvalue().count("cannot be started again") == 2


async def test_control_c_at_the_prompt_asks_again_and_elsewhere_is_what_it_was(play):
    class Keyboard(io.StringIO):
        def readline(self, *args):
            if self.tell() == 0:
                self.read(1)
                signal.raise_signal(signal.SIGINT)
            return super().readline(*args)

    def handler(number, frame):
        raise AssertionError("the run was interrupted")

    def stop(number, workflow):
        if number == 1:
            debug_workflow(awaited_frames(workflow), stdin=Keyboard("\x03p 'asked again'\nc\n"), stdout=play.screen)

    before = signal.signal(signal.SIGINT, handler)
    try:
        assert await play(HELPERS, ["4", "8"], stop) == 13
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert "KeyboardInterrupt" in play.screen.getvalue()
    assert "'asked again'" in play.screen.getvalue()


async def test_steps_that_were_not_reached_end_with_the_debugging(play):
    before = sys.gettrace()
    assert await play.debugged(HELPERS, ["4", "8"], ["up", "next"], at=(2,)) == 13
    assert play.stops == [ASK, SECOND, TOTAL]
    assert sys.gettrace() is before
    await play.debugged(HELPERS, ["4", "8"], ["return", "return"], at=(2,))
    assert sys.gettrace() is not before
    end_debugging()
    assert sys.gettrace() is before


async def test_in_an_episode_the_task_of_the_workflow_leads_to_its_frames(play):
    tasks, seen = [], []

    async def solve(task, tuner):
        tasks.append(asyncio.current_task())
        return WorkflowOutput(await play.load(HELPERS).execute(task, tuner), reward=1.0)

    def stop(number):
        seen.append([line.split()[2] for line in where(user_frames(awaited_frames(tasks[0])))])

    policy = StoppingPolicy(ScriptedPolicy(["4", "8"], play.chat_format))
    policy.stop = stop
    limits = {"max_turns": 20, "episode_timeout": 60.0, "judge_timeout": 60.0}
    setup = RolloutSetup(policy, play.chat_format, as_workflow(solve), None, **limits)
    task = Task("t1", "What is (2 + 2) * 3?")
    episode = await run_episode(task, setup, episode_id="test/t1/0", seed=1, sampling=Sampling(max_tokens=256))
    assert episode.output.answer == 13
    assert seen == [["solve:", "execute:", "ask:"]] * 2


async def test_with_a_terminal_pdb_reads_from_it_and_prints_to_it(play, monkeypatch, capsys):
    def stop(number, workflow):
        play.outcomes.append(debug_workflow(awaited_frames(workflow)))

    monkeypatch.setenv("HOME", str(play.folder))
    monkeypatch.setattr(sys, "stdin", io.StringIO("up\np bonus\ninteract\nbonus * 7\nexit()\nc\nc\n"))
    assert await play(HELPERS, ["4", "8"], stop) == 13
    printed = capsys.readouterr().out
    assert "(pdb) 1\n" in printed
    assert ">>> 7\n" in printed
    assert play.outcomes == ["continue", "continue"]


def test_frames_outside_of_the_event_loop_are_not_the_workflows(play):
    assert asyncio.run(play.debugged(HELPERS, ["4", "8"], ["up", "next", "where", "c"])) == 13
    assert play.stops == [ASK, FIRST, SECOND, SECOND]
    assert "test_workflow_frames.py" not in play.screen.getvalue()


async def test_commands_alone_may_come_from_elsewhere(play, capsys):
    def stop(number, workflow):
        play.outcomes.append(debug_workflow(awaited_frames(workflow), stdin=io.StringIO("up\np bonus\nc\n")))

    assert await play(HELPERS, ["4", "8"], stop) == 13
    assert capsys.readouterr().out.count("(pdb) 1\n") == 2
    assert play.outcomes == ["continue", "continue"]


def test_without_a_line_of_the_user_pdb_says_so():
    screen = io.StringIO()
    assert debug_workflow([], stdout=screen) == "continue"
    assert "no line of yours" in screen.getvalue()


AGENTSCOPE_2 = """\
from agentscope.agent import Agent
from agentscope.message import TextBlock, UserMsg
from agentscope.tool import FunctionTool, ToolChunk, Toolkit
from astune.workflow.agentscope import training_defaults

async def execute(task, tuner):
    ran = []
    def calculate(expression: str) -> ToolChunk:
        ran.append(expression)
        return ToolChunk(content=[TextBlock(text="4")])
    model = tuner.model("solver", stream=STREAM)
    toolkit = Toolkit(tools=[FunctionTool(calculate)])
    agent = Agent(name="solver", system_prompt="You solve.", model=model, toolkit=toolkit, **training_defaults())
    ending = "!"
    reply = await agent.reply(UserMsg("user", task.query))
    text = reply.get_text_content()
    return text + ending, ran
"""
AGENTSCOPE_1 = """\
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock
from agentscope.tool import Toolkit, ToolResponse

async def execute(task, tuner):
    ran = []
    def calculate(expression: str) -> ToolResponse:
        ran.append(expression)
        return ToolResponse(content=[TextBlock(type="text", text="4")])
    toolkit = Toolkit()
    toolkit.register_tool_function(calculate)
    model = tuner.model("solver", stream=STREAM)
    agent = ReActAgent("solver", "You solve.", model=model, formatter=OpenAIChatFormatter(), toolkit=toolkit)
    agent.set_console_output_enabled(False)
    ending = "!"
    reply = await agent(Msg("user", task.query, "user"))
    text = reply.get_text_content()
    return text + ending, ran
"""
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+2"}}\n</tool_call>'


def agentscope_source(stream):
    pytest.importorskip("agentscope")
    source = AGENTSCOPE_1 if metadata.version("agentscope").startswith("1.") else AGENTSCOPE_2
    return source.replace("STREAM", str(stream))


def line_of(source, text):
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_frames_lead_through_an_agentscope_agent_and_its_streams(play, stream):
    source = agentscope_source(stream)
    whole = {}

    def stop(number, workflow):
        whole[number] = awaited_frames(workflow)

    assert await play(source, [CALL, "It is 4."], stop) == ("It is 4.!", ["2+2"])
    at = line_of(source, "reply = await")
    for frames in whole.values():
        modules = [frame.f_globals["__name__"] for frame in frames]
        assert modules[0] == "agent"
        assert any(name.startswith("agentscope.agent") for name in modules)
        assert any(name.startswith("agentscope.model") for name in modules)
        assert any(name.startswith("openai.") for name in modules)
        assert modules[-1] == "astune.workflow.tuner"
    assert (await play.frames(source, [CALL, "It is 4."], at=2))[0].startswith(f"agent.py:{at} in execute:  reply = ")


@pytest.mark.parametrize("stream", [False, True])
async def test_pdb_steps_and_changes_names_around_an_agentscope_agent(play, stream):
    source = agentscope_source(stream)
    text = line_of(source, "text = ")
    commands = ["p agent.name", "!ending = '?'", f"b {line_of(source, 'ran.append')}", "next"]
    commands += ["p expression", "next", "c"]
    assert await play.debugged(source, [CALL, "It is 4."], [*commands, "q"]) == ("It is 4.?", ["2+2"])
    assert play.stops[:2] == [text - 1, line_of(source, "ran.append")]
    assert play.stops[-1] == line_of(source, "return ToolResponse" if "ReActAgent" in source else "return ToolChunk")
    assert "'solver'" in play.screen.getvalue()


@pytest.mark.parametrize("stream", [False, True])
async def test_next_waits_for_all_calls_of_an_agentscope_agent(play, stream):
    source = agentscope_source(stream)
    text = line_of(source, "text = ")
    assert await play.debugged(source, [CALL, "It is 4."], ["next", "next", "c"]) == ("It is 4.!", ["2+2"])
    assert play.stops == [text - 1, text, text + 1]
