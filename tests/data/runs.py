"""Run `astune data` on worlds with planted faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astune.cli import main
from astune.task_judge.llm.rubric import Criterion, Rubric, save_rubric
from astune.task_reader.jsonl import read_jsonl
from astune.testing import ScriptedChatServer
from tests.data.planted import PlantedTasks
from tests.data.planted_documents import PlantedDocuments

AGREE = ("astune.task_reader.augment.checks=[agree]", "astune.task_reader.augment.solutions=2")
TEST = {"n": 20, "accuracy": 0.9, "low": 0.7, "high": 0.97, "kappa": 0.8}


def write_tasks(path: Path, tasks: Any) -> Path:
    path.write_text("".join(json.dumps({"query": each.query, "answer": each.answer}) + "\n" for each in tasks))
    return path


@contextmanager
def serve(world: PlantedTasks) -> Iterator[ScriptedChatServer]:
    """Serve a world, always at the same address: the cache, and the names of sets, depend on it."""
    with ScriptedChatServer(world, usage=True, port=world.port) as server:
        world.port = int(server.base_url.split(":")[2].partition("/")[0])
        yield server


def expand(world: PlantedTasks, folder: Path, *options: str, target: int = 30, price: float = 1.0) -> int:
    seeds, held_out = (
        write_tasks(folder / name, tasks)
        for name, tasks in (("seeds.jsonl", world.seeds), ("held_out.jsonl", world.held_out))
    )
    with serve(world) as server:
        model = f"{{base_url: '{server.base_url}', model: planted, prompt_price: {price}, completion_price: {price}}}"
        return main(
            [
                *("data", "expand", "--seeds", str(seeds), "--held-out", str(held_out), "--target", str(target)),
                *("--out", str(folder / "made.jsonl"), f"astune.task_reader.augment.models=[{model}]"),
                *(f"astune.task_reader.augment.cache={folder}/replies.sqlite", *options),
            ]
        )


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of tasks; of those that were dropped with their reason."""
    return [{**row, **row.pop("task", {})} for _, row in read_jsonl(path)]


def write_rubric(folder: Path) -> Path:
    """A rubric that drops what is unclear, as if learned from people who rated some."""
    criterion = Criterion(id="clear", text="It is clear.", scale="binary")
    save_rubric(Rubric(name="clear_tasks", criteria=(criterion,), report={"test": TEST}), folder / "quality.yaml")
    return folder / "quality.yaml"


def ask(world: PlantedDocuments, folder: Path, target: int = 24) -> int:
    """Ask about the documents of a world."""
    world.write(folder / "manuals")
    with ScriptedChatServer(world) as server:
        model = f"{{base_url: '{server.base_url}', model: planted}}"
        return main(
            [
                *("data", "from-documents", str(folder / "manuals"), "--target", str(target)),
                *("--out", str(folder / "asked.jsonl"), f"astune.task_reader.augment.models=[{model}]"),
                f"astune.task_reader.augment.cache={folder}/replies.sqlite",
                *("astune.task_reader.augment.chunk_words=40", "astune.task_reader.augment.solutions=2"),
            ]
        )
