"""Bring the wheels that ASTune, AgentScope and the tests need on a machine with PyTorch and nothing to download.

    python -m scripts.gpu_wheels .gpu-wheels                     # download: pinned by constraints/agentscope2.txt
    python -m scripts.gpu_wheels .gpu-wheels --check             # only look whether the folder is complete

They are for CPython 3.12 on x86-64, whatever runs this. What such a machine has is in constraints/gpu_machine.txt. The
set is complete when every requirement, and every one of theirs, is met by a wheel or by that machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
EXTRAS = ("agentscope2", "local", "lora")
TESTS = ("pytest", "pytest-asyncio", "hypothesis")
MOST_BYTES = 53_000_000
"""What may be carried: wheels and the repository together stay below 64 MiB."""
GLIBC = (35, 34, 31, 28, 27, 24, 17, 12, 5)
"""The `manylinux_2_N` that are looked for."""
MACHINE = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "implementation_name": "cpython",
    "implementation_version": "3.12.3",
    "platform_python_implementation": "CPython",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "platform_release": "",
    "platform_version": "",
}
"""What the markers of requirements ask about."""


@dataclass(frozen=True)
class Package:
    """`version` is None where it is not known; `requires` are the lines of its Requires-Dist."""

    version: str | None
    requires: tuple[str, ...] = ()


Find = Callable[[str], Package | None]
"""A package by its canonical name; None if it is not there."""


def wanted() -> list[Requirement]:
    """What is asked for: of pyproject.toml, and what runs the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {Requirement(line).name: line for line in project["optional-dependencies"]["dev"]}
    lines = [*project["dependencies"], *(named[name] for name in TESTS)]
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines if _holds(Requirement(line), "")]


def unmet(requirements: Iterable[Requirement], find: Find) -> list[str]:
    """What is missing of `requirements` and of all that they require, each with who asks for it."""
    faults: dict[str, None] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(requirement, "astune") for requirement in requirements]
    while todo:
        requirement, asker = todo.pop()
        name = canonicalize_name(requirement.name)
        package = find(name)
        if package is None:
            faults[f"{requirement.name} is missing, which {asker} needs"] = None
            continue
        if package.version is not None and not requirement.specifier.contains(package.version, prereleases=True):
            faults[f"{name} is {package.version}, but {asker} needs {requirement.specifier}"] = None
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += [(each, name) for each in map(Requirement, package.requires) if _holds(each, extra)]
    return list(faults)


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(MACHINE | {"extra": extra})


def granted() -> dict[str, Package]:
    """What constraints/gpu_machine.txt says is there. Of what those need nothing is asked."""
    found = {}
    for line in (ROOT / "constraints/gpu_machine.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonicalize_name(name)] = Package(version or None)
    return found


def wheels_in(folder: Path) -> dict[str, Package]:
    """The wheels of a folder. Raises SystemExit for two of one package: pip would refuse them."""
    found: dict[str, Package] = {}
    for path in sorted(folder.glob("*.whl")):
        name, version, *_ = parse_wheel_filename(path.name)
        if name in found:
            raise SystemExit(f"{folder} has two wheels of {name}; empty the folder")
        with zipfile.ZipFile(path) as archive:
            (file,) = (each for each in archive.namelist() if re.fullmatch(r"[^/]*\.dist-info/METADATA", each))
            head = archive.read(file).decode().split("\n\n", 1)[0]
        requires = re.findall(r"^Requires-Dist: *(.*)$", head, re.MULTILINE)
        found[name] = Package(str(version), tuple(line.strip() for line in requires))
    return found


def installed(name: str) -> Package | None:
    """A package of the Python that runs this."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Package(found.version, tuple(found.requires or ()))


def faults_of(folder: Path) -> list[str]:
    """What keeps `folder` from being enough, with what the machine has, and from being carried."""
    have = granted() | wheels_in(folder)
    size = size_of(folder)
    large = [f"the wheels have {size / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:.0f} MB can be carried"]
    return unmet(wanted(), have.get) + (large if size > MOST_BYTES else [])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.whl"))


def download(folder: Path, pip: Sequence[str]) -> None:
    """Fetch what is missing, then what that requires, and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    have, pins = granted(), dict(_pins())
    while names := sorted(_missing(have | wheels_in(folder))):
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *_platform()]
        subprocess.run([*fetch, *pip, "--dest", str(folder), *(pins.get(name, name) for name in names)], check=True)


def _missing(have: Mapping[str, Package]) -> set[str]:
    absent: set[str] = set()

    def find(name: str) -> Package | None:
        if name not in have:
            absent.add(name)
        return have.get(name)

    unmet(wanted(), find)
    return absent


def _pins() -> Iterator[tuple[str, str]]:
    for line in (ROOT / "constraints/agentscope2.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.startswith("#"):
            yield canonicalize_name(line.partition("==")[0]), line


def _platform() -> list[str]:
    names = [*(f"manylinux_2_{number}_x86_64" for number in GLIBC), "manylinux2014_x86_64", "manylinux1_x86_64"]
    return ["--python-version", "3.12", "--implementation", "cp", *(f"--platform={name}" for name in names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="download nothing")
    parser.add_argument("--pip-args", default="", help="for pip download, as one word")
    options = parser.parse_args()
    if not options.check:
        download(options.folder, shlex.split(options.pip_args))
    if faults := faults_of(options.folder):
        raise SystemExit("\n".join(faults))
    count = len(wheels_in(options.folder))
    print(f"{options.folder}: {count} wheels, {size_of(options.folder) / 1e6:.1f} MB, complete with what is granted")


if __name__ == "__main__":
    main()
