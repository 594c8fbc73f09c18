"""The environment service over HTTP: see `docs/environment_service.md`.

with EnvServer([Guess()]) as server:
    httpx.post(f"{server.url}/create", json={"env_type": "guess", "task_id": "3", "instance_id": "mine"})
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from astune.environment import protocol
from astune.environment.environment_base import Environment
from astune.environment.instances import Instances
from astune.environment.metrics import Metrics
from astune.environment.protocol import CallError, ServiceReply, failure, parse
from astune.errors import ConfigError
from astune.support.http.browser_requests import Guarded, Refusal
from astune.support.http.serving import BACKLOG, bound_socket, serve_until_signal, server_config, url_of

MAX_INSTANCES = 512
TTL = 1800.0
WORKERS = 32
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request."""
RETRY_AFTER = 1
"""Seconds until a client asks again where there is no room."""
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep a connection that they do not use, so that it is they who close it."""
_GRACE_SECONDS = 5
"""How long calls under way may go on when the service ends."""


class EnvServiceApp:
    """The ASGI application: one HTTP request is one call."""

    def __init__(self, instances: Instances, metrics: Metrics, token: str | None) -> None:
        self.instances = instances
        self.metrics = metrics
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = scope["path"].strip("/")
        started = time.perf_counter()
        try:
            reply = await self._reply(call, scope, receive)
        except CallError as error:
            reply = self._failure(error)
        except asyncio.CancelledError:  # uvicorn's, when calls under way have had their time
            reply = self._failure(CallError("stopping", "the service is ending"))
        except ConnectionResetError:
            return
        if call in protocol.CALLS:
            self.metrics.calls[call] += 1
            self.metrics.seconds[call] += time.perf_counter() - started
        await _send(reply, send, text=call == "metrics" and reply.status == 200)

    def refuse(self, refusal: Refusal) -> ASGIApp:
        """Answers requests that are not for programs."""
        reply = self._failure(CallError(refusal.code, refusal.message))

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await _send(reply, send)

        return answer

    async def _reply(self, call: str, scope: Scope, receive: Receive) -> ServiceReply:
        if call not in protocol.CALLS and call not in ("health", "metrics"):
            raise CallError("unknown_call", f"no call {call!r}; there are {', '.join(protocol.CALLS)}")
        wanted = "POST" if call in protocol.CALLS else "GET"
        if scope["method"] != wanted:
            raise CallError("method_not_allowed", f"/{call} is {wanted}, not {scope['method']}")
        if call == "health":
            return self._health()
        if self._authorization is not None:
            given = _header(scope, b"authorization") or b""
            if not hmac.compare_digest(given, self._authorization):
                raise CallError("unauthorized", "the service asks for a token: Authorization: Bearer TOKEN")
        if call == "metrics":
            return ServiceReply(200, self.metrics.text(self.instances.max_instances).encode())
        return await self._answer(call, await _body(receive), _header(scope, _KEY))

    async def _answer(self, call: str, body: bytes, key: bytes | None) -> ServiceReply:
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

    def _failure(self, error: CallError) -> ServiceReply:
        self.metrics.errors[error.code] += 1
        return failure(error)

    def _health(self) -> ServiceReply:
        health = {
            "status": "ok",
            "protocol": protocol.VERSION,
            "env_types": list(self.instances.environments),
            "live_instances": self.metrics.live,
            "max_instances": self.instances.max_instances,
        }
        return ServiceReply(200, json.dumps(health).encode())


_VERSION = (protocol.VERSION_HEADER.lower().encode(), protocol.VERSION.encode())
_KEY = protocol.KEY_HEADER.lower().encode()


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


async def _send(reply: ServiceReply, send: Send, *, text: bool = False) -> None:
    kind = b"text/plain; version=0.0.4" if text else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(reply.body)), _VERSION]
    if reply.status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def _body(receive: Receive) -> bytes:
    """Raises `ConnectionResetError` if the client hangs up before it is whole."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        body = body + chunk if body else chunk
        if len(body) > MAX_BODY:
            raise CallError("too_large", f"a body may have {MAX_BODY} bytes")
    return body


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
    metrics = Metrics()
    instances = Instances(environments, metrics, max_instances=max_instances, ttl=ttl, workers=workers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_sweep(instances, min(ttl / 4, 10.0)))
        try:
            yield
        finally:
            sweeper.cancel()
            await instances.close()

    app = Starlette(lifespan=lifespan)
    service = EnvServiceApp(instances, metrics, token)
    app.mount("/", service)
    advice = "ask for it by its address, or serve with a token"
    return Guarded(app, service.refuse, any_name=token is not None, advice=advice)


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
        self._socket = _listen(host, port)
        self.url = url_of(host, self._socket)
        self._server = uvicorn.Server(_config(app))
        run = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=run, name="astune-env-server", daemon=True)

    def __enter__(self) -> EnvServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def run_server(app: Guarded, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves until the process gets SIGINT or SIGTERM, then closes all instances. `ready` is told the URL once
    connections are taken."""
    with _listen(host, port) as listener:
        asyncio.run(serve_until_signal(_config(app), listener, lambda: ready(url_of(host, listener))))


def _listen(host: str, port: int) -> socket.socket:
    """Takes connections from now on. Raises `ConfigError`."""
    try:
        listener = bound_socket(host, port)
    except OSError as error:
        raise ConfigError(f"cannot serve at {host}:{port}: {error}; --port 0 takes a free port") from error
    listener.listen(BACKLOG)
    return listener


def _config(app: Guarded) -> uvicorn.Config:
    return server_config(
        app, lifespan=True, timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=_GRACE_SECONDS
    )
