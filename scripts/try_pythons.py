"""Install the wheel and the sdist with every Python that ASTune claims, and train for a step there.

    python -m scripts.try_pythons --uv-args="--find-links wheels"     (`make test-pythons`)

uv finds the interpreters, and fetches those that this machine lacks where it can. For each Python, there or not, it is
checked that the requirements of all extras of users can be had, of the newest and of the lowest versions.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path

import tomllib

from scripts.release import ROOT, build, run, try_commands

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OF_DEVELOPERS = {"dev", "site", "notebook", "agent-service"}
APART = (("agentscope1",), ("trinity",), ("verl",))
"""Extras that no environment has beside the others."""


def try_python(version: str, package: Path, agents: str, uv_args: list[str]) -> bool:
    """Install a package into an empty environment, and use it; False where there is no such Python."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            run("uv", "venv", "--quiet", "--python", version, folder / "venv")
        except SystemExit:
            return False
        python = folder / "venv" / "bin" / "python"
        run("uv", "pip", "install", "--quiet", *uv_args, "--python", python, f"{package}[local,{agents}]")
        try_commands(folder)
        return True


def resolve(version: str, uv_args: list[str]) -> list[str]:
    """Extras whose requirements cannot be had together on a Python, of the newest or the lowest versions that they
    name, with what uv says of them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    apart = {extra for group in APART for extra in group}
    problems = []
    groups = (sorted({*extras} - apart - OF_DEVELOPERS), *APART)
    for group, resolution in product(groups, ("highest", "lowest-direct")):
        wanted = [word for extra in group for word in ("--extra", extra)]
        asked = ("--python-version", version, "--resolution", resolution, *uv_args, *wanted)
        try:
            run("uv", "pip", "compile", "--quiet", *asked, "pyproject.toml")
        except SystemExit as error:
            problems.append(f"{', '.join(group)} ({resolution}): {error}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv-args", default="", help="where uv should look")
    uv_args = parser.parse_args().uv_args.split()
    wheel = build()
    (sdist,) = wheel.parent.glob("*.tar.gz")
    failed = []
    for version in PYTHONS:
        agents = "agentscope1" if version == "3.10" else "agentscope2"
        there = all(try_python(version, package, agents, uv_args) for package in (wheel, sdist))
        problems = resolve(version, uv_args)
        failed += [f"{version}: {problem}" for problem in problems]
        print(
            f"{version}: {'wheel and sdist install and train' if there else 'not on this machine'}; "
            f"{'some requirements cannot be had' if problems else 'all requirements can be had'}",
            flush=True,
        )
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
