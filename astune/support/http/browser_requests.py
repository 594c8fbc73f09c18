"""Requests that a page of a browser may have sent, which ASTune's servers refuse: they are for programs.

A page can send requests wherever the machine of its reader gets to: without reading the answer to any address (its
Origin tells, and a form has a content type of its own), and through a name that leads here (DNS rebinding) it reads the
answers, too; then the Host header has that name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from astune.support.http.service import HttpError

JSON = b"application/json"
_WITHOUT_BODY = ("GET", "HEAD")
_Headers = Iterable[tuple[bytes, bytes]]


class Guarded:
    """`app` for programs alone. `refuse` makes the answer to a request that is refused, in the shape of the server's
    other errors.

    `any_name`: whatever the server is called, since callers need a token, which no page has. `any_type`: whatever a
    body says that it is, since nothing is done without a token. `hosts` are names that lead here: the server may be
    asked for by them, and by pages that come from them. `own_pages` are paths that a page of this very server asks
    for: its Origin is the address that the request is sent to. `advice` is for who asks by another name.
    """

    def __init__(
        self,
        app: ASGIApp,
        refuse: Callable[[HttpError], ASGIApp],
        *,
        any_name: bool = False,
        any_type: bool = False,
        hosts: Collection[str] = (),
        own_pages: Collection[str] = (),
        advice: str = "ask for it by its address",
    ) -> None:
        self._app, self._refuse = app, refuse
        self._any_name, self._any_type, self._advice = any_name, any_type, advice
        self._hosts = {host.lower().rstrip(".") for host in hosts}
        self._own_pages = frozenset(own_pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        refusal = self._refusal(scope["method"], scope["path"], scope["headers"]) if is_http else None
        await (self._app if refusal is None else self._refuse(refusal))(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: _Headers) -> HttpError | None:
        kinds: list[bytes] = []
        has_body = False
        own = [value for name, value in headers if name == b"host"] if path in self._own_pages else []
        for name, value in headers:
            sender = value.rpartition(b"://")[2]
            if name == b"origin" and _host(sender) not in self._hosts and own != [sender]:
                return _forbidden(f"the request comes from a page of a browser ({_quote(value)})")
            if name == b"host" and not self._any_name and not self._leads_here(_host(value)):
                return _forbidden(f"the service is asked for as {_quote(value)}: {self._advice}")
            if name == b"content-type":
                kinds.append(value)
            has_body |= name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        if self._any_type or method in _WITHOUT_BODY:
            return None
        if not kinds and has_body:  # a page may send one, as it may send text/plain
            return _no_json("has no Content-Type")
        wrong = [kind for kind in kinds if kind.partition(b";")[0].strip().lower() != JSON]
        return _no_json(f"is {_quote(wrong[0])}") if wrong else None

    def _leads_here(self, name: str) -> bool:
        known = ("", "localhost", socket.gethostname().lower())
        return name in known or name in self._hosts or _is_address(name)


def _forbidden(message: str) -> HttpError:
    return HttpError(403, "forbidden", message)


def _no_json(what: str) -> HttpError:
    return HttpError(415, "no_json", f"a body is sent with the header Content-Type: application/json, this one {what}")


def _quote(value: bytes) -> str:
    return f"{value.decode('latin-1')!r:.80}"


def _host(authority: bytes) -> str:
    """The name or address in front of a port."""
    text = authority.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
