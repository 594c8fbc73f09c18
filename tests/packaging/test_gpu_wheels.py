"""Wheels for a machine that downloads nothing: what is missing is found before they get there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import gpu_wheels
from scripts.gpu_wheels import Package, faults_of, granted, unmet, wanted, wheels_in


def write_wheel(folder: Path, name: str, version: str, *requires: str, size: int = 0) -> None:
    file = folder / f"{name}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.4", f"Name: {name}", *(f"Requires-Dist: {line}" for line in requires)]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join([*lines, "", "Requires-Dist: prose"]))
        archive.writestr(f"{name}/data", b"x" * size)


def missing(folder: Path, *requirements: str) -> list[str]:
    have = {"torch": Package("2.11.0"), "pillow": Package(None)} | wheels_in(folder)
    return sorted(unmet(map(Requirement, requirements), have.get))


def test_what_is_met_by_wheels_and_the_machine_together_is_complete(tmp_path: Path) -> None:
    write_wheel(tmp_path, "one", "1.5", "two_x>=2", "torch>=2.6", "pillow>=1000", "old; python_version < '3.12'")
    write_wheel(tmp_path, "two_x", "2.0", "win; sys_platform == 'win32'", "one", "extra-thing; extra == 'more'")
    assert missing(tmp_path, "one>=1", "Two.X") == []


def test_what_is_missing_is_named_with_who_needs_it(tmp_path: Path) -> None:
    write_wheel(tmp_path, "one", "1.5", "two-x[more]>=3", "gone", "torch<2")
    write_wheel(tmp_path, "two_x", "2.0", "three; extra == 'more'", "four; extra == 'other'")
    assert missing(tmp_path, "one==1.5") == [
        "gone is missing, which one needs",
        "three is missing, which two-x needs",
        "torch is 2.11.0, but one needs <2",
        "two-x is 2.0, but one needs >=3",
    ]


def test_two_wheels_of_one_package_and_too_many_bytes_are_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path, "one", "1.0", size=5000)
    monkeypatch.setattr(gpu_wheels, "MOST_BYTES", 2000)
    assert any("can be carried" in fault for fault in faults_of(tmp_path))
    write_wheel(tmp_path, "one", "1.1")
    with pytest.raises(SystemExit, match="two wheels of one"):
        wheels_in(tmp_path)


def test_an_empty_folder_lacks_what_the_project_asks_for_and_not_what_the_machine_has(tmp_path: Path) -> None:
    faults = "\n".join(faults_of(tmp_path))
    for name in ("pydantic", "agentscope", "transformers", "peft", "pytest-asyncio"):
        assert f"{name} is missing, which astune needs" in faults
    assert "torch" in granted() and "torch" not in faults and "numpy" not in faults
    assert not {"torch", "triton"} <= {each.name for each in wanted()}


def test_an_environment_that_pip_made_lacks_nothing() -> None:
    """pip resolved it for this Python, and markers are those of another: versions may differ, names not."""
    pytest.importorskip("agentscope")
    faults = unmet(wanted(), gpu_wheels.installed)
    assert not [fault for fault in faults if " is missing, which " in fault]
