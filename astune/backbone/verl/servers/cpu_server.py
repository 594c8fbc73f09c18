"""Our sampler as one of verl's servers, where there is no GPU for vLLM or SGLang: `rollout.name: astune_cpu`.

verl starts a `CpuReplica` in the driver, which starts the server as an actor of Ray. Each training worker has a
`WeightSender`, which takes the trainer's tensors and hands them to the server of its replica.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.model.adapters import Adapters
from astune.backbone.local.model.family import find_family
from astune.backbone.local.model.model import read_weights
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.policies.compared import whole_row
from astune.config.schema import LoraConfig, ModelConfig
from astune.context_tracker.model_dir import load_chat_format
from astune.types import Generation, Sampling


class CpuServer:
    """Answers as vLLM's server in verl does, with `lora` by an adapter over the base in `directory`. An actor: its
    methods run side by side in one event loop."""

    def __init__(self, directory: str, slots: int, context_length: int, lora: LoraConfig | None) -> None:
        self._model = read_weights(Path(directory)).eval().requires_grad_(False)
        self._family = find_family(self._model)
        self._adapters = None if lora is None else Adapters(self._model, lora, directory)
        self._sampler = Sampler(
            self._model,
            slots=slots,
            context_length=context_length,
            decode=load_chat_format(ModelConfig(), Path(directory)).decode,
            family=self._family,
            adapters=self._adapters,
        )
        self._version: int | None = None
        self._answering: set[asyncio.Task[Generation]] = set()

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        image_data: None = None,
        video_data: None = None,
    ) -> TokenOutput:
        sampling = Sampling(
            max_tokens=sampling_params["max_tokens"],
            temperature=sampling_params["temperature"],
            top_p=sampling_params.get("top_p", 1.0),
            top_k=max(sampling_params.get("top_k", 0), 0),
            stop_token_ids=tuple(sampling_params.get("stop_token_ids", ())),
            stop=tuple(sampling_params.get("stop", ())),
            seed=sampling_params.get("seed"),
        )
        answering = asyncio.ensure_future(self._sampler.generate(prompt_ids, sampling))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
        answer = await answering
        more = {"prompt_logprobs": self._scores(prompt_ids)} if "prompt_logprobs" in sampling_params else {}
        return TokenOutput(
            token_ids=list(answer.output_ids),
            log_probs=list(answer.logprobs),
            stop_reason="completed",
            extra_fields={"global_steps": self._version, **more},
        )

    def _scores(self, prompt_ids: Sequence[int]) -> list[list[float]]:
        """Scores as vLLM has them: one entry for each token but the first, and one more."""
        (batch,) = micro_batches([whole_row(prompt_ids)], len(prompt_ids), torch.device("cpu"), self._family.layout)
        with torch.inference_mode():
            return [[score] for score in predict(self._model, batch).logprob.tolist()] + [[0.0]]

    async def load_weights(self, weights: Mapping[str, torch.Tensor], version: int | None) -> None:
        """Take over all weights of the model, or those of its adapter. Weights that are tied to others may be left
        out."""
        await self.abort_all_requests()
        if self._adapters is None:
            wrong = self._model.load_state_dict(weights, strict=False)
            own = {name for name, _ in self._model.named_parameters()}
            if wrong.unexpected_keys or own.intersection(wrong.missing_keys):
                raise ValueError(f"these are no weights of the model: {wrong}")
        else:
            self._adapters.take(weights)
        self._sampler.publish()
        self._version = version

    async def clear_kv_cache(self) -> None:
        await self.abort_all_requests()
        self._sampler.forget()

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Requests that are left are of episodes that were cut off: nobody waits for them any more."""
        for answering in self._answering:
            answering.cancel()
        if self._answering:
            await asyncio.wait(self._answering)

    async def ready(self) -> None: ...

    async def sleep(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def resume_generation(self) -> None: ...


def server_name(replica_rank: int) -> str:
    return f"astune_cpu_server_{replica_rank}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    async def launch_servers(self) -> None:
        model = omega_conf_to_dataclass(self.model_config)
        lora = None
        if model.lora_rank and not model.lora["merge"]:  # as `astune.model.lora`, which it was made of
            lora = LoraConfig(rank=model.lora_rank, alpha=model.lora_alpha, targets=tuple(model.target_modules))
        server = (
            ray.remote(CpuServer)
            .options(name=server_name(self.replica_rank), max_concurrency=self.max_concurrency, num_cpus=0)
            .remote(model.local_path, self.config.max_num_seqs, self.config.max_model_len, lora)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, server_name(self.replica_rank)


class WeightSender(BaseRollout):  # type: ignore[misc]
    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        rank, size = int(os.environ["RANK"]), self.config.tensor_model_parallel_size
        self.replica_rank = rank // size if replica_rank < 0 else replica_rank
        self.is_leader_rank = rank % size == 0

    async def resume(self, tags: Sequence[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **kwargs: Any
    ) -> None:
        """Every rank goes through all of `weights`: to gather a tensor takes them all."""
        whole = {name: tensor.detach().clone() async for name, tensor in ensure_async_iterator(weights)}
        if self.is_leader_rank:
            await ray.get_actor(server_name(self.replica_rank)).load_weights.remote(whole, global_steps)
