"""`setup` and `teardown` of a workflow class."""

import asyncio
import sys
from pathlib import Path
from signal import SIGINT, raise_signal

import pytest

import astune.workflow.lifetime as module
from astune.errors import PluginError, SetupError
from astune.support.concurrency import run_and_leave
from astune.types import WorkflowOutput
from astune.workflow.lifetime import Lifetime
from astune.workflow.workflow_base import Workflow, as_workflow
from tests.rows import each_row

MCP_SERVER = Path(__file__).parents[1] / "agents" / "mcp_server.py"


class Base(Workflow):
    async def execute(self, task, tuner):
        return WorkflowOutput()


def recorder(**fails):
    """A workflow that notes what is called and in which task."""

    class Recorder(Base):
        calls: list = []  # noqa: RUF012

        @classmethod
        async def setup(cls):
            cls.calls.append(("setup", asyncio.current_task()))
            if "setup" in fails:
                raise fails["setup"]

        @classmethod
        async def teardown(cls):
            cls.calls.append(("teardown", asyncio.current_task()))
            if "teardown" in fails:
                raise fails["teardown"]

    return Recorder


def names(workflow):
    return [name for name, _ in workflow.calls]


async def test_setup_and_teardown_run_in_one_task_which_is_not_the_runs():
    workflow = recorder()
    async with Lifetime(as_workflow(workflow)):
        assert names(workflow) == ["setup"]
    assert names(workflow) == ["setup", "teardown"]
    (_, first), (_, second) = workflow.calls
    assert first is second is not asyncio.current_task()


async def test_a_subclass_inherits_them_and_they_get_the_subclass():
    class Parent(Base):
        @classmethod
        async def setup(cls):
            cls.made_for = cls.__name__

    class Child(Parent):
        pass

    async with Lifetime(as_workflow(Child)):
        assert Child.made_for == "Child" and not hasattr(Parent, "made_for")


async def test_functions_have_nothing_to_set_up():
    async def solve(task, model):
        return WorkflowOutput()

    entered = []
    for workflow in (as_workflow(solve), lambda: Base()):
        async with Lifetime(workflow):
            entered.append(workflow)
    assert len(entered) == 2


async def test_teardown_comes_also_when_the_run_fails():
    workflow = recorder()
    with pytest.raises(ZeroDivisionError):
        async with Lifetime(workflow):
            raise ZeroDivisionError
    assert names(workflow) == ["setup", "teardown"]


async def test_teardown_comes_also_when_the_run_is_cancelled_and_is_not_cancelled_itself():
    workflow = recorder()

    async def run():
        async with Lifetime(workflow):
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    while not workflow.calls:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(workflow) == ["setup", "teardown"]


@pytest.mark.parametrize("error", [ConnectionError("nobody answers"), SystemExit(3), asyncio.CancelledError("gone")])
async def test_a_setup_that_fails_in_whatever_way_names_its_line_and_nothing_is_run(error):
    workflow = recorder(setup=error)
    with pytest.raises(SetupError, match=rf"setup \(.*{__name__.rpartition('.')[2]}.py:\d+\) failed: .*raise fails"):
        async with Lifetime(workflow):
            pytest.fail("not reached")
    assert names(workflow) == ["setup"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
async def test_the_reason_is_the_error_inside_the_groups_that_anyio_makes():
    workflow = recorder(setup=ExceptionGroup("unhandled", [ExceptionGroup("errors", [ConnectionError("no server")])]))  # noqa: F821
    with pytest.raises(SetupError, match="ConnectionError: no server"):
        async with Lifetime(workflow):
            pass


async def test_a_setup_under_way_is_cancelled_with_the_run():
    begun, ended = asyncio.Event(), []

    class Slow(Base):
        @classmethod
        async def setup(cls):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("setup")

    async def run():
        async with Lifetime(Slow):
            pytest.fail("not reached")

    task = asyncio.create_task(run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["setup"]


async def test_a_slow_setup_is_told_of(monkeypatch, caplog):
    monkeypatch.setattr(module, "SLOW", 0.01)

    class Slow(Base):
        @classmethod
        async def setup(cls):
            await asyncio.sleep(0.05)

    async with Lifetime(Slow):
        assert "Slow.setup" in caplog.text and "still running after 0.01 s" in caplog.text


@pytest.mark.parametrize("error", [OSError("pipe broken"), SystemExit(3), asyncio.CancelledError()])
async def test_what_teardown_raises_is_said_and_the_run_goes_on(error, caplog):
    async with Lifetime(recorder(teardown=error)):
        pass
    assert "teardown" in caplog.text and f"{type(error).__name__}" in caplog.text and __file__ in caplog.text


@pytest.mark.parametrize(("goes_on_for", "limit"), [(0.05, 60.0), (60.0, 0.5)])
async def test_a_slow_teardown_is_told_of_while_it_goes_on(goes_on_for, limit, monkeypatch, caplog):
    monkeypatch.setattr(module, "SLOW", 0.01)
    monkeypatch.setattr(module, "TEARDOWN_SECONDS", limit)

    class Slow(Base):
        @classmethod
        async def teardown(cls):
            await asyncio.sleep(goes_on_for)

    async with Lifetime(Slow):
        pass
    assert "Slow.teardown" in caplog.text and f"is still running after 0.01 s; it gets {limit:g} s" in caplog.text
    assert ("left behind" in caplog.text) == (goes_on_for > limit)


@pytest.mark.fault(
    "Runs and resuming",
    "A second Ctrl-C ends the run while what `setup` opened is in use",
    "`teardown` is called, and nothing is said to have broken",
)
def test_a_run_that_is_torn_down_at_once_is_not_called_broken(caplog):
    workflow = recorder()

    async def run():
        async with Lifetime(workflow):
            asyncio.get_running_loop().call_soon(raise_signal, SIGINT)
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_and_leave(run())
    assert names(workflow) == ["setup", "teardown"]
    assert "broken" not in caplog.text


async def test_what_breaks_of_what_setup_opened_is_told_of(caplog):
    workflow = recorder()
    async with Lifetime(workflow):
        (_, task), *_ = workflow.calls
        task.cancel()
        await asyncio.wait({task})
    assert "has broken and ended its task" in caplog.text and names(workflow) == ["setup", "teardown"]


async def test_a_teardown_that_hangs_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(module, "TEARDOWN_SECONDS", 0.01)

    class Hanging(Base):
        @classmethod
        async def teardown(cls):
            await asyncio.Event().wait()

    async with Lifetime(Hanging):
        pass
    assert "Hanging.teardown" in caplog.text and "left behind" in caplog.text


class InstanceMethod(Base):
    async def setup(self):
        pass


class Yielding(Base):
    @classmethod
    def teardown(cls):
        yield


class Static(Base):
    @staticmethod
    async def setup():
        pass


class Needing(Base):
    @classmethod
    async def setup(cls, config):
        pass


class NoFunction(Base):
    setup = None


@each_row(
    "workflow, complaint",
    [
        (InstanceMethod, r"InstanceMethod.setup \(.*:\d+\) is called once per run, when there is no instance yet"),
        (Yielding, r"Yielding.teardown \(.*:\d+\) is a generator"),
        (Static, "no instance yet; expected\n    @classmethod\n    async def setup"),
        (Needing, "takes config, which nobody gives it"),
        (NoFunction, "NoFunction.setup is called once per run"),
    ],
)
def test_what_is_written_wrongly_is_refused_with_its_line_and_the_right_form(workflow, complaint):
    with pytest.raises(PluginError, match=complaint):
        as_workflow(workflow)


async def test_an_mcp_client_is_opened_once_and_used_by_many_episodes_at_once():
    """Its cancel scopes must be left in the task that entered them: anyio raises where they are not."""
    pytest.importorskip("mcp.client.stdio")
    from contextlib import AsyncExitStack

    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    class Travel(Base):
        @classmethod
        async def setup(cls):
            cls.stack = AsyncExitStack()
            server = StdioServerParameters(command=sys.executable, args=[str(MCP_SERVER)])
            reader, writer = await cls.stack.enter_async_context(stdio_client(server))
            cls.session = await cls.stack.enter_async_context(ClientSession(reader, writer))
            await cls.session.initialize()

        @classmethod
        async def teardown(cls):
            await cls.stack.aclose()

    async def ask(city):
        answer = await Travel.session.call_tool("distance", {"start": "Bern", "end": city})
        return answer.content[0].text

    async with Lifetime(as_workflow(Travel)):
        answers = await asyncio.gather(*(ask(city) for city in ("Basel", "Genf", "Chur")))
    assert answers == ["Bern to Basel: 95 km", "Bern to Genf: 95 km", "Bern to Chur: 95 km"]
