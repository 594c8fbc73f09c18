"""Tools that fail in every call, or are gone: found while a run goes, told once each time, and counted in steps.

failures = ToolFailures()
failures.add(episode)         # warnings, as of a tool that has failed from the beginning
failures.end_phase()          # after a step, or with its name an evaluation: warnings of tools that worked before
failures.steps                # {"search": 2}: steps in a row in which every call of the tool failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from astune.types import UNKNOWN_TOOL, Episode, ToolUse

MANY_CALLS = 8
"""Calls of a tool that all fail before a run says so."""
MOST_TOOLS = 1000
"""Tools that are looked after: where every task has its own, none is missed elsewhere."""
CHANCE = 1e-4
"""How likely it is at most that a tool fails at all tasks of a stretch by chance, where a run takes it for dead."""


@dataclass(frozen=True)
class _Played:
    """The tools of an episode and their calls. `offered` is None where no model was asked."""

    episode_id: str
    task_id: str
    uses: Mapping[str, ToolUse]
    offered: set[str] | None


@dataclass
class _Stretch:
    """Whole steps in a row in which every call of a tool failed, or in which it was not offered."""

    steps: int = 0
    tasks: int = 0
    calls: int = 0
    missed: int = 0
    """Episodes that were not offered it."""
    first: str = ""
    """What was wrong first, with the name of its episode."""
    told: bool = False

    def __str__(self) -> str:
        parts = [f"all its {self.calls} calls have failed"] if self.calls else []
        parts += [f"{self.missed} episodes were not offered it"] if self.missed else []
        return f"{' and '.join(parts)} ({self.tasks} {'task' if self.tasks == 1 else 'tasks'})"


@dataclass
class _Tool:
    calls: int = 0
    errors: int = 0
    tasks: int = 0
    """Those of the steps in which it was alive, less the last of these: it may have died in that one."""
    failed_tasks: int = 0
    """Those of them at which no call succeeded."""
    last: tuple[int, int, int] = (0, 0, 0)
    """Of the last such step the tasks, those at which no call succeeded, and those of these that others came after."""
    under_way: dict[str, bool] = field(default_factory=dict)
    """The tasks of the step that is played, and whether a call in it has succeeded."""
    early: int = 0
    """Those of them at which none had when a call succeeded last."""
    now: _Stretch = field(default_factory=_Stretch)
    """What went wrong in the step that is played."""
    stretch: _Stretch = field(default_factory=_Stretch)

    def add(self, episode: _Played, use: ToolUse) -> None:
        task_id = episode.task_id
        self.calls += use.calls
        self.errors += use.errors
        self.now.calls += use.calls
        self.under_way[task_id] = self.under_way.get(task_id, False) or use.errors < use.calls
        if use.errors < use.calls:
            self.early = sum(not worked for worked in self.under_way.values())
        if use.errors and not self.now.first:
            self.now.first = f"{use.message:.300} ({episode.episode_id})"

    def miss(self, episode: _Played) -> None:
        self.under_way.setdefault(episode.task_id, False)
        self.now.missed += 1
        self.now.first = self.now.first or f"not offered ({episode.episode_id})"

    def end(self) -> None:
        """End the step: calls that are still under way belong to it."""
        stretch, now = self.stretch, self.now
        if any(self.under_way.values()):
            tasks, failed, _ = self.last
            if not stretch.told:  # a death says nothing of the tasks
                tasks, failed = tasks + stretch.tasks, failed + stretch.tasks
                self.tasks, self.failed_tasks = self.tasks + tasks, self.failed_tasks + failed
            failed = sum(not worked for worked in self.under_way.values())
            self.last = (len(self.under_way), failed, min(self.early, failed))
            self.stretch = _Stretch()
        elif self.under_way:
            stretch.steps += 1
            stretch.tasks += len(self.under_way)
            stretch.calls += now.calls
            stretch.missed += now.missed
            stretch.first = stretch.first or now.first
        self.under_way, self.early, self.now = {}, 0, _Stretch()

    @property
    def is_dead(self) -> bool:
        """It fails throughout. One that always fails at some of the tasks meets such a step by chance now and then."""
        stretch = self.stretch
        tasks, failed = (self.tasks, self.failed_tasks) if self.tasks else (self.last[0], self.last[2])
        by_chance = (failed / tasks) ** stretch.tasks if tasks else 0.0
        is_long = stretch.calls + stretch.missed >= MANY_CALLS and (stretch.tasks > 1 or stretch.steps > 1)
        return is_long and by_chance < CHANCE


def failing_tools(episodes: Sequence[Episode]) -> list[str]:
    """A warning for each tool of which every call in these episodes failed, where there are many calls."""
    found: dict[str, ToolUse] = {}
    for episode in episodes:
        for name, use in episode.tools.items():
            found[name] = found.get(name, ToolUse()) + use
    return [
        f"all {use.calls} calls of the tool {name} failed, as here: {use.message:.300}"
        for name, use in sorted(found.items())
        if use.errors == use.calls >= MANY_CALLS
    ]


class _Tools:
    """The tools of the steps of training, or of the evaluations of one name: each has tasks of its own."""

    def __init__(self) -> None:
        self.known: dict[str, _Tool] = {}
        self._tasks = 0
        """Those of all steps that are over."""
        self._under_way: dict[str, bool] = {}
        """Those of the step that is played."""

    def add(self, episode: _Played) -> None:
        offered = episode.offered or set()
        for name in (*offered, *episode.uses):
            if name not in self.known and len(self.known) < MOST_TOOLS:
                self.known[name] = _Tool(tasks=self._tasks, failed_tasks=self._tasks, under_way=dict(self._under_way))
        for name in self.known.keys() & episode.uses.keys():
            self.known[name].add(episode, episode.uses[name])
        if episode.offered is not None:
            for name in self.known.keys() - offered - episode.uses.keys() - {UNKNOWN_TOOL}:
                self.known[name].miss(episode)
            self._under_way[episode.task_id] = False

    def end(self) -> list[str]:
        told = []
        self._tasks, self._under_way = self._tasks + len(self._under_way), {}
        for name, tool in self.known.items():
            tool.end()
            stretch = tool.stretch
            if tool.is_dead and tool.errors < tool.calls and not stretch.told:
                stretch.told = True
                told.append(
                    f"the tool {name} has worked before, and now {stretch}, the first: {stretch.first}. Meanwhile the "
                    "model learns to do without it; astune.trainer.max_failed_tool_steps ends such a run"
                )
        return told


class ToolFailures:
    """The tools of a run, from what its episodes say of their calls."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        """Calls and errors by tool."""
        self._training = _Tools()
        self._evaluations: dict[str, _Tools] = {}
        self._evaluated: list[_Played] = []
        """Those of the evaluation that is played."""

    def add(self, episode: Episode) -> list[str]:
        """Count an episode that is over. Warns once of a tool of which no call has succeeded yet."""
        offered = episode.offered if episode.turns else None
        played = _Played(episode.episode_id, episode.task.task_id, episode.tools, offered)
        if episode.episode_id.startswith("eval/"):
            self._evaluated.append(played)
        else:
            self._training.add(played)
        told = []
        for name, use in episode.tools.items():
            before, errors = self._counts.get(name, (0, 0))
            self._counts[name] = calls, errors = before + use.calls, errors + use.errors
            if errors == calls >= MANY_CALLS > before:
                told.append(f"all {calls} calls of the tool {name} have failed so far, as here: {use.message:.300}")
        return told

    def end_phase(self, evaluation: str | None = None) -> list[str]:
        """End a training step, or the evaluation of that name. Warns once of a tool that worked before, in earlier
        steps or evaluations of the kind, and of which every call has failed since, until it works again."""
        if evaluation is None:
            return self._training.end()
        tools = self._evaluations.setdefault(evaluation, _Tools())
        for episode in self._evaluated:
            tools.add(episode)
        self._evaluated.clear()
        return tools.end()

    @property
    def steps(self) -> Mapping[str, int]:
        """The number of training steps in a row in which every call of a tool failed, by tool."""
        known = self._training.known
        return {name: tool.stretch.steps for name, tool in known.items() if tool.is_dead and name != UNKNOWN_TOOL}

    def first_failure(self, name: str) -> str:
        """The message of the first failed call of the stretch in which every call fails."""
        return self._training.known[name].stretch.first
