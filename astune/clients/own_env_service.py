"""The environment service that a run starts itself, for as long as it lasts.

    with own_service(config.task_reader.env_service) as service:
        client = EnvServiceClient.of(service)

The service is a child process (`astune.support.http.child_server`) that only this machine can reach, with a token that
only the run has.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from astune.config.tasks import EnvServiceConfig
from astune.errors import ConfigError
from astune.support.http.child_server import pipe, start_child
from astune.support.run_log import ROLE

logger = logging.getLogger(__name__)

KEY = "astune.task_reader.env_service.serve"
START_SECONDS = 120.0
STOP_SECONDS = 10.0
CHILD = "astune.environment.child"
"""The module that the child runs."""
LAST_LINES = 20


@contextlib.contextmanager
def own_service(config: EnvServiceConfig) -> Iterator[EnvServiceConfig]:
    """Start the service that `config` asks for (`serve`) and give `config` with its address; as it is if it asks for
    none.

    If the service ends before the block does, a warning tells its exit code and its last lines.

    Raises:
        ConfigError: it did not come up; with its last lines.
    """
    if config.serve is None:
        yield config
        return
    service = _Service(config)
    try:
        url = service.url()
        yield config.at(url, service.token)
    finally:
        service.stop()


class _Service:
    """The child, seen from its parent."""

    def __init__(self, config: EnvServiceConfig) -> None:
        self._spec = config.serve
        self.token = secrets.token_urlsafe(24)
        """The token that the service asks for, as this machine may have other users."""
        self._serves = self._stopping = False
        self._said: SimpleQueue[str] = SimpleQueue()
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        given = {"spec": config.serve, "options": config.options, "token": self.token}
        self._process = start_child(CHILD, given, stderr=subprocess.PIPE)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._watch)]
        for thread in self._threads:
            thread.start()

    def url(self) -> str:
        try:
            url = self._said.get(timeout=START_SECONDS)
        except Empty:
            raise ConfigError(self._describe(f"does not serve after {START_SECONDS:g} s")) from None
        if not url:
            self._process.wait()
            self._threads[1].join()
            raise ConfigError(self._describe("did not come up"))
        self._serves = True
        return url

    def stop(self) -> None:
        self._stopping = True
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(BrokenPipeError):
            pipe(self._process.stdin).close()

    def _listen(self) -> None:
        with pipe(self._process.stdout) as lines:
            self._said.put(lines.readline().strip())

    def _watch(self) -> None:
        with pipe(self._process.stderr) as lines:
            for line in lines:
                self._last_lines.append(line.rstrip())
                logger.info("%s", line.rstrip(), extra={ROLE: "environment"})
        code = self._process.wait()
        if self._serves and not self._stopping:
            logger.warning("%s", self._describe(f"has ended (exit code {code}); its episodes end as errors"))

    def _describe(self, what: str) -> str:
        lines = "".join(f"\n  {line}" for line in self._last_lines) or " nothing"
        return f"{KEY}: the environment service {self._spec!r} that this run started {what}. It said last:{lines}"
