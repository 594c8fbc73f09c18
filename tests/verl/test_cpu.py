"""What verl asks of a platform, asked of a machine without GPUs."""

import asyncio

import pytest
import torch
from verl.plugin.platform import get_platform
from verl.utils.device import get_device_name, get_nccl_backend, get_torch_device
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from astune.backbone.local.model.model import read_weights
from astune.backbone.verl.cpu.platform import CpuEngine
from astune.backbone.verl.servers.cpu_server import CpuServer
from astune.support.resources import tiny_model_dir


def test_verl_takes_the_cpu_for_its_device() -> None:
    assert get_platform().is_available() and (get_device_name(), get_nccl_backend()) == ("cpu", "gloo")
    assert torch.zeros(2, device=get_platform().current_device()).device.type == "cpu"


def test_verls_own_engine_computes_on_it() -> None:
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is CpuEngine
    assert issubclass(CpuEngine, FSDPEngineWithLMHead)


def test_random_numbers_are_saved_and_restored() -> None:
    device = get_torch_device()
    device.manual_seed(3)
    state = device.get_rng_state()
    first = torch.rand(4)
    device.set_rng_state(state)
    assert torch.equal(first, torch.rand(4))


async def test_answers_that_nobody_waits_for_keep_no_weights_out() -> None:
    """Of episodes that were cut off: whoever asked is gone, and the server goes on."""
    server = CpuServer(str(tiny_model_dir()), 2, 400, None)
    weights = read_weights(tiny_model_dir()).state_dict()
    await server.load_weights(weights, 1)
    parameters = {"max_tokens": 300, "temperature": 1.0, "logprobs": True}
    for version, hand_over in ((2, lambda: server.load_weights(weights, 2)), (2, server.clear_kv_cache)):
        left = asyncio.ensure_future(server.generate("a", list(range(5, 40)), parameters))
        while not server._sampler._running:
            await asyncio.sleep(0)
        await hand_over()
        with pytest.raises(asyncio.CancelledError):
            await left
        answer = await server.generate("b", list(range(5, 40)), {**parameters, "max_tokens": 4})
        assert answer.extra_fields["global_steps"] == version and len(answer.token_ids) <= 4
