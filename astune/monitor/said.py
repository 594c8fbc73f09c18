"""The messages and tools of an episode's turns, each written once.

    {"messages": [{"role": "user", "content": "6 * 7?"}], "response": {"role": "assistant", "content": "42"}, ...}
    {"messages": [[0, 0, 2], {"role": "user", "content": "Sure?"}], "response": {...}, ...}

`[turn, start, stop]` are those from `start` to before `stop` of an earlier turn's conversation: its messages, and its
response after them. A turn's `tools` are a number where that earlier turn has the same, and left out where the turn
before of the same agent has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from astune.monitor.jsonl import plain
from astune.ropes import Messages, common_start
from astune.types import Turn


class SaidBefore:
    """The messages and tools of the turns that were written so far. Turns are to be added in their order."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._places: dict[str, tuple[int, int]] = {}
        """The turn and the place in its conversation of each message, where it was said last."""
        self._tools: dict[str, int] = {"[]": -1}
        self._latest: dict[str, int] = {}
        """The number of each agent's latest turn."""

    def add(self, turn: Turn) -> tuple[list[Any], dict[str, Any]]:
        """Add the next turn; its messages as they are written, and `tools` where they are new."""
        written = self._messages(turn), self._new_tools(turn)
        self._latest[turn.agent] = len(self._turns)
        self._turns.append(turn)
        return written

    def _messages(self, turn: Turn) -> list[Any]:
        number = len(self._turns)
        messages = Messages.of(turn.messages)
        first, kept = self._begins_as(turn.agent, messages)
        written: list[Any] = [[first, 0, kept]] if kept else []
        places = {}
        for place, message in enumerate(tuple(messages)[kept:], start=kept):
            text = json.dumps(plain(message))
            places[text] = number, place
            known = self._places.get(text)
            if known is None:
                written.append(message)
            elif written and isinstance(written[-1], list) and known == (written[-1][0], written[-1][2]):
                written[-1][2] += 1
            else:
                written.append([*known, known[1] + 1])
        self._places |= places | {json.dumps(plain(turn.response)): (number, len(messages))}
        return written

    def _begins_as(self, agent: str, messages: Messages) -> tuple[int, int]:
        """The agent's turn before, and for how many messages these begin as its conversation."""
        number = self._latest.get(agent)
        if number is None:
            return 0, 0
        turn = self._turns[number]
        return number, common_start((*turn.messages, turn.response), tuple(messages))

    def _new_tools(self, turn: Turn) -> dict[str, Any]:
        latest = self._latest.get(turn.agent)
        if turn.tools == (() if latest is None else self._turns[latest].tools):
            return {}
        number = self._tools.setdefault(json.dumps(plain(turn.tools)), len(self._turns))
        return {"tools": turn.tools if number in (-1, len(self._turns)) else number}


class ReadTurns:
    """The turns of an episode's line that were read so far."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._latest: dict[str, Turn] = {}

    def add(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._latest[turn.agent] = turn

    def messages(self, row: Mapping[str, Any]) -> Messages:
        """Read the messages of the next turn, which share their beginning with earlier ones. In older files
        `messages_kept` is the number of messages that the turn has in common with the same agent's turn before it."""
        latest = self._latest.get(row["agent"])
        whole, new = Messages(), list(row["messages"])
        if "messages_kept" in row and latest is not None:
            whole = Messages.of(latest.messages).start(row["messages_kept"])
        elif new and isinstance(new[0], list) and new[0][1] == 0:
            number, _, stop = new.pop(0)
            whole = self._conversation(number).start(stop)
        messages: list[Mapping[str, Any]] = []
        for piece in new:
            if isinstance(piece, list):
                number, start, stop = piece
                messages += self._conversation(number)[start:stop]
            else:
                messages.append(piece)
        return whole.and_then(*messages)

    def tools(self, row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        latest = self._latest.get(row["agent"])
        given = row.get("tools", () if latest is None else latest.tools)
        return self._turns[given].tools if isinstance(given, int) else tuple(given)

    def _conversation(self, number: int) -> Messages:
        turn = self._turns[number]
        return Messages.of(turn.messages).and_then(turn.response)
