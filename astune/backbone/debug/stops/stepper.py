"""Stop a debug run: read commands and carry them out until one of them lets the run go on."""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Literal, NoReturn

from astune.backbone.debug.sources.typed_answer import NotAnAnswer, read_typed_answer
from astune.backbone.debug.stops.stop import Branch, Stop, StopKind
from astune.backbone.debug.terminal import Interrupted, Terminal
from astune.backbone.debug.views.on_demand import SHOWS, NothingToShow
from astune.backbone.debug.views.screen import Screen
from astune.context_tracker.calls import Answer, read_answer
from astune.errors import RolloutError, nearest
from astune.recordings.replay import EDITED
from astune.support.terminal import Text
from astune.support.user_code import by_user
from astune.workflow.workflow_base import thread_name

PROMPT = "(astune) "

Until = Literal["next stop", "judge", "end of the episode", "end of the run"]
STOPS: dict[Until, frozenset[StopKind]] = {
    "next stop": frozenset({"tool result", "call", "answer", "judge", "verdict"}),
    "judge": frozenset({"judge", "verdict"}),
    "end of the episode": frozenset(),
    "end of the run": frozenset(),
}


class Stepper:
    """Stops where it was told to, one stop at a time: other agents of the episode wait meanwhile.

    `quit_run` cancels the episode under way; it is called once.
    """

    def __init__(
        self,
        terminal: Terminal,
        screen: Screen,
        quit_run: Callable[[], None],
        *,
        stops: bool,
    ) -> None:
        self.branches: list[Branch] = []
        """Branches to play once the episode is over."""
        self._terminal, self._screen = terminal, screen
        self._quit_run = quit_run
        self.until: Until = "next stop" if stops else "end of the run"
        """The stop that the run goes on to from here."""
        self._lock = asyncio.Lock()

    def episode_started(self) -> None:
        if self.until != "end of the run":
            self.until = "next stop"

    async def stop(self, stop: Stop) -> None:
        """Returns when the run is to go on. Never returns if the user quits: the episode is cancelled."""
        async with self._lock:
            if stop.kind not in STOPS[self.until]:
                return
            self._screen.show_stop(stop.title)
            going_on = False
            while not going_on:
                going_on = await self._do(stop, await self._read_line())

    async def quit(self) -> NoReturn:
        """Ends the run here; what there is of the episode is kept."""
        self._screen.note("quit: the episode so far is kept", "dim")
        self.until = "end of the run"
        self._quit_run()
        await asyncio.get_running_loop().create_future()  # until the cancellation arrives
        raise AssertionError("nobody sets this future")

    async def _read_line(self) -> str:
        """The next command; the end of a file or pipe lets the run go on, on a terminal it quits."""
        try:
            line = self._terminal.ask(PROMPT)
        except Interrupted:
            await self.quit()
        if line is not None:
            return line.strip()
        if self._terminal.interactive:
            await self.quit()
        self._screen.note("no more commands: going on without stops", "dim")
        return "finish"

    async def _do(self, stop: Stop, line: str) -> bool:
        name, _, rest = line.partition(" ")
        command = NAMES.get(name or "next")
        if name.startswith("#"):
            return False
        if command is None:
            self._screen.note(f"there is no command {name!r}.{nearest(name, NAMES)} help lists them")
            return False
        if stop.kind not in command.at:
            self._screen.note(f"{command.name} works {' and '.join(AT[kind] for kind in sorted(command.at))} only")
            return False
        try:
            return await command.run(self, stop, rest.strip())
        except (NothingToShow, RolloutError, NotAnAnswer) as error:
            self._screen.note(str(error))
            return False

    async def _quit(self, stop: Stop, rest: str) -> bool:
        await self.quit()

    async def _show(self, stop: Stop, rest: str) -> bool:
        found = [what for what in SHOWS if rest and what.startswith(rest)]
        if len(found) != 1:
            raise NothingToShow(f"show what?{nearest(rest, SHOWS)} There are: {', '.join(SHOWS)}")
        SHOWS[found[0]](self._screen.console, stop)
        return False

    async def _edit(self, stop: Stop, rest: str) -> bool:
        """Take an answer from a person. A text that is no answer is refused with the reason, and stays to be edited
        again."""
        assert stop.call is not None and stop.answers is not None
        now = stop.answers.current
        before = stop.answers.draft or ("" if now is None else stop.call.chat_format.decode(now.output_ids))
        text = rest.replace("\\n", "\n") or self._terminal.edit(before)
        try:
            answer = self._read_written(stop, text)
        except NotAnAnswer as error:
            stop.answers.draft = text
            self._screen.note(f"not taken: {error}")
            self._screen.note(f"your text is kept; edit again to go on from it:\n{text}", "dim")
            return False
        stop.answers.draft = ""
        stop.answers.add(answer)
        self._show_answer(stop, answer)
        return False

    def _read_written(self, stop: Stop, text: str) -> Answer:
        assert stop.call is not None
        written = read_typed_answer(stop.call.chat_format, stop.call, text)
        return replace(read_answer(stop.call, written), excluded=EDITED)

    async def _sample(self, stop: Stop, rest: str) -> bool:
        assert stop.answers is not None
        self._show_answer(stop, await stop.answers.again())
        return False

    async def _use(self, stop: Stop, rest: str) -> bool:
        assert stop.answers is not None
        stop.answers.chosen = self._read_number(stop, rest)
        self._show_answer(stop, stop.answers.given[stop.answers.chosen])
        return False

    async def _branch(self, stop: Stop, rest: str) -> bool:
        """Another attempt at the task goes from here with another answer: a given one, a typed one or a new draw."""
        assert stop.call is not None and stop.answers is not None
        if rest.isdigit():
            other = stop.answers.given[self._read_number(stop, rest)]
        else:
            other = self._read_written(stop, rest) if rest else await stop.answers.draw(len(stop.answers.given))
        self.branches.append(Branch(stop.running.episode_id, stop.call.number, other))
        self._screen.note("a branch: it is played when this episode is over, from here on with this answer", "cyan")
        self._screen.call_done(stop.call, other, stop.call.chat_format.decode(other.output_ids))
        return False

    async def _where(self, stop: Stop, rest: str) -> bool:
        lines = find_awaited_lines(stop.running.work) or find_thread_lines(thread_name(stop.running.episode_id))
        for line in lines or ["the workflow waits in no line of yours"]:
            self._screen.console.print(Text(f"  {line}"))
        return False

    async def _help(self, stop: Stop, rest: str) -> bool:
        for command in COMMANDS:
            if (not rest and stop.kind in command.at) or rest in (command.name, command.short):
                names = f"{command.usage}" + (f" ({command.short})" if command.short else "")
                self._screen.console.print(Text.assemble((f"  {names:<28}", "bold"), command.meaning))
        if not rest:
            self._screen.note("  breakpoint() in your workflow opens Python's debugger there", "dim")
        return False

    def _read_number(self, stop: Stop, text: str) -> int:
        assert stop.answers is not None
        count = len(stop.answers.given)
        if not text.isdigit() or int(text) >= count:
            raise NothingToShow(f"there is no answer {text!r}; show answers lists them, 0 to {count - 1}")
        return int(text)

    def _show_answer(self, stop: Stop, answer: Answer) -> None:
        assert stop.call is not None
        self._screen.call_done(stop.call, answer, stop.call.chat_format.decode(answer.output_ids))


def find_awaited_lines(work: object) -> list[str]:
    """Find the lines of the user's code at which the coroutine `work`, and the coroutines that it awaits, are
    suspended, the outermost first:

        ["agent.py:12 in execute:  reply = await agent.reply(message)"]

    Where one of them waits for tasks (`asyncio.gather`), its line is the last.
    """
    lines = []
    while isinstance(work, CoroutineType) and (frame := work.cr_frame) is not None:
        if by_user(frame.f_code.co_filename):
            lines.append(_show_line(frame))
        work = work.cr_await
    return lines


def find_thread_lines(name: str) -> list[str]:
    """The same of the thread called `name`, in which a workflow that is not async is played; none if there is none."""
    thread = next((one for one in threading.enumerate() if one.name == name), None)
    frame = None if thread is None else sys._current_frames().get(thread.ident or 0)
    lines: list[str] = []
    while frame is not None:
        if by_user(frame.f_code.co_filename):
            lines.insert(0, _show_line(frame))
        frame = frame.f_back
    return lines


def _show_line(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    code = linecache.getline(file, frame.f_lineno, frame.f_globals).strip()
    return f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}:  {code}"


Run = Callable[[Stepper, Stop, str], Awaitable[bool]]
"""Carries a command out, given what stands behind its name; true if the run is to go on."""


def _go_on_to(until: Until) -> Run:
    async def run(stepper: Stepper, stop: Stop, rest: str) -> bool:
        stepper.until = until
        return True

    return run


@dataclass(frozen=True)
class Command:
    name: str
    short: str
    usage: str
    meaning: str
    run: Run
    at: frozenset[StopKind] = STOPS["next stop"]
    """The stops at which it makes sense."""


AT: dict[StopKind, str] = {
    "tool result": "at a tool result",
    "call": "before a call",
    "answer": "after a call",
    "judge": "before the verdict",
    "verdict": "after the verdict",
}
CALLS: frozenset[StopKind] = frozenset({"call", "answer"})
RUNNING: frozenset[StopKind] = frozenset({"tool result", "call", "answer"})
ANSWERED: frozenset[StopKind] = frozenset({"answer"})

COMMANDS = (
    Command("next", "n", "next", "go on to the next stop (as does an empty line)", _go_on_to("next stop")),
    Command("judge", "j", "judge", "go on to the verdict of this episode", _go_on_to("judge"), RUNNING),
    Command("continue", "c", "continue", "go on to the end of this episode", _go_on_to("end of the episode")),
    Command("finish", "f", "finish", "go on to the end of the run", _go_on_to("end of the run")),
    Command("show", "s", "show WHAT", f"{', '.join(SHOWS)}; the start of the word does", Stepper._show),
    Command(
        "edit", "e", "edit [TEXT]", "write the answer yourself; a tool call: /call TOOL {...}", Stepper._edit, CALLS
    ),
    Command("sample", "a", "sample", "draw another answer, which the agent gets", Stepper._sample, ANSWERED),
    Command("use", "u", "use N", "let the agent get answer N of show answers", Stepper._use, ANSWERED),
    Command(
        "branch",
        "b",
        "branch [N|TEXT]",
        "keep this answer, and play another attempt from here with answer N, TEXT or a new one",
        Stepper._branch,
        ANSWERED,
    ),
    Command("where", "w", "where", "the lines of your workflow that wait for this", Stepper._where, RUNNING),
    Command("help", "h", "help [COMMAND]", "what can be done here", Stepper._help),
    Command("quit", "q", "quit", "end the run; the episode so far is kept", Stepper._quit),
)
NAMES = {name: command for command in COMMANDS for name in (command.name, command.short)} | {"?": COMMANDS[-2]}
