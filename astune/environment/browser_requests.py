"""Requests that come from pages of a browser, which a service of ASTune refuses: it is for programs.

A page can send requests to this machine (its Origin tells), and with a name that leads here (DNS rebinding) even read
the answers; then the Host header has that name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable


def refused(headers: Iterable[tuple[bytes, bytes]], *, any_name: bool = False) -> str | None:
    """The reason why a request is refused; None if it is answered. `any_name`: whatever the service is called, since
    callers need a token, which no page has.

    >>> refused([(b"host", b"evil.example:80")])
    "the service is asked for as 'evil.example': ask for it by its address, or serve with a token"
    """
    given = dict(headers)
    host = _name(given.get(b"host", b""))
    origin = given.get(b"origin")
    if origin is not None:
        return f"the request comes from a page of a browser ({origin.decode('latin-1')!r:.80})"
    if any_name or _is_address(host) or host in ("", "localhost", socket.gethostname().lower()):
        return None
    return f"the service is asked for as {host!r:.80}: ask for it by its address, or serve with a token"


def _name(host: bytes) -> str:
    text = host.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
