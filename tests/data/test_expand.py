"""`astune data expand` on a generator that plants faults: nothing planted passes, and what is kept is right."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.task_reader.jsonl import read_jsonl
from astune.testing import ScriptedChatServer
from tests.data.planted import PlantedTasks

SHARES = {"wrong answer": 0.15, "copy": 0.08, "near copy": 0.08, "leak": 0.15, "language": 0.05, "empty": 0.05}


def write_tasks(path: Path, tasks: Any) -> Path:
    path.write_text("".join(json.dumps({"query": each.query, "answer": each.answer}) + "\n" for each in tasks))
    return path


def expand(world: PlantedTasks, folder: Path, *options: str, target: int = 30, price: float = 1.0) -> int:
    seeds, held_out = (
        write_tasks(folder / name, tasks)
        for name, tasks in (("seeds.jsonl", world.seeds), ("held_out.jsonl", world.held_out))
    )
    with ScriptedChatServer(world, usage=True) as server:
        model = f"{{base_url: '{server.base_url}', model: planted, prompt_price: {price}, completion_price: {price}}}"
        return main(
            [
                *("data", "expand", "--seeds", str(seeds), "--held-out", str(held_out), "--target", str(target)),
                *("--out", str(folder / "made.jsonl"), f"astune.task_reader.augment.models=[{model}]"),
                *(f"astune.task_reader.augment.cache={folder}/replies.sqlite", *options),
            ]
        )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


@pytest.mark.parametrize("checks", ["[code]", "[agree]"])
def test_no_planted_fault_passes(tmp_path: Path, checks: str) -> None:
    world = PlantedTasks(seed=1, shares=SHARES)
    assert expand(world, tmp_path, f"astune.task_reader.augment.checks={checks}") == 0
    kept, dropped = rows_of(tmp_path / "made.jsonl"), rows_of(tmp_path / "made.dropped.jsonl")
    assert len(kept) == 30
    assert [row for row in kept if world.planted[row["query"]] or world.truth[row["query"]] != row["answer"]] == []
    seen = Counter((row["reason"], world.planted[row["query"]]) for row in dropped)
    assert {reason for reason, planted in seen if planted not in (reason, None, "near copy")} == set()
    assert sum(n for (_, planted), n in seen.items() if planted is None) <= 3  # equal good tasks, drawn twice
    lineage = kept[0]["lineage"]
    assert lineage["model"] == "planted" and lineage["seed"] in {row["lineage"]["seed"] for row in kept}
    assert set(lineage["checks"]) == {checks.strip("[]")}
    assert max(Counter(row["lineage"]["seed"] for row in kept).values()) <= 8  # of 10 seeds, spread
