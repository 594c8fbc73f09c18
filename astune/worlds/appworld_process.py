"""The other end of `appworld_worker.py`: starts it, asks it one thing at a time, and ends it whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astune.support.http.child_server import pipe, stop_child

WORKER = Path(__file__).with_name("appworld_worker.py")
SECONDS_TO_END = 10.0
"""For a process whose input was closed, before it is killed."""


class AppWorldError(Exception):
    """The words of a process that answered no data, or the way in which it died."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AppWorldProcess:
    """A worker process. Not for two threads at once."""

    def __init__(self, python: str, root: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        environment |= {"APPWORLD_ROOT": str(root), "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "ignore"}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        self._late = False
        self._process = subprocess.Popen(
            [python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=root,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the service, which ends its instances itself
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, Any], limit: float) -> Any:
        """The data of the answer. Raises `AppWorldError`; one that takes longer than `limit` seconds is killed."""
        given, answers = pipe(self._process.stdin), pipe(self._process.stdout)
        timer = threading.Timer(limit, self._give_up)
        timer.start()
        try:
            given.write(json.dumps(request) + "\n")
            given.flush()
            line = answers.readline()
        except (BrokenPipeError, ValueError):  # ValueError: stopped before
            line = ""
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            raise self._death(f"{request['call']} took longer than {limit:g} s" if self._late else "it ended")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._death(f"it answered {line!r:.200}") from None
        if "error" in answer:
            raise AppWorldError(answer["error"]["code"], answer["error"]["message"])
        return answer["data"]

    def stop(self) -> None:
        """Ends it, at first by closing its input. Doing so again does nothing."""
        if not self._said.closed:
            stop_child(self._process, SECONDS_TO_END)
            self._said.close()

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def _death(self, how: str) -> AppWorldError:
        self._process.kill()
        status = self._process.wait()
        if self._said.closed:
            return AppWorldError("dead", "the process was stopped before")
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip()[-800:]
        return AppWorldError("dead", f"{how} (exit status {status}). Its last words: {last or 'none'}")
