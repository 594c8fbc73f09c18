"""A backbone says itself what it would refuse, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.backbone.base import BACKBONES, refuse_problems
from astune.cli import main
from astune.config.load import LoadedConfig, load_config
from astune.errors import ConfigError
from astune.plugins import load_plugin

JOB = """\
astune:
  rollout: {agentscope_learn_protocol: 'package.module:Agent'}
  task_reader: {jsonl: {training: {file_path: none.jsonl}}}
"""
SAID = {
    "trinity": ("astune.trainer.updates_per_step=2", "astune.trainer.updates_per_step: got 2: a step is one optimizer"),
    "verl": (
        "astune.trainer.optimizer=adamw_8bit",
        "astune.trainer.optimizer: got 'adamw_8bit': bitsandbytes takes no",
    ),
}


def loaded(folder: Path, backbone: str, *overrides: str) -> LoadedConfig:
    (folder / "job.yaml").write_text(JOB)
    return load_config(folder / "job.yaml", overrides, backbone=backbone)


@pytest.mark.parametrize("backbone", SAID)
def test_problems_are_those_of_the_conversion_with_their_places(tmp_path: Path, backbone: str) -> None:
    override, said = SAID[backbone]
    chosen = load_plugin(backbone, kind="backbone", builtin=BACKBONES)()
    (problem,) = chosen.problems(loaded(tmp_path, backbone, override))
    assert problem.startswith(f"command line: {said}")
    with pytest.raises(ConfigError, match=r"^command line: astune\.trainer"):
        refuse_problems(chosen, loaded(tmp_path, backbone, override))


@pytest.mark.parametrize("backbone", ["debug", "trinity", "verl"])
def test_a_configuration_that_a_backbone_takes_has_no_problems(tmp_path: Path, backbone: str) -> None:
    chosen = load_plugin(backbone, kind="backbone", builtin=BACKBONES)()
    assert list(chosen.problems(loaded(tmp_path, backbone))) == []


@pytest.mark.parametrize("backbone", SAID)
def test_a_run_is_refused_before_its_tasks_are_read(
    tmp_path: Path, backbone: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("async def Agent(task, tuner): ...\n")
    (tmp_path / "none.jsonl").write_text('{"query": "1+1", "answer": "2"}\n')
    (tmp_path / "job.yaml").write_text(JOB.replace("package.module:Agent", "agent.py:Agent"))
    override, said = SAID[backbone]
    assert main(["run", "--conf", "job.yaml", f"--backbone={backbone}", override]) == 2
    assert said in capsys.readouterr().err
