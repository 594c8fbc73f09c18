"""A teacher: a model whose log-probabilities of the policy's own tokens are learned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from astune.backbone.local.batch import MicroBatch
from astune.backbone.local.forward import predict
from astune.backbone.local.model import LoadedModel, load_model
from astune.config.schema import ModelConfig
from astune.errors import ModelError

KEY = "astune.algorithm.teacher"


class Teacher:
    """The model of `astune.algorithm.teacher`, on the student's device and in its precision. Raises ModelError for one
    with another vocabulary, or one that needs another layout of batches."""

    def __init__(self, path: str, student: LoadedModel) -> None:
        dtype: Any = str(student.dtype).removeprefix("torch.")
        loaded = load_model(ModelConfig(path=path, device=str(student.device), dtype=dtype))
        if _vocabulary(loaded.directory) != _vocabulary(student.directory):
            raise ModelError(
                f"{KEY}: the tokenizer in {loaded.directory} has other tokens than that in {student.directory}, so the "
                "teacher cannot weigh what the model says; expected a model of the same family"
            )
        if loaded.family.layout != student.family.layout:
            raise ModelError(
                f"{KEY}: the model in {loaded.directory} is computed in other batches than the one trained"
            )
        self._model = loaded.sampling_model.requires_grad_(False)

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probability (e,) of every trained token, at its temperature."""
        return predict(self._model, batch).logprob


def _vocabulary(directory: Path) -> tuple[Any, Any]:
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return tokenizer["model"].get("vocab"), [(each["id"], each["content"]) for each in tokenizer["added_tokens"]]
