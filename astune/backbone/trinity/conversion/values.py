"""The conversions that `OnTrinity` names in the schema: from one value of `astune.*` to what Trinity wants.

Each takes the value and what else it may look at. A value that Trinity cannot serve is a `ConfigError` that says what
to write instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.backbone.foreign.packages import attention_of
from astune.config.load import LoadedConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import ConfigError

TRINITY_LOSS = {"ppo_clip": "ppo", "gspo": "gspo", "cispo": "cispo", "opmd": "opmd", "reinforce": "ppo"}
"""Trinity's function by the name of our loss. With `fallback_to_policy_gradient` its `ppo` has the gradient of
-advantage * logprob: the ratio is 1, and its gradient that of the log-probability."""
NO_BOUND = 1.0e9
"""Trinity's `ppo` always has a second bound where the advantage is negative."""

BESIDE_SERVER = 2
"""The most workflow runners where the same cores run the model: each takes seconds of them to start."""

SLACK = 60
"""Seconds on top of the limits of episode and judge, after which Trinity gives a group up."""
PATIENCE = 10
"""How many batches at their time limit trainer and explorer wait for each other: evaluations run in between."""
SHORTEST_WAIT = 3600
"""Trinity's own default of the same wait, in seconds."""


@dataclass(frozen=True)
class ConversionInput:
    """All that a conversion may look at. `trinity` is Trinity's tree without the converted keys: the constant part and
    the user's section on top."""

    loaded: LoadedConfig
    trinity: Mapping[str, Any]
    num_tasks: int | None

    @property
    def config(self) -> AstuneConfig:
        return self.loaded.config.astune

    @property
    def plays(self) -> bool:
        return rules_of(self.config.algorithm).plays

    @property
    def tinker(self) -> bool:
        return uses_tinker(self.trinity)

    @property
    def starts_server(self) -> bool:
        """True if the run starts a tinker server of its own."""
        return self.tinker and not self.trinity["model"]["tinker"].get("base_url")

    @property
    def joins_cluster(self) -> bool:
        """True if the run joins a Ray that runs already, maybe on other machines."""
        return bool(self.trinity["cluster"]["ray_address"] != "local")

    def fault(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.loaded.where(key)}: {what}")


Conversion = Callable[[Any, ConversionInput], Any]


def uses_tinker(trinity: Mapping[str, Any]) -> bool:
    """True if engine and trainer are a tinker server; `trinity` is Trinity's tree."""
    return bool(trinity["model"]["tinker"]["enable"])


def on_megatron(trinity: Mapping[str, Any]) -> bool:
    """True if Megatron trains; `trinity` is Trinity's tree, or the user's part of it."""
    return str(trinity.get("trainer", {}).get("trainer_strategy")).startswith("megatron")


def wants_tinker(loaded: LoadedConfig) -> bool:
    """The same before the conversion. The model that ships needs no GPU and gets a tinker server, unless the section
    `trinity:` says otherwise."""
    said = loaded.config.trinity.get("model", {}).get("tinker", {}).get("enable")
    return loaded.config.astune.model.path == "tiny" if said is None else bool(said)


def model_path(value: str, given: ConversionInput) -> str:
    """A folder as an absolute path; a hub id stays."""
    return str(resolve_model_dir(value).resolve()) if value == "tiny" or Path(value).is_dir() else value


def max_model_len(value: int | None, given: ConversionInput) -> int:
    """Trinity has to know it; a local model says it itself."""
    if value is not None:
        return value
    file = Path(model_path(given.config.model.path, given)) / "config.json"
    if file.is_file():
        model = json.loads(file.read_text(encoding="utf-8"))
        made_for = {**model, **model.get("text_config", {})}.get("max_position_embeddings")
        if made_for is not None:
            return int(made_for)
    raise given.fault(
        "astune.model.max_model_len",
        f"not set, and there is no folder {given.config.model.path!r} whose config.json has max_position_embeddings; "
        "Trinity has to know the context length",
    )


def attention(value: str, given: ConversionInput) -> str:
    if value != "auto" and on_megatron(given.trinity):
        raise given.fault(
            "astune.model.attention",
            f"got {value!r}, but Megatron (trinity.trainer.trainer_strategy) has an attention of its own; take the key "
            "out",
        )
    return attention_of(given.config.model, gpus=not given.tinker)


def temperature(value: float, given: ConversionInput) -> float:
    if given.tinker and not given.starts_server and value != 1.0:
        raise given.fault(
            "astune.rollout.temperature",
            f"got {value}, but a tinker server's trainer knows log-probabilities at 1 only; expected 1.0, or no "
            "trinity.model.tinker.base_url, so that the run starts a server of its own",
        )
    return value


def advantage_fn(value: str, given: ConversionInput) -> str:
    """Our samples bring their advantages; Trinity keeps them as they are."""
    if value in NOT_ON_TRINITY:
        raise given.fault("astune.algorithm.advantage", f"got {value!r}: {NOT_ON_TRINITY[value]}")
    return KEEP_ADVANTAGES


def policy_loss(value: str, given: ConversionInput) -> str:
    if value not in TRINITY_LOSS:
        raise given.fault(
            "astune.algorithm.loss", f"there is no {value!r} on Trinity. There are: {', '.join(TRINITY_LOSS)}"
        )
    return TRINITY_LOSS[value]


def of_loss(*names: str) -> Conversion:
    """The value with these of our losses, and with others None: an argument that Trinity's function does not have."""
    return lambda value, given: value if given.config.algorithm.loss in names else None


def plain_gradient(value: str, given: ConversionInput) -> bool | None:
    return value == "reinforce" if TRINITY_LOSS.get(value) == "ppo" else None


def dual_bound(value: float | None, given: ConversionInput) -> float | None:
    return (value or NO_BOUND) if TRINITY_LOSS.get(given.config.algorithm.loss) == "ppo" else None


def preference_beta(value: float, given: ConversionInput) -> float:
    if not given.tinker:
        raise given.fault(
            "astune.algorithm.method",
            "'dpo' needs trinity.model.tinker.enable: true: Trinity's other trainer cuts its batches by length, and "
            "would part an answer from the one that it is compared with",
        )
    return value


def rows_per_step(value: int, given: ConversionInput) -> int:
    """Episodes where they are played; else examples, which are two rows each where answers are compared."""
    method = rules_of(given.config.algorithm)
    rows = given.config.rollout.num_repeat if method.plays else 2 if method.compares else 1
    return given.config.trainer.tasks_per_step * rows


def runners(value: int, given: ConversionInput) -> int:
    """Workflow runners of one engine. A runner plays one group, all its episodes side by side, so runners times
    `num_repeat` stay within `max_concurrent`; and no more than there are tasks under way. Beside a tinker server of the
    run's own, no more than two: it has the cores of this machine."""
    config, engines = given.config, int(given.trinity["explorer"]["rollout_model"]["engine_num"])
    groups = max(1, config.rollout.max_concurrent // config.rollout.num_repeat)
    synchronizer = config.synchronizer
    # batches that Trinity's explorer hands out before it waits; with async its `max_inflight_batches` is 2
    batches = 2 if synchronizer.style == "async" else synchronizer.interval + synchronizer.offset
    tasks = config.trainer.tasks_per_step * batches
    most = BESIDE_SERVER if given.starts_server else tasks
    return max(1, min(groups // engines, math.ceil(tasks / engines), most))


def task_timeout(value: float, given: ConversionInput) -> int:
    """Seconds for one group. Our own limits of episode and judge come first: an episode that ran into them is data, a
    group that Trinity gave up is lost."""
    config = given.config
    return math.ceil(config.rollout.episode_timeout + config.task_judge.seconds + SLACK)


def wait_timeout(value: float, given: ConversionInput) -> int:
    """Seconds that explorer and trainer wait for each other."""
    config = given.config
    places = runners(0, given) * int(given.trinity["explorer"]["rollout_model"]["engine_num"])
    batch = math.ceil(config.trainer.tasks_per_step / places) * task_timeout(0.0, given)
    return max(SHORTEST_WAIT, PATIENCE * batch)


def waiting_batches(value: Any, given: ConversionInput) -> int:
    """Most explored batches that may wait for the trainer: Trinity counts a batch as one, and its 10,000 would let
    rollouts run ahead of a slower trainer without end. With style fixed they wait for each other anyway."""
    synchronizer = given.config.synchronizer
    return 10_000 if synchronizer.style == "fixed" else max(2, synchronizer.interval)


def steps(value: int | None, given: ConversionInput) -> int:
    """Explored batches, and optimizer steps, of the run: the smaller of `total_steps` and `total_epochs`."""
    trainer, limits = given.config.trainer, []
    if trainer.total_steps is not None:
        limits.append(trainer.total_steps)
    if trainer.total_epochs is not None:
        if given.num_tasks is None:
            raise given.fault("astune.trainer.total_epochs", "the number of training tasks is not known here")
        limits.append(trainer.total_epochs * (given.num_tasks // trainer.tasks_per_step))
    return min(limits)


def trainer_steps(value: Any, given: ConversionInput) -> int | None:
    """With rl one step more than there is data for: Trinity stops the explorer once the trainer has done all its steps,
    and the last evaluation, which the explorer plays, would be cut off. None, no limit, where neither waits for the
    other."""
    if not given.plays:
        return steps(None, given)
    return steps(None, given) + 1 if given.config.synchronizer.style == "fixed" else None


def lr_schedule(value: str, given: ConversionInput) -> str:
    if value == "linear":
        raise given.fault(
            "astune.trainer.lr_schedule",
            "Trinity has no 'linear'; expected 'cosine' or 'constant', "
            "or trinity.algorithm.optimizer.lr_scheduler_type, which counts there instead",
        )
    if value != "constant" and given.plays and given.config.synchronizer.style != "fixed":
        raise given.fault(
            "astune.trainer.lr_schedule",
            f"{value!r} needs to know the last step, which only astune.synchronizer.style 'fixed' does; "
            "expected 'constant'",
        )
    return value


KEEP_ADVANTAGES = "astune.backbone.trinity.trainer.algorithm.KeepAdvantages"
NOT_ON_TRINITY = {
    "running_mean": "it remembers earlier steps, and Trinity's checkpoints do not keep what it remembers; expected "
    "another, such as 'reinforce_pp' (or --backbone=local)",
    "gae": "Trinity's critic learns in a trainer of its own, from advantages of its own; expected another, such as "
    "'reinforce_pp' (or --backbone=local)",
}
"""Advantages that need more than the batch they are given."""

CONVERSIONS: Mapping[str, Conversion] = {
    "same": lambda value, given: value,
    "as_list": lambda value, given: list(value),
    "dtype": lambda value, given: "bfloat16" if value == "auto" else value,
    "top_k": lambda value, given: value or -1,
    "sync_style": lambda value, given: "fully_async" if value == "async" else value,
    "lower_bound": of_loss("ppo_clip", "gspo", "reinforce"),  # `cispo` has none unless it is told one, as ours
    "upper_bound": lambda value, given: None if given.config.algorithm.loss == "opmd" else value,
    "mirror_descent": of_loss("opmd"),
    **{
        conversion.__name__: conversion
        for conversion in (
            model_path,
            max_model_len,
            attention,
            temperature,
            advantage_fn,
            policy_loss,
            plain_gradient,
            dual_bound,
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
    },
}
