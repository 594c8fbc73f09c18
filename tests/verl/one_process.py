"""A training worker of verl in this process, without Ray: `TrainingWorkers` of one rank, or one of several."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import distribute_tensor
from verl.utils import tensordict_utils

from astune.backbone.verl.trainer.group import told_by_all
from astune.backbone.verl.trainer.settings import composed, settings_of
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
        config = composed(loaded, settings_of(loaded))
        if sharing > 1:
            share_rows(config, sharing)
        self.worker = AstuneWorker(
            config.actor_rollout_ref, "actor", algorithm, own.model, own.seed, None if teacher is None else str(teacher)
        )
        self.worker.init_model()
        self._begun = self.weights()

    def gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        """Every rank's answer, put together as verl puts them."""
        self.worker.optimizer_zero_grad()
        told = self._told(self.worker.forward_backward(self._share(batch)))
        return told_by_all(tensordict_utils.concat_tensordict(told))

    def _told(self, own: Any) -> list[Any]:
        """What each rank has to say; of those that share rows the first speaks."""
        told: list[Any] = [None] * (self.ranks * self.sharing)
        torch.distributed.all_gather_object(told, own)
        return [each for each in told if each is not None]

    def _share(self, batch: TensorDict) -> TensorDict:
        return tensordict_utils.chunk_tensordict(batch, self.ranks)[self.rank // self.sharing]

    def step(self, learning_rate: float) -> float:
        return float(self._told(self.worker.optimizer_step({"lr": learning_rate}) or None)[0]["grad_norm"])

    def drop(self) -> None:
        self.worker.optimizer_zero_grad()

    def infer(self, batch: TensorDict, *, beside: bool) -> TensorDict:
        ask = self.worker.compute_ref_log_prob if beside else self.worker.compute_log_prob
        found = ask(self._share(batch))
        told = self._told(None if found is None else [*found["log_probs"].unbind()])
        rows = [row for part in told for row in part]
        return {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    def save(self, folder: Path) -> None:
        self.worker.save_all(str(folder))

    def load(self, folder: Path) -> None:
        self.worker.load_all(str(folder))

    def go_back(self) -> None:
        """Begin again: the weights of the beginning, an optimizer that has seen nothing."""
        engine = self.worker.actor.engine
        engine.optimizer.state.clear()
        if self.worker.adapter is not None:
            self.worker.adapter.go_back()
            return
        with torch.no_grad():
            for name, value in engine.module.named_parameters():
                value.copy_(distribute_tensor(self._begun[name], value.device_mesh, value.placements))

    def weights(self) -> dict[str, torch.Tensor]:
        adapter = self.worker.adapter
        return dict(self.worker.whole_weights()) if adapter is None else adapter.tensors()

    def gradients(self) -> dict[str, torch.Tensor]:
        module: Any = self.worker.actor.engine.module
        found = {name: value.grad for name, value in module.named_parameters()}
        return {name: value.full_tensor() for name, value in found.items() if value is not None}
