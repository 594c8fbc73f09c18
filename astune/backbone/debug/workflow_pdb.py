"""pdb over the suspended frames of a workflow."""

from __future__ import annotations

import asyncio
import code
import contextlib
import ctypes
import pdb
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, MethodType, TracebackType
from typing import IO, Any, Literal

from astune.support.user_code import by_user
from astune.support.visible import tell


class WorkflowPdb(pdb.Pdb):
    """pdb over the user's frames of one chain of coroutines.

    It never stops at calls and returns, as each suspension of a coroutine is one to the interpreter, nor outside of
    the user's code, breakpoints apart.
    """

    def __init__(self, chain: list[FrameType], stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        super().__init__(stdin=stdin, stdout=stdout, nosigint=True, readrc=stdin is None)
        self.use_rawinput = stdin is None and stdout is None
        self.prompt = "(pdb) "
        self._chain = chain
        self._outer: list[FrameType] = []
        """Frames around the one that is stepped through: they run again when that has ended, however it has."""
        self._before = sys.gettrace()
        self._released = False

    def stop(self) -> Literal["continue", "stepping"]:
        """The first stop, in a frame that is suspended."""
        self.reset()
        self.botframe = _outermost(sys._getframe())
        self.interaction(self._chain[-1], None)
        stepping = self.stopframe is not self.botframe
        if stepping or self.breaks:
            sys.settrace(self.trace_dispatch)
        return "stepping" if stepping else "continue"

    def release(self) -> None:
        """No more stops."""
        self._released = True
        sys.settrace(self._before)
        for frame in self._chain:
            frame.f_trace = None

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        local = None if self._released else super().trace_dispatch(frame, event, arg)
        if self._released:
            frame.f_trace = None
            return None
        return local

    def interaction(self, frame: FrameType | None, *error: Any) -> None:
        with _interrupts():
            super().interaction(frame, *error)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The user's frames around `f`: those that run, inside of those known to wait for them."""
        running = [] if f is None else _of_task(f)
        chain = [frame for frame in running if frame is f or by_user(frame.f_code.co_filename)]
        if chain[0] in self._chain:
            chain = self._chain[: self._chain.index(chain[0])] + chain
        self._chain = chain
        return [(frame, frame.f_lineno) for frame in chain], len(chain) - 1

    def stop_here(self, frame: FrameType) -> bool:
        wanted = super().stop_here(frame) or frame in self._outer
        return wanted and by_user(frame.f_code.co_filename) and not _in_model_call(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        pass

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        pass

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        if self.stop_here(frame) and not issubclass(exc_info[0], (StopIteration, StopAsyncIteration, GeneratorExit)):
            super().user_exception(frame, exc_info)

    def set_next(self, frame: FrameType) -> None:
        super().set_next(frame)
        self._watch(frame)

    def set_until(self, frame: FrameType, lineno: int | None = None) -> None:
        super().set_until(frame, lineno)
        self._watch(frame)

    def set_return(self, frame: FrameType) -> None:
        super().set_return(frame)
        self._watch(frame)

    def set_step(self) -> None:
        super().set_step()
        self._watch(self._chain[-1])

    def _watch(self, frame: FrameType) -> None:
        self._outer = self._chain[: self._chain.index(frame)]
        for one in self._chain:
            one.f_trace = self.trace_dispatch

    def set_continue(self) -> None:
        self.stopframe, self.returnframe, self.stoplineno, self.quitting = self.botframe, None, -1, False
        self._outer = []
        if not self.breaks:
            self.release()

    def set_quit(self) -> None:
        """The run goes on: it is the debugger around this one that ends it."""
        self.clear_all_breaks()
        self.set_continue()

    def lookupmodule(self, filename: str) -> str | None:
        """The file that `break agent.py:30` means: beside the workflow's own before those of `sys.path`."""
        name = filename if filename.endswith(".py") else filename + ".py"
        beside = (Path(frame.f_code.co_filename).parent / name for frame in reversed(self._chain))
        found = next((file for file in beside if file.is_file()), None)
        return super().lookupmodule(filename) if found is None else self.canonic(str(found))

    def do_run(self, arg: str) -> None:
        """run: not here; the workflow cannot be started again from pdb."""
        self.error("the workflow cannot be started again from here")

    do_restart = do_run

    def default(self, line: str) -> None:
        super().default(line)
        if sys.version_info < (3, 13):  # where `f_locals` is a copy, which goes back into the frame by itself only
            assert self.curframe is not None  # while the frame runs under a trace function
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.curframe), ctypes.c_int(0))
            self.curframe_locals = self.curframe.f_locals

    def do_interact(self, arg: str) -> None:
        """interact

        A Python prompt with the names of this frame; names set there are lost. `exit()` or Ctrl-D leaves it.
        """
        assert self.curframe is not None
        names = {**self.curframe.f_globals, **self.curframe_locals, "exit": _leave, "quit": _leave}
        console = _Console(names)
        if not self.use_rawinput:
            console.stdin = self.stdin
        out, err = contextlib.redirect_stdout(self.stdout), contextlib.redirect_stderr(self.stdout)
        with out, err, contextlib.suppress(SystemExit):
            console.interact(banner="", exitmsg="")


def waiting() -> WorkflowPdb | None:
    """The debugger that waits for a line to be reached."""
    trace = sys.gettrace()
    owner = trace.__self__ if isinstance(trace, MethodType) else None
    return owner if isinstance(owner, WorkflowPdb) else None


class _Console(code.InteractiveConsole):
    """Reads what pdb reads."""

    stdin: IO[str] | None = None

    def raw_input(self, prompt: str = "") -> str:
        if self.stdin is None:
            return input(prompt)
        tell(prompt, end="", flush=True)
        line = self.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


def _leave() -> None:
    raise SystemExit


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Ctrl-C is for the prompt. From Python 3.11 on the handler of `asyncio.run` would cancel the run instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _in_model_call(frame: FrameType) -> bool:
    """Whether `frame` answers the workflow, a script of answers for example."""
    return any(outer.f_globals.get("__name__", "").startswith("astune.context_tracker.") for outer in _of_task(frame))


def _of_task(frame: FrameType) -> list[FrameType]:
    """`frame` and those that called it, outermost first, up to the event loop."""
    frames: list[FrameType] = []
    at: FrameType | None = frame
    while at is not None and at.f_code is not asyncio.Handle._run.__code__:
        frames.insert(0, at)
        at = at.f_back
    return frames
