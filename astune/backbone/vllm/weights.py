"""Hand weights over to a vLLM server, and check that they arrived (`backbone/policies/compared.py`)."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.backbone.policies.compared import ComparedAnswers
from astune.backbone.vllm.policy import ServedPolicy
from astune.backbone.vllm.server import VllmServer
from astune.errors import TrainingError
from astune.types import Sample


class ServedWeights:
    """The weights that a server has.

    Invariant: from a `publish` on it answers with the trainer's weights, and with nothing cached of others. `write`
    writes them into a folder: a whole model, or, where `adapter`, an adapter of peft's. `shares` says that server and
    trainer have one GPU, so that the server sleeps from `make_room` to the next `publish`.
    """

    def __init__(
        self,
        server: VllmServer,
        policy: ServedPolicy,
        compared: ComparedAnswers,
        write: Callable[[Path], None],
        *,
        adapter: bool,
        shares: bool,
    ) -> None:
        self._server, self._policy, self._compared, self._write = server, policy, compared, write
        self._adapter, self._shares = adapter, shares
        self._asleep = False
        self._base, self._token, self._handed = policy.model, secrets.token_hex(3), 0
        self._figures: Mapping[str, float] = {}
        self.stale = adapter or server.outlives
        """True if the trainer has other weights than the server. A server that the run started begins with those of the
        file too; one that was there before may have those of another run."""
        self._checked = False

    def rows(self, version: int) -> list[Sample]:
        """Draw the rows for which `publish` needs the trainer's log-probabilities; none where the server has the
        weights already, as was checked."""
        known = self._checked and not self.stale and not self._asleep
        return [] if known else self._compared.draw(version)

    def make_room(self) -> None:
        """Let the server free the GPU that the trainer needs."""
        if self._shares and not self._asleep:
            self._server.post("/sleep", level="1")
            self._asleep = True

    def publish(
        self, version: int, rows: Sequence[Sample], expected: Sequence[Sequence[float]], free: Callable[[], None]
    ) -> Mapping[str, float]:
        """Give the server the weights as they are now, and compare. `free` lets go of what the trainer holds in memory
        and does not need. Returns how it went. Raises TrainingError where the server has other weights."""
        if self._asleep:
            free()
            self._server.post("/wake_up")
            self._asleep = False
        if not rows:
            self._server.forget()
            return self._figures
        started = time.perf_counter()
        if self.stale:
            self._hand_over()
        self._server.forget()
        handed = time.perf_counter()
        scores = [score for row in rows for score in self._score(row)]
        apart = self._compared.check("the vLLM server", version, scores, expected)
        self.stale, self._checked = False, True
        self._figures = {
            "servers/logprob_difference": apart,
            "time/hand_over": handed - started,
            "time/compare": time.perf_counter() - handed,
        }
        return self._figures

    def _hand_over(self) -> None:
        self._handed += 1
        folder = self._server.folder / f"weights-{self._handed}"
        self._write(folder)
        try:
            if self._adapter:
                name = f"{self._base}-{self._token}-{self._handed}"  # a new one: prompts are cached by it
                self._unload()
                self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
                self._policy.model = name
            else:
                self._server.post("/collective_rpc", {"method": "weights_from_folder", "args": [str(folder)]})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _unload(self) -> None:
        if self._policy.model != self._base:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": self._policy.model})

    def close(self) -> None:
        """Leave the server, with no adapter of this run where it outlives it. May be called twice."""
        if self._server.outlives and self._server.alive:
            with contextlib.suppress(TrainingError):
                self._unload()
        self._policy.model = self._base
        self._server.close()

    def _score(self, row: Sample) -> list[float]:
        """The log-probability of each token of a row but the first."""
        ids = list(row.timeline.token_ids)
        parameters: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        told = self._server.post(
            "/inference/v1/generate", {"model": self._policy.model, "token_ids": ids, "sampling_params": parameters}
        )["prompt_logprobs"]
        return [float(entry[str(token)]["logprob"]) for token, entry in zip(ids[1:], told[1:], strict=True)]
