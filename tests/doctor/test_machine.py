"""`astune doctor` without a configuration: what is installed, and the line that installs what is missing."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from astune.cli import main
from astune.doctor import machine
from astune.doctor.findings import Finding

INSTALLED = {
    "numpy": "2.4",
    "safetensors": "0.8",
    "torch": "2.13.0+cpu",
    "transformers": "5.30",
    "agentscope": "2.0.10",
}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def put(**versions: str | None) -> dict[str, Finding]:
        there = {**INSTALLED, **versions}
        monkeypatch.setattr(machine, "version_of", there.get)
        return {finding.check: finding for finding in machine.check_machine()}

    return put


def test_a_use_is_ready_missing_or_of_another_version(install) -> None:
    found = install()
    assert (found["local"].level, found["agentscope"].level) == ("ok", "ok") and "training" not in found
    assert (found["lora"].level, found["lora"].what) == ("skip", "not installed: peft")
    assert found["lora"].fix == 'pip install "astune[local,lora]"'
    old = install(transformers="5.1")["local"]
    assert old.level == "warn" and old.what.startswith("transformers 5.1, <6,>=5.2")
    assert install(agentscope="1.0.21", greenlet="3", mcp="1.14", openai="3.1", tqdm="4")["agentscope"].level == "ok"


def test_a_machine_that_can_train_nothing_fails_with_the_line_to_type(install) -> None:
    found = install(torch=None)["training"]
    assert (found.level, found.fix) == ("fail", 'pip install "astune[local,agentscope2]"')


def test_the_command_shows_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"torch {metadata.version('torch')}" in shown and shown.splitlines()[-1].startswith(
        "ready: agentscope, local"
    )
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fail"] == 0
    with pytest.raises(SystemExit):
        main(["doctor", "--backbone", "local"])
    assert "name the configuration, as in: astune doctor --conf my_agent.yaml" in capsys.readouterr().err
