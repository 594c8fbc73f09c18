"""Several training workers of verl as processes that meet on gloo, without Ray.

    python tests/verl/ranks.py FOLDER ALGORITHM:RANKS:UPDATES ...

Each of the groups takes its updates from `rewarded()`: the first of an algorithm begins with the model in
FOLDER/model, the others go on from the checkpoint of the one before. FOLDER/ALGORITHM_RANKS is then the checkpoint, and
FOLDER/ALGORITHM_RANKS.json has the figures.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

from astune.backbone.verl.cpu import CPU_ENVIRONMENT
from astune.config.algorithm import CriticConfig
from astune.config.schema import AlgorithmConfig

RATE = 0.003
ADAPTER = ("astune.model.lora={rank: 5}", "astune.seed=0")
"""Of a rank that neither two ranks nor three share out evenly."""


def config_of(algorithm: str, folder: Path) -> AlgorithmConfig:
    """A teacher, or a reference and an entropy bonus, with "ppo" a critic beside them."""
    if algorithm.startswith("distill"):
        return AlgorithmConfig(method="distill", teacher=str(folder / "teacher"))
    if algorithm.startswith("ppo"):
        critic = CriticConfig(learning_rate=0.01, updates=2, value_clip=0.5)
        return AlgorithmConfig(advantage="gae", critic=critic, kl_beta=0.1, entropy_bonus=0.01)
    return AlgorithmConfig(kl_beta=0.1, entropy_bonus=0.01)


def learn(rank: int, folder: Path, algorithm: str, ranks: int, updates: int, checkpoint: Path | None) -> None:
    from astune.backbone.verl.trainer.learner import VerlLearner
    from tests.verl.one_process import OneProcess
    from tests.verl.test_critic import rewarded

    meeting = folder / f"meeting_{algorithm}_{ranks}"
    meeting.mkdir(exist_ok=True)
    config = config_of(algorithm, folder)
    teacher = None if config.teacher is None else folder / "teacher"
    settings = ADAPTER if algorithm.endswith("lora") else ()
    place = {"rank": rank, "ranks": ranks, "sharing": ranks if algorithm.endswith("shared") else 1}
    workers = OneProcess(meeting, folder / "model", config, teacher=teacher, more=settings, **place)
    learner = VerlLearner(workers, lambda version: {}, config, workers.trainer)
    if checkpoint is not None:
        learner.load(checkpoint)
    figures = [dict(asyncio.run(learner.update(rewarded(), RATE)).metrics) for _ in range(updates)]
    saved = folder / f"{algorithm}_{ranks}"
    saved.mkdir(exist_ok=True)
    learner.save(saved)
    if rank == 0:
        (folder / f"{algorithm}_{ranks}.json").write_text(json.dumps(figures))


def find_tests() -> None:
    """verl's wheel has a package `tests` too, which would be taken for this one."""
    package = ModuleType("tests")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["tests"] = package


def main(folder: Path, groups: list[tuple[str, int, int]]) -> int:
    """The processes are forks, so that all of them import verl once, and what verl has transformers import: a
    configuration of every model that sees. What they have from here their collectors leave alone."""
    find_tests()
    os.environ.update(CPU_ENVIRONMENT)
    warnings.simplefilter("ignore")
    from transformers import AutoModelForImageTextToText

    import tests.verl.one_process
    import tests.verl.test_critic  # noqa: F401

    AutoModelForImageTextToText._model_mapping.keys()
    gc.freeze()

    checkpoints: dict[str, Path] = {}
    for algorithm, ranks, updates in groups:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                learn(rank, folder, algorithm, ranks, updates, checkpoints.get(algorithm))
                os._exit(0)
            children.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(statuses):
            return 1
        checkpoints[algorithm] = folder / f"{algorithm}_{ranks}"
    return 0


if __name__ == "__main__":
    place, *wanted = sys.argv[1:]
    parts = [each.split(":") for each in wanted]
    sys.exit(main(Path(place), [(name, int(ranks), int(updates)) for name, ranks, updates in parts]))
