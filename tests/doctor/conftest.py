"""A folder in which all is well, and what the doctor finds in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astune.doctor import CheckedConfig, Finding, run_checks
from astune.support import machine_memory
from tests.doctor.sound_config import AGENT, BACKBONES, RunDoctor, lines, rows, write_config


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, and nothing else that takes memory: what the doctor says of a configuration is the same everywhere."""
    monkeypatch.setattr(machine_memory, "gpus", list)
    monkeypatch.setattr(machine_memory, "_available", lambda: 2**63)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything a run needs, and the working directory."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "train.jsonl").write_text(lines(rows(0, 12)))
    (tmp_path / "heldout.jsonl").write_text(lines(rows(100, 6)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_doctor(folder: Path) -> RunDoctor:
    """What the doctor finds with some settings and files changed: `agent_py="..."` writes agent.py."""

    def see(changes: Mapping[str, Any] | None = None, offline: bool = False, **files: str) -> list[Finding]:
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (folder / f"{stem}.{suffix}").write_text(text)
        write_config(folder, changes or {})
        return run_checks(CheckedConfig(Path("x.yaml"), backbones=BACKBONES, offline=offline))

    return see
