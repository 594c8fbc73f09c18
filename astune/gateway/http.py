"""OpenAI's API over HTTP, and Anthropic's, for the gateway and the online service: errors in their shapes, the size of
bodies, models."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from astune.errors import ContextOverflow, TooManyTokens, TooManyTurns, WorkflowError
from astune.support.http.service import BodyTooLarge, HttpError, json_response, read_body

logger = logging.getLogger(__name__)

# OpenAI's and Anthropic's clients repeat a failed request, unless told not to; a repeated call would be a second turn.
NO_RETRY = {"x-should-retry": "false"}
_CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code. Frameworks look for it in the message as well."""
_LEAST_LIMIT = 4 * 2**20
_BYTES_PER_TOKEN = 64
"""A token of text has about four bytes, and JSON may write six for one. The rest is room for what no prompt has, such
as reasoning that the template drops."""


def error_body(error: HttpError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error_body(error: HttpError) -> dict[str, Any]:
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"error_code": error.code, "param": error.param}
    return {"type": "error", "error": {"type": kind, "message": error.message, "details": details}}


def answer_error(error: Exception, headers: Mapping[str, str] = NO_RETRY) -> Response:
    told = to_http_error(error)
    return json_response(error_body(told), told.status, headers)


def answer_anthropic_error(error: Exception) -> Response:
    told = to_http_error(error)
    return json_response(anthropic_error_body(told), told.status, NO_RETRY)


def to_http_error(error: Exception) -> HttpError:
    """Turn an error of the service itself into an answer and log it; an answer stays what it is."""
    if isinstance(error, HttpError):
        return error
    logger.error("the endpoint failed at a request", exc_info=error)
    return HttpError(500, "internal_error", f"{type(error).__name__}: {error}")


def not_supported(name: str, message: str) -> HttpError:
    """Make the error for a known field that asks for something that cannot be done."""
    return HttpError(400, "unsupported_parameter", message, name)


def episode_over() -> HttpError:
    return HttpError(404, "episode_over", "no such endpoint: its episode is over, or the URL is wrong")


def call_error(error: Exception, prompt_field: str | None) -> HttpError:
    """Turn an error of the tracker or the policy into an answer. `prompt_field` is the field that made the prompt."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ContextOverflow):
        return HttpError(400, _CONTEXT_EXCEEDED, f"{error} ({_CONTEXT_EXCEEDED})", prompt_field)
    if isinstance(error, TooManyTurns):
        return HttpError(400, "max_turns_exceeded", str(error))
    if isinstance(error, TooManyTokens):
        return HttpError(400, "max_episode_tokens_exceeded", str(error))
    if isinstance(error, WorkflowError):
        return HttpError(400, "invalid_value", str(error))
    return HttpError(500, "policy_error", f"{type(error).__name__}: {error}")


def most_bytes(context_length: int) -> int:
    """The size above which a body is not read: its text does not fit a model with this context."""
    return _LEAST_LIMIT + _BYTES_PER_TOKEN * context_length


async def read_request(request: Request, context_length: int) -> bytes:
    """Read the body. Raises ContextOverflow for one that is larger than `most_bytes`."""
    try:
        return await read_body(request, most_bytes(context_length))
    except BodyTooLarge as error:
        raise ContextOverflow(
            f"the request has {error} ({_LEAST_LIMIT} and {_BYTES_PER_TOKEN} for each token of the context). This "
            f"model's maximum context length is {context_length} tokens: the prompt is too long. Please reduce the "
            "length of the messages."
        ) from None


def is_repeated(request: Request) -> bool:
    """True if a client of OpenAI or Anthropic says that it has sent this request before."""
    return request.headers.get("x-stainless-retry-count", "0") != "0"


def unknown_url(request: Request, error: Exception) -> Response:
    """Starlette's handler for paths and methods that are not there; the first part of the path is kept to ourselves."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path.split('/', 2)[-1]}: {error.detail}"
    return answer_error(HttpError(error.status_code, "unknown_url", message))


def list_models(name: str) -> Response:
    return json_response({"object": "list", "data": [_describe_model(name)]})


def show_model(name: str, asked: str) -> Response:
    """Raises HttpError (404) if the model that is asked for has another name."""
    if asked != name:
        message = f"The model {asked!r:.200} does not exist: there is {name!r}."
        raise HttpError(404, "model_not_found", message, "model")
    return json_response(_describe_model(name))


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "astune"}
