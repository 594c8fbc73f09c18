"""A service that runs environments: games, shops, terminals.

    client = EnvServiceClient("http://127.0.0.1:8080")
    task_id = client.task_ids("train")[0]

    state = await client.create(None, task_id, "episode-1")      # state.messages, state.info["tools"]
    instance = EnvInstance(client.url, "episode-1")
    state = await client.step(instance, {"role": "assistant", "content": "left"}, number=0)
    score = await client.evaluate(instance)
    await client.release(instance)

Every request is a POST of one envelope, `{env_type, task_id, instance_id, messages, params}`, as AgentJet's services
take it; see docs/environment_service.md.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote

from astune.clients import env_replies
from astune.clients.env_replies import EnvState
from astune.clients.env_requests import Fault, exchange
from astune.config.tasks import EnvServiceConfig
from astune.errors import ConfigError, EnvServiceError
from astune.support.concurrency import outside_loop

__all__ = ["EnvInstance", "EnvServiceClient", "EnvState"]

PROTOCOL_HEADER = "Astune-Env-Protocol"
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
KEY = "astune.task_reader.env_service"

T = TypeVar("T")


@dataclass(frozen=True)
class EnvInstance:
    """One environment of an episode, at the service that runs it."""

    url: str
    """The address of the service."""
    instance_id: str
    env_type: str | None = None
    task_id: str | None = None


class EnvServiceClient:
    """Calls one service. All failures are `EnvServiceError`.

    An attempt takes at most `timeout` seconds. One that failed for a reason that may pass is repeated up to `retries`
    times where a repeat cannot act twice: every call but `step`, and `step` at services that keep the reply to its
    `Idempotency-Key` (they say so with the header Astune-Env-Protocol). May be used on one event loop after another.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        create_timeout: float = 300.0,
        retries: int = 3,
        token: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._create_timeout = create_timeout
        self._retries = retries
        self._token = token
        self._keeps_replies = False

    @classmethod
    def of(cls, config: EnvServiceConfig) -> EnvServiceClient:
        """Raises ConfigError if no service is named, or if the variable of its token does not hold one."""
        if config.env_url is None:
            raise ConfigError(f"{KEY}.env_url: not set, expected the address of the service, as http://127.0.0.1:8080")
        token = config.own_token if config.token_variable is None else os.environ.get(config.token_variable, "")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            said = "holds what cannot be sent in a header" if token.strip() else "is not set"
            raise ConfigError(f"{KEY}.token_variable: the environment variable {config.token_variable} {said}")
        return cls(
            config.env_url,
            timeout=config.timeout,
            create_timeout=config.create_timeout,
            retries=config.retries,
            token=token,
        )

    def task_ids(self, split: str, env_type: str | None = None, params: Mapping[str, Any] = {}) -> list[str]:
        """The tasks of a split, in the service's order. Blocks."""
        envelope = {"env_type": env_type, "params": {**params, "split": split}}
        return _blocking(lambda: self._call("get_env_profile", envelope, env_replies.task_ids))

    def env_types(self) -> list[str]:
        """The types of environment that there are. Blocks."""
        return _blocking(lambda: self._call("health", None, env_replies.env_types))

    async def create(
        self,
        env_type: str | None,
        task_id: str,
        instance_id: str,
        params: Mapping[str, Any] = {},
    ) -> EnvState:
        """A new instance by a name that the caller has chosen; `info["tools"]` are its tools.

        Waits for up to `create_timeout` seconds while the service is full. Also if it raises or is cancelled there may
        be an instance: release it.
        """
        envelope = {"env_type": env_type, "task_id": task_id, "instance_id": instance_id, "params": dict(params)}
        return await self._call("create", envelope, env_replies.state, patience=self._create_timeout)

    async def step(self, instance: EnvInstance, message: Mapping[str, Any], *, number: int) -> EnvState:
        """Send the assistant's `message`; returns the environment's answer. `number` counts the instance's steps: 0, 1,
        ..."""
        envelope = {**_name(instance), "messages": dict(message)}
        key = f"{quote(instance.instance_id, safe='/')}/{number}"
        return await self._call("step", envelope, env_replies.state, key=key)

    async def evaluate(self, instance: EnvInstance) -> float:
        """The score of the instance as it stands now, finite."""
        return await self._call("evaluate", {**_name(instance), "params": {"sparse": False}}, env_replies.score)

    async def info(self, instance: EnvInstance) -> Mapping[str, Any]:
        return await self._call("get_info", _name(instance), env_replies.description)

    async def release(self, instance: EnvInstance) -> None:
        """Gives the instance back; nothing can be asked of it afterwards."""
        await self._call("release", _name(instance), lambda reply: None)

    async def _call(
        self,
        call: str,
        envelope: Mapping[str, Any] | None,
        read: Callable[[Mapping[str, Any]], T],
        *,
        key: str | None = None,
        patience: float | None = None,
    ) -> T:
        """Repeat the call until it succeeds or must not be repeated. `patience`: seconds in which a service may be
        full."""
        content = _encode(envelope)
        clock = asyncio.get_running_loop().time
        deadline = clock() + (patience or 0.0)
        random = Random(f"{(envelope or {}).get('instance_id')}")
        attempts = failures = 0
        while True:
            attempts += 1
            try:
                return await self._attempt(call, content, read, key)
            except Fault as fault:
                waits = patience is not None and fault.status == 503
                failures += not waits
                repeatable = fault.passing and (key is None or self._keeps_replies)
                if clock() >= deadline if waits else not (repeatable and failures <= self._retries):
                    raise self._error(fault, call, envelope or {}, attempts, patience if waits else None) from fault
                pause = _pause(attempts, fault.retry_after, random)
                most = deadline - clock() if waits else LONGEST_PAUSE
            await asyncio.sleep(min(pause, most))

    async def _attempt(
        self, call: str, content: bytes | None, read: Callable[[Mapping[str, Any]], T], key: str | None
    ) -> T:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        method = "GET" if content is None else "POST"
        reply = await exchange(method, f"{self.url}/{call}", content or b"", headers, self._timeout)
        self._keeps_replies = self._keeps_replies or PROTOCOL_HEADER in reply.headers
        content_of_reply = reply.content()
        try:
            return read(content_of_reply)
        except ValueError as error:
            raise Fault(f"answered {content_of_reply!r:.300}: {error}", passing=False) from error

    def _error(
        self, fault: Fault, call: str, envelope: Mapping[str, Any], attempts: int, waited: float | None
    ) -> EnvServiceError:
        said = str(fault)
        if fault.code == "unknown_instance":
            said = (
                f"the service does not know instance {envelope.get('instance_id')!r} any more: was it restarted, or "
                "idle for longer than its --ttl?"
            )
        elif fault.status == 401:
            refused = "it asks for a token" if self._token is None else "it does not accept the token that was sent"
            said = f"{refused}: {KEY}.token_variable names the environment variable that holds it ({said})"
        elif waited is not None:
            said = f"no instance within {waited:g} s ({KEY}.create_timeout): {said}"
        elif call == "step" and fault.passing and not self._keeps_replies:
            said += f"; not repeated, as the service does not say ({PROTOCOL_HEADER}) that a repeated step acts once"
        return EnvServiceError(f"{self.url}: {call}: {said} ({attempts} attempt{'s' if attempts > 1 else ''})")


def _name(instance: EnvInstance) -> dict[str, Any]:
    return {"env_type": instance.env_type, "task_id": instance.task_id, "instance_id": instance.instance_id}


def _encode(envelope: Mapping[str, Any] | None) -> bytes | None:
    """Write the envelope as JSON, without fields that are None: older services refuse a null."""
    if envelope is None:
        return None
    try:
        return json.dumps(
            {key: value for key, value in envelope.items() if value is not None}, allow_nan=False
        ).encode()
    except (TypeError, ValueError) as error:
        raise EnvServiceError(
            f"this cannot be sent to an environment service as JSON ({error}): {envelope!r:.300}"
        ) from error


def _pause(attempts: int, asked: float | None, random: Random) -> float:
    """Seconds to the next attempt: what the service asks for or a little more, else twice as long after each."""
    if asked is not None:
        return max(asked, FIRST_PAUSE) * random.uniform(1.0, 1.25)
    return min(FIRST_PAUSE * 2.0 ** min(attempts - 1, 10), LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def _blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait for `work` and return its result, for a caller that cannot await."""
    with outside_loop():
        return asyncio.run(work())
