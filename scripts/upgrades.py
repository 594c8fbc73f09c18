"""Put the newest packages that a user would get today beside those of `make test`: for `make test-upgrades`.

    .venv/bin/python -m scripts.upgrades .venv-upgrades --extras agentscope2,local --pip-args="--index-url ..."

The new environment sees the packages of the one that runs this. On top come those that are newer, as far as
`pyproject.toml` allows, but torch and all that it needs: another torch is gigabytes. What differs is shown.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
HELD = "torch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the new environment; one that is there is deleted")
    parser.add_argument("--extras", required=True, help="of pyproject.toml, with commas between them")
    parser.add_argument("--pip-args", default="", help="where pip looks")
    options = parser.parse_args()
    packages = make_environment(options.folder)
    install(options.folder, requirements(options.extras.split(",")), shlex.split(options.pip_args))
    for name, before, now in upgraded(packages):
        print(f"{name:24} {before:>16} -> {now}")


def make_environment(folder: Path) -> Path:
    """Make an environment without pip that sees the packages of this one. The folder of its own packages."""
    venv.create(folder, clear=True, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (packages / "of_make_test.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return packages


def requirements(extras: Sequence[str]) -> list[str]:
    """The lines of pyproject.toml with those extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines: list[str] = project["dependencies"]
    return [*lines, *(line for extra in extras for line in project["optional-dependencies"][extra])]


def held(name: str = HELD) -> dict[str, str]:
    """The versions of a package and of all that it needs, as they are installed here."""
    found: dict[str, str] = {}
    todo = [canonicalize_name(name)]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = metadata.version(name)
        asked = map(Requirement, metadata.requires(name) or [])
        todo += [canonicalize_name(one.name) for one in asked if not one.marker or one.marker.evaluate({"extra": ""})]
    return found


def install(folder: Path, lines: Sequence[str], pip_args: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        wanted, pinned = Path(name, "wanted.txt"), Path(name, "held.txt")
        wanted.write_text("\n".join(lines))
        pinned.write_text("".join(f"{name}=={version}\n" for name, version in held().items()))
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
        how = ["--no-compile", "--upgrade", "--upgrade-strategy", "eager"]
        files = ["--constraint", str(pinned), "--requirement", str(wanted)]
        subprocess.run([*pip, *how, *files, *pip_args], check=True)


def upgraded(packages: Path) -> Iterator[tuple[str, str, str]]:
    """Name, version here and version there of what is in that folder, by name."""
    here = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    for each in sorted(metadata.distributions(path=[str(packages)]), key=lambda one: one.name.lower()):
        yield each.name, here.get(canonicalize_name(each.name), "none"), each.version


if __name__ == "__main__":
    main()
