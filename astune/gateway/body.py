"""The body of a request: read up to a limit, and as strict JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from astune.errors import ContextOverflow
from astune.gateway.errors import ApiError
from astune.support.strict_json import read_json

_LEAST_LIMIT = 4 * 2**20
_BYTES_PER_TOKEN = 64
"""A token of text has about four bytes, and JSON may write six for one. The rest is room for what no prompt has, such
as reasoning that the template drops."""
MOST_NESTED = 100
"""Lists and objects within each other. Templates and copies of a request go through them by recursion."""


def most_bytes(context_length: int) -> int:
    """The size above which a body is not read: its text does not fit a model with this context."""
    return _LEAST_LIMIT + _BYTES_PER_TOKEN * context_length


async def read_body(request: Request, context_length: int) -> bytes:
    """The body.

    Raises:
        ContextOverflow: it is larger than `most_bytes`. What its header says is believed, and not more is read of one
            that does not say.
        ClientDisconnect: the client went away.
    """
    limit = most_bytes(context_length)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 18 or int(said) > limit):
        raise _too_large(f"{said:.30} bytes, more", limit, context_length)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large("more bytes", limit, context_length)
    return bytes(body)


def _too_large(size: str, limit: int, context_length: int) -> ContextOverflow:
    return ContextOverflow(
        f"the request has {size} than the {limit} that are read ({_LEAST_LIMIT} and {_BYTES_PER_TOKEN} for each token "
        f"of the context). This model's maximum context length is {context_length} tokens: the prompt is too long. "
        "Please reduce the length of the messages."
    )


def from_json(body: bytes) -> object:
    """The value that `body` is the JSON of, as RFC 8259 has it: no NaN, no name twice, text that UTF-8 can hold.

    Raises:
        ApiError: 400, it is none, or nested deeper than `MOST_NESTED`.
    """
    try:
        text = body.decode(json.detect_encoding(body))
        value = read_json(text)
        if b"\\u" in body:  # half of a surrogate pair can be written so, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if body.count(b"[") + body.count(b"{") > MOST_NESTED and _is_deep(value):
        raise ApiError(400, "invalid_json", f"the body is nested deeper than {MOST_NESTED} lists and objects")
    return value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MOST_NESTED):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)


def _children(item: object) -> list[Any]:
    return list(item.values()) if isinstance(item, dict) else item if isinstance(item, list) else []
