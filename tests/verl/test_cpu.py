"""What verl asks of a platform, asked of a machine without GPUs."""

import torch
from verl.plugin.platform import get_platform
from verl.utils.device import get_device_name, get_nccl_backend, get_torch_device
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from astune.backbone.verl.cpu.engine import CpuEngine


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
