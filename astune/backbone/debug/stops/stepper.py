"""Stop a debug run: read commands and carry them out until one of them lets the run go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from astune.backbone.debug.sources.typed_answer import NotAnAnswer, typed_answer
from astune.backbone.debug.stops.edit import edited_text
from astune.backbone.debug.stops.stop import Branch, Stop, StopKind
from astune.backbone.debug.stops.where import awaited_lines
from astune.backbone.debug.terminal import Interrupted, Terminal
from astune.backbone.debug.views.on_demand import SHOWS, NothingToShow
from astune.backbone.debug.views.screen import Screen
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.sources import Answer, read_answer
from astune.errors import RolloutError, nearest
from astune.recordings.replay import EDITED
from astune.support.terminal import Text

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

    `quit_run` cancels the episode under way; it is called once, by whoever wants to quit.
    """

    def __init__(
        self,
        terminal: Terminal,
        screen: Screen,
        chat_format: ChatFormat,
        quit_run: Callable[[], None],
        *,
        stops: bool,
    ) -> None:
        self.branches: list[Branch] = []
        """What to play once the episode is over."""
        self._terminal, self._screen, self._format = terminal, screen, chat_format
        self._quit_run = quit_run
        self._until: Until = "next stop" if stops else "end of the run"
        self._lock = asyncio.Lock()

    def episode_started(self) -> None:
        if self._until != "end of the run":
            self._until = "next stop"

    async def stop(self, stop: Stop) -> None:
        """Returns when the run is to go on. Never returns if the user quits: the episode is cancelled."""
        async with self._lock:
            if stop.kind not in STOPS[self._until]:
                return
            self._screen.stopped(stop.title)
            going_on = False
            while not going_on:
                going_on = await self._do(stop, await self._line())

    async def quit(self) -> NoReturn:
        """Ends the run here; what there is of the episode is kept."""
        self._screen.note("quit: the episode so far is kept", "dim")
        self._until = "end of the run"
        self._quit_run()
        await asyncio.get_running_loop().create_future()  # until the cancellation arrives
        raise AssertionError("nobody sets this future")

    async def _line(self) -> str:
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

    async def _go_on(self, until: Until) -> bool:
        self._until = until
        return True

    async def _next(self, stop: Stop, rest: str) -> bool:
        return await self._go_on("next stop")

    async def _judge(self, stop: Stop, rest: str) -> bool:
        return await self._go_on("judge")

    async def _continue(self, stop: Stop, rest: str) -> bool:
        return await self._go_on("end of the episode")

    async def _finish(self, stop: Stop, rest: str) -> bool:
        return await self._go_on("end of the run")

    async def _quit(self, stop: Stop, rest: str) -> bool:
        await self.quit()

    async def _show(self, stop: Stop, rest: str) -> bool:
        found = [what for what in SHOWS if rest and what.startswith(rest)]
        if len(found) != 1:
            raise NothingToShow(f"show what?{nearest(rest, SHOWS)} There are: {', '.join(SHOWS)}")
        SHOWS[found[0]](self._screen.console, stop, self._format)
        return False

    async def _edit(self, stop: Stop, rest: str) -> bool:
        """Refuses what is no answer with the reason; what was written stays to be edited again."""
        assert stop.call is not None and stop.answers is not None
        now = stop.answers.current
        text = rest.replace("\\n", "\n") or edited_text(
            self._terminal, "" if now is None else self._format.decode(now.output_ids), stop
        )
        try:
            answer = self._written(stop, text)
        except NotAnAnswer as error:
            stop.answers.draft = text
            self._screen.note(f"not taken: {error}")
            self._screen.note(f"your text is kept; edit again to go on from it:\n{text}", "dim")
            return False
        stop.answers.draft = ""
        stop.answers.add(answer)
        self._show_answer(stop, answer)
        return False

    def _written(self, stop: Stop, text: str) -> Answer:
        assert stop.call is not None
        answer = read_answer(self._format, stop.call, typed_answer(self._format, stop.call, text))
        return replace(answer, excluded=EDITED)

    async def _sample(self, stop: Stop, rest: str) -> bool:
        assert stop.answers is not None
        self._show_answer(stop, await stop.answers.again())
        return False

    async def _use(self, stop: Stop, rest: str) -> bool:
        assert stop.answers is not None
        stop.answers.chosen = self._number(stop, rest)
        self._show_answer(stop, stop.answers.given[stop.answers.chosen])
        return False

    async def _branch(self, stop: Stop, rest: str) -> bool:
        """Another attempt at the task goes from here with another answer: a given one, a typed one or a new draw."""
        assert stop.call is not None and stop.answers is not None
        if rest.isdigit():
            other = stop.answers.given[self._number(stop, rest)]
        else:
            other = self._written(stop, rest) if rest else await stop.answers.draw(len(stop.answers.given))
        self.branches.append(Branch(stop.running.episode_id, stop.call.number, other))
        self._screen.note("a branch: it is played when this episode is over, from here on with this answer", "cyan")
        self._screen.call_done(stop.call, other, self._format.decode(other.output_ids))
        return False

    async def _where(self, stop: Stop, rest: str) -> bool:
        for line in awaited_lines(stop.running.work) or ["the workflow waits in no line of yours"]:
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

    def _number(self, stop: Stop, text: str) -> int:
        assert stop.answers is not None
        count = len(stop.answers.given)
        if not text.isdigit() or int(text) >= count:
            raise NothingToShow(f"there is no answer {text!r}; show answers lists them, 0 to {count - 1}")
        return int(text)

    def _show_answer(self, stop: Stop, answer: Answer) -> None:
        assert stop.call is not None
        self._screen.call_done(stop.call, answer, self._format.decode(answer.output_ids))


@dataclass(frozen=True)
class Command:
    name: str
    short: str
    usage: str
    meaning: str
    run: Callable[[Stepper, Stop, str], Awaitable[bool]]
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
    Command("next", "n", "next", "go on to the next stop (as does an empty line)", Stepper._next),
    Command("judge", "j", "judge", "go on to the verdict of this episode", Stepper._judge, RUNNING),
    Command("continue", "c", "continue", "go on to the end of this episode", Stepper._continue),
    Command("finish", "f", "finish", "go on to the end of the run", Stepper._finish),
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
