"""What ASTune prints in a first hour, in Chinese where the locale asks for it; the words are in `messages_zh.json`, by
their English originals."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

MESSAGES = Path(__file__).with_name("messages_zh.json")
PIECES = re.compile(r"(\n *|  +)")
"""What stands between the pieces of a text: the ends of lines and wide gaps."""


def wants_chinese(environment: Mapping[str, str]) -> bool:
    """Say if people are to be spoken to in Chinese: the first that is set of LC_ALL, LC_MESSAGES and LANG decides.

    >>> wants_chinese({"LANG": "zh_CN.UTF-8"}), wants_chinese({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"})
    (True, False)
    """
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    return next((environment[name] for name in names if environment.get(name)), "").startswith("zh")


def localize(text: str) -> str:
    """`text` in the user's language, its columns where they were; a piece that has no Chinese words stays English."""
    if not wants_chinese(os.environ):
        return text
    from rich.cells import cell_len  # as nothing else that English words need

    pieces = PIECES.split(text)
    for place in range(0, len(pieces), 2):
        said, gap = _say_piece(pieces[place]), pieces[place + 1 : place + 2]
        if gap and said and "\n" not in gap[0]:
            pieces[place + 1] = " " * max(2, len(gap[0]) + cell_len(pieces[place]) - cell_len(said))
        pieces[place] = said
    return "".join(pieces)


def _say_piece(piece: str) -> str:
    """A piece whose English original fits, and what fills the holes of it likewise."""
    for original, words in messages():
        if found := original.fullmatch(piece):
            return words.format(*map(_say_piece, found.groups()))
    return piece


@cache
def messages() -> list[tuple[re.Pattern[str], str]]:
    """The originals, whose `{}` are holes, with their Chinese words."""
    words = json.loads(MESSAGES.read_text(encoding="utf-8"))
    return [(re.compile("(.+?)".join(map(re.escape, text.split("{}")))), words[text]) for text in words]
