"""A service that runs environments: games, shops, terminals. It knows best how well an agent did.

    instance = EnvInstance("http://127.0.0.1:8080", "i-1", env_type="appworld", task_id="task-7")
    client = EnvServiceClient(timeout=30.0)
    score = await client.evaluate(instance)
    await client.release(instance)

Every request is a POST of one envelope, `{env_type, task_id, instance_id, messages, params}`, as AgentJet's services
take it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from astune.errors import RolloutError


@dataclass(frozen=True)
class EnvInstance:
    """One environment of an episode, at the service that runs it."""

    url: str
    """Of the service."""
    instance_id: str
    env_type: str | None = None
    task_id: str | None = None


class EnvServiceClient:
    """Calls services, each call once and for at most `timeout` seconds.

    Raises `RolloutError` where the service cannot be reached, takes longer, or answers with something else.
    """

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout

    async def evaluate(self, instance: EnvInstance) -> float:
        """The score of the instance as it stands now, finite."""
        reply = await self._post(instance, "evaluate", {"sparse": False})
        score = reply.get("data")
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise RolloutError(f'{instance.url}: evaluate answered {_short(reply)}; expected {{"data": score}}')
        return float(score)

    async def release(self, instance: EnvInstance) -> None:
        """Gives the instance back; nothing can be asked of it afterwards."""
        await self._post(instance, "release", {})

    async def _post(self, instance: EnvInstance, action: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """What the service answered: an object that does not say `success: false`."""
        place = f"{instance.url}: {action}"
        envelope = {
            "env_type": instance.env_type,
            "task_id": instance.task_id,
            "instance_id": instance.instance_id,
            "messages": {},
            "params": params,
        }
        try:
            async with httpx.AsyncClient(timeout=None) as client:
                post = client.post(f"{instance.url.rstrip('/')}/{action}", json=envelope)
                response = await asyncio.wait_for(post, self._timeout)
        except asyncio.TimeoutError as error:
            raise RolloutError(f"{place}: no answer within {self._timeout:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            raise RolloutError(f"{place}: the service cannot be reached ({said})") from error
        if response.is_error:
            raise RolloutError(f"{place} answered with status {response.status_code}: {_short(response.text)}")
        try:
            reply = response.json()
        except ValueError as error:
            raise RolloutError(f"{place} answered {_short(response.text)}, which is not JSON") from error
        if not isinstance(reply, dict) or reply.get("success", True) is not True:
            raise RolloutError(f"{place} answered {_short(reply)}")
        return reply


def _short(reply: object) -> str:
    return f"{reply!r:.200}"
