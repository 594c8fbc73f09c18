"""What verl will do is told, and what it cannot do is found without verl."""

from __future__ import annotations

import importlib.util

import pytest

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
    assert "vllm" not in found.what and "external/verl" in found.fix
