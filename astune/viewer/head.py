"""The head of the page of `astune view`, there before any episode is opened: figures by step, a line per episode."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.monitor.jsonl import plain
from astune.monitor.words import FORKS, LEFT_OUT, METRICS
from astune.viewer.charts import name_metric, small_charts
from astune.viewer.held_out import figure_rows
from astune.viewer.run_index import IndexedEpisode, RunIndex

WORDS = re.compile(r"\s+|[^\s]+")
SHOWN = ("candidate", "parents", "step", "fate", "why", "mean", "success", "calls")
"""Of a candidate in a search for prompts."""
MOST_LEFT_OUT = 20
"""Lines that could not be read, told one by one."""


def head_data(
    path: Path,
    config: Mapping[str, Any],
    index: RunIndex,
    entries: Sequence[IndexedEpisode],
    blocks: Sequence[int],
    estimator: str,
    without_tokenizer: bool,
) -> dict[str, Any]:
    """`entries` are the episodes of the page; `blocks` has the number of the block of each."""
    files = Counter(line.file for line in index.left_out)
    curves = _curves(index)
    return {
        "title": f"{config.get('astune.project_name', path.absolute().parent.name)} / {path.absolute().name}",
        "facts": {key: config.get(f"astune.{key}") for key in ("model.path", "backbone")}
        | {"workflow": config.get("astune.rollout.agentscope_learn_protocol")},
        "estimator": estimator,
        "without_tokenizer": without_tokenizer,
        "forks": FORKS,
        "reasons": LEFT_OUT,
        "charts": small_charts(curves),
        "words": {key: METRICS[key] for key in ("success/mean", *small_charts(curves)) if key in METRICS},
        "names": {key: name for key in curves if (name := name_metric(key)) != key},
        "curves": curves,
        "held_out": [list(vars(row).values()) for row in figure_rows([dict(row) for _, row in index.metrics])],
        "candidates": prompt_tree(index.candidates),
        "lines": {entry.phase: entry.path.name for entry in entries},
        "left_out": [vars(line) for line in index.left_out[:MOST_LEFT_OUT]],
        "left_out_by_file": dict(files),
        **_table(entries, blocks),
    }


def _curves(index: RunIndex) -> dict[str, list[tuple[int, float, int]]]:
    """By metric its points: step, value, line of metrics.jsonl."""
    curves: dict[str, list[tuple[int, float, int]]] = {}
    for line, row in index.metrics:
        for key, value in row.items():
            if key not in ("step", "time") and isinstance(value, (int, float)):
                curves.setdefault(key, []).append((row["step"], value, line))
    return curves


class _Names:
    """Distinct values, numbered in the order in which they came."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def _table(entries: Sequence[IndexedEpisode], blocks: Sequence[int]) -> dict[str, Any]:
    """`episodes` are columns, so that they pack well; texts that many episodes share stand once."""
    phases, tasks, ends, agents = _Names(), _Names(), _Names(), _Names()
    columns = {
        "phase": [phases(entry.phase) for entry in entries],
        "line": [entry.line for entry in entries],
        "step": [entry.step for entry in entries],
        "task": [tasks((entry.task_id, entry.query, entry.reference)) for entry in entries],
        "reward": [entry.reward for entry in entries],
        "passed": [entry.passed for entry in entries],
        "end": [ends((entry.stop_reason, entry.error)) for entry in entries],
        "turns": [entry.turns for entry in entries],
        "sampled": [entry.sampled for entry in entries],
        "agents": [[agents(agent) for agent in entry.agents] for entry in entries],
        "answer": [entry.answer for entry in entries],
        "message": [entry.error_message for entry in entries],
        "id": [entry.episode_id for entry in entries],
        "seconds": [entry.seconds for entry in entries],
        "block": list(blocks),
    }
    table = {
        "phases": list(phases.numbers),
        "agents": list(agents.numbers),
        "tasks": [(task, query, answer) for task, query, answer in tasks.numbers],
        "ends": [{"stop": stop, "error": error} for stop, error in ends.numbers],
        "episodes": columns,
    }
    checked: dict[str, Any] = plain(table)
    return checked


def prompt_tree(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The candidates of a search, children behind their first parent, in the order in which they came up, each with
    what it changed of that. `phases` are those of their episodes, `tasks` is how many they played.

    >>> rows = [{"candidate": "c0", "parents": [], "texts": {"system": "Be quick."}, "fate": "first", "mean": 0.5},
    ...         {"candidate": "c1", "parents": ["c0"], "texts": {"system": "Be right."}, "fate": "kept", "mean": 0.9}]
    >>> first, second = prompt_tree(rows)
    >>> second["depth"], second["changes"]
    (1, [['system', [['=', 'Be '], ['-', 'quick.'], ['+', 'right.']]]])
    """
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
