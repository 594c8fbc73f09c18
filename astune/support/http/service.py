"""The parts that ASTune's HTTP services share: their error, bodies read up to a limit and as strict JSON, fields read
by their kind, routes that answer every error, tokens, clients that go away."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from astune.sampling import MOST_INTEGER
from astune.support.strict_json import read_json

Result = TypeVar("Result")
MOST_NESTED = 100
"""Lists and objects within each other. Templates and copies of a request go through them by recursion."""
to_json = json.JSONEncoder(separators=(",", ":")).encode


class HttpError(Exception):
    """An answer with an HTTP status; each service writes it in a shape of its own. `code` names the kind of error for
    programs, `param` the field of the request that is at fault."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


def invalid(name: str, value: object, expected: str) -> HttpError:
    """Make the error for a field with a value of the wrong kind."""
    return HttpError(400, "invalid_value", f"{name!r} must be {expected}, got {value!r:.200}", name)


class BodyTooLarge(Exception):
    """A body of more bytes than are read; the message says how many."""


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Read the body.

    Raises:
        BodyTooLarge: it is larger. What its header says is believed, and not more is read of one that does not say.
        ClientDisconnect: the client went away.
    """
    said = request.headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 18 or int(said) > most_bytes):
        raise BodyTooLarge(f"{said:.30} bytes, more than the {most_bytes} that are read")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise BodyTooLarge(f"more bytes than the {most_bytes} that are read")
    return bytes(body)


def parse_json(body: bytes, load: Callable[[str], Any] = read_json) -> Any:
    """Read `body` as JSON by RFC 8259: no NaN, no name twice, text that UTF-8 can hold. `load` may take more.

    Raises:
        HttpError: 400, it is none, or nested deeper than `MOST_NESTED`.
    """
    try:
        value = load(body.decode(json.detect_encoding(body)))
        if b"\\u" in body:  # half of a surrogate pair can be written so, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if body.count(b"[") + body.count(b"{") > MOST_NESTED and is_deep(value, MOST_NESTED):
        raise HttpError(400, "invalid_json", f"the body is nested deeper than {MOST_NESTED} lists and objects")
    return value


def is_deep(value: object, most: int) -> bool:
    """True if more than so many lists and objects are within each other."""
    level = [value]
    for _ in range(most):
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [child for children in nested for child in children]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)


def find_owner(given: bytes, secrets: Mapping[str, bytes]) -> str | None:
    """Find the name whose secret was given, in a time that tells nothing of the secrets."""
    owners = [name for name, secret in secrets.items() if hmac.compare_digest(given, secret)]
    return owners[0] if owners else None


def answer_route(
    path: str,
    answer: Callable[[Request], Coroutine[Any, Any, Response]],
    answer_error: Callable[[Exception], Response],
    methods: Sequence[str] | None = ("POST",),
) -> Route:
    """Make a route of which every error is answered by `answer_error`. A client that goes away gets nothing. No
    `methods`: all of them."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            response = answer_error(error)
        await response(scope, receive, send)

    return Route(path, _Asgi(handle), methods=methods and list(methods))


class _Asgi:
    """A callable that Starlette takes for an app. It would wrap a plain function a second time."""

    def __init__(self, handle: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send)


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(body), status, headers, "application/json")


async def unless_disconnected(request: Request, work: asyncio.Future[Result], over: HttpError) -> Result:
    """Return the result of `work`, unless the client goes away first: then the work is cancelled.

    Raises:
        ClientDisconnect: nobody waits for the answer any more.
        HttpError: `over`, if the work was cancelled first.
    """
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        work.cancel()
    if work.cancelled():
        raise over
    if not work.done():
        raise ClientDisconnect
    return work.result()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Kind = TypeVar("Kind")


class Fields(dict[str, Any]):
    """The fields of a body. Null is as good as absent. Each reader raises HttpError (400) that names the field where a
    value is of another kind, or is missing and has no default."""

    wrong: Callable[[str, object, str], HttpError] = staticmethod(invalid)

    def pick(self, *names: str) -> tuple[str, ...]:
        """Return those of the names that the body has."""
        return tuple(name for name in names if self.get(name) is not None)

    def take(self, name: str, kind: type[Kind], expected: str, default: Kind | None = None) -> Kind:
        value = self.get(name)
        if value is None:
            value = default
        if not isinstance(value, kind):
            raise self.wrong(name, value, expected)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return self.take(name, bool, "true or false", default)

    def number(
        self, name: str, expected: str = "a finite number", accepts: Callable[[float], bool] = lambda value: True
    ) -> float:
        value = self.get(name)
        readable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if not readable or not accepts(cast(float, value)):
            raise self.wrong(name, value, expected)
        return float(cast(float, value))

    def whole(self, name: str, least: int = 0, most: int = MOST_INTEGER, expected: str = "") -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, value, expected or f"an integer from {least} to {most}")
        return value
