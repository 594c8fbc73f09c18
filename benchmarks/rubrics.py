"""Does the rubric pipeline find the criteria that made the labels, and what does it cost? A world with a known answer.

    python benchmarks/rubrics.py                    # 20 seeds; a minute and a half on one core
    python benchmarks/rubrics.py --selection        # the coding rate beside other ways to choose; twice as long
    python benchmarks/rubrics.py --seeds 3 --kinds paired

The world is `astune.testing.PlantedWorld`: answers of a support agent with 17 features, of which three or four make the
label; a scripted model proposes criteria in its own words, those that matter among those that do not, and judges by
what they say, with errors. Everything but the model is the code that users run. Calls are answered in this process,
without HTTP, so seconds are the pipeline's own; `--http` sends them through a server.

"limit" is the accuracy of a rubric that is exactly the planted criteria, each in one wording, with equal weights, from
the same judge on the same test examples: wrong labels and the judge's errors (one in twenty for each criterion) are all
that keeps it from 1. A rubric that has a criterion in two wordings can come out a little above it, as errors then
average out. "majority" is one half by construction. With labels shuffled nothing can be learned: an interval (Wilson's,
over the test examples of all seeds) above one half would be a leak of the labels; "nothing helps" counts the runs that
say so instead of writing a rubric. All else is the mean over seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from pydantic import BaseModel

from astune.clients.chat_models import ChatModels, ParsedReply
from astune.clients.usage import Usage
from astune.config.chat_models import JudgeModelConfig
from astune.config.judges import LlmJudgeConfig, RubricsConfig
from astune.judging.agreement import wilson
from astune.rubrics import choose
from astune.rubrics.coding_rate import SMALLEST_GAIN
from astune.rubrics.edits import Edits
from astune.rubrics.examples import Examples, read_examples
from astune.rubrics.judge_examples import Asking, judge_by_rubric, rewards_of
from astune.rubrics.learn import Learned, NothingHelps, RubricLearner
from astune.rubrics.measure import measure, pass_mark
from astune.rubrics.split import Split, split_examples
from astune.task_judge.llm.rubric import Criterion, Rubric
from astune.testing import PlantedWorld
from astune.testing.planted_features import FEATURES
from astune.testing.planted_rubrics import Kind, NoWatch, PlantedModel, meanings

QUALITY = ("recall", "precision", "criteria", "accuracy", "limit")
Select = Callable[[Sequence[str], Sequence[float], int, int], "list[int]"]


class InProcess:
    """The planted model where `ChatModels` would be: the same replies, validated the same way, without HTTP."""

    names = ("planted",)

    def __init__(self, model: PlantedModel) -> None:
        self._model = model

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], schema: type[BaseModel], *, check: Any = None, **drawn: Any
    ) -> ParsedReply[Any]:
        value = schema.model_validate_json(str(self._model({"messages": messages})))
        if check is not None:
            check(value)
        return ParsedReply(value, "planted", Usage(calls=1), Usage(calls=1))


@dataclass(frozen=True)
class Outcome:
    """Of one seed. `learned` is None where no criterion helped."""

    world: PlantedWorld
    learned: Learned | None
    limit: float
    replies: int
    seconds: float

    @property
    def recall(self) -> float:
        if self.learned is None:
            return 0.0
        return len(self.world.finds(self.learned.in_use.rubric)) / len(self.world.planted)

    @property
    def precision(self) -> float:
        """Share of the rubric's criteria that mean a planted feature."""
        if self.learned is None:
            return 0.0
        criteria = self.learned.in_use.rubric.criteria
        return sum(bool(meanings([one.text]) & self.world.planted) for one in criteria) / len(criteria)


def run(world: PlantedWorld, seed: int, *, at_most: int = 8, http: bool = False) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, _models(world, http) as (models, llm):
        path = Path(folder, "examples.jsonl")
        world.write_examples(path)
        examples, config = read_examples(path), RubricsConfig(max_criteria=at_most)
        split = split_examples(examples, seed)
        began = time.perf_counter()
        learned, replies = asyncio.run(_learn(examples, split, config, models, llm, seed))
        seconds = time.perf_counter() - began
        limit = asyncio.run(_limit(world, examples, split, models, llm))
    return Outcome(world, learned, limit, replies, seconds)


@contextmanager
def _models(world: PlantedWorld, http: bool) -> Iterator[tuple[Any, LlmJudgeConfig]]:
    if not http:
        yield InProcess(world.model()), LlmJudgeConfig(cache=None)
        return
    with world.server() as server:
        model = JudgeModelConfig(base_url=server.base_url, model="planted")
        llm = LlmJudgeConfig(models=(model,), cache=None)
        yield ChatModels(llm), llm


async def _learn(
    examples: Examples, split: Split, config: RubricsConfig, models: Any, llm: LlmJudgeConfig, seed: int
) -> tuple[Learned | None, int]:
    asking = Asking(models, llm, NoWatch())
    try:
        learned = await RubricLearner(examples, split, config, asking, seed, Edits()).learn()
    except NothingHelps:
        return None, len(asking.paid)
    return learned, len(asking.paid)


async def _limit(world: PlantedWorld, examples: Examples, split: Split, models: Any, llm: LlmJudgeConfig) -> float:
    """Test accuracy of the planted criteria themselves."""
    asking = Asking(models, llm, NoWatch())
    texts = [feature.wordings[0] for feature in FEATURES if feature.name in world.planted]
    rubric = Rubric(criteria=tuple(Criterion(id=f"c{at}", text=text) for at, text in enumerate(texts)))
    rewards = rewards_of(await judge_by_rubric(asking, rubric, examples.all, "limit"))
    mark = pass_mark((*split.train, *split.dev), examples.kind, rewards)
    return measure(split.test, examples.kind, rewards, mark).accuracy


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print("| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for row in rows:
        print("| " + " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row) + " |")
    print(flush=True)


def true_labels(kind: Kind, noise: float, options: argparse.Namespace) -> list[Any]:
    outcomes = [
        run(PlantedWorld(seed, options.examples, kind, noise=noise), seed, http=options.http)
        for seed in range(options.seeds)
    ]
    found = [one.learned for one in outcomes if one.learned]
    return [
        *_quality(outcomes),
        mean(one.one_round.accuracy for one in found if one.one_round),
        mean(one.without_rubric.accuracy for one in found),
        mean(one.majority.accuracy for one in found),
        round(mean(one.replies for one in outcomes)),
        mean(one.seconds for one in outcomes),
    ]


def _quality(outcomes: Sequence[Outcome]) -> list[float]:
    found = [one for one in outcomes if one.learned]
    return [
        mean(one.recall for one in outcomes),
        mean(one.precision for one in found),
        mean(len(one.learned.in_use.rubric.criteria) for one in found if one.learned),
        mean(one.learned.test.accuracy for one in found if one.learned),
        mean(one.limit for one in outcomes),
    ]


def shuffled_labels(kind: Kind, options: argparse.Namespace) -> list[Any]:
    worlds = [PlantedWorld(seed, options.examples, kind, shuffled_labels=True) for seed in range(options.seeds)]
    outcomes = [run(world, seed, http=options.http) for seed, world in enumerate(worlds)]
    tests = [one.learned.test for one in outcomes if one.learned]
    n = sum(test.n for test in tests)
    right = sum(test.accuracy * test.n for test in tests)
    low, high = wilson(right, n)
    return [right / n, low, high, n, len(outcomes) - len(tests)]


def pipeline(options: argparse.Namespace) -> None:
    header = ("examples", "labels wrong", *QUALITY, "one round", "no rubric", "majority", "replies", "s")
    table(
        header, [[kind, noise, *true_labels(kind, noise, options)] for kind in options.kinds for noise in options.noise]
    )
    print("Labels shuffled:\n")
    header = ("examples", "accuracy", "95 % from", "to", "test examples", "nothing helps")
    table(header, [[kind, *shuffled_labels(kind, options)] for kind in options.kinds])


def top_by_help(texts: Sequence[str], helps: Sequence[float], at_most: int, seed: int) -> list[int]:
    return sorted((at for at, value in enumerate(helps) if value > 0), key=lambda at: -helps[at])[:at_most]


def top_of_first(texts: Sequence[str], helps: Sequence[float], at_most: int, seed: int) -> list[int]:
    """Stops where the coding rate does, at what helps a tenth of the first: what is left of its gain is its own."""
    return [at for at in top_by_help(texts, helps, at_most, seed) if helps[at] >= SMALLEST_GAIN * max(helps)]


def by_luck(texts: Sequence[str], helps: Sequence[float], at_most: int, seed: int) -> list[int]:
    """Of those that help."""
    helpful = [at for at, value in enumerate(helps) if value > 0]
    return random.Random(seed).sample(helpful, min(at_most, len(helpful)))


@contextmanager
def selecting_by(rule: Select) -> Iterator[None]:
    """The last step of the choice replaced, all else as it is."""
    original, choose.select_criteria = choose.select_criteria, rule
    try:
        yield
    finally:
        choose.select_criteria = original


def selection(options: argparse.Namespace) -> None:
    rules: dict[str, Select] = {
        "coding rate": choose.select_criteria,
        "most help": top_by_help,
        "most help, same stop": top_of_first,
        "luck": by_luck,
    }
    rows = []
    for kind in options.kinds:
        for at_most in (4, 8):
            for name, rule in rules.items():
                with selecting_by(rule):
                    outcomes = [
                        run(PlantedWorld(seed, options.examples, kind), seed, at_most=at_most)
                        for seed in range(options.seeds)
                    ]
                rows.append([kind, at_most, name, *_quality(outcomes)])
    table(("examples", "at most", "of those that help", *QUALITY), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--kinds", nargs="+", default=["scored", "paired", "ranked"])
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.1], help="shares of wrong labels")
    parser.add_argument("--selection", action="store_true", help="compare ways to choose among criteria that help")
    parser.add_argument("--http", action="store_true", help="through a server")
    options = parser.parse_args()
    (selection if options.selection else pipeline)(options)


if __name__ == "__main__":
    main()
