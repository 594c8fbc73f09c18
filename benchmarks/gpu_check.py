"""What only a GPU can show, in one run that may be cut: tests, the demo, memory, speed and where the time goes.

    make gpu-check                              # on a machine with CUDA and PyTorch; MINUTES=20 for more than nine
    python benchmarks/gpu_check.py --tiny       # the same code in small, on any machine

The parts come in order of worth, each a process of its own with a limit of time, so that one that crashes costs itself
alone. After each, gpu_check.json and gpu_check.md are written anew into runs/gpu_check. A part that went well with the
same code on the same GPU is not run again; what did not fit into the time is listed, and comes first the next time. The
exit code is not 0 where a part failed, or was cut.

If there is a folder .gpu-wheels (`make gpu-wheels` makes it, where there is an index), its wheels are unpacked beside
the machine's own packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WHEELS, SITE = ROOT / ".gpu-wheels", ROOT / ".gpu-site"
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu.parts import PARTS, SKIPPED, TINY_SECONDS, Part  # noqa: E402 (it imports no more than this file does)
from gpu.report import markdown  # noqa: E402

FOR_PYTHON = (3, 12)
CODE = ("astune", "benchmarks/gpu", "tests/gpu", "tutorial/math_agent")
LEAST_SECONDS = 15
"""A part is not begun with less."""
GRACE_SECONDS = 5
WHERE = "import torch; c = torch.cuda; print(torch.__version__, c.get_device_name() if c.is_available() else 'no GPU')"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--results", type=Path, default=ROOT / "runs/gpu_check")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts, done or not")
    parser.add_argument("--child", metavar="PART", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from gpu.job import run_part

        run_part(Part(**json.loads(options.child)), options.results, tiny=options.tiny)
        return 0
    deadline = time.monotonic() + 60 * options.minutes
    options.results.mkdir(parents=True, exist_ok=True)
    environment = environment_of(unpack_wheels())
    where = subprocess.run([sys.executable, "-c", WHERE], env=environment, capture_output=True, text=True)
    if where.returncode:
        print(f"{sys.executable} cannot import PyTorch:\n{where.stderr}", file=sys.stderr)
        return 1
    if where.stdout.strip().endswith("no GPU") and not options.tiny:
        print(
            f"{sys.executable} sees no GPU ({where.stdout.strip()}); --tiny runs everything in small", file=sys.stderr
        )
        return 1
    key = f"{where.stdout.strip()} tiny={options.tiny} {digest()}"
    check = Check(PARTS, options.results, key, environment, tiny=options.tiny)
    check.run(options.only, deadline)
    return check.exit_code()


class Check:
    """The results in a folder: PART.json for each part that was begun, and the two files made of all."""

    def __init__(
        self, parts: Sequence[Part], folder: Path, key: str, environment: Mapping[str, str], *, tiny: bool
    ) -> None:
        self._parts, self._folder, self._key, self._environment, self._tiny = parts, folder, key, environment, tiny
        self._found = {part.name: self._read(part) for part in parts}

    def _read(self, part: Part) -> dict[str, Any]:
        file = self._folder / f"{part.name}.json"
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return found if found.get("key") == self._key else {"status": "not run"}

    def run(self, only: Sequence[str] | None, deadline: float) -> None:
        """What was never tried comes before what failed, and what went well not at all."""
        todo = [part for part in self._parts if (part.name in only if only else self.status(part) != "passed")]
        self._write()
        for part in sorted(todo, key=lambda part: self.status(part) != "not run"):
            left = deadline - time.monotonic()
            if left < LEAST_SECONDS:
                print(f"{part.name}: not run, {max(left, 0):.0f} s are left", flush=True)
                continue
            limit = min(TINY_SECONDS if self._tiny else part.seconds, left - GRACE_SECONDS)
            print(f"{part.name}: {part.title} (at most {limit:.0f} s) ...", end=" ", flush=True)
            self._found[part.name] = self._run(part, limit)
            print(f"{self.status(part)} in {self._found[part.name]['seconds']:.0f} s", flush=True)
            self._write()
        print(f"{self._folder / 'gpu_check.md'} and gpu_check.json")

    def _run(self, part: Part, limit: float) -> dict[str, Any]:
        notes, log = self._folder / f"{part.name}.notes.json", self._folder / f"{part.name}.log"
        notes.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--child", part.written(), "--results", str(self._folder)]
        started = time.monotonic()
        with log.open("wb") as output:
            child = subprocess.Popen(
                command + ["--tiny"] * self._tiny,
                cwd=ROOT,
                env=dict(self._environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = {0: "passed", SKIPPED: "skipped"}.get(child.wait(limit), "failed")
            except subprocess.TimeoutExpired:
                status = "cut"
            finally:
                end_group(child)
        found = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else {}
        found |= {"key": self._key, "status": status, "seconds": time.monotonic() - started}
        if status in ("failed", "cut"):
            found["end of its log"] = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        write_whole(self._folder / f"{part.name}.json", json.dumps(found, indent=1))
        return found

    def status(self, part: Part) -> str:
        status: str = self._found[part.name]["status"]
        return status

    def _write(self) -> None:
        everything = {part.name: {"title": part.title} | self._found[part.name] for part in self._parts}
        write_whole(self._folder / "gpu_check.json", json.dumps(everything, indent=1))
        write_whole(self._folder / "gpu_check.md", markdown(everything))

    def exit_code(self) -> int:
        return int(any(self.status(part) in ("failed", "cut") for part in self._parts))


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a part and whatever it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(GRACE_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


def write_whole(file: Path, text: str) -> None:
    """Write a file so that it is never seen half."""
    new = file.with_suffix(file.suffix + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def unpack_wheels() -> list[Path]:
    """The folders that go before the machine's own packages."""
    wheels = sorted(WHEELS.glob("*.whl"))
    if wheels and sys.version_info[:2] != FOR_PYTHON:
        print(f"{WHEELS} is for Python {FOR_PYTHON[0]}.{FOR_PYTHON[1]}: {sys.executable} does with its own packages")
    if not wheels or sys.version_info[:2] != FOR_PYTHON:
        return []
    names, stamp = "\n".join(wheel.name for wheel in wheels), SITE / ".wheels"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != names:
        print(f"unpacking {len(wheels)} wheels", flush=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-compile",
            "--upgrade",
        ]
        if subprocess.run([*pip, "--no-cache-dir", "--target", str(SITE), *map(str, wheels)]).returncode:
            raise SystemExit(f"pip could not unpack {WHEELS}; its words are above")
        stamp.write_text(names, encoding="utf-8")
    return [SITE]


def environment_of(first: Iterable[Path]) -> dict[str, str]:
    paths = [*map(str, first), str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    more = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **more}


def digest() -> str:
    """The code that results belong to, whether it is committed or not."""
    found = hashlib.sha256()
    for file in sorted(file for name in CODE for file in (ROOT / name).rglob("*") if file.is_file()):
        if "__pycache__" not in file.parts:
            found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
