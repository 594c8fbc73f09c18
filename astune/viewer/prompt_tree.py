"""The candidates of a search for prompts as the page shows them: a tree, each with what it changed of its parent.

>>> rows = [{"candidate": "c0", "parents": [], "texts": {"system": "Be quick."}, "fate": "first", "mean": 0.5},
...         {"candidate": "c1", "parents": ["c0"], "texts": {"system": "Be right."}, "fate": "kept", "mean": 0.9}]
>>> first, second = prompt_tree(rows)
>>> second["depth"], second["changes"]
(1, [['system', [['=', 'Be '], ['-', 'quick.'], ['+', 'right.']]]])
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WORDS = re.compile(r"\s+|[^\s]+")
SHOWN = ("candidate", "parents", "step", "fate", "why", "mean", "success", "calls")


def prompt_tree(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The candidates, children behind their first parent, in the order in which they came up. `phases` are those of
    their episodes, `tasks` is how many they played."""
    known = {row["candidate"]: row for row in rows}
    children: dict[str | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        parent = next((name for name in row["parents"] if name in known), None)
        children.setdefault(parent, []).append(row)

    def walk(parent: str | None, depth: int) -> Iterator[dict[str, Any]]:
        for row in children.get(parent, ()):
            name = row["candidate"]
            before = {} if parent is None else known[parent]["texts"]
            yield {key: row.get(key) for key in SHOWN} | {
                "depth": depth,
                "tasks": len(row.get("scores") or ()),
                "phases": [f"prompt/{name}", f"eval/{name}"],
                "changes": [
                    [text, compare_words(before.get(text, ""), now)]
                    for text, now in row["texts"].items()
                    if before.get(text) != now
                ],
            }
            yield from walk(name, depth + 1)

    return list(walk(None, 0))


def compare_words(before: str, after: str) -> list[list[str]]:
    """Parts of both texts: "=" of both, "-" of the first, "+" of the second.

    >>> compare_words("Be quick.", "Be quick. Be right.")
    [['=', 'Be quick.'], ['+', ' Be right.']]
    """
    old, new = WORDS.findall(before), WORDS.findall(after)
    parts: list[list[str]] = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        both = [["=", "".join(old[a:b])]] if what == "equal" else [["-", "".join(old[a:b])], ["+", "".join(new[c:d])]]
        parts += [part for part in both if part[1]]
    return parts
