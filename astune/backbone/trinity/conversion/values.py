"""The conversions that `config_auto_convertion_trinity.json` names: from one value of `astune.*` to what Trinity wants.

Each takes the value and the job it belongs to. A value that Trinity cannot serve is a `ConfigError` that says what to
write instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.backbone.model_dir import resolve_model_dir
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, nearest

PLAIN_GRADIENT = {"ppo_clip": False, "reinforce": True}
"""What Trinity's `ppo` calls `fallback_to_policy_gradient`, by the name of our loss. With it the ratio is 1 and its
gradient that of the log-probability, so the gradient is that of -advantage * logprob."""

BESIDE_SERVER = 2
"""Processes that play episodes where the same machine's cores run the model: each takes seconds of them to start."""

SLACK = 60
"""Seconds on top of the limits of episode and judge, after which Trinity gives a group up."""
PATIENCE = 10
"""How many batches at their time limit trainer and explorer wait for each other: evaluations run in between."""
SHORTEST_WAIT = 3600
"""Trinity's own default of the same wait, in seconds."""


@dataclass(frozen=True)
class Job:
    """What a conversion may look at. `trinity` is Trinity's tree without the converted keys: the constant part and the
    user's section on top."""

    loaded: LoadedConfig
    trinity: Mapping[str, Any]
    num_tasks: int | None

    @property
    def config(self) -> AstuneConfig:
        return self.loaded.config.astune

    @property
    def tinker(self) -> bool:
        return uses_tinker(self.trinity)

    @property
    def starts_server(self) -> bool:
        """Whether the run starts a tinker server of its own."""
        return self.tinker and not self.trinity["model"]["tinker"].get("base_url")

    @property
    def joins_cluster(self) -> bool:
        """Whether the run joins a Ray that runs already, maybe on other machines."""
        return bool(self.trinity["cluster"]["ray_address"] != "local")

    def fault(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.loaded.where(key)}: {what}")


def uses_tinker(trinity: Mapping[str, Any]) -> bool:
    """Whether engine and trainer are a tinker server; `trinity` is Trinity's tree."""
    return bool(trinity["model"]["tinker"]["enable"])


def wants_tinker(loaded: LoadedConfig) -> bool:
    """The same before the conversion. The model that ships needs no GPU and gets a tinker server, unless the section
    `trinity:` says otherwise."""
    said = loaded.config.trinity.get("model", {}).get("tinker", {}).get("enable")
    return loaded.config.astune.model.path == "tiny" if said is None else bool(said)


def same(value: Any, job: Job) -> Any:
    return value


def as_list(value: Any, job: Job) -> list[Any]:
    return list(value)


def model_path(value: str, job: Job) -> str:
    """A folder as an absolute path; a hub id stays."""
    return str(resolve_model_dir(value).resolve()) if value == "tiny" or Path(value).is_dir() else value


def max_model_len(value: int | None, job: Job) -> int:
    """Trinity has to know it; a local model says it itself."""
    if value is not None:
        return value
    file = Path(model_path(job.config.model.path, job)) / "config.json"
    if file.is_file():
        model = json.loads(file.read_text(encoding="utf-8"))
        made_for = {**model, **model.get("text_config", {})}.get("max_position_embeddings")
        if made_for is not None:
            return int(made_for)
    raise job.fault(
        "astune.model.max_model_len",
        f"not set, and there is no folder {job.config.model.path!r} whose config.json has max_position_embeddings; "
        "Trinity has to know the context length",
    )


def dtype(value: str, job: Job) -> str:
    return "bfloat16" if value == "auto" else value


def temperature(value: float, job: Job) -> float:
    if job.tinker and not job.starts_server and value != 1.0:
        raise job.fault(
            "astune.rollout.temperature",
            f"got {value}, but a tinker server's trainer knows log-probabilities at 1 only; expected 1.0, or no "
            "trinity.model.tinker.base_url, so that the run starts a server of its own",
        )
    return value


def top_k(value: int, job: Job) -> int:
    return value or -1


def plain_gradient(value: str, job: Job) -> bool:
    if value not in PLAIN_GRADIENT:
        raise job.fault(
            "astune.algorithm.loss",
            f"there is no {value!r} on Trinity.{nearest(value, PLAIN_GRADIENT)} There are: {', '.join(PLAIN_GRADIENT)}",
        )
    return PLAIN_GRADIENT[value]


def preference_beta(value: float, job: Job) -> float:
    if not job.tinker:
        raise job.fault(
            "astune.algorithm.method",
            "'dpo' needs trinity.model.tinker.enable: true: Trinity's other trainer cuts its batches by length, and "
            "would part an answer from the one that it is compared with",
        )
    return value


def rows_per_step(value: int, job: Job) -> int:
    """Episodes with rl; else examples, which are two rows each where answers are compared."""
    rows = {"rl": job.config.rollout.num_repeat, "sft": 1, "dpo": 2}
    return job.config.trainer.tasks_per_step * rows[job.config.algorithm.method]


def runners(value: int, job: Job) -> int:
    """Workflow runners of one engine. A runner plays one group, all its episodes side by side, so runners times
    `num_repeat` stay within `max_concurrent`; and no more than there are tasks under way. Beside a tinker server of the
    run's own, no more than two: it has the cores of this machine."""
    config, engines = job.config, int(job.trinity["explorer"]["rollout_model"]["engine_num"])
    groups = max(1, config.rollout.max_concurrent // config.rollout.num_repeat)
    tasks = config.trainer.tasks_per_step * _batches_under_way(config)
    most = BESIDE_SERVER if job.starts_server else tasks
    return max(1, min(groups // engines, math.ceil(tasks / engines), most))


def _batches_under_way(config: AstuneConfig) -> int:
    """What Trinity's explorer hands out before it waits; with fully_async its `max_inflight_batches` is 2."""
    synchronizer = config.synchronizer
    return 2 if synchronizer.style == "fully_async" else synchronizer.interval + synchronizer.offset


def task_timeout(value: float, job: Job) -> int:
    """Seconds for one group. Our own limits of episode and judge come first: an episode that ran into them is data, a
    group that Trinity gave up is lost."""
    config = job.config
    return math.ceil(config.rollout.episode_timeout + config.task_judge.seconds + SLACK)


def wait_timeout(value: float, job: Job) -> int:
    """Seconds that explorer and trainer wait for each other."""
    config = job.config
    places = runners(0, job) * int(job.trinity["explorer"]["rollout_model"]["engine_num"])
    batch = math.ceil(config.trainer.tasks_per_step / places) * task_timeout(0.0, job)
    return max(SHORTEST_WAIT, PATIENCE * batch)


def waiting_batches(value: Any, job: Job) -> int:
    """How many explored batches may wait for the trainer: Trinity counts a batch as one, and its 10,000 would let
    rollouts run ahead of a slower trainer without end. With style fixed they wait for each other anyway."""
    synchronizer = job.config.synchronizer
    return 10_000 if synchronizer.style == "fixed" else max(2, synchronizer.interval)


def steps(value: int | None, job: Job) -> int:
    """Explored batches, and optimizer steps, of the run: the smaller of `total_steps` and `total_epochs`."""
    trainer, limits = job.config.trainer, []
    if trainer.total_steps is not None:
        limits.append(trainer.total_steps)
    if trainer.total_epochs is not None:
        if job.num_tasks is None:
            raise job.fault("astune.trainer.total_epochs", "the number of training tasks is not known here")
        limits.append(trainer.total_epochs * (job.num_tasks // trainer.tasks_per_step))
    return min(limits)


def trainer_steps(value: Any, job: Job) -> int | None:
    """With rl one more than there is data for, so that the explorer ends the run, after its last evaluation: Trinity
    stops the explorer when the trainer has done all its steps. Where neither waits for the other, no limit."""
    if job.config.algorithm.method != "rl":
        return steps(None, job)
    return steps(None, job) + 1 if job.config.synchronizer.style == "fixed" else None


def lr_schedule(value: str, job: Job) -> str:
    if value == "linear":
        raise job.fault(
            "astune.trainer.lr_schedule",
            "Trinity has no 'linear'; expected 'cosine' or 'constant', "
            "or trinity.algorithm.optimizer.lr_scheduler_type, which counts there instead",
        )
    if value != "constant" and job.config.algorithm.method == "rl" and job.config.synchronizer.style != "fixed":
        raise job.fault(
            "astune.trainer.lr_schedule",
            f"{value!r} needs to know the last step, which only astune.synchronizer.style 'fixed' does; "
            "expected 'constant'",
        )
    return value


Conversion = Callable[[Any, Job], Any]

CONVERSIONS: Mapping[str, Conversion] = {
    conversion.__name__: conversion
    for conversion in (
        same,
        as_list,
        model_path,
        max_model_len,
        dtype,
        temperature,
        top_k,
        plain_gradient,
        preference_beta,
        rows_per_step,
        runners,
        task_timeout,
        wait_timeout,
        waiting_batches,
        steps,
        trainer_steps,
        lr_schedule,
    )
}
