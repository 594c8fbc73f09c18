"""Recorded episodes as files that people can read and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.types import Episode

FOLDER = Path(__file__).parent / "golden"
_WIDTH = 118


def golden_path(line: int, workflow: str) -> Path:
    return FOLDER / f"agentscope{line}" / f"{workflow}.json"


def to_golden(episode: Episode) -> dict[str, Any]:
    """The episode as the log writes it, without what differs from run to run."""
    row = episode_to_row(EpisodeRecord(1, "train", episode))
    del row["metrics"]["seconds"]
    return row


def from_golden(path: Path) -> Episode:
    return episode_from_row(json.loads(path.read_text(encoding="utf-8"))).episode


def golden_text(row: Any) -> str:
    """JSON in which a message or a tool has one line, and what is short shares lines."""
    return _write(row, "") + "\n"


def _write(value: Any, indent: str) -> str:
    short = json.dumps(value, ensure_ascii=False)
    if (
        not isinstance(value, dict | list)
        or len(indent) + len(short) <= _WIDTH
        or "role" in value
        or "function" in value
    ):
        return short
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_write(each, inner)}" for key, each in value.items()]
    else:
        parts = [_write(each, inner) for each in value]
    lines = [inner]
    for part in parts:
        if lines[-1] != inner and len(lines[-1]) + len(part) > _WIDTH:
            lines.append(inner)
        lines[-1] += f"{part}, "
    text = "\n".join(line.rstrip() for line in lines).rstrip(",")
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{text}\n{indent}{closing}"
