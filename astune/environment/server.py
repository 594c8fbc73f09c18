"""The environment service over HTTP: see `docs/environment_service.md`.

with EnvServer([Guess()]) as server:
    httpx.post(f"{server.url}/create", json={"env_type": "guess", "task_id": "3", "instance_id": "mine"})
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from astune.environment import protocol
from astune.environment.environment_base import Environment
from astune.environment.instances import Instances
from astune.environment.metrics import Metrics
from astune.environment.protocol import CallError, ServiceReply, failure, parse
from astune.support.http.browser_requests import Guarded
from astune.support.http.service import BodyTooLarge, HttpError, answer_route, find_owner, read_body
from astune.support.http.serving import (
    BACKLOG,
    ServerThread,
    claim_address,
    serve_until_signal,
    server_config,
    url_of,
)

logger = logging.getLogger(__name__)

MAX_INSTANCES = 512
TTL = 1800.0
WORKERS = 32
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request."""
RETRY_AFTER = 1
"""Seconds until a client asks again where there is no room."""
PORT_ADVICE = "--port 0 takes a free port"
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep a connection that they do not use, so that it is they who close it."""
_GRACE_SECONDS = 5
"""How long calls under way may go on when the service ends."""


class EnvServiceApp:
    """The calls of the service: one HTTP request is one call."""

    def __init__(self, instances: Instances, metrics: Metrics, token: str | None) -> None:
        self.instances = instances
        self.metrics = metrics
        self._tokens = {} if token is None else {"": f"Bearer {token}".encode()}
        self.route = answer_route("/{call:path}", self._answer, self.answer_error, methods=None)

    async def _answer(self, request: Request) -> Response:
        call = request.path_params["call"].strip("/")
        started = time.perf_counter()
        try:
            response = await self._read_and_call(call, request)
        except HttpError as error:
            response = self.answer_error(error)
        except asyncio.CancelledError:  # uvicorn's, when calls under way have had their time
            response = self.answer_error(CallError("stopping", "the service is ending"))
        if call in protocol.CALLS:
            self.metrics.calls[call] += 1
            self.metrics.seconds[call] += time.perf_counter() - started
        return response

    def answer_error(self, error: Exception) -> Response:
        if not isinstance(error, HttpError):
            logger.error("the service failed at a call", exc_info=error)
            error = CallError("environment_failed", f"{type(error).__name__}: {error}")
        self.metrics.errors[error.code] += 1
        return _respond(*failure(error))

    async def _read_and_call(self, call: str, request: Request) -> Response:
        if call not in protocol.CALLS and call not in ("health", "metrics"):
            raise CallError("unknown_call", f"no call {call!r}; there are {', '.join(protocol.CALLS)}")
        wanted = "POST" if call in protocol.CALLS else "GET"
        if request.method != wanted:
            raise CallError("method_not_allowed", f"/{call} is {wanted}, not {request.method}")
        if call == "health":
            return _respond(200, self._describe_health())
        given = request.headers.get("authorization", "").encode("latin-1")
        if self._tokens and find_owner(given, self._tokens) is None:
            raise CallError("unauthorized", "the service asks for a token: Authorization: Bearer TOKEN")
        if call == "metrics":
            return _respond(200, self.metrics.text(), "text/plain; version=0.0.4")
        try:
            body = await read_body(request, MAX_BODY)
        except BodyTooLarge:
            raise CallError("too_large", f"a body may have {MAX_BODY} bytes") from None
        return _respond(*await self._call(call, body, request.headers.get(protocol.KEY_HEADER)))

    async def _call(self, call: str, body: bytes, key: str | None) -> ServiceReply:
        if call == "step":
            return await self.instances.step(parse(protocol.StepRequest, body), key)
        if call == "create":
            return await self.instances.create(parse(protocol.CreateRequest, body))
        if call == "evaluate":
            return await self.instances.evaluate(parse(protocol.InstanceRequest, body).instance_id)
        if call == "release":
            return await self.instances.release(parse(protocol.InstanceRequest, body).instance_id)
        if call == "get_env_profile":
            profile = parse(protocol.ProfileRequest, body)
            return await self.instances.task_ids(profile.env_type, (profile.params or protocol.ProfileParams()).split)
        asked = parse(protocol.InfoRequest, body)
        if asked.instance_id is not None:
            return self.instances.info(asked.instance_id)
        return self.instances.environment_info(asked.env_type)

    def _describe_health(self) -> bytes:
        health = {
            "status": "ok",
            "protocol": protocol.VERSION,
            "env_types": list(self.instances.environments),
            "live_instances": self.metrics.live,
            "max_instances": self.instances.max_instances,
        }
        return json.dumps(health).encode()


def _respond(status: int, body: bytes, kind: str = "application/json") -> Response:
    headers = {"Content-Type": kind, protocol.VERSION_HEADER: protocol.VERSION}
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER)
    return Response(body, status, headers)


def token_for(environments: Sequence[Environment], given: str | None) -> str | None:
    """The token that a service of `environments` asks for: a new one if none is given and one of them executes code."""
    if given is None and any(environment.executes_code for environment in environments):
        return secrets.token_urlsafe(24)
    return given


def make_app(
    environments: Sequence[Environment],
    *,
    max_instances: int = MAX_INSTANCES,
    ttl: float = TTL,
    token: str | None = None,
    workers: int = WORKERS,
) -> Guarded:
    """The service as an ASGI application, which closes `environments` when it ends.

    `ttl` is in seconds. At most `workers` calls are worked on at the same time, each in a thread. Raises `ConfigError`
    if two environments have the same name.
    """
    metrics = Metrics(max_instances)
    instances = Instances(environments, metrics, max_instances=max_instances, ttl=ttl, workers=workers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_sweep(instances, min(ttl / 4, 10.0)))
        try:
            yield
        finally:
            sweeper.cancel()
            await instances.close()

    service = EnvServiceApp(instances, metrics, token)
    app = Starlette(routes=[service.route], lifespan=lifespan)
    advice = "ask for it by its address, or serve with a token"
    return Guarded(app, service.answer_error, any_name=token is not None, advice=advice)


async def _sweep(instances: Instances, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        instances.expire()


class EnvServer:
    """The service at an address of this machine while a `with` block lasts, in a thread of its own.

    Takes what `make_app` takes, and closes `environments` at the end. Port 0 is any free one. `token` is what clients
    have to send, if anything (`token_for`). Raises `ConfigError` if the address cannot be used.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_instances: int = MAX_INSTANCES,
        ttl: float = TTL,
        token: str | None = None,
        workers: int = WORKERS,
    ) -> None:
        self.token = token_for(environments, token)
        app = make_app(environments, max_instances=max_instances, ttl=ttl, token=self.token, workers=workers)
        listener = claim_address(host, port, PORT_ADVICE)
        self.url = url_of(host, listener)
        self._thread = ServerThread(_config(app), listener, "astune-env-server")

    def __enter__(self) -> EnvServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.close()


def run_server(app: Guarded, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until the process gets SIGINT or SIGTERM, then close all instances. `ready` is told the URL once
    connections are taken."""
    with claim_address(host, port, PORT_ADVICE) as listener:
        listener.listen(BACKLOG)
        asyncio.run(serve_until_signal(_config(app), listener, lambda: ready(url_of(host, listener))))


def _config(app: Guarded) -> uvicorn.Config:
    return server_config(
        app, lifespan=True, timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=_GRACE_SECONDS
    )
