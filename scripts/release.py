"""Build, check and tag a release; nothing is uploaded.

    python -m scripts.release            # the version of astune/version.py, from a clean main
    python -m scripts.release --no-tag   # the same, without a tag

The wheel and the sdist lie in dist/ afterwards. The wheel is installed into an empty environment, without the clone,
and must show its version, look at the machine and train the shipped model for a step.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from astune.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def run(*command: object, folder: Path = ROOT) -> str:
    """Standard output of a command; ends the release where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def check_sources(tag: str, changelog: str, status: str, tags: list[str]) -> list[str]:
    """Reasons against a release.

    >>> check_sources("v0.2.0", "## 0.1.0, unreleased", " M README.md", ["v0.1.0"])
    ['files are not committed', "CHANGELOG.md has no heading '## 0.2.0, YYYY-MM-DD'"]
    """
    problems = ["files are not committed"] if status.strip() else []
    if tag in tags:
        problems.append(f"{tag} exists: raise the version in astune/version.py")
    if not re.search(rf"^## {re.escape(tag[1:])}, \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        problems.append(f"CHANGELOG.md has no heading '## {tag[1:]}, YYYY-MM-DD'")
    return problems


def build() -> Path:
    """Make wheel and sdist anew, and give the wheel."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build")
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def check_wheel(wheel: Path, pip_args: list[str]) -> None:
    """Install the wheel as a user would, and let it do a little of everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        constraints = ROOT / "constraints" / "agentscope2.txt"
        extras = f"{wheel}[local,agentscope2]"
        run(python, "-m", "pip", "install", "--quiet", *pip_args, "--constraint", constraints, extras)
        try_commands(folder)


def try_commands(folder: Path) -> None:
    """Use the ASTune of `folder/venv` as a newcomer does."""
    astune = folder / "venv" / "bin" / "astune"
    assert run(astune, "--version", folder=folder).split() == ["astune", __version__]
    run(astune, "doctor", folder=folder)
    run(astune, "init", "my_agent", "--yes", folder=folder)
    few = ("astune.evaluation.before=false", "astune.task_reader.max_validation_tasks=8")
    run(astune, "demo", *few, "astune.trainer.total_steps=1", folder=folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-tag", action="store_true", help="build and check alone")
    parser.add_argument("--pip-args", default="", help="where pip should look")
    given = parser.parse_args(arguments)
    tag = f"v{__version__}"
    if not given.no_tag:
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        status, tags = run("git", "status", "--porcelain"), run("git", "tag").split()
        if problems := check_sources(tag, changelog, status, tags):
            raise SystemExit("\n".join(problems))
    wheel = build()
    print(f"built {wheel.relative_to(ROOT)} and the sdist")
    check_wheel(wheel, given.pip_args.split())
    print("the wheel installs and trains")
    if not given.no_tag:
        run("git", "tag", "--annotate", tag, "--message", f"ASTune {__version__}")
        print(f"tagged {tag}; to publish: git push origin {tag}, and upload dist/")


if __name__ == "__main__":
    main()
