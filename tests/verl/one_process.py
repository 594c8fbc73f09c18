"""A training worker of verl in this process, without Ray: `TrainingWorkers` of one rank, or one of several."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import distribute_tensor
from verl.utils import tensordict_utils

from astune.backbone.verl.trainer.checkpoint import whole_weights
from astune.backbone.verl.trainer.group import read_metrics
from astune.backbone.verl.trainer.settings import compose_settings, settings_of
from astune.backbone.verl.trainer.worker import AstuneWorker
from astune.config.load import load_config
from astune.config.schema import AlgorithmConfig
from tests.verl.sequence import share_rows

JOB = """
astune:
  backbone: verl
  model: {{path: {model}, device: cpu}}
  rollout: {{agentscope_learn_protocol: tests.verl.nobody:Nobody}}
  task_reader: {{jsonl: {{training: {{file_path: none.jsonl}}}}}}
  trainer: {{micro_batch_tokens: {tokens}, max_grad_norm: 0.02}}
"""


class OneProcess:
    """Rank `rank` of `ranks`, which meet in `folder`. Each is told of all rows and takes its share, as Ray would deal
    them out. `more` are settings; `sharing` ranks share each row."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        algorithm: AlgorithmConfig,
        micro_batch_tokens: int = 300,
        rank: int = 0,
        ranks: int = 1,
        teacher: Path | None = None,
        more: Sequence[str] = (),
        sharing: int = 1,
    ) -> None:
        self.rank, self.ranks, self.sharing = rank, ranks // sharing, sharing
        place = {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{ranks}"}
        os.environ.update(place, MASTER_ADDR="127.0.0.1", MASTER_PORT="0", DIST_INIT_METHOD=f"file://{folder}/meeting")
        job = folder / f"job_{rank}.yaml"
        job.write_text(JOB.format(model=model, tokens=micro_batch_tokens))
        loaded = load_config(job, more)
        own = loaded.config.astune
        self.trainer = own.trainer
        config = compose_settings(loaded, settings_of(loaded))
        if sharing > 1:
            share_rows(config, sharing)
        self.worker = AstuneWorker(
            config.actor_rollout_ref, "actor", algorithm, own.model, own.seed, None if teacher is None else str(teacher)
        )
        self.worker.init_model()
        self._begun = [{} if self._has_adapter(engine) else dict(whole_weights(engine)) for engine in self._engines()]

    def _engines(self) -> list[Any]:
        """Of what is trained: the policy, and the critic if there is one."""
        critic = self.worker.critic
        return [self.worker.actor.engine, *([] if critic is None else [critic.engine])]

    def _has_adapter(self, engine: Any) -> bool:
        return engine is self.worker.actor.engine and self.worker.adapter is not None

    def _asked(self, ask: Callable[[TensorDict], TensorDict | None], batch: TensorDict) -> TensorDict:
        """Every rank's answer about its share of the rows, put together as verl puts them."""
        share = tensordict_utils.chunk_tensordict(batch, self.ranks)[self.rank // self.sharing]
        return tensordict_utils.concat_tensordict(self._told(ask(share)))

    def _told(self, own: Any) -> list[Any]:
        """What each rank has to say; of those that share rows the first speaks."""
        told: list[Any] = [None] * (self.ranks * self.sharing)
        torch.distributed.all_gather_object(told, own)
        return [each for each in told if each is not None]

    def gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        self.worker.optimizer_zero_grad()
        return read_metrics(self._asked(self.worker.forward_backward, batch))

    def figures(self, batch: TensorDict) -> Mapping[str, Any]:
        return read_metrics(self._asked(self.worker.compute_log_prob, batch))

    def step(self, learning_rate: float) -> float:
        return float(self._told(self.worker.optimizer_step({"lr": learning_rate}) or None)[0]["grad_norm"])

    def drop(self) -> None:
        self.worker.optimizer_zero_grad()

    def infer(self, batch: TensorDict, *, beside: bool) -> TensorDict:
        return self._asked(self.worker.compute_ref_log_prob if beside else self.worker.compute_log_prob, batch)

    def values(self, batch: TensorDict) -> torch.Tensor:
        values: torch.Tensor = self._asked(self.worker.compute_values, batch)["values"]
        return values

    def critic_gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        return read_metrics(self._asked(self.worker.critic_gradient, batch))

    def critic_step(self, learning_rate: float) -> float:
        return float(self._told(self.worker.critic_step(learning_rate) or None)[0]["grad_norm"])

    def drop_critic_gradient(self) -> None:
        self.worker.drop_critic_gradient()

    def save(self, folder: Path) -> None:
        self.worker.save_all(str(folder))

    def load(self, folder: Path) -> None:
        self.worker.load_all(str(folder))

    def go_back(self) -> None:
        """Begin again: the weights of the beginning, optimizers that have seen nothing."""
        for engine, begun in zip(self._engines(), self._begun, strict=True):
            engine.optimizer.state.clear()
            if self._has_adapter(engine):
                self.worker.adapter.go_back()
            else:
                put(engine, begun)

    def give_critic(self, weights: Mapping[str, torch.Tensor]) -> None:
        put(self.worker.critic.engine, weights)

    def weights(self) -> dict[str, torch.Tensor]:
        adapter = self.worker.adapter
        return dict(whole_weights(self.worker.actor.engine)) if adapter is None else adapter.tensors()

    def critic_weights(self) -> dict[str, torch.Tensor]:
        return dict(whole_weights(self.worker.critic.engine))

    def gradients(self) -> dict[str, torch.Tensor]:
        return gradients_of(self.worker.actor.engine)

    def critic_gradients(self) -> dict[str, torch.Tensor]:
        return gradients_of(self.worker.critic.engine)


def put(engine: Any, weights: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in engine.module.named_parameters():
            value.copy_(distribute_tensor(weights[name], value.device_mesh, value.placements))


def gradients_of(engine: Any) -> dict[str, torch.Tensor]:
    found = {name: value.grad for name, value in engine.module.named_parameters()}
    return {name: value.full_tensor() for name, value in found.items() if value is not None}
