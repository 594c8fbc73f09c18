"""The processes of online training for the attacks on them: a database, and roles that are started and killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from astune.support.http.serving import bound_socket
from tests.attack.forked import fork

ROLES = ("serve", "train")
WITH_RELEASES = (*ROLES, "release")
QUICK = {"strategy": "staged", "stages": [0.5, 0.9, 1.0], "metric": "thumbs", "effect": 10.0, "gate_tasks": 0}
QUICK |= {"min_users": 3, "min_hours": 0.0, "cool_down_hours": 0.0, "look_seconds": 0.2}
"""Releases that end after a few users."""
START_SECONDS = 240.0


class Roles:
    """`astune online serve`, `train` and, with settings of releases, `release` over one folder, at one address. Further
    processes of a role have names of their own: "release 2". `store` is a database elsewhere, `ahead` what their clock
    is set by."""

    def __init__(
        self,
        folder: Path,
        commit: dict[str, Any],
        release: dict[str, Any] | None = None,
        *,
        store: str | None = None,
        ahead: Any = None,
    ) -> None:
        self.folder = folder
        self.host = "127.0.0.1"
        with bound_socket(self.host, 0) as bound:
            self.port = int(bound.getsockname()[1])
        self.store = store or f"sqlite:///{folder / 'online.db'}"
        self.names = ROLES if release is None else WITH_RELEASES
        self._ahead = ahead
        config = {
            "rollout": {"max_tokens": 8},
            "algorithm": {"advantage": "reinforce_pp"},
            "trainer": {"learning_rate": 1e-4},
            "model": {"device": "cpu"},
            "online": {
                "folder": str(folder),
                "store": self.store,
                "serve": {"host": self.host, "port": self.port, "poll_seconds": 0.2},
                "commit": {"every_seconds": None, "max_versions_behind": 1000, **commit},
                "release": release or {},
            },
        }
        self.conf = folder / "online.yaml"
        self.conf.write_text(json.dumps({"astune": config}))
        self._running: dict[str, BaseProcess] = {}

    @property
    def running(self) -> list[str]:
        return list(self._running)

    def start(self, *names: str) -> None:
        for name in names:
            arguments = ["online", name.partition(" ")[0], "--conf", str(self.conf)]
            self._running[name] = fork(self.folder, arguments, self.log(name), self._ahead)

    def pid(self, name: str) -> int:
        return int(self._running[name].pid or 0)

    def kill(self, role: str) -> None:
        """As a power cut would. A process that has ended by itself is a fault."""
        process = self._running.pop(role)
        if process.exitcode is not None:
            raise RuntimeError(f"{role} had ended with {process.exitcode}: {self.tail(role)}")
        process.kill()
        process.join()

    def stop(self, role: str) -> int | None:
        """With Ctrl-C; its exit code."""
        process = self._running.pop(role)
        assert process.pid is not None
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGINT)
        process.join(60)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode

    def close(self) -> None:
        for role in list(self._running):
            process = self._running.pop(role)
            process.kill()
            process.join()

    def is_up(self) -> bool:
        try:
            with urlopen(f"http://{self.host}:{self.port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait(self, is_so: Callable[[], bool], seconds: float = START_SECONDS) -> bool:
        """Whether it became so in time. Raises RuntimeError if a role ends meanwhile."""
        end = time.monotonic() + seconds
        while not is_so():
            for role, process in self._running.items():
                if process.exitcode is not None:
                    raise RuntimeError(f"{role} ended with {process.exitcode}: {self.tail(role)}")
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def memory(self, role: str) -> float:
        """MiB that the process holds."""
        pages = int(Path(f"/proc/{self._running[role].pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def tail(self, role: str) -> str:
        log = self.log(role)
        return log.read_text(errors="replace")[-600:] if log.exists() else ""

    def tracebacks(self) -> int:
        texts = [self.log(role).read_text(errors="replace") for role in self.names if self.log(role).exists()]
        return sum(text.count("Traceback (most recent call last)") for text in texts)
