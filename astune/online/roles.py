"""Roles as child processes: one that dies is started again, an end by Ctrl-C ends all in order, and they end
with their parent, however that ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from astune.support.chinese import localize
from astune.support.run_log import file_logger
from astune.support.visible import tell

log = file_logger(__name__)

BAD_INPUT = 2
"""The exit code of a command that was called wrongly: to start it again would not help."""
CHILD = "astune.cli.child"
"""The `astune` command as a child whose open input says that its parent is there."""
LOOK_SECONDS = 0.2
MOST_WAIT = 30.0
WELL_SECONDS = 60.0
"""A role that has run for so long begins with the shortest wait again."""
END_SECONDS = 30.0


@dataclass(eq=False)
class Role:
    """A child. `arguments` are those of the `astune` command."""

    arguments: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    wait: float = 0.5
    again: float = 0.0

    @property
    def name(self) -> str:
        return self.arguments[1]

    def start(self) -> None:
        # A session of its own: Ctrl-C reaches the parent alone, which ends the roles in their order.
        command = [sys.executable, "-m", CHILD, *self.arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.began = time.monotonic()

    def look(self) -> int | None:
        """Start it again if it has ended and waited. The exit code of one that is not to be started again."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.again:
                self.start()
            return None
        code = self.process.poll()
        if code is None:
            return None
        self._forget(self.process)
        if code == BAD_INPUT:
            return code
        if now - self.began > WELL_SECONDS:
            self.wait = 0.5
        self.again, wait = now + self.wait, self.wait
        self.wait = min(2 * self.wait, MOST_WAIT)
        said = f"{self.name} ended with exit code {code}; it is started again in {wait:g} s"
        log.warning("%s", said)
        tell(localize(said), flush=True)
        return None

    def end(self) -> None:
        """SIGTERM, and after `END_SECONDS` SIGKILL: neither loses anything that was answered."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._forget(self.process)

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        self.process = None


def run_roles(commands: Sequence[Sequence[str]]) -> int:
    """Run until Ctrl-C or SIGTERM, or until one of them was called wrongly. They end in the reverse order."""
    roles = [Role(command) for command in commands]
    try:
        while True:
            for role in roles:
                code = role.look()
                if code is not None:
                    return code
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        tell(localize("stopping"), flush=True)
        return 0
    finally:
        for role in reversed(roles):
            role.end()
