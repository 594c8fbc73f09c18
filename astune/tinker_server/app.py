"""The addresses that the tinker SDK calls, as a Starlette application."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astune.support.http.browser_requests import Guarded, Refusal
from astune.tinker_server.checkpoints import Checkpoint
from astune.tinker_server.errors import RequestError
from astune.tinker_server.fields import read_body, text
from astune.tinker_server.service import TinkerService
from astune.tinker_server.wire import PROTOBUF

logger = logging.getLogger(__name__)

FETCH_SECONDS = 30.0
"""Seconds for which an answer is waited for before the client has to ask again; the SDK itself waits for 45."""
CLIENT_CONFIG = {"pjwt_auth_enabled": False, "proto_compress_fwdbwd": False}
"""Tell the SDK to send the plain key and plain bytes."""

Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"


def tinker_app(service: TinkerService, api_key: str) -> Guarded:
    """Serves programs that send `api_key`; 401 to all others."""
    api = _Api(service)
    posts: dict[str, Handler] = {
        "client/config": _fixed(CLIENT_CONFIG),
        "client/dynamic_config": _fixed({}),
        "telemetry": _fixed({"status": "accepted"}),
        "create_session": api.create_session,
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
        "healthz": _fixed({"status": "ok"}),
        "get_server_capabilities": api.capabilities,
        "samplers/{sampler_id}": api.sampler,
        "training_runs/{model_id}/checkpoints": api.checkpoints,
    }
    routes = [Route(f"/api/v1/{path}", _answering(handler), methods=["POST"]) for path, handler in posts.items()]
    routes += [Route(f"/api/v1/{path}", _answering(handler), methods=["GET"]) for path, handler in gets.items()]
    routes.append(Route("/api/v1/sessions/{session_id}/finish", _answering(api.finish), methods=["POST"]))
    checkpoint = "/api/v1/training_runs/{model_id}/checkpoints/{reference:path}"
    routes.append(Route(checkpoint, _answering(api.delete_checkpoint), methods=["DELETE"]))
    keyed = _KeyCheck(Starlette(routes=routes), api_key)
    return Guarded(keyed, _refuse, any_name=True, any_type=True)


class _KeyCheck:
    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._key = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"x-api-key", b"")
        if hmac.compare_digest(given, self._key):
            await self._app(scope, receive, send)
        else:
            told = "the key in X-API-Key is not this server's; set TINKER_API_KEY to what it printed when it started"
            await JSONResponse({"detail": told}, 401)(scope, receive, send)


def _refuse(refusal: Refusal) -> ASGIApp:
    return JSONResponse({"detail": refusal.message}, refusal.status)


def _fixed(answer: dict[str, Any]) -> Handler:
    async def handler(_: Request) -> Response:
        return JSONResponse(answer)

    return handler


def _answering(handler: Handler) -> Handler:
    """Faults of the client become 4xx with words. The SDK repeats a request for minutes after 5xx, so a fault of the
    server, which would only happen again, is told as 422."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            return JSONResponse({"detail": str(error), "category": "user"}, error.status)
        except (KeyError, TypeError) as error:
            told = f"the request is not as the tinker SDK sends it, from 0.25 to 0.38: {type(error).__name__}: {error}"
            return JSONResponse({"detail": told, "category": "user"}, 422)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:
            logger.exception("%s failed", request.url.path)
            return JSONResponse({"detail": f"{type(error).__name__}: {error}", "category": "server"}, 422)

    return answer


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
        self._service.heartbeat(text(await read_body(request), "session_id"))
        return JSONResponse({"type": "session_heartbeat"})

    async def finish(self, request: Request) -> Response:
        self._service.finish(request.path_params["session_id"])
        return Response(status_code=204)

    async def create_sampling_session(self, request: Request) -> Response:
        sampler_id = await self._service.create_sampling_session(await read_body(request))
        return JSONResponse({"sampling_session_id": sampler_id, "type": "create_sampling_session"})

    async def sampler(self, request: Request) -> Response:
        sampler_id = request.path_params["sampler_id"]
        path = self._service.sampled(sampler_id).path
        base, path_text = self._service.tokenizer_name, str(path) if path else None
        return JSONResponse({"sampler_id": sampler_id, "base_model": base, "model_path": path_text})

    async def sample(self, request: Request) -> Response:
        request_id, answer_ids = self._service.sample(await read_body(request))
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": answer_ids})

    async def create_model(self, request: Request) -> Response:
        return _later(self._service.create_model(await read_body(request)))

    async def unload_model(self, request: Request) -> Response:
        return _later(self._service.unload_model(text(await read_body(request), "model_id")))

    async def get_info(self, request: Request) -> Response:
        model_id = text(await read_body(request), "model_id")
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
        return JSONResponse(self._service.weights_info(text(await read_body(request), "tinker_path")))

    async def checkpoints(self, request: Request) -> Response:
        found = self._service.checkpoints(request.path_params["model_id"])
        cursor = {"offset": 0, "limit": len(found), "total_count": len(found)}
        return JSONResponse({"checkpoints": [_shown(each) for each in found], "cursor": cursor})

    async def delete_checkpoint(self, request: Request) -> Response:
        self._service.delete_checkpoint(request.path_params["model_id"], request.path_params["reference"])
        return Response(status_code=204)

    async def retrieve_future(self, request: Request) -> Response:
        """408 is how the SDK hears, without a warning to its user, that it shall ask again."""
        request_id = text(await read_body(request), "request_id")
        reply = await self._service.fetch(request_id, FETCH_SECONDS)
        if reply is None:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting, 408)
        return Response(reply, media_type=PROTOBUF) if isinstance(reply, bytes) else JSONResponse(reply)


def _shown(checkpoint: Checkpoint) -> dict[str, Any]:
    path = checkpoint.path
    return {
        "checkpoint_id": f"{path.kind}/{path.name}",
        "checkpoint_type": "training" if path.kind == "weights" else "sampler",
        "time": checkpoint.saved_at,
        "tinker_path": str(path),
    }
