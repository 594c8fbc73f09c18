"""PPO's critic: a model of its own that says of every state what it is worth, and learns from what came of it.

Its trunk is the model that the run began with, less its head; a linear layer on top, 0 at first, makes of the last
hidden state a value. It has an optimizer of its own and is saved and loaded beside the policy, bit for bit.

    judged = critic.judge(samples)          # values and advantages before the update
    batch = credited(batch, judged)         # a micro-batch of the policy's, with these advantages
    figures = critic.learn(samples, judged)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from astune.backbone.local.learning.accumulation import Accumulation
from astune.backbone.local.learning.batch import MicroBatch
from astune.backbone.local.learning.forward import last_layer, trunk
from astune.backbone.local.learning.optimizer import make_optimizer
from astune.backbone.local.model.model import LoadedModel, read_weights
from astune.backbone.local.model.recomputing import recompute, silence_dropout
from astune.backbone.losses.critic import Appraisal, appraise, value_loss
from astune.config.algorithm import CriticConfig
from astune.config.schema import TrainerConfig
from astune.types import Sample

CRITIC_FILE = "critic.pt"


def credit(batch: MicroBatch, judged: Appraisal) -> MicroBatch:
    """The micro-batch with the advantages that the critic gave."""
    return replace(batch, advantage=of_batch(judged.advantages, batch))


def of_batch(rows: Sequence[torch.Tensor], batch: MicroBatch) -> torch.Tensor:
    """Pick the entries of a micro-batch from one tensor for each sample."""
    return torch.cat([rows[number] for number in batch.samples]).to(batch.weight)


class ValueModel(torch.nn.Module):
    """A trunk and a linear layer: the value of what stands at and before each predictor."""

    def __init__(self, headless: torch.nn.Module, width: int) -> None:
        super().__init__()
        self.trunk = headless
        self.value = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.value.weight)
        torch.nn.init.zeros_(self.value.bias)

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """(e,)"""
        hidden = last_layer(self.trunk, batch).last_hidden_state
        values: torch.Tensor = self.value(hidden[0, batch.predictors])[:, 0].float()
        return values[batch.source]


class Critic:
    """`loaded` is the model of the policy; its device, precision and folder are used."""

    def __init__(self, loaded: LoadedModel, config: CriticConfig, trainer: TrainerConfig) -> None:
        self._config, self._trainer = config, trainer
        headless = trunk(read_weights(loaded.directory))
        loaded.family.give_attention(headless)
        silence_dropout(headless)
        if loaded.checkpointing:
            recompute(headless)
        model = ValueModel(headless, headless.config.get_text_config().hidden_size).to(loaded.device)
        model.eval()
        self._model = model
        self._loaded = replace(loaded, model=model, sampling_model=model, adapters=None)
        own_rate = trainer.model_copy(update={"learning_rate": config.learning_rate})
        self._optimizer = make_optimizer(model.parameters(), own_rate)
        self._accumulation = Accumulation(
            partial(self._optimizer.zero_grad, set_to_none=True),
            most_tokens=trainer.micro_batch_tokens,
            device=loaded.device,
            layout=loaded.family.layout,
        )

    def judge(self, samples: Sequence[Sample]) -> Appraisal:
        """Values as they are, and by them the advantage and the return of every trained token."""
        values: dict[int, torch.Tensor] = {}

        def look(batch: MicroBatch) -> dict[str, float]:
            with torch.no_grad(), self._loaded.training():
                rows = self._model(batch).split(torch.bincount(batch.row).tolist())
            values.update(zip(batch.samples, rows, strict=True))
            return {}

        self._accumulation.gather(samples, look)
        return appraise(samples, [values[number].cpu() for number in range(len(samples))], self._config)

    def learn(self, samples: Sequence[Sample], judged: Appraisal) -> dict[str, float]:
        """Take `astune.algorithm.critic.updates` optimizer steps towards the returns. One whose loss or gradient is not
        finite is thrown away and counted. The figures are of the first."""
        first: dict[str, float] = {}
        skipped = splits = 0
        for _ in range(self._config.updates):
            totals, split = self._accumulation.gather(samples, partial(self._backward, judged))
            loss, splits = totals["loss"], splits + split
            norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._trainer.max_grad_norm))
            first = first or {"critic/loss": loss, "critic/grad_norm": norm}
            if math.isfinite(loss) and math.isfinite(norm):
                self._optimizer.step()
            else:
                skipped += 1
        self._optimizer.zero_grad(set_to_none=True)
        counts = {"critic/updates_skipped": float(skipped), "critic/split_for_memory": float(splits)}
        return first | counts | judged.figures()

    def save(self, directory: Path) -> None:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, directory / CRITIC_FILE)

    def load(self, directory: Path) -> None:
        """Raises the errors of torch where the file is not there, broken or of another model."""
        state = torch.load(directory / CRITIC_FILE, map_location="cpu", weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _backward(self, judged: Appraisal, batch: MicroBatch) -> dict[str, float]:
        """Add the gradient of one micro-batch; its share of the loss."""
        with self._loaded.training():
            value = self._model(batch)
            old, returns = of_batch(judged.values, batch), of_batch(judged.returns, batch)
            loss = (value_loss(value, returns, old, self._config.value_clip) * batch.weight).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": float(loss.detach())}
