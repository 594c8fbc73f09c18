"""A wheel carries everything that a run needs and nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from astune import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The wheel unpacked where nothing of the checkout is near."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def astune(installed: Path, *arguments: str) -> str:
    """What the installed command prints, run from another folder."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    work = installed.parent / "work"
    work.mkdir(exist_ok=True)
    call = [sys.executable, "-m", "astune", *arguments]
    return subprocess.run(call, cwd=work, env=environment, check=True, capture_output=True, text=True).stdout


def test_the_wheel_is_named_after_version_and_runs_anywhere(wheel: Path) -> None:
    assert wheel.name == f"astune-{__version__}-py3-none-any.whl"


def test_the_wheel_carries_configs_tutorials_and_the_tiny_model(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {f"astune/{path.relative_to(ROOT / 'astune')}" for path in (ROOT / "astune").rglob("*.py")}
    assert sources <= names
    assert {
        "astune/default_config/default.yaml",
        "astune/tutorial/math_agent/demo.yaml",
        "astune/assets/tiny_model/model.safetensors",
        "astune/assets/tiny_model/tokenizer.json",
        "astune/assets/tiny_model/config.json",
    } <= names


def test_the_wheel_is_small_and_holds_no_rubbish(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    assert wheel.stat().st_size < 16 * 2**20
    tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"astune", f"astune-{__version__}.dist-info"}
    rubbish = ("__pycache__", "/runs/", "test_", ".pyc")
    assert [name for name in archive.namelist() if any(part in name for part in rubbish)] == []


def test_the_metadata_names_licence_python_extras_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"astune-{__version__}.dist-info"
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: <3.14,>=3.10" in metadata
    for extra in ("agentscope1", "agentscope2", "local", "huggingface", "trinity", "verl", "dev"):
        assert f"Provides-Extra: {extra}" in metadata
    assert "astune = astune.cli:entry" in archive.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()


def test_an_installed_astune_finds_its_own_files(installed: Path) -> None:
    demo = installed / "astune/tutorial/math_agent/demo.yaml"
    shown = astune(installed, "config", "show", "--conf", str(demo))
    assert f"{installed}/astune/tutorial/math_agent/" in shown
    code = "import astune.support.resources as r; print(r.default_config_dir(), r.tutorial_dir(), r.tiny_model_dir())"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", check=True, capture_output=True)
    assert out.stdout.decode().split() == [
        f"{installed}/astune/{name}" for name in ("default_config", "tutorial", "assets/tiny_model")
    ]


@pytest.mark.release  # in CI what it needs is in the wheel and found; `make release` trains from the wheel as well
def test_an_installed_astune_runs_the_demo_task(installed: Path) -> None:
    shown = astune(installed, "demo", "--backbone=debug")
    assert "report  runs/math_agent/demo-debug/report.html" in shown
    assert (installed.parent / "work/runs/math_agent/demo-debug/report.html").is_file()
