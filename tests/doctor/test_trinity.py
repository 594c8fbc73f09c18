"""What Trinity cannot do is found without Trinity; where it is not installed, that is found too."""

from __future__ import annotations

import importlib.util

import pytest

from tests.doctor.sound_config import RunDoctor, problems

FIX = "set it to 'cosine' or 'constant', or trinity.algorithm.optimizer.lr_scheduler_type, which counts there instead"


def test_a_value_that_trinity_does_not_have_is_named_with_its_place(run_doctor: RunDoctor) -> None:
    found = [
        finding
        for finding in problems(run_doctor({"backbone": "trinity", "trainer": {"lr_schedule": "linear"}}))
        if finding.check == "config"
    ]
    assert [(finding.level, finding.fix) for finding in found] == [("fail", FIX)]
    assert found[0].where.endswith("astune.trainer.lr_schedule")


def test_epochs_are_no_fault(run_doctor: RunDoctor) -> None:
    changes = {"backbone": "trinity", "trainer": {"total_epochs": 2}}
    assert not [finding for finding in problems(run_doctor(changes)) if finding.check == "config"]


@pytest.mark.skipif(importlib.util.find_spec("trinity") is not None, reason="Trinity is installed here")
@pytest.mark.parametrize(
    ("model", "trainers"),
    [
        ({"path": "tiny"}, ["tinker"]),
        ({"path": "Qwen/Qwen3-8B"}, ["verl", "flash-attn"]),
        ({"path": "Qwen/Qwen3-8B", "attention": "sdpa"}, ["verl"]),
    ],
)
def test_packages_that_are_missing_are_all_named(
    run_doctor: RunDoctor, model: dict[str, str], trainers: list[str]
) -> None:
    (found,) = [
        finding
        for finding in problems(run_doctor({"backbone": "trinity", "model": model}))
        if finding.check == "packages"
    ]
    for package in ("trinity-rft", "ray", *trainers, "vllm"):
        assert f"{package} is not installed" in found.what
    assert ("flash-attn" in found.what) == ("flash-attn" in trainers)
    assert "external/trinity" in found.fix
