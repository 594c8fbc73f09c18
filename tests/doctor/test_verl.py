"""What verl will do is told, and what it cannot do is found without verl."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from astune.doctor import Finding
from astune.support import machine_memory
from astune.support.machine_memory import MachineMemory
from tests.doctor.sound_config import RunDoctor, problems


def test_what_runs_where_is_told(run_doctor: RunDoctor) -> None:
    told = [finding.what for finding in run_doctor({"backbone": "verl"}) if finding.check == "config"]
    assert told[0] == (
        "training workers 1 on 1 x 1 GPUs; servers 1, of 1 GPUs each, on the GPUs of the training workers, by turns"
    )


def test_a_value_that_verl_does_not_have_is_named_with_its_place(run_doctor: RunDoctor) -> None:
    changes = {"backbone": "verl", "trainer": {"optimizer": "adamw_8bit"}}
    (found,) = [finding for finding in problems(run_doctor(changes)) if finding.check == "config"]
    assert found.level == "fail" and found.where.endswith("astune.trainer.optimizer")


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")
def test_packages_that_are_missing_are_all_named(run_doctor: RunDoctor) -> None:
    (found,) = [each for each in problems(run_doctor({"backbone": "verl"})) if each.check == "packages"]
    for package in ("verl", "ray", "hydra-core"):
        assert f"{package} is not installed" in found.what
    assert "vllm" not in found.what and "flash-attn" not in found.what and "external/verl" in found.fix


@pytest.mark.parametrize(
    ("model", "needed"),
    [({}, True), ({"attention": "sdpa"}, False), ({"attention": "eager"}, False), ({"dtype": "float32"}, False)],
)
def test_flash_attn_is_asked_for_where_gpus_train_with_it(
    model: dict[str, str], needed: bool, run_doctor: RunDoctor
) -> None:
    findings = run_doctor({"backbone": "verl", "model": {"device": "cuda"} | model})
    told = " ".join(each.what for each in problems(findings) if each.check == "packages")
    said = (
        "the attention 'flash_attention_2' of training workers on GPUs lacks its package: flash-attn is not installed"
    )
    assert (said in told) == needed and ("go without: astune.model.attention: sdpa" in told) == needed


def memory_of(findings: list[Finding], level: str = "ok") -> list[Finding]:
    return [finding for finding in findings if finding.check == "memory" and finding.level == level]


def test_without_gpus_all_processes_share_the_memory_of_the_machine(
    run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = memory_of(run_doctor({"backbone": "verl"}))
    for part in ("1 training workers with weights 4 MiB + gradient 4 MiB", "1 servers of weights", "2 processes"):
        assert part in found.what
    monkeypatch.setattr(machine_memory, "of_the_machine", lambda: MachineMemory("a watch", 2**20, 2**20, False))
    (found,) = memory_of(run_doctor({"backbone": "verl"}), "fail")
    assert "of 1 MiB (a watch)" in found.what and "n_gpus_per_node" in found.fix


def test_where_no_gpu_is_it_says_how_large_they_have_to_be(run_doctor: RunDoctor) -> None:
    told = [finding.what for finding in memory_of(run_doctor({"backbone": "verl", "model": {"device": "cuda"}}))]
    assert told[0].startswith("a worker learns in about") and told[1].startswith("a worker keeps weights 4 MiB")
    assert told[2].startswith("a server takes 0.5 of each of its GPUs: weights 2 MiB")
    assert told[3].startswith("all of it fits GPUs of 5.6 GiB or more")


def test_what_does_not_fit_into_the_gpu_names_the_key_that_helps(
    run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(gigabytes: float, **changes: Any) -> list[Finding]:
        size = int(gigabytes * 2**30)
        monkeypatch.setattr(machine_memory, "gpus", lambda: [MachineMemory("a GPU", size, size, True)])
        return memory_of(run_doctor({"backbone": "verl", "model": {"device": "cuda"}} | changes), "fail")

    assert lacks(5.8) == []
    (server,) = lacks(5.0)
    assert server.where.endswith("verl.actor_rollout_ref.rollout.gpu_memory_utilization")
    assert "at least 2.8 GiB" in server.what and "tensor_model_parallel_size" in server.fix
    worker, _ = lacks(0.5)
    assert "astune.trainer.micro_batch_tokens" in worker.where and "while it learns" in worker.what
    assert "gradient_checkpointing" in worker.fix
