"""The live instances of a service: who may act on one and when it is closed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from astune.environment.environment_base import Action, Environment, Instance, Message, NoPlace, Observation
from astune.environment.metrics import Metrics
from astune.environment.protocol import CallError, ServiceReply, failure, read_action, success
from astune.environment.protocol import CreateRequest as Create
from astune.environment.protocol import StepRequest as Step
from astune.environment.threads import Workers
from astune.errors import ConfigError, TaskError, nearest

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SECONDS = 5.0
"""How long a service that ends waits for environments that are busy."""


@dataclass(eq=False)
class _Entry:
    """An instance and what is known of it. `lock` is held while its environment works, so calls go one by one."""

    env_type: str
    task_id: str
    instance_id: str
    born: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    instance: Instance | None = None
    """None before it is made and after it was closed."""
    tools: Sequence[Mapping[str, Any]] = ()
    created: ServiceReply | None = None
    failure: CallError | None = None
    """Why it could not be made."""
    gone: bool = False
    """Released, expired or never made: no further call reaches it."""
    steps: int = 0
    done: bool = False
    last_key: str | None = None
    last_reply: ServiceReply | None = None


class Instances:
    """Everything here runs on one event loop; environments work in `workers` threads.

    An instance is closed once, after what is under way with it, when it is released, was not used for `ttl` seconds, or
    the service ends.
    """

    def __init__(
        self, environments: Sequence[Environment], metrics: Metrics, *, max_instances: int, ttl: float, workers: int
    ) -> None:
        self.environments = {environment.env_type: environment for environment in environments}
        if len(self.environments) < len(environments):
            raise ConfigError(f"two environments have the same env_type: {sorted(self.environments)}")
        self.max_instances = max_instances
        self._metrics = metrics
        self._ttl = ttl
        self._workers = Workers(workers)
        self._entries: dict[str, _Entry] = {}
        self._closings: set[asyncio.Task[None]] = set()

    async def task_ids(self, env_type: str | None, split: str) -> ServiceReply:
        environment = self._environment(env_type)

        def work() -> ServiceReply:
            ids = list(environment.task_ids(split))
            if wrong := [one for one in ids if not isinstance(one, str)]:
                raise TypeError(f"a task id must be a text, found {wrong[0]!r}")
            return success(ids)

        return await self._run(work, "unknown_split")

    async def create(self, request: Create) -> ServiceReply:
        env_type = self._environment(request.env_type).env_type
        entry = self._entries.get(request.instance_id)
        if entry is None:
            entry = self._reserve(env_type, request)
        elif (entry.env_type, entry.task_id) != (env_type, request.task_id):
            other = f"{entry.env_type!r}, task {entry.task_id!r}"
            raise CallError("instance_exists", f"instance {request.instance_id!r} is one of {other}")
        async with entry.lock:
            if entry.failure is not None:
                raise entry.failure
            if entry.gone:
                raise _unknown(entry.instance_id)
            if entry.created is None:
                await self._make(entry, request.params or {})
            entry.used = time.monotonic()
            assert entry.created is not None
            return entry.created

    def _reserve(self, env_type: str, request: Create) -> _Entry:
        if len(self._entries) + len(self._closings) >= self.max_instances:
            self._metrics.refused += 1
            raise CallError("full", f"{self.max_instances} instances are alive, which is the limit")
        entry = _Entry(env_type, request.task_id, request.instance_id)
        self._entries[request.instance_id] = entry
        return entry

    async def _make(self, entry: _Entry, params: Mapping[str, Any]) -> None:
        try:
            await self._run(partial(_open, self.environments[entry.env_type], entry, params), "unknown_task")
        except CallError as error:
            entry.failure, entry.gone = error, True
            if self._entries.get(entry.instance_id) is entry:
                del self._entries[entry.instance_id]
            raise
        finally:
            self._metrics.created += entry.instance is not None

    async def step(self, request: Step, key: str | None) -> ServiceReply:
        entry = self._entry(request.instance_id)
        action = read_action(request.messages)
        async with entry.lock:
            if key is not None and key == entry.last_key and entry.last_reply is not None:
                return entry.last_reply
            instance = _alive(entry)
            if entry.done:
                raise CallError("terminated", f"instance {entry.instance_id!r} ended at step {entry.steps}")
            try:
                reply, entry.done = await self._run(partial(_step, instance, action), "environment_failed")
            except CallError as error:
                reply = failure(error)
                self._metrics.errors[error.code] += 1
            entry.steps += 1
            entry.last_key, entry.last_reply = key, reply
            entry.used = time.monotonic()
            return reply

    async def evaluate(self, instance_id: str) -> ServiceReply:
        entry = self._entry(instance_id)
        async with entry.lock:
            instance = _alive(entry)
            reply = await self._run(lambda: success(_finite(instance.evaluate(), "score")), "environment_failed")
            entry.used = time.monotonic()
            return reply

    def info(self, instance_id: str) -> ServiceReply:
        entry = self._entry(instance_id)
        return success(
            {
                "env_type": entry.env_type,
                "task_id": entry.task_id,
                "instance_id": entry.instance_id,
                "tools": list(entry.tools),
                "steps": entry.steps,
                "is_terminated": entry.done,
                "age": round(time.monotonic() - entry.born, 3),
            }
        )

    def environment_info(self, env_type: str | None) -> ServiceReply:
        return success({"env_type": self._environment(env_type).env_type})

    async def release(self, instance_id: str) -> ServiceReply:
        """Waits until the instance is closed, but not for what is under way with it."""
        entry = self._entries.get(instance_id)
        if entry is None:
            return success(False)
        busy = entry.lock.locked()
        closing = self._let_go(entry, expired=False)
        if not busy:
            await asyncio.shield(closing)
        return success(True)

    def expire(self) -> None:
        """Closes what was not used for too long."""
        oldest = time.monotonic() - self._ttl
        for entry in [entry for entry in self._entries.values() if entry.used < oldest and not entry.lock.locked()]:
            logger.info("instance %r was not used for %g s and is closed", entry.instance_id, self._ttl)
            self._let_go(entry, expired=True)

    async def close(self) -> None:
        """Closes all instances and then the environments. Who is busy for longer than STOP_SECONDS is given up."""
        for entry in list(self._entries.values()):
            self._let_go(entry, expired=False)
        if self._closings:
            _, busy = await asyncio.wait(self._closings, timeout=STOP_SECONDS)
            if busy:
                logger.warning("%d instances were still busy %g s later and were not closed", len(busy), STOP_SECONDS)
        closings = [asyncio.ensure_future(self._workers.run(each.close)) for each in self.environments.values()]
        await asyncio.wait(closings, timeout=STOP_SECONDS)
        self._workers.stop()
        for env_type, error in zip(
            self.environments, await asyncio.gather(*closings, return_exceptions=True), strict=True
        ):
            if error is not None:
                logger.error("closing environment %r failed", env_type, exc_info=error)

    def _let_go(self, entry: _Entry, *, expired: bool) -> asyncio.Task[None]:
        del self._entries[entry.instance_id]
        entry.gone = True
        closing = asyncio.get_running_loop().create_task(self._close(entry, expired))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        return closing

    async def _close(self, entry: _Entry, expired: bool) -> None:
        async with entry.lock:
            if entry.instance is None:
                return
            instance, entry.instance = entry.instance, None
            try:
                await self._workers.run(instance.close)
            except Exception:
                self._metrics.failed += 1
                logger.exception("closing instance %r failed", entry.instance_id)
            if expired:
                self._metrics.expired += 1
            else:
                self._metrics.released += 1

    def _environment(self, env_type: str | None) -> Environment:
        if env_type is None and len(self.environments) == 1:
            return next(iter(self.environments.values()))
        if env_type is None:
            raise CallError("bad_request", f"env_type: one of {', '.join(self.environments)}")
        if env_type not in self.environments:
            hint = nearest(env_type, self.environments)
            raise CallError(
                "unknown_env_type", f"no environment {env_type!r} here.{hint} There are: {', '.join(self.environments)}"
            )
        return self.environments[env_type]

    def _entry(self, instance_id: str) -> _Entry:
        if (entry := self._entries.get(instance_id)) is None:
            raise _unknown(instance_id)
        entry.used = time.monotonic()
        return entry

    async def _run(self, work: Callable[[], T], code: str) -> T:
        """Return what `work` returns; a `TaskError` that it raises becomes `code`, and what is no fault of the
        configuration or of room, environment_failed."""
        try:
            return await self._workers.run(work)
        except TaskError as error:
            raise CallError(code, str(error)) from None
        except ConfigError as error:
            raise CallError("bad_request", str(error)) from None
        except NoPlace as error:
            self._metrics.refused += 1
            raise CallError("full", str(error)) from None
        except Exception as error:
            self._metrics.failed += 1
            logger.exception("an environment raised")
            raise CallError("environment_failed", f"{type(error).__name__}: {error}") from None


def _open(environment: Environment, entry: _Entry, params: Mapping[str, Any]) -> None:
    """Makes the instance, or nothing."""
    instance = environment.create(entry.task_id, params)
    try:
        entry.tools = tuple(instance.tools)
        info = {"instance_id": entry.instance_id, "tools": entry.tools}
        state = list(instance.first_messages())
        entry.created = success({"state": state, "reward": 0.0, "is_terminated": False, "info": info})
    except BaseException:
        instance.close()
        raise
    entry.instance = instance


def _step(instance: Instance, action: Action | tuple[Message, ...]) -> tuple[ServiceReply, bool]:
    observation = instance.step(action) if isinstance(action, Action) else Observation(action)
    data = {
        "state": list(observation.messages),
        "reward": _finite(observation.reward, "reward"),
        "is_terminated": bool(observation.done),
        "info": dict(observation.info),
    }
    return success(data), bool(observation.done)


def _finite(value: float, name: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a {name} must be finite, found {number}")
    return number


def _alive(entry: _Entry) -> Instance:
    if entry.gone or entry.instance is None:
        raise _unknown(entry.instance_id)
    return entry.instance


def _unknown(instance_id: str) -> CallError:
    return CallError(
        "unknown_instance", f"no instance {instance_id!r}: there never was, it was released, or was not used for long"
    )
