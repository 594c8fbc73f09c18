"""Weights to servers in processes of their own, where there is no NCCL to send them: rank 0 writes a file, which the
worker beside each server reads. For one machine. verl calls this a checkpoint engine: `checkpoint_engine.backend:
astune_file`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

POLL = 0.05
"""Seconds between two looks for the file."""


@CheckpointEngineRegistry.register("astune_file")
class FileWeights(CheckpointEngine):  # type: ignore[misc]
    """`init_process_group` gives all the same file; `finalize` deletes it, so that the next one is waited for."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._file = Path()

    def prepare(self) -> dict[str, Any]:
        return {"file": f"{tempfile.gettempdir()}/astune_weights_{os.getpid()}.pt"}

    @classmethod
    def build_topology(
        cls, actors: int, servers: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        file = metadata[0]["file"]
        return {"file": [file] * actors}, {"file": [file] * servers}

    def init_process_group(self, file: str) -> None:
        self._file = Path(file)

    def finalize(self) -> None:
        if self._is_master:
            self._file.unlink()

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        whole = {name: tensor.detach().cpu().clone() for name, tensor in weights}  # to gather one takes every rank
        if self._is_master:
            part = self._file.with_suffix(".part")
            torch.save(whole, part)
            part.replace(self._file)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while not self._file.exists():
            await asyncio.sleep(POLL)
        for item in torch.load(self._file, weights_only=True).items():
            yield item
