"""A vLLM that answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.types import Sampling


class ScriptedVllm:
    """`POST /v1/completions` with token ids, `GET /v1/models`, `POST /v1/load_lora_adapter` and
    `/v1/unload_lora_adapter`, as a vLLM has them.

    `app` is the ASGI application. `requests` are the bodies of completions, `adapters` what was loaded, by name.
    `token_ids=False` leaves out what other engines do not give.
    """

    def __init__(
        self,
        answers: Sequence[str] | Callable[[str], str],
        chat_format: ChatFormat,
        *,
        model: str = "base",
        context_length: int = 4096,
        token_ids: bool = True,
    ) -> None:
        self._policy = ScriptedPolicy(answers, chat_format, context_length=context_length)
        self._model, self._token_ids = model, token_ids
        self.requests: list[dict[str, Any]] = []
        self.adapters: dict[str, str] = {}
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
            ]
        )

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if body["model"] not in (self._model, *self.adapters):
            return JSONResponse({"error": {"message": f"The model {body['model']} does not exist."}}, 404)
        sampling = Sampling(
            body["max_tokens"], stop_token_ids=tuple(body["stop_token_ids"]), stop=tuple(body.get("stop", ()))
        )
        said = await self._policy.generate(body["prompt"], sampling)
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": said.finish_reason}
        choice["logprobs"] = {"token_logprobs": list(said.logprobs)}
        if self._token_ids:
            choice["token_ids"] = list(said.output_ids)
        return JSONResponse({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})

    async def _models(self, request: Request) -> Response:
        models = [{"id": self._model, "object": "model", "max_model_len": self._policy.context_length}]
        return JSONResponse({"object": "list", "data": models})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return JSONResponse({"message": f"The lora adapter '{body['lora_name']}' has already been loaded."}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return JSONResponse("Success")

    async def _unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return JSONResponse({"message": f"The lora adapter '{name}' cannot be found."}, 404)
        return JSONResponse("Success")
