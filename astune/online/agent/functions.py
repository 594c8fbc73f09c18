"""Agents that are plain functions of a client of the model, and their tools."""

from __future__ import annotations

import copy
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import anyio.to_thread

from astune.errors import OnlineError
from astune.online.agent.selection import RequestContext
from astune.online.agent.shadow import Play, Request, ShadowRun, Watcher, shadow_run
from astune.online.agent.writes import REFUSAL, RecordedTool, ToolDecision, is_read_only

_CALLS: ContextVar[list[RecordedTool] | None] = ContextVar("astune_tool_calls", default=None)
"""Tool calls of the production request that this code is part of."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextmanager
def tool_calls_within() -> Iterator[list[RecordedTool]]:
    """Collect the calls of `shadow_safe` tools in production, as they end."""
    calls: list[RecordedTool] = []
    token = _CALLS.set(calls)
    try:
        yield calls
    finally:
        _CALLS.reset(token)
        outer = _CALLS.get()
        if outer is not None:
            outer.extend(calls)


def shadow_safe(function: _Function) -> _Function:
    """Wrap a tool: in production it is called as ever, in a shadow run only if the call cannot change anything.

        @shadow_safe
        def refund(order: str, amount: float) -> str: ...

    In a shadow run its result is that of the production run for equal arguments, a sandbox's, or a text that refuses,
    as `TrainingRunner(writes=)` says. A tool that runs in a thread which the agent starts itself must be given the
    context: `contextvars.copy_context().run`; else it does not know that it is in a shadow run.
    """
    tool = _Tool(function)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_tool(*args: Any, **kwargs: Any) -> Any:
            use, called = tool.decide(args, kwargs)
            if use is None:
                result = await function(*args, **kwargs)
                tool.record(args, kwargs, result)
                return result
            if use.decision in ("ran", "sandbox"):
                result = called(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            return _answer(use)

        return cast(_Function, call_tool)

    @functools.wraps(function)
    def call_tool_sync(*args: Any, **kwargs: Any) -> Any:
        use, called = tool.decide(args, kwargs)
        if use is None:
            result = function(*args, **kwargs)
            tool.record(args, kwargs, result)
            return result
        return called(*args, **kwargs) if use.decision in ("ran", "sandbox") else _answer(use)

    return cast(_Function, call_tool_sync)


class _Tool:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = function.__name__
        self._signature = inspect.signature(function)

    def _arguments(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name, with defaults and without `self`. Raises TypeError, as the call would."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in bound.arguments.items() if name != "self"}

    def decide(self, args: Any, kwargs: Any) -> tuple[ToolDecision | None, Any]:
        """Decide on a call (None in production), and choose the function to call if there is one."""
        run = shadow_run()
        if run is None:
            return None, self._function
        sandbox = run.guard.sandbox
        inside = isinstance(sandbox, Mapping) and self._name in sandbox
        reads = is_read_only(self._function)
        use = run.guard.decide(self._name, self._arguments(args, kwargs), reads=reads, in_sandbox=inside)
        return use, sandbox[self._name] if use.decision == "sandbox" else self._function

    def record(self, args: Any, kwargs: Any, result: Any) -> None:
        """Record a call for the shadow runs of this production request."""
        calls = _CALLS.get()
        if calls is not None:
            arguments = _copy(self._arguments(args, kwargs))
            calls.append(RecordedTool(self._name, arguments, _copy(result)))


def _answer(use: ToolDecision) -> Any:
    return copy.deepcopy(use.result) if use.decision == "recorded" else REFUSAL.format(name=use.name)


def _copy(value: Any) -> Any:
    """Copy a value; one that cannot be copied is returned itself, as a tool's result is rarely changed later."""
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever a class raises that cannot be copied
        return value


def wrap_function(watcher: Watcher, function: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """`function(client, ...)` without its first argument: in production `client`, in a shadow run the trained model's,
    an `AsyncOpenAI` where the function is async and else an `OpenAI`. `watcher` is told of the requests."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise OnlineError(f"{function!r} yields its answer; wrap() takes functions that return one, see observe()")

    def tell(given: Any, output: Any, calls: list[RecordedTool]) -> None:
        _tell(watcher, function, given, output, calls)

    return in_production(function, (client,), tell)


def in_production(
    function: Callable[..., Any], first: tuple[Any, ...], tell: Callable[[Any, Any, list[RecordedTool]], None]
) -> Callable[..., Any]:
    """`function` with the arguments `first` given, sync or async as it is. After each call `tell` hears of the further
    arguments, as (args, kwargs), of what was returned, and of the calls of tools."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with tool_calls_within() as calls:
                output = await function(*first, *args, **kwargs)
            tell((args, kwargs), output, calls)
            return output

        return call

    @functools.wraps(function)
    def call_sync(*args: Any, **kwargs: Any) -> Any:
        with tool_calls_within() as calls:
            output = function(*first, *args, **kwargs)
        tell((args, kwargs), output, calls)
        return output

    return call_sync


def _tell(watcher: Watcher, function: Callable[..., Any], given: Any, output: Any, calls: list[RecordedTool]) -> None:
    try:
        args, kwargs = given
        inputs = dict(list(inspect.signature(function).bind(None, *args, **kwargs).arguments.items())[1:])
        context = watcher.select_request(None, inputs, output)
        if context is None:
            return
        inputs, output, given = copy.deepcopy((inputs, output, given))
        watcher.offer(request_of(inputs, output, context, calls), play_of(_again(function, given)))
    except Exception as error:  # production goes on, whatever its values do when they are copied
        watcher.report_error(error)


def _again(function: Callable[..., Any], given: Any) -> Callable[..., Any]:
    """`function` with the arguments that it was given, copied for each run."""
    if inspect.iscoroutinefunction(function):

        async def again(client: Any) -> Any:
            args, kwargs = copy.deepcopy(given)
            return await function(client, *args, **kwargs)

        return again

    def again_sync(client: Any) -> Any:
        args, kwargs = copy.deepcopy(given)
        return function(client, *args, **kwargs)

    return again_sync


def request_of(inputs: Any, output: Any, context: RequestContext, calls: Sequence[RecordedTool]) -> Request:
    return Request(context.task_id or f"task-{uuid.uuid4().hex}", inputs, output, context, tuple(calls))


def play_of(run: Callable[[Any], Any]) -> Play:
    """Plays `run(client)`: in a thread, with a client that blocks, unless it is an `async def`."""

    async def play(shadow: ShadowRun) -> Any:
        if inspect.iscoroutinefunction(run):
            return await run(shadow.client)
        result = await anyio.to_thread.run_sync(run, shadow.sync_client, abandon_on_cancel=True)
        if inspect.iscoroutine(result):
            result.close()
            raise OnlineError(f"{run!r} returned a coroutine; give an `async def`, so that it gets a client that waits")
        return result

    return play
