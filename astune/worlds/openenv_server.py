"""An OpenEnv server: what it says of itself over HTTP, and sessions with it, for threads that wait.

server = OpenEnvServer("http://127.0.0.1:8000", seconds=60)
server.splits                                         # ("train", "test"); () of a server without a task API
link = server.open_session()
first = link.ask("reset", {"split": "train", "index": 3})     # {"observation": {...}, "reward": None, "done": False}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from anyio.from_thread import start_blocking_portal

from astune.clients.env_replies import parse
from astune.clients.env_requests import Fault, exchange
from astune.environment.environment_base import NoPlace
from astune.errors import ConfigError, EnvServiceError, MissingDependency

if TYPE_CHECKING:
    from astune.worlds.openenv_session import Session

HTTP_SECONDS = 30.0
NO_TASKS = (404, 501)
"""The task API is not there, or not for this environment."""
NO_PLACE = (
    "the OpenEnv server has no place for another session; its max_concurrent_envs, 1 unless it is started with more, "
    "says how many there are"
)


class ErrorAnswer(EnvServiceError):
    """An error that the server answered. `code` is its name for it, `errors` what is wrong with an action."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.code = str(data.get("code"))
        found = data.get("errors")
        self.errors = [error for error in found if isinstance(error, dict)] if isinstance(found, list) else []
        super().__init__(f"the OpenEnv server answers {self.code}: {data.get('message')}")


class OpenEnvServer:
    """Raises `ConfigError` where the server cannot be reached or answers what OpenEnv does not, and
    `MissingDependency`."""

    def __init__(self, url: str, *, seconds: float, token_variable: str | None = None) -> None:
        self._url, self._seconds = url.rstrip("/"), seconds
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"environment 'openenv:{url}': write it as 'openenv:http://127.0.0.1:8000'")
        self._headers: dict[str, str] = {}
        if token_variable is not None:
            if not (token := os.environ.get(token_variable)):
                raise ConfigError(f"openenv:{url}: token_variable: the variable {token_variable} is not set")
            self._headers["Authorization"] = f"Bearer {token}"
        self._sessions = _session_module()
        self._running = start_blocking_portal()
        self._portal = self._running.__enter__()
        try:
            self.schema: Mapping[str, Any] = self._ask("GET", "/schema", expected=dict)
            names = self._ask("GET", "/list_environments", expected=list, missing=[])
            self._tasks = f"/{quote(str(names[0]), safe='')}" if names else ""
            described = self._ask("GET", f"{self._tasks}/splits", expected=list, missing=[]) if names else []
            self.splits = tuple(str(split["name"]) for split in described)
        except BaseException:
            self.close()
            raise

    def count_tasks(self, split: str) -> int:
        return int(self._ask("POST", f"{self._tasks}/num_tasks", {"split": split}, expected=dict)["num_tasks"])

    def read_task(self, split: str, index: int) -> Mapping[str, Any]:
        """Read the server's own description of a task."""
        answer = self._ask("POST", f"{self._tasks}/task", {"split": split, "index": index}, expected=dict)
        return answer["task"] if isinstance(answer.get("task"), dict) else {}

    def open_session(self) -> Link:
        """Raises `EnvServiceError` if the server cannot be reached, or refuses."""
        return Link(self, self._portal.call(self._open))

    def close(self) -> None:
        self._running.__exit__(None, None, None)

    def ask_session(self, session: Session, message: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `NoPlace` where the session was ended without a word."""
        try:
            return self._portal.call(lambda: session.ask(message, seconds=self._seconds))
        except self._sessions.SessionEnded as ended:
            if ended.silent:
                raise NoPlace(NO_PLACE) from ended
            raise

    def close_session(self, session: Session) -> None:
        self._portal.call(session.close)

    async def _open(self) -> Session:
        opened: Session = await self._sessions.Session.open(f"{self._url}/ws", self._headers, seconds=HTTP_SECONDS)
        return opened

    def _ask(self, method: str, path: str, body: Any = None, *, expected: type, missing: Any = None) -> Any:
        """The JSON that a call answers; `missing`, if given, where the server does not have the call."""
        content = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            answer = self._portal.call(exchange, method, f"{self._url}{path}", content, headers, HTTP_SECONDS)
        except Fault as fault:
            raise ConfigError(f"no OpenEnv server answers at {self._url}: {fault}") from fault
        if missing is not None and answer.status in NO_TASKS:
            return missing
        try:
            read = parse(answer.body)
        except ValueError:
            read = None
        if answer.status != 200 or not isinstance(read, expected):
            said = f"{answer.status} {answer.body[:200].decode(errors='replace')}"
            raise ConfigError(f"{self._url}{path} is not as OpenEnv has it: the server answers {said}")
        return read


class Link:
    """A session, for one thread at a time."""

    def __init__(self, server: OpenEnvServer, session: Session) -> None:
        self._server, self._session = server, session

    def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the answer to `reset`, `step` or `mcp`.

        Raises:
            NoPlace: the server had no place for the session.
            ErrorAnswer: it answered with an error.
            EnvServiceError: it did not answer, or what OpenEnv does not.
        """
        answer = self._server.ask_session(self._session, {"type": kind, "data": dict(data)})
        content, expected = answer.get("data"), "mcp" if kind == "mcp" else "observation"
        if answer.get("type") == "error" and isinstance(content, dict):
            if content.get("code") == "CAPACITY_REACHED":
                raise NoPlace(f"{NO_PLACE} ({content.get('max_sessions')})")
            raise ErrorAnswer(content)
        if answer.get("type") != expected or not isinstance(content, dict):
            raise EnvServiceError(f"expected an answer of type {expected!r} from the OpenEnv server: {answer!r:.300}")
        return content

    def play(self, kind: str, data: Mapping[str, Any]) -> tuple[dict[str, Any], float | None, bool]:
        """The observation, the reward if there is one, and whether the episode is over; raises as `ask` does."""
        content = self.ask(kind, data)
        observation, reward, done = content.get("observation"), content.get("reward"), content.get("done", False)
        finite = reward is None or (isinstance(reward, int | float) and math.isfinite(reward))
        if not (isinstance(observation, dict) and finite and isinstance(done, bool)):
            raise EnvServiceError(f"expected an observation, a finite reward and done: {content!r:.300}")
        return observation, None if reward is None else float(reward), done

    def close(self) -> None:
        self._server.close_session(self._session)


def _session_module() -> ModuleType:
    try:
        import astune.worlds.openenv_session
    except ImportError as error:
        raise MissingDependency(
            'environments of OpenEnv need the package wsproto: pip install "astune[environments]"'
        ) from error
    return astune.worlds.openenv_session
