"""The recipes of CONTRIBUTING work as they are written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from filecmp import cmp
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {
    "default_config/default.yaml",
    "default_config/config_auto_convertion_trinity.json",
    "default_config/config_auto_convertion_verl.json",
    "docs/configuration.md",
}
NEIGHBOUR = '    max_turns: PositiveInt = Field(20, description="most model calls in one episode")\n'
KEY = '    max_tool_calls: PositiveInt | None = Field(None, description="most calls of tools; null: no limit")\n'
TEST = """
from astune.config.keys import FIELDS

def test_the_new_key_is_there() -> None:
    assert "astune.rollout.max_tool_calls" in FIELDS
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project, to be changed."""
    for name in ("astune", "default_config", "docs", "tutorial", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(copy: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_configuration_key_touches_the_schema_its_user_and_its_test(copy: Path) -> None:
    schema = copy / "astune" / "config" / "rollout.py"
    text = schema.read_text(encoding="utf-8")
    assert text.count(NEIGHBOUR) == 1
    schema.write_text(text.replace(NEIGHBOUR, NEIGHBOUR + KEY), encoding="utf-8")
    (copy / "tests" / "config" / "test_new_key.py").write_text(TEST, encoding="utf-8")
    run(copy, "docs/write_tables.py")
    checks = [
        "tests/config/test_generated.py",
        "tests/config/test_new_key.py",
        "tests/config/test_verl_settings.py::test_every_key_says_what_becomes_of_it_and_every_conversion_is_there",
        "tests/trinity/test_convert.py::test_an_entry_says_one_thing",
        "tests/trinity/test_convert.py::test_the_whole_configuration_travels_along",
    ]
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *checks)
    changed = {
        str(path.relative_to(copy))
        for name in ("astune", "default_config", "docs")
        for path in (copy / name).rglob("*")
        if path.is_file() and not cmp(path, ROOT / path.relative_to(copy), shallow=False)
    }
    assert changed == {"astune/config/rollout.py", *GENERATED}
