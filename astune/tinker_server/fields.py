"""Reading the fields of a JSON body by their kind, where it comes in. What is wrong is a 400 that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from astune.sampling import MOST_INTEGER, shorten
from astune.tinker_server.errors import RequestError

Body = Mapping[str, Any]


async def read_body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return body


def section(body: Body, name: str) -> dict[str, Any]:
    value = body.get(name)
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return value


def text(body: Body, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise _wrong(name, value, "a text")
    return value


def whole(body: Body, name: str, least: int = 0, most: int = MOST_INTEGER) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, value, f"an integer from {least} to {most}")
    return value


def number(body: Body, name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_MOST <= value <= _MOST:
        raise _wrong(name, value, "a finite number")
    return float(value)


def flag(body: Body, name: str) -> bool:
    value = False if body.get(name) is None else body[name]
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def given(body: Body, *names: str) -> tuple[str, ...]:
    """Return those of the names that the body has; null counts as absent."""
    return tuple(name for name in names if body.get(name) is not None)


_MOST = math.nextafter(math.inf, 0)


def _wrong(name: str, value: object, expected: str) -> RequestError:
    return RequestError(f"{name} is {shorten(value)}; expected {expected}")
