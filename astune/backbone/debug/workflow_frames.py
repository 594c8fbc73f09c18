"""Where a suspended workflow stands, and pdb in its frames.

While the debugger stops inside a model call, the workflow is suspended: its coroutine awaits the agent framework's,
which awaits the client's, which waits for a task that runs the call. The frames of suspended coroutines have no
`f_back`, so the stack is made from the other end, from the outermost coroutine inwards.

    frames = user_frames(awaited_frames(coroutine))
    where(frames)            # ["agent.py:12 in execute:  reply = await agent.reply(message)"]
    debug_workflow(frames)   # pdb in the last of them; "continue" or "stepping"
    end_debugging()          # when the run is over
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import linecache
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import IO, Any, Literal

from astune.backbone.debug.workflow_pdb import WorkflowPdb, waiting
from astune.support.user_code import by_user
from astune.support.visible import tell

_DEPTH = 8
"""References from a task to a future that it wakes: six through the queue of `asyncio.as_completed`."""

_FOLLOWED = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)
_NOT_HELD = (type, ModuleType, FrameType, CoroutineType, contextvars.Context, asyncio.Handle, asyncio.AbstractEventLoop)
"""What leads from a callback to all of the process."""


def awaited_frames(coroutine: Awaitable[object]) -> list[FrameType]:
    """The frames of a suspended coroutine and of all that it waits for, outermost first.

    The way leads through tasks, gather, wait, wait_for, shield and task groups. Where several tasks are waited for it
    is the one to the task that runs now, the model call; if none leads there (a thread or another process makes the
    call), the frames end. To be called on the thread of the event loop.
    """
    return _follow(coroutine, asyncio.current_task())[0]


def _follow(awaited: object, running: object, passed: tuple[object, ...] = ()) -> tuple[list[FrameType], bool]:
    """The frames from `awaited` inwards, and whether they lead to `running`; never through `passed`."""
    frames: list[FrameType] = []
    while awaited is not None and awaited is not running:
        if awaited in passed:
            return frames, False
        passed = (*passed, awaited)
        if isinstance(awaited, asyncio.Future) and not isinstance(awaited, asyncio.Task):
            ways = [_follow(task, running, passed) for task in asyncio.all_tasks() if _wakes(task, awaited)]
            chosen = ways if len(ways) == 1 else [way for way in ways if way[1]]
            inner, found = chosen[0] if chosen else ([], False)
            return frames + inner, found
        frame, awaited = _link(awaited)
        frames += [] if frame is None else [frame]
    return frames, awaited is not None


def _link(awaited: object) -> tuple[FrameType | None, object]:
    """The frame of a link of the chain, and the next link.

    `cr_await` is often an object of the interpreter around the real one, such as the awaitable that `__anext__` of an
    async generator gives. Up to Python 3.13 these name what they wrap nowhere but to the garbage collector.
    """
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, GeneratorType):
        return awaited.gi_frame, awaited.gi_yieldfrom
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, asyncio.Task):
        return None, awaited.get_coro()
    return None, next((held for held in gc.get_referents(awaited) if isinstance(held, _FOLLOWED)), None)


def _wakes(task: asyncio.Task[Any], future: object) -> bool:
    """Whether `future` is held by what is called when `task` is done. So do gather, wait, wait_for and the others
    come to know of it, each in its own way: a closure, a bound method or a queue."""
    seen: set[int] = set()
    level = _callbacks(task)
    for _ in range(_DEPTH):
        if any(held is future for held in level):
            return True
        seen.update(map(id, level))
        level = [held for value in level for held in _held(value) if id(held) not in seen]
    return False


def _held(value: object) -> Iterable[object]:
    if isinstance(value, FunctionType):
        return value.__closure__ or ()
    if isinstance(value, (asyncio.Task, *_NOT_HELD)):
        return ()
    return _callbacks(value) if isinstance(value, asyncio.Future) else gc.get_referents(value)


def _callbacks(future: asyncio.Future[Any]) -> list[object]:
    return [callback for callback, _ in future._callbacks or ()]


def user_frames(frames: Iterable[FrameType]) -> list[FrameType]:
    """Those that run code of the user: not of ASTune, the standard library or an installed package."""
    return [frame for frame in frames if by_user(frame.f_code.co_filename)]


def where(frames: Iterable[FrameType]) -> list[str]:
    """One line for each frame."""
    return [
        f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}:  "
        + linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
        for frame in frames
    ]


def debug_workflow(
    frames: Sequence[FrameType], *, stdin: IO[str] | None = None, stdout: IO[str] | None = None
) -> Literal["continue", "stepping"]:
    """pdb in the innermost of the user's frames among `frames`, until the user lets the workflow go on.

    "stepping": by `next`, `step`, `until` or `return`. pdb stops again by itself at that line, which is after the model
    call; `step` at the next line of the user's code, whichever agent runs it. "continue": `continue` or `quit`, which
    also removes all breakpoints. Breakpoints stop in pdb later on. Assignments to names are seen by the workflow.
    """
    active = waiting()
    if active is not None:
        active.release()
    chain = user_frames(frames)
    if not chain:
        tell("The workflow waits in no line of yours that can be followed from this call.", file=stdout)
        return "continue"
    return WorkflowPdb(chain, stdin, stdout).stop()


def end_debugging() -> None:
    """Forget where pdb was to stop: steps that were not reached, and breakpoints."""
    active = waiting()
    if active is not None:
        active.set_quit()
