"""A service that runs environments: games, shops, terminals. It knows best how well an agent did.

    client = EnvServiceClient("http://127.0.0.1:8080", timeout=30.0)
    score = await client.evaluate(EnvInstance("http://127.0.0.1:8080", "i-1", "appworld", "task-7"))
    await client.release(...)

Every request is a POST of one envelope, `{env_type, task_id, instance_id, messages, params}`, as AgentJet's services
take it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from astune.errors import RolloutError


@dataclass(frozen=True)
class EnvInstance:
    """One environment of an episode at a service."""

    url: str
    """Of the service."""
    instance_id: str
    env_type: str | None = None
    task_id: str | None = None


class EnvServiceClient:
    """Calls the service of one instance, each call once and for at most `timeout` seconds.

    Raises `RolloutError` where the service cannot be reached, takes longer, or answers with something else.
    """

    def __init__(self, instance: EnvInstance, *, timeout: float) -> None:
        self._instance, self._timeout = instance, timeout

    async def evaluate(self) -> float:
        """The score of the instance as it stands now, finite."""
        place, reply = await self._post("evaluate", {"sparse": False})
        score = reply.get("data")
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise RolloutError(f'{place} answered {_short(reply)}; expected {{"data": score}}')
        return float(score)

    async def release(self) -> None:
        """Gives the instance back; nothing can be asked of it afterwards."""
        await self._post("release", {})

    async def _post(self, action: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The address and what it answered, an object that does not say `success: false`."""
        place = f"{self._instance.url.rstrip('/')}/{action}"
        envelope = {**asdict(self._instance), "messages": {}, "params": params}
        del envelope["url"]
        try:
            async with httpx.AsyncClient(timeout=self._timeout) as client:
                response = await client.post(place, json=envelope)
        except httpx.TimeoutException as error:
            raise RolloutError(f"{place}: no answer within {self._timeout:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RolloutError(f"{place} cannot be reached: {type(error).__name__}: {error}".rstrip(": ")) from error
        if response.is_error:
            raise RolloutError(f"{place} answered {response.status_code}: {response.text!r:.200}")
        try:
            reply = response.json()
        except ValueError as error:
            raise RolloutError(f"{place} answered {response.text!r:.200}, which is not JSON") from error
        if not isinstance(reply, dict) or reply.get("success", True) is not True:
            raise RolloutError(f"{place} answered {_short(reply)}")
        return place, reply


def _short(reply: object) -> str:
    return f"{reply!r:.200}"
