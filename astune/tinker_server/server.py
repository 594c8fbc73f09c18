"""The server's process: socket, event loop, and what a client needs to know."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from astune.config.schema import ModelConfig
from astune.errors import ConfigError
from astune.sampling import LEAST_TEMPERATURE, MOST_TEMPERATURE, is_greedy
from astune.support.http.browser_requests import Guarded
from astune.support.http.service import HttpError, answer_route, find_owner
from astune.support.http.serving import claim_address, serve_until_signal, server_config, url_of
from astune.tinker_server.checkpoints import Checkpoint
from astune.tinker_server.requests import read_body
from astune.tinker_server.service import TinkerService
from astune.tinker_server.wire import PROTOBUF

_KEEP_ALIVE_SECONDS = 3600
"""Longer than any client pauses, for a connection that ends just as it is used again fails the request."""

logger = logging.getLogger(__name__)

FETCH_SECONDS = 30.0
"""Seconds for which an answer is waited for before the client has to ask again; the SDK itself waits for 45."""
CLIENT_CONFIG = {"pjwt_auth_enabled": False, "proto_compress_fwdbwd": False}
"""Tell the SDK to send the plain key and plain bytes."""

Handler: TypeAlias = "Callable[[Request], Coroutine[Any, Any, Response]]"


def tinker_app(service: TinkerService, api_key: str) -> Guarded:
    """Serves programs that send `api_key`; 401 to all others."""
    api = _Api(service)
    posts: dict[str, Handler] = {
        "client/config": _give(CLIENT_CONFIG),
        "client/dynamic_config": _give({}),
        "telemetry": _give({"status": "accepted"}),
        "create_session": api.create_session,
        "sessions/{session_id}/finish": api.finish,
        "session_heartbeat": api.heartbeat,
        "create_sampling_session": api.create_sampling_session,
        "create_model": api.create_model,
        "unload_model": api.unload_model,
        "get_info": api.get_info,
        "asample": api.sample,
        "forward_backward": api.forward_backward,
        "optim_step": api.optim_step,
        "save_weights": api.save_weights,
        "save_weights_for_sampler": api.save_weights_for_sampler,
        "load_weights": api.load_weights,
        "weights_info": api.weights_info,
        "retrieve_future": api.retrieve_future,
    }
    gets: dict[str, Handler] = {
        "healthz": _give({"status": "ok"}),
        "get_server_capabilities": api.capabilities,
        "samplers/{sampler_id}": api.sampler,
        "training_runs/{model_id}/checkpoints": api.checkpoints,
    }
    deletes: dict[str, Handler] = {"training_runs/{model_id}/checkpoints/{reference:path}": api.delete_checkpoint}
    routes = [
        answer_route(f"/api/v1/{path}", handler, _answer_error, (method,))
        for method, handlers in (("POST", posts), ("GET", gets), ("DELETE", deletes))
        for path, handler in handlers.items()
    ]
    keyed = _KeyCheck(Starlette(routes=routes), api_key)
    return Guarded(keyed, _refuse, any_name=True, any_type=True)


class _KeyCheck:
    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._keys = app, {"": api_key.encode()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"x-api-key", b"")
        if find_owner(given, self._keys) is not None:
            await self._app(scope, receive, send)
        else:
            told = "the key in X-API-Key is not this server's; set TINKER_API_KEY to what it printed when it started"
            await _refuse(HttpError(401, "unauthorized", told))(scope, receive, send)


def _refuse(refusal: HttpError) -> Response:
    return JSONResponse({"detail": refusal.message}, refusal.status)


def _give(answer: dict[str, Any]) -> Handler:
    async def handler(_: Request) -> Response:
        return JSONResponse(answer)

    return handler


def _answer_error(error: Exception) -> Response:
    """Tell faults of the client as 4xx with words. The SDK repeats a request for minutes after 5xx, so a fault of the
    server, which would only happen again, is told as 422."""
    if isinstance(error, HttpError):
        return JSONResponse({"detail": error.message, "category": "user"}, error.status)
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, (KeyError, TypeError)):
        told = f"the request is not as the tinker SDK sends it, from 0.25 to 0.38: {told}"
        return JSONResponse({"detail": told, "category": "user"}, 422)
    logger.error("a request failed", exc_info=error)
    return JSONResponse({"detail": told, "category": "server"}, 422)


def _later(request_id: str) -> Response:
    return JSONResponse({"request_id": request_id})


class _Api:
    """One method for each address. Those that answer `_later` have their result fetched by `retrieve_future`."""

    def __init__(self, service: TinkerService) -> None:
        self._service = service

    async def capabilities(self, _: Request) -> Response:
        length = self._service.context_length
        models = [{"model_name": name, "max_context_length": length} for name in self._service.base_models]
        return JSONResponse({"supported_models": models})

    async def create_session(self, _: Request) -> Response:
        return JSONResponse({"session_id": self._service.create_session(), "type": "create_session"})

    async def heartbeat(self, request: Request) -> Response:
        self._service.heartbeat((await read_body(request)).text("session_id"))
        return JSONResponse({"type": "session_heartbeat"})

    async def finish(self, request: Request) -> Response:
        self._service.finish(request.path_params["session_id"])
        return Response(status_code=204)

    async def create_sampling_session(self, request: Request) -> Response:
        sampler_id = await self._service.create_sampling_session(await read_body(request))
        return JSONResponse({"sampling_session_id": sampler_id, "type": "create_sampling_session"})

    async def sampler(self, request: Request) -> Response:
        sampler_id = request.path_params["sampler_id"]
        path = self._service.find_sampler(sampler_id).path
        base, path_text = self._service.tokenizer_name, str(path) if path else None
        return JSONResponse({"sampler_id": sampler_id, "base_model": base, "model_path": path_text})

    async def sample(self, request: Request) -> Response:
        request_id, answer_ids = self._service.sample(await read_body(request))
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": answer_ids})

    async def create_model(self, request: Request) -> Response:
        return _later(self._service.create_model(await read_body(request)))

    async def unload_model(self, request: Request) -> Response:
        return _later(self._service.unload_model((await read_body(request)).text("model_id")))

    async def get_info(self, request: Request) -> Response:
        model_id = (await read_body(request)).text("model_id")
        about = self._service.training(model_id).about
        name = about["base_model"]
        data = {"model_name": name, "tokenizer_id": self._service.tokenizer_name}
        info = {"model_id": model_id, "model_data": data, "model_name": name, "type": "get_info"}
        rank = about["lora"]["rank"]
        return JSONResponse(info | {"is_lora": rank > 0, "lora_rank": rank})

    async def forward_backward(self, request: Request) -> Response:
        return _later(self._service.forward(await request.body()))

    async def optim_step(self, request: Request) -> Response:
        return _later(self._service.optim_step(await read_body(request)))

    async def save_weights(self, request: Request) -> Response:
        return _later(self._service.save(await read_body(request), "weights"))

    async def save_weights_for_sampler(self, request: Request) -> Response:
        return _later(self._service.save(await read_body(request), "sampler_weights"))

    async def load_weights(self, request: Request) -> Response:
        return _later(self._service.load(await read_body(request)))

    async def weights_info(self, request: Request) -> Response:
        return JSONResponse(self._service.weights_info((await read_body(request)).text("tinker_path")))

    async def checkpoints(self, request: Request) -> Response:
        found = self._service.checkpoints(request.path_params["model_id"])
        cursor = {"offset": 0, "limit": len(found), "total_count": len(found)}
        return JSONResponse({"checkpoints": [_show(each) for each in found], "cursor": cursor})

    async def delete_checkpoint(self, request: Request) -> Response:
        self._service.delete_checkpoint(request.path_params["model_id"], request.path_params["reference"])
        return Response(status_code=204)

    async def retrieve_future(self, request: Request) -> Response:
        """408 is how the SDK hears, without a warning to its user, that it shall ask again."""
        request_id = (await read_body(request)).text("request_id")
        reply = await self._service.fetch(request_id, FETCH_SECONDS)
        if reply is None:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting, 408)
        return Response(reply, media_type=PROTOBUF) if isinstance(reply, bytes) else JSONResponse(reply)


def _show(checkpoint: Checkpoint) -> dict[str, Any]:
    path = checkpoint.path
    return {
        "checkpoint_id": f"{path.kind}/{path.name}",
        "checkpoint_type": "training" if path.kind == "weights" else "sampler",
        "time": checkpoint.saved_at,
        "tinker_path": str(path),
    }


def new_api_key() -> str:
    """The SDK sends no key that begins otherwise."""
    return f"tml-{secrets.token_urlsafe(24)}"


@dataclass(frozen=True)
class TinkerServerConfig:
    """`model` is 'tiny', a folder or a hub id; checkpoints live in `directory`, which belongs to one server at a time.

    `slots` answers are sampled side by side. `versions` of the weights stay in memory for sampling.
    `training_temperature` divides the logits in training, where the answers are sampled at a temperature other than 1.
    """

    model: str
    directory: Path
    host: str = "127.0.0.1"
    port: int = 10610
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    slots: int = 64
    versions: int = 3
    training_temperature: float = 1.0
    micro_batch_tokens: int | None = None
    """Most tokens that are trained at once, where memory has room for more."""
    api_key: str = field(default_factory=new_api_key, repr=False)


def serve(config: TinkerServerConfig, ready: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> None:
    """Serve until Ctrl-C, or until `stop` says so. `ready` hears the address when the model is there.

    Raises:
        ConfigError: the address, the device or the precision cannot be used.
        ModelError: the model cannot be read.
    """
    if not config.api_key.startswith("tml-"):
        raise ConfigError("the key of a tinker server begins with 'tml-': the SDK sends no other")
    if is_greedy(config.training_temperature) or config.training_temperature > MOST_TEMPERATURE:
        raise ConfigError(
            f"training_temperature {config.training_temperature}: expected {LEAST_TEMPERATURE} to {MOST_TEMPERATURE:g}"
        )
    asyncio.run(_serve(config, ready, stop))


async def _serve(config: TinkerServerConfig, ready: Callable[[str], None], stop: Callable[[], bool]) -> None:
    model = _model_config(config)
    listener = claim_address(config.host, config.port, "--port 0 takes a free one")
    service = TinkerService(
        model,
        config.directory,
        slots=config.slots,
        versions=config.versions,
        training_temperature=config.training_temperature,
        micro_batch_tokens=config.micro_batch_tokens,
    )
    try:
        await service.open()
        served = server_config(
            tinker_app(service, config.api_key), timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=1
        )
        await serve_until_signal(served, listener, lambda: ready(url_of(config.host, listener)), stop=stop)
    finally:
        listener.close()
        service.close()


def _model_config(config: TinkerServerConfig) -> ModelConfig:
    try:
        return ModelConfig(path=config.model, device=config.device, dtype=config.dtype)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"the model to serve: {told}") from error
