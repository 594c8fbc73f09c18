"""Make tasks as a configuration says, and write them: what `astune data` and `astune.task_reader.augment` do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean
from typing import TypeAlias

from astune.clients.asking import Inquiry, Watch
from astune.clients.chat_models import Budget, ChatModels
from astune.clients.reply_cache import cache_key
from astune.config.evaluation import HeldOutSetConfig
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.config.tasks import AugmentConfig, sources_of
from astune.data.checks import Checks, judge_same
from astune.data.documents import read_documents
from astune.data.expand import seeds_of
from astune.data.from_documents import split_documents, spots_of
from astune.data.grow import PER_CALL, Parent, grow, most_visits
from astune.data.local_writer import find_writer, open_writer, stand_in
from astune.data.made import Harvest, check_own
from astune.data.play import find_player, open_player
from astune.data.prompts import solve_messages
from astune.data.screen import Lengths, TaskScreen, form_of
from astune.errors import ConfigError
from astune.support.concurrency import run_and_leave
from astune.task_judge.llm.rubric import load_rubric
from astune.task_reader import make_reader
from astune.task_reader.task_sets import read_made, read_task_sets, reader_of
from astune.training.candidates import Candidate
from astune.types import Task

KEY = "astune.task_reader.augment"
OF_DOCUMENTS = Lengths(3, 80)
LETTERS_OF_A_TOKEN = 4
SHORTEST_REPLY = 60  # tokens of the shortest reply that can be used


Part: TypeAlias = tuple[Sequence[Parent], Harvest]
"""Sources, and what is made from them for one file."""


@dataclass(frozen=True)
class Job:
    """Tasks to make, with all that is read and checked before the first call. `screen` is made for the tasks to which
    nothing may be close: `held_out`, and what an earlier part made."""

    loaded: LoadedConfig
    checks: Checks
    parts: Sequence[Part]
    screen: Callable[[Sequence[Task]], TaskScreen]
    held_out: Sequence[Task]
    players: Mapping[str, Candidate]
    writer: Candidate | None
    """The model that is loaded here and is asked first."""

    def plan(self) -> str:
        """Say how many calls it takes, and what they cost."""
        sources = [source for of_part, _ in self.parts for source in of_part]
        return say_plan(self.checks.config, sum(harvest.target for _, harvest in self.parts), sources)

    def run(self) -> list[Harvest]:
        """Make the tasks of each part and write them after each round. Equal jobs go on from what is paid."""
        run_and_leave(self._run())
        return [harvest for _, harvest in self.parts]

    async def _run(self) -> None:
        checks, held_out = self.checks, [*self.held_out]
        for _, harvest in self.parts:
            harvest.make_folder()
        await checks.prepare()
        async with AsyncExitStack() as stack:
            if self.writer is not None:
                writer = await stack.enter_async_context(open_writer(self.loaded, self.writer))
                checks.asking.models.put_in(checks.asking.models.names[0], writer)
            for key, candidate in self.players.items():
                player = open_player(self.loaded, candidate, Path(f"{checks.config.cache}.{key}"), checks.asking)
                setattr(checks, key, await stack.enter_async_context(player))
            for sources, harvest in self.parts:
                harvest.quality = checks.say_agreement()
                await grow(sources, self.screen(held_out), checks.asking, harvest)
                held_out += [made.task for made in harvest.kept]


def prepare_augmentation(loaded: LoadedConfig, folder: Path, watch: Watch) -> Job:
    """The job of a run: all documents are to train on, as it has held-out tasks of its own. Its file is named by what
    it depends on: models, sampling, prompts, seeds, documents, judges and held-out tasks."""
    config = loaded.config.astune
    augment = config.task_reader.augment.model_copy(update={"held_out_documents": 0.0})
    job = prepare_job(loaded, augment, folder / "new.jsonl", watch)
    ((sources, harvest),) = job.parts
    depends_on = [
        job.checks.config.model_dump(mode="json", exclude={"max_calls", "max_cost", "cache", "max_concurrent"}),
        config.task_judge.model_dump(mode="json"),
        job.checks.rubric and job.checks.rubric.digest,
        [source.ask(source.kind_of(0), 0) for source in sources],
        [task.query for task in job.held_out],
    ]
    harvest.out = folder / f"{cache_key(depends_on)[:16]}.jsonl"
    return job


def prepare_job(
    loaded: LoadedConfig, augment: AugmentConfig, out: Path, watch: Watch, held_out: Path | None = None
) -> Job:
    """Read and check all that a job needs. `held_out` is a file of tasks beside those of the configuration. Raises
    ConfigError and TaskError before any call for what cannot work."""
    config, target = loaded.config.astune, augment.target
    if target is None:
        raise ConfigError(f"{loaded.where(f'{KEY}.target')} is not set, expected the number of tasks to make")
    if augment.cache is None:  # what is cut off goes on from there, so there always is one
        augment = augment.model_copy(update={"cache": f"{out}.replies.sqlite"})
    if (augment.agent is None) == ("agent" in augment.checks):
        raise ConfigError(f"{KEY}.agent is the model that plays for the check `agent`: set both, or none of the two")
    who = {"agent": augment.agent, "policy": augment.policy}
    players = {key: find_player(loaded, name, f"{KEY}.{key}") for key, name in who.items() if name is not None}
    writer = None if augment.writer is None else find_writer(loaded, augment.writer, f"{KEY}.writer")
    if writer is not None:
        augment = augment.model_copy(update={"models": (stand_in(writer), *augment.models)})
    if not augment.models:
        raise ConfigError(
            f"{loaded.where(f'{KEY}.models')} is empty: name chat APIs there, as {{base_url: ..., model: ...}}, or "
            f"a model that is loaded here in {KEY}.writer"
        )
    models = ChatModels(augment, key=KEY)
    models.budget = Budget(augment.max_calls, augment.max_cost)
    rubric = None if augment.quality is None else load_rubric(Path(augment.quality))
    checks = Checks(Inquiry(models, augment, watch), augment, judge_same(config.task_judge), rubric)
    training, apart = read_tasks(config, held_out, training_needed=augment.source is None)
    lengths, forms = OF_DOCUMENTS, set[str]()
    parts: Sequence[Part]
    if augment.source is not None:
        parts = _parts_of_documents(Path(augment.source), augment, target, out, checks)
    else:
        parts = [(seeds_of(training, checks), Harvest(out, target))]
        lengths = Lengths.around([task.query for task in training])
        forms = {form_of(task) for task in training if task.answer}
    for _, harvest in parts:
        check_own(harvest.out)
    anew = augment.file and Path(augment.file).resolve() == out.resolve()
    originals = [*training, *([] if anew else read_made(config.task_reader))]

    def screen(near: Sequence[Task]) -> TaskScreen:
        return TaskScreen(originals, near, lengths, forms, of_kind=augment.source is not None)

    return Job(loaded, checks, parts, screen, apart, players, writer)


def read_tasks(
    config: AstuneConfig, held_out: Path | None, *, training_needed: bool
) -> tuple[Sequence[Task], list[Task]]:
    """The tasks to train on, and all that are held out."""
    reader = config.task_reader.model_copy(update={"augment": AugmentConfig()})
    named = dict(config.evaluation.sets)
    if held_out is not None:
        named["--held-out"] = HeldOutSetConfig(file_path=str(held_out))
    sources = sources_of(reader)
    if training_needed or sources is None or sources.has_training:
        sets = read_task_sets(reader, named=named)
        return sets.training, [task for tasks in (sets.held_out, *sets.named.values()) for task in tasks]
    readers = [make_reader(one) for one in (reader, *(reader_of(reader, asked) for asked in named.values()))]
    return (), [task for one in readers for task in one.read("validation")]


def _parts_of_documents(source: Path, config: AugmentConfig, target: int, out: Path, checks: Checks) -> list[Part]:
    """The held-out part comes first, so that nothing to train on is close to it."""
    training, held_out = split_documents(read_documents(source, config.chunk_words), config.held_out_documents)
    count = max(1, round(target * config.held_out_documents))
    parts: list[Part] = []
    for documents, number, file in ((held_out, count, out.with_suffix(".held_out.jsonl")), (training, target, out)):
        spots = spots_of(documents, checks)
        parts += [(spots, Harvest(file, number))] if spots else []
    return parts


def say_plan(config: AugmentConfig, target: int, sources: Sequence[Parent]) -> str:
    """Say how many calls and what they cost: at least, where each proposal passes all, and at most, where each source
    is asked as often as may be."""
    each = {"code": 1, "agree": config.solutions, "agent": 0}
    least, most = each[config.checks[0]], sum(each[name] for name in config.checks)
    if config.source is not None:  # which are also tried without their documents
        least, most = config.solutions, most + 2 * config.solutions
    rated = int(config.quality is not None)
    asked = ceil(target / PER_CALL), most_visits(sources, target) * len(sources)
    calls = [asked[0] + target * (least + rated), asked[1] * (1 + PER_CALL * (most + rated))]
    if config.max_calls is not None:
        calls = [min(number, config.max_calls) for number in calls]
    text = f"{calls[0]:,} to {calls[1]:,} model calls, {_say_cost(config, calls, sources)}; less what the cache has"
    if attempts := config.tries * bool(config.policy) + config.solutions * ("agent" in config.checks):
        text += f"; and the agent plays up to {attempts * PER_CALL * asked[1]:,} episodes"
    return text


def _say_cost(config: AugmentConfig, calls: Sequence[int], sources: Sequence[Parent]) -> str:
    first = config.models[0]
    if first.prompt_price is None or first.completion_price is None:
        return "the cost is not known: the models have no prompt_price and completion_price"
    asked = [each.ask(each.kind_of(0), 0) for each in sources] + [solve_messages(each.text, None) for each in sources]
    prompt = mean(len(json.dumps(messages, ensure_ascii=False)) / LETTERS_OF_A_TOKEN for messages in asked)
    replies = zip(calls, (SHORTEST_REPLY, config.max_tokens), strict=True)
    costs = [n * (prompt * first.prompt_price + reply * first.completion_price) / 1_000_000 for n, reply in replies]
    low, high = (min(cost, config.max_cost or cost) for cost in costs)
    return f"which cost about {low:.4g} to {high:.4g}"
