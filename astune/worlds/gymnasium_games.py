"""Words for an agent about environments of Gymnasium: rules, names of actions, and how an observation is told.

Knows the toy games by name; any other environment is told by what it draws as text, or by its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Teller = Callable[[Any, Any], str]
"""(environment, observation) -> what the agent reads."""

MOST_NUMBERS = 16
"""Most numbers of a Box: more are no text."""
ANSI_CODE = re.compile(r"\x1b\[[0-9;]*m")
LAST_ACTION = re.compile(r"^\s*\(.*\)\n", re.MULTILINE)
"""The line `  (Down)` that the toy games draw, which the agent knows."""
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""FrozenLake's actions (left, down, right, up) as steps down and to the right."""
TILES = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
END = {"H": "You fell into a hole.", "G": "You reached the goal."}


@dataclass(frozen=True)
class Game:
    """`views`: ways to tell an observation, the first is the default; none for games that are told as they draw
    themselves."""

    rules: str
    actions: tuple[str, ...]
    views: Mapping[str, View]


@dataclass(frozen=True)
class View:
    """A way to tell an observation. `legend` explains it; `teller` gets the names of the actions."""

    legend: str
    teller: Callable[[Sequence[str]], Teller]


def _lake_as_grid(_names: Sequence[str]) -> Teller:
    def tell(env: Any, position: Any) -> str:
        lake = env.unwrapped
        row, column = divmod(int(position), lake.ncol)
        rows = [[tile.decode() for tile in line] for line in lake.desc]
        if (end := END.get(rows[row][column])) is not None:
            return end
        rows[row][column] = "A"
        return "\n".join("".join(line) for line in rows)

    return tell


def _lake_as_neighbours(names: Sequence[str]) -> Teller:
    """`ice down, hole right.`: where one can go, and what is there."""

    def tell(env: Any, position: Any) -> str:
        lake = env.unwrapped
        row, column = divmod(int(position), lake.ncol)
        if (end := END.get(lake.desc[row][column].decode())) is not None:
            return end
        seen = (_tile(lake, row + down, column + right) for down, right in MOVES)
        return ", ".join(f"{tile} {name}" for tile, name in zip(seen, names, strict=True) if tile) + "."

    return tell


def _tile(lake: Any, row: int, column: int) -> str:
    inside = 0 <= row < lake.nrow and 0 <= column < lake.ncol
    return TILES[lake.desc[row][column].decode()] if inside else ""


def _taxi(_names: Sequence[str]) -> Teller:
    def tell(env: Any, state: Any) -> str:
        row, column, passenger, destination = env.unwrapped.decode(int(state))
        where = "in the taxi" if passenger == 4 else f"at {'RGYB'[passenger]}"
        return f"Taxi at row {row}, column {column}. Passenger {where}. Destination {'RGYB'[destination]}."

    return tell


def _blackjack(_names: Sequence[str]) -> Teller:
    def tell(_env: Any, cards: Any) -> str:
        mine, dealer, ace = (int(number) for number in cards)
        return f"You have {mine}{', with an ace that counts 11' if ace else ''}. The dealer shows {dealer}."

    return tell


TAXI_MAP = """+---------+
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |
+---------+"""

GAMES: Mapping[str, Game] = {
    "FrozenLake": Game(
        "Cross the frozen lake to the goal and fall into no hole.",
        ("left", "down", "right", "up"),
        {
            "grid": View("A is you, F ice, H a hole, G the goal.", _lake_as_grid),
            "neighbours": View("You see what lies next to you.", _lake_as_neighbours),
        },
    ),
    "Taxi": Game(
        "Pick the passenger up and drop them off at the destination. Rows and columns count from 0; | is a wall:\n"
        + TAXI_MAP,
        ("south", "north", "east", "west", "pickup", "dropoff"),
        {"words": View("", _taxi)},
    ),
    "CliffWalking": Game(
        "Walk from the start to T and off no cliff C. You are x.",
        ("up", "right", "down", "left"),
        {},
    ),
    "Blackjack": Game(
        "Come closer to 21 than the dealer and not above. An ace that the dealer shows is 1.",
        ("stick", "hit"),
        {"words": View("", _blackjack)},
    ),
}


def drawing(env: Any, _observation: Any) -> str:
    """Tell what the environment draws as text, without colours; what is coloured (where the agent is) in brackets."""
    drawn = re.sub(r"(?:\x1b\[[0-9;]*m)+([^\x1b]*)\x1b\[0m", r"[\1]", str(env.render()))
    return LAST_ACTION.sub("", ANSI_CODE.sub("", drawn)).strip("\n")


def numbers(_env: Any, observation: Any) -> str:
    """The numbers of an observation, rounded to three digits; a text as it is.

    >>> numbers(None, (14, 10, 0))
    '14, 10, 0'
    """
    if isinstance(observation, str):
        return observation
    return ", ".join(f"{number:.3g}" for number in _flat(observation))


def _flat(observation: Any) -> list[float]:
    if isinstance(observation, Sequence):
        return [number for part in observation for number in _flat(part)]
    listed = observation.tolist() if type(observation).__module__ == "numpy" else observation
    return _flat(listed) if isinstance(listed, list) else [listed]


DRAWING = View("", lambda _names: drawing)
NUMBERS = View("", lambda _names: numbers)
"""For games without a view of their own."""
