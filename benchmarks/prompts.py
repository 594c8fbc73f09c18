"""Does a search for prompts find the instructions that help, and none that do not? A world with a known answer.

    python benchmarks/prompts.py                    # five seeds; two minutes on one core
    python benchmarks/prompts.py --seeds 2 --skills 1 0

The world is `astune.testing.PlantedPrompts`: a support agent whose model follows the instructions of its prompt in
words that it knows, and with noise forgets one in ten. Customers need four instructions. All others are decoys: nine
that are followed and help nobody, eight that mean nothing, two under which the model says next to nothing. The
reflector adds one at a time; "right" is how often one that a judge's reason asks for. Everything but model and
reflector is the code that users run: GEPA, records, the leak check, the held-out third and its paired test.

"needed" and "decoys" are those of the prompt that comes out, all seeds added up; "reward" is what it is worth, behind
what the first one is. "calls" are the model's in the search, "asked" the reflector's. "gains" counts the searches that
claim one: with a reflector that is never right there is none to find. Texts that quote a customer are dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean as mean

from astune.api.settings import configure
from astune.prompts.result import PromptSearch
from astune.prompts.search import search_prompts
from astune.support.terminal import Console
from astune.testing import PlantedPrompts
from astune.testing.planted_prompts import judge, solve
from astune.training.candidates import candidate_of
from benchmarks.bench_table import table_of

COLUMNS = ("right", "noise", "needed", "decoys", "reward", "calls", "asked", "dropped", "gains", "s")


@dataclass(frozen=True)
class Outcome:
    """Of one seed."""

    world: PlantedPrompts
    found: PromptSearch
    seconds: float

    @property
    def needed(self) -> int:
        return len(self.world.finds(self.found.prompts["system"]))

    @property
    def decoys(self) -> int:
        return len(self.world.decoys(self.found.prompts["system"]))

    @property
    def rewards(self) -> tuple[float, float]:
        """Of the first prompt and of the one that comes out, by what the world knows of them."""
        return self.world.worth(self.found.first["system"]), self.world.worth(self.found.prompts["system"])


def run(world: PlantedPrompts, *, rounds: int = 40) -> Outcome:
    keys = {
        "seed": world.seed,
        "rollout": {"max_tokens": 512},
        "prompts": {"reflector": world.reflect, "rounds": rounds, "attempts": 1, "max_episodes": None},
        "monitor": {"progress": "off", "trackers": []},
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        keys["runs_dir"] = folder
        with configure(solve, tasks=world.tasks, judge=judge, model="tiny", keys=keys) as loaded:
            began = time.perf_counter()
            found = search_prompts(loaded, world.engine(), candidate_of("none", loaded.config.astune))
            return Outcome(world, found, time.perf_counter() - began)


def row(name: str, noise: float, outcomes: Sequence[Outcome]) -> list[str]:
    planted = sum(len(one.world.planted) for one in outcomes)
    before, after = (mean(one.rewards[at] for one in outcomes) for at in (0, 1))
    return [
        name,
        f"{noise:g}",
        f"{sum(one.needed for one in outcomes)}/{planted}",
        f"{sum(one.decoys for one in outcomes)}",
        f"{before:g}-{after:.2f}",
        f"{mean(one.found.episodes for one in outcomes):.0f}",
        f"{mean(one.found.reflecting.calls for one in outcomes):.0f}",
        f"{sum(one.found.dropped for one in outcomes)}",
        f"{sum(one.found.gained for one in outcomes)}/{len(outcomes)}",
        f"{mean(one.seconds for one in outcomes):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--skills", nargs="+", type=float, default=[1.0, 0.7, 0.4, 0.0])
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.1])
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for skill in options.skills:
        for noise in options.noise:
            worlds = [PlantedPrompts(seed, 90, skill=skill, noise=noise) for seed in range(options.seeds)]
            rows.append(row(f"{skill:g}", noise, [run(world) for world in worlds]))
    quoting = [run(PlantedPrompts(seed, 90, quotes=True), rounds=10) for seed in range(options.seeds)]
    rows.append(row("1, quotes", 0.0, quoting))
    Console().print(table_of("planted prompts", COLUMNS, rows))


if __name__ == "__main__":
    main()
