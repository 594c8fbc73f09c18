"""A request of a client: its JSON body, and the error of a client, which it hears of in words. Every other error in a
request is the server's."""

from __future__ import annotations

import json

from starlette.requests import Request

from astune.errors import AstuneError
from astune.sampling import shorten
from astune.support.http.service import Fields, HttpError, parse_json


class RequestError(AstuneError, HttpError):
    """The client asked for something that cannot be done. `status` is HTTP's, where no answer is fetched later."""

    def __init__(self, message: str, status: int = 400) -> None:
        HttpError.__init__(self, status, "user", message)


def not_found(message: str) -> RequestError:
    return RequestError(message, status=404)


class RequestBody(Fields):
    """The body of a request, or an object in it."""

    @staticmethod
    def wrong(name: str, value: object, expected: str) -> RequestError:
        return RequestError(f"{name} is {shorten(value)}; expected {expected}")

    def text(self, name: str) -> str:
        return self.take(name, str, "a text")

    def section(self, name: str) -> RequestBody:
        return RequestBody(self.take(name, dict, "an object"))


async def read_body(request: Request) -> RequestBody:
    """Read the JSON object that a request sends; NaN is a number here, so that the error names its field."""
    body = parse_json(await request.body(), json.loads)
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return RequestBody(body)
