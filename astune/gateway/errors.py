"""Errors of a call, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from astune.errors import ContextOverflow, TooManyTokens, TooManyTurns, WorkflowError

_CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code. Frameworks look for it in the message as well."""


class ApiError(Exception):
    """An answer with an HTTP status and OpenAI's error body. `param` is the field of the request that is at fault."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def not_supported(name: str, message: str) -> ApiError:
    """Make the error for a known field that asks for something that cannot be done."""
    return ApiError(400, "unsupported_parameter", message, name)


def invalid(name: str, value: object, expected: str) -> ApiError:
    """Make the error for a field with a value of the wrong kind."""
    return ApiError(400, "invalid_value", f"{name!r} must be {expected}, got {value!r:.200}", name)


def episode_over() -> ApiError:
    return ApiError(404, "episode_over", "no such endpoint: its episode is over, or the URL is wrong")


def api_error(error: Exception, prompt_field: str | None) -> ApiError:
    """Turn an error of the tracker or the policy into an answer. `prompt_field` is the field that made the prompt."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflow):
        return ApiError(400, _CONTEXT_EXCEEDED, f"{error} ({_CONTEXT_EXCEEDED})", prompt_field)
    if isinstance(error, TooManyTurns):
        return ApiError(400, "max_turns_exceeded", str(error))
    if isinstance(error, TooManyTokens):
        return ApiError(400, "max_episode_tokens_exceeded", str(error))
    if isinstance(error, WorkflowError):
        return ApiError(400, "invalid_value", str(error))
    return ApiError(500, "policy_error", f"{type(error).__name__}: {error}")
