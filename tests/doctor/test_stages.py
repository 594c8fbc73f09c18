"""A configuration with stages: each is looked at, and what is wrong is named with its stage."""

from __future__ import annotations

from typing import Any

from tests.doctor.sound_config import RunDoctor, problems, the_problem

SFT = {"algorithm": {"method": "sft"}, "trainer": {"examples": "examples.jsonl", "total_steps": 2}}
EXAMPLES = '{"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "1"}]}\n' * 4


def stages(*more: dict[str, Any]) -> dict[str, Any]:
    return {"stages": [SFT, *more], "trainer": {"save_every": 1}}


def test_what_is_sound_in_each_stage_is_told_of_each(run_doctor: RunDoctor) -> None:
    findings = run_doctor(stages({"trainer": {"total_steps": 4}}), examples_jsonl=EXAMPLES)
    assert problems(findings) == []
    of_training = [finding.what for finding in findings if finding.check == "training"]
    assert [what.partition(" steps")[0] for what in of_training] == ["stage 1: 2", "stage 2: 4"]
    assert len([finding for finding in findings if finding.check == "model"]) == 1
    assert any(f.what.startswith("stage 2: 12 training tasks") for f in findings)


def test_only_a_later_stage_keeps_the_adapter_that_it_began_with(run_doctor: RunDoctor) -> None:
    near = {"algorithm": {"kl_beta": 0.1}, "trainer": {"total_steps": 2}}
    lora = {"backbone": "local", "model": {"lora": {"rank": 4}}, "trainer": {"save_every": 1}}
    findings = run_doctor({"stages": [near, near], **lora})
    said = [f.what for f in findings if f.check == "memory" and "a copy of the adapter" in f.what]
    assert len(said) == 1 and said[0].startswith("stage 2: ")


def test_what_is_wrong_in_one_stage_is_told_with_its_number(run_doctor: RunDoctor) -> None:
    judge = {"task_judge": {"judge_protocol": "MathAnswerAsJugde"}}
    findings = run_doctor(stages({"trainer": {"learning_rate": 9.0}}, judge), examples_jsonl=EXAMPLES)
    found = {finding.what.partition(":")[0]: finding for finding in problems(findings)}
    assert set(found) == {"stage 2", "stage 3"}
    assert (found["stage 2"].check, found["stage 3"].check) == ("training", "judge")
    assert "learning rate of 9" in found["stage 2"].what and "Did you mean" in found["stage 3"].what
    assert "astune.stages" in found["stage 2"].where or "x.yaml" in found["stage 2"].where


def test_what_is_wrong_in_all_stages_is_told_once(run_doctor: RunDoctor) -> None:
    played = {"trainer": {"total_steps": 2}}
    changes = {"stages": [played, played], "trainer": {"learning_rate": 9.0, "save_every": 1}}
    assert the_problem(run_doctor(changes)).what.startswith("a learning rate of 9")
