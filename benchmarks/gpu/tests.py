"""The tests marked `gpu`, and the figures that they publish."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from gpu.job import CheckFailed, Job

ROOT = Path(__file__).parents[2]


def run(job: Job) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        # A warning that this machine's torch has and others have not fails no test here.
        options = ["-q", "-W", "default", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={file}"]
        chosen = ["-k", "greedy"] if job.tiny else []
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", *options, *chosen]
        # Nor does a plug-in of pytest's that the machine happens to have.
        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_asyncio.plugin"}
        code = subprocess.run(command, cwd=ROOT, env=alone).returncode
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            failed = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            said = {each.get("name"): each.get("value") for each in case.iter("property")}
            row = {"test": case.get("name"), "result": failed[0] if failed else "passed"}
            row |= {"seconds": float(case.get("time") or 0)}
            job.row("", row | {"said": ", ".join(f"{name} {value}" for name, value in said.items())})
    if code:
        raise CheckFailed(f"pytest ended with {code}")
