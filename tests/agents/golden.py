"""Recorded episodes as files that people can read and compare."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.types import Episode

FOLDER = Path(__file__).parent / "golden"
_NUMBERS = re.compile(r"^( *)(.*\[)\n +(-?\d[^\[\]{}\"]*)\n +\]", re.MULTILINE)


def golden_path(line: int, workflow: str) -> Path:
    return FOLDER / f"agentscope{line}" / f"{workflow}.json"


def to_golden(episode: Episode) -> dict[str, Any]:
    """The episode as the log writes it, without what differs from run to run."""
    row = episode_to_row(EpisodeRecord(1, "train", episode))
    del row["metrics"]["seconds"]
    return row


def from_golden(path: Path) -> Episode:
    return episode_from_row(json.loads(path.read_text(encoding="utf-8"))).episode


def golden_text(row: dict[str, Any]) -> str:
    """Indented JSON, lists of numbers in lines of their own instead of one line each."""
    return _NUMBERS.sub(_wrapped, json.dumps(row, indent=1, ensure_ascii=False)) + "\n"


def _wrapped(found: re.Match[str]) -> str:
    indent, start, numbers = found.groups()
    lines = textwrap.fill(" ".join(numbers.split()), 118, initial_indent=f"{indent} ", subsequent_indent=f"{indent} ")
    return f"{indent}{start}\n{lines}\n{indent}]"
