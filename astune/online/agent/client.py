"""The online service, for Python: feedback, commits, records, health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from astune.errors import OnlineError, name_error
from astune.online.wire import (
    COMMIT_PATH,
    COMPARISONS_PATH,
    FEEDBACK_PATH,
    HEALTH_PATH,
    RECORDS_PATH,
    Body,
    Commit,
    ConversationRecord,
    Feedback,
    NextPair,
    PairVote,
    read_wire,
)

TIMEOUT = 300.0
"""Seconds for one request. A commit may be answered only when training is over."""
_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class ServiceError(OnlineError):
    """A request that was not acknowledged. It may be tried again if `again`; `status` is that of the answer."""

    again = False

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ServiceAway(ServiceError):
    """No answer, or one that asks to come back later (429, 5xx), after `after` seconds if it says so."""

    again = True

    def __init__(self, message: str, status: int | None = None, after: float | None = None) -> None:
        super().__init__(message, status)
        self.after = after


class ServiceRefused(ServiceError):
    """A refusal that trying again would not change."""


def endpoint_of(text: str) -> str:
    """The address without its last slash. Raises OnlineError if it is none.

    >>> endpoint_of("http://127.0.0.1:8010/")
    'http://127.0.0.1:8010'
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise OnlineError(f"endpoint {text!r} is no address: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise OnlineError(f"endpoint {text!r} is no address; expected http://HOST:PORT or https://HOST")
    if url.path.rstrip("/").endswith("/v1"):
        raise OnlineError(f"endpoint {text!r} ends with /v1; expected the address of the service, without it")
    return str(url).rstrip("/")


class OnlineClient:
    """A client of the service at `endpoint`. It connects at the first request and belongs to one event loop.

        async with OnlineClient("http://127.0.0.1:8010") as client:
            await client.feedback(msg_ids=[reply.id], thumb="up", user="ana")
            await client.commit()

    `token` goes as `Authorization: Bearer`. It tries nothing twice: see `ServiceError.again`.

    Raises:
        WireError: what is to be sent is none of `astune.online.wire`, before anything is sent.
        ServiceAway, ServiceRefused: the service did not acknowledge it.
    """

    def __init__(self, endpoint: str, *, token: str | None = None, timeout: float = TIMEOUT) -> None:
        self.endpoint = endpoint_of(endpoint)
        self._http = httpx.AsyncClient(**_options(self.endpoint, token, timeout))

    async def __aenter__(self) -> OnlineClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def feedback(self, **fields: Any) -> str:
        """Say what answers were worth, in the fields of `wire.Feedback`. Returns what the service said."""
        return await self.send(FEEDBACK_PATH, read_wire(Feedback, fields))

    async def commit(self, **fields: Any) -> str:
        """Train on what there is, in the fields of `wire.Commit`: all of it if none is given."""
        return await self.send(COMMIT_PATH, read_wire(Commit, fields))

    async def record(self, record: ConversationRecord | Mapping[str, Any]) -> str:
        """Store a conversation of any agent with any model."""
        body = record if isinstance(record, ConversationRecord) else read_wire(ConversationRecord, record)
        return await self.send(RECORDS_PATH, body)

    async def next_comparison(self, **fields: Any) -> Mapping[str, Any] | None:
        """Two answers for a rater to compare, in the fields of `wire.NextPair`; None where there are none."""
        query = read_wire(NextPair, fields).to_json()
        response = await self._ask("GET", COMPARISONS_PATH, params=query)
        _check_status(COMPARISONS_PATH, response)
        found: Mapping[str, Any] | None = response.json()["comparison"]
        return found

    async def vote(self, **fields: Any) -> str:
        """Say which of two answers is better, in the fields of `wire.PairVote`."""
        return await self.send(COMPARISONS_PATH, read_wire(PairVote, fields))

    async def health(self) -> None:
        """Check that the service is there and well."""
        _check_status(HEALTH_PATH, await self._ask("GET", HEALTH_PATH))

    async def send(self, path: str, body: Body) -> str:
        """Post a body; returns the `message` of the answer."""
        return _read_acknowledgement(path, await self._ask("POST", path, json=body.to_json()))

    async def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **content)
        except httpx.HTTPError as error:
            raise _away(self.endpoint, path, error) from None


def send_feedback(endpoint: str, *, token: str | None = None, timeout: float = TIMEOUT, **fields: Any) -> str:
    """`OnlineClient.feedback` for code that does not run in an event loop."""
    body = read_wire(Feedback, fields)
    with httpx.Client(**_options(endpoint_of(endpoint), token, timeout)) as http:
        try:
            response = http.post(FEEDBACK_PATH, json=body.to_json())
        except httpx.HTTPError as error:
            raise _away(endpoint, FEEDBACK_PATH, error) from None
        return _read_acknowledgement(FEEDBACK_PATH, response)


def _options(endpoint: str, token: str | None, timeout: float) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": endpoint, "headers": headers, "timeout": timeout, "follow_redirects": False}


def _away(endpoint: str, path: str, error: Exception) -> ServiceAway:
    return ServiceAway(f"no answer from {endpoint}{path}: {name_error(error)}")


def _read_acknowledgement(path: str, response: httpx.Response) -> str:
    """Read the message of an answer; Trinity's answers have a `status` alone."""
    _check_status(path, response)
    try:
        said = response.json()
    except ValueError:
        raise ServiceRefused(f"{path} answered what is no JSON: {response.text!r:.200}", response.status_code) from None
    if not isinstance(said, Mapping) or said.get("status") != "success":
        raise ServiceRefused(f"{path} answered {said!r:.300} instead of success", response.status_code)
    return str(said.get("message") or "")


def _check_status(path: str, response: httpx.Response) -> None:
    if response.is_success:
        return
    said = f"{path} answered {response.status_code}: {_reason(response)}"
    if response.status_code in _AGAIN:
        after = response.headers.get("retry-after", "")  # a date, which is the other form, is ignored
        seconds = float(after) if after.isascii() and after.isdigit() and len(after) < 6 else None
        raise ServiceAway(said, response.status_code, seconds)
    raise ServiceRefused(said, response.status_code)


def _reason(response: httpx.Response) -> str:
    """The text of an error in OpenAI's shape, in Trinity's, or as it is."""
    try:
        said = response.json()
    except ValueError:
        return response.text[:300]
    error: object = said.get("error", said) if isinstance(said, Mapping) else said
    text = error.get("message", error) if isinstance(error, Mapping) else error
    return str(text)[:300]
