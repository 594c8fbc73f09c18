"""Several training workers of verl as processes that meet on gloo, without Ray.

    python tests/verl/ranks.py FOLDER RANKS:UPDATES ...

Each of the groups takes its updates from `branching_samples()`: the first begins with the model in FOLDER/model, the
others go on from the checkpoint of the one before. FOLDER/after_RANKS is then the checkpoint, and
FOLDER/after_RANKS.json has the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

from astune.backbone.verl.cpu import CPU_ENVIRONMENT
from astune.config.schema import AlgorithmConfig

RATE = 0.003
CONFIG = AlgorithmConfig(kl_beta=0.1, entropy_bonus=0.01)


def learn(rank: int, folder: Path, ranks: int, updates: int, checkpoint: Path | None) -> None:
    from astune.backbone.verl.trainer.learner import VerlLearner
    from tests.backbone.local.test_prefix_tree import branching_samples
    from tests.verl.one_process import OneProcess

    meeting = folder / f"meeting_{ranks}"
    meeting.mkdir(exist_ok=True)
    workers = OneProcess(meeting, folder / "model", CONFIG, rank=rank, ranks=ranks)
    learner = VerlLearner(workers, lambda version: {}, CONFIG, workers.trainer)
    if checkpoint is not None:
        learner.load(checkpoint)
    figures = [dict(asyncio.run(learner.update(branching_samples(), RATE)).metrics) for _ in range(updates)]
    saved = folder / f"after_{ranks}"
    saved.mkdir(exist_ok=True)
    learner.save(saved)
    if rank == 0:
        (folder / f"after_{ranks}.json").write_text(json.dumps(figures))


def find_tests() -> None:
    """verl's wheel has a package `tests` too, which would be taken for this one."""
    package = ModuleType("tests")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["tests"] = package


def main(folder: Path, groups: list[tuple[int, int]]) -> int:
    """The processes are forks, so that all of them import verl once."""
    find_tests()
    os.environ.update(CPU_ENVIRONMENT)
    warnings.simplefilter("ignore")
    import tests.verl.one_process  # noqa: F401

    checkpoint = None
    for ranks, updates in groups:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                learn(rank, folder, ranks, updates, checkpoint)
                os._exit(0)
            children.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(statuses):
            return 1
        checkpoint = folder / f"after_{ranks}"
    return 0


if __name__ == "__main__":
    place, *wanted = sys.argv[1:]
    pairs = [tuple(map(int, each.split(":"))) for each in wanted]
    sys.exit(main(Path(place), [(ranks, updates) for ranks, updates in pairs]))
