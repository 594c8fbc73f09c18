"""Make tasks as a configuration says, and write them: what `astune data` and `astune.task_reader.augment` do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from astune.clients.asking import Inquiry, Watch
from astune.clients.chat_models import Budget, ChatModels
from astune.config.evaluation import HeldOutSetConfig
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.config.tasks import AugmentConfig, sources_of
from astune.data.checks import Checks, judge_same
from astune.data.documents import read_documents
from astune.data.expand import digest, seeds_of
from astune.data.from_documents import Library, Spot, split_documents
from astune.data.grow import Parent, grow
from astune.data.made import Harvest
from astune.data.plan import CallPlan, plan_calls
from astune.data.screen import Lengths, TaskScreen
from astune.errors import ConfigError
from astune.task_reader import make_reader
from astune.task_reader.task_sets import read_made, read_task_sets, reader_of
from astune.types import Task

KEY = "astune.task_reader.augment"
OF_DOCUMENTS = Lengths(3, 80)


@dataclass(frozen=True)
class Part:
    """Tasks to make from some sources, for one file."""

    sources: Sequence[Parent]
    target: int
    out: Path


@dataclass(frozen=True)
class Job:
    """Tasks to make, with all that is read and checked before the first call. To `held_out`, and to what an earlier
    part made, nothing may be close."""

    config: AugmentConfig
    checks: Checks
    parts: Sequence[Part]
    originals: Sequence[Task]
    held_out: Sequence[Task]
    lengths: Lengths

    def plan(self) -> CallPlan:
        """The calls and the cost."""
        sources = [source for part in self.parts for source in part.sources]
        target = sum(part.target for part in self.parts)
        return plan_calls(self.config, target, sources, closed_book=self.config.source is not None)

    def run(self) -> list[Harvest]:
        """Make the tasks of each part and write them after each round. Equal jobs go on from what is paid."""
        return asyncio.run(self._run())

    async def _run(self) -> list[Harvest]:
        await self.checks.prepare()
        held_out, harvests = [*self.held_out], []
        for part in self.parts:
            screen = TaskScreen(self.originals, held_out, self.lengths)
            harvest = Harvest(part.out, part.target)
            await grow(part.sources, screen, self.checks.asking, harvest)
            held_out += [made.task for made in harvest.kept]
            harvests.append(harvest)
        return harvests


def prepare_augmentation(loaded: LoadedConfig, folder: Path, watch: Watch) -> Job:
    """The job of a run: all documents are to train on, as it has held-out tasks of its own. Its file is named by what
    it depends on: models, sampling, prompts, seeds, documents and held-out tasks."""
    job = prepare_job(loaded, folder / "new.jsonl", watch, held_out_documents=0.0)
    (part,) = job.parts
    name = digest(
        [
            job.config.model_dump(exclude={"file", "max_calls", "max_cost", "cache", "max_concurrent"}),
            [source.ask(0)[1] for source in part.sources],
            [task.query for task in job.held_out],
        ]
    )
    return replace(job, parts=[replace(part, out=folder / f"{name}.jsonl")])


def prepare_job(
    loaded: LoadedConfig,
    out: Path,
    watch: Watch,
    held_out: Path | None = None,
    held_out_documents: float | None = None,
) -> Job:
    """Read and check all that a job needs. `held_out` is a file of tasks beside those of the configuration. Raises
    ConfigError and TaskError before any call for what cannot work."""
    config = loaded.config.astune
    augment = config.task_reader.augment
    target = augment.target
    if target is None:
        raise ConfigError(f"{loaded.where(f'{KEY}.target')} is not set, expected the number of tasks to make")
    if out.exists() and not out.with_suffix(".report.json").exists():
        raise ConfigError(f"{out}: is there, and `astune data` did not write it: choose another file")
    if held_out_documents is not None:
        augment = augment.model_copy(update={"held_out_documents": held_out_documents})
    if augment.cache is None:  # what is cut off goes on from there, so there always is one
        augment = augment.model_copy(update={"cache": f"{out}.replies.sqlite"})
    policy = None
    if augment.policy:
        unlimited = {"models": augment.policy, "max_cost": None, "max_calls": None}
        policy = _make_inquiry(augment.model_copy(update=unlimited), watch)
    checks = Checks(_make_inquiry(augment, watch), augment, judge_same(config.task_judge), policy)
    training, apart = _read_tasks(config, held_out)
    originals = [*training, *read_made(config.task_reader)]
    if augment.source is not None:
        parts = _parts_of_documents(Path(augment.source), augment, target, out, checks)
        return Job(augment, checks, parts, originals, apart, OF_DOCUMENTS)
    seeds = seeds_of(training, checks)
    lengths = Lengths.around([task.query for task in training])
    return Job(augment, checks, [Part(seeds, target, out)], originals, apart, lengths)


def _read_tasks(config: AstuneConfig, held_out: Path | None) -> tuple[Sequence[Task], list[Task]]:
    """The tasks to train on, and all that are held out. Who asks about documents may have none to train on."""
    reader = config.task_reader.model_copy(update={"augment": AugmentConfig()})
    named = dict(config.evaluation.sets)
    if held_out is not None:
        named["--held-out"] = HeldOutSetConfig(file_path=str(held_out))
    sources = sources_of(reader)
    if config.task_reader.augment.source is None or sources is None or sources.has_training:
        sets = read_task_sets(reader, named=named)
        return sets.training, [task for tasks in (sets.held_out, *sets.named.values()) for task in tasks]
    readers = [make_reader(one) for one in (reader, *(reader_of(reader, asked) for asked in named.values()))]
    return (), [task for one in readers for task in one.read("validation")]


def _parts_of_documents(source: Path, config: AugmentConfig, target: int, out: Path, checks: Checks) -> list[Part]:
    """The held-out part comes first, so that nothing to train on is close to it."""
    documents = read_documents(source, config.chunk_words)
    training, held_out = split_documents(documents, config.held_out_documents)
    parts = []
    for chosen, count, file in (
        (held_out, max(1, round(target * config.held_out_documents)), out.with_suffix(".held_out.jsonl")),
        (training, target, out),
    ):
        library = Library(chosen)
        if chosen:
            spots = [Spot(library, number, checks) for number in range(len(library.passages))]
            parts.append(Part(spots, count, file))
    return parts


def _make_inquiry(config: AugmentConfig, watch: Watch) -> Inquiry:
    models = ChatModels(config, key=KEY)
    models.budget = Budget(config.max_calls, config.max_cost)
    return Inquiry(models, config, watch)
