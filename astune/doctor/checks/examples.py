"""Can all examples be read, and do they begin as the agent's calls do?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.config.rules import plays_episodes
from astune.context_tracker.prompt.messages import SYSTEM_ROLES, show_content
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.errors import AstuneError
from astune.examples.read import KEY, examples_in
from astune.ropes import common_start
from astune.sampling import shorten
from astune.training.schedule import HELD_OUT, of_file
from astune.types import Turn

LONG = 100
"""Characters of a text that is shown as a whole."""
Messages = Sequence[Mapping[str, Any]]


def check_examples(checked: CheckedConfig) -> Iterator[Finding]:
    config = checked.config
    if plays_episodes(config):
        return
    if config.trainer.examples_of_run:
        yield skip("the examples are episodes of the stages before, which are not played yet")
        return
    for key, file in ((KEY, config.trainer.examples), (HELD_OUT, config.trainer.held_out_examples)):
        if file is None:
            continue
        played = checked.played
        turns = () if played is None else sorted(played.turns, key=lambda turn: turn.call)
        prompts = FirstPrompts(turns, "" if played is None else played.task.query)
        try:
            of_this = config if key == KEY else of_file(config, file)
            found, left_out = examples_in(of_this, checked.chat_format, prompts.add)
        except AstuneError as error:
            where, _, what = str(error).partition(": ")
            yield fail(what or where, where=where if what else checked.where(key), fix="correct it: a run stops at it")
            continue
        if not found:
            yield fail(f"no examples{left_out.why_none()}", where=checked.where(key), fix="name a file that has some")
            continue
        if key == KEY:
            checked.examples = len(found)
        for said in left_out.list_causes(faults=True):
            fix = "fix them or take them out: a run learns the others"
            yield warn(f"left out are {said}", where=checked.where(key), fix=fix)
        others = left_out.list_causes(faults=False)
        yield ok(f"{len(found):,} examples in {file}{'; left out are ' * bool(others)}{'; '.join(others)}")
        yield from prompts.differences()


class FirstPrompts:
    """Compares what examples begin with, system message and tools, with the calls that the agent made, the first one
    first, and knows the question of their task. One that begins
    as any of them does is as it should be; shown is the first."""

    def __init__(self, calls: Sequence[Turn], query: str) -> None:
        self._systems = [_system_of(turn.messages) for turn in calls]
        self._tools = [_by_name(turn.tools) for turn in calls]
        # a system message with the question in it is another one for each task
        self._compares_systems = bool(calls) and not (query and query in self._systems[0])
        self._place, self._count = "", 0
        self._other_systems: list[tuple[str, str]] = []
        self._other_tools: list[tuple[str, Mapping[str, str]]] = []

    def add(self, place: str, messages: Messages, tools: Messages) -> None:
        """Takes a line; the second answer of a preference is no other."""
        if not self._systems or place == self._place:
            return
        self._place, self._count = place, self._count + 1
        system, offered = _system_of(messages), _by_name(tools)
        if self._compares_systems and system not in self._systems:
            self._other_systems.append((place, system))
        if offered not in self._tools:
            self._other_tools.append((place, offered))

    def differences(self) -> Iterator[Finding]:
        """A warning for each part that differs, with both shown."""
        if self._other_systems:
            place, system = self._other_systems[0]
            shown = _show_text(system, self._systems[0]), _show_text(self._systems[0], system)
            yield self._warning("system message", len(self._other_systems), place, *shown)
        if self._other_tools:
            place, tools = self._other_tools[0]
            yield self._warning("tools", len(self._other_tools), place, *_show_tools(tools, self._tools[0]))

    def _warning(self, what: str, count: int, place: str, theirs: str, agents: str) -> Finding:
        return warn(
            f"{count:,} of {self._count:,} examples differ from the agent's first call in their {what}: {theirs} in "
            f"the example, {agents} in the call",
            where=place,
            fix="make both the same: what is learned after one prompt need not be said after another",
        )


def _system_of(messages: Messages) -> str:
    """The text of the system messages at the start; "" without any."""
    lead = next((at for at, each in enumerate(messages) if each["role"] not in SYSTEM_ROLES), len(messages))
    return "\n".join(show_content(message) for message in messages[:lead])


def _by_name(tools: Messages) -> Mapping[str, str]:
    """The definitions of tools as JSON, less `strict`, which models do not see."""
    found = {}
    for tool in tools:
        function = {name: value for name, value in tool["function"].items() if name != "strict"}
        found[str(function["name"])] = json.dumps(function, ensure_ascii=False, sort_keys=True)
    return found


def _show_text(text: str, other: str) -> str:
    """The text, or of a long one the part from shortly before the first difference."""
    if not text:
        return "none"
    start = max(common_start(text, other) - LONG // 4, 0) if len(text) > LONG else 0
    return shorten(f"{'...' * bool(start)}{text[start:]}", LONG)


def _show_tools(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str]:
    """The names where they differ, else the definitions of the first tool of which they do."""
    if one.keys() != other.keys():
        return ", ".join(one) or "none", ", ".join(other) or "none"
    name = next(name for name in one if one[name] != other[name])
    return _show_text(one[name], other[name]), _show_text(other[name], one[name])
