"""Access to the service: tokens, and limits on requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from astune.config.online import ServeConfig
from astune.errors import ConfigError
from astune.support.http.service import HttpError, find_owner

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPERATOR = "operator:"
"""Begins the client of a request with an operator's token, before the operator's name."""
LEAST_TOKEN = 16
"""Characters of a token, so that nobody guesses one."""


class TooManyRequests(HttpError):
    """429. `seconds` until it is worth asking again."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(429, "rate_limit_exceeded", message)
        self.seconds = max(1, round(seconds + 0.5))


def read_tokens(config: ServeConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The tokens by the name of their client; an operator's has `OPERATOR` before it.

    Raises:
        ConfigError: one is not there, too short or somebody else's; or there is none, and others than this machine
            could come in.
    """
    key = "astune.online.serve.tokens"
    if not config.tokens and config.host not in LOOPBACK:
        raise ConfigError(
            f"astune.online.serve.host is {config.host!r}, which other machines reach: name a token for each client, "
            f"as {key}: {{my_app: MY_APP_TOKEN}}"
        )
    named = {client: (f"{key}.{client}", variable) for client, variable in config.tokens.items()}
    if (wrong := next((client for client in named if client.startswith(OPERATOR)), None)) is not None:
        raise ConfigError(
            f"{key}.{wrong}: a client's name must not begin with {OPERATOR!r}: see astune.online.serve.operators"
        )
    for name, variable in config.operators.items():
        named[f"{OPERATOR}{name}"] = f"astune.online.serve.operators.{name}", variable
    found: dict[str, str] = {}
    for client, (place, variable) in named.items():
        token = environ.get(variable, "")
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
            raise ConfigError(
                f"{place}: the environment variable {variable} must hold a token of at least {LEAST_TOKEN} "
                f"printable ASCII characters; it {'is not set' if not token else 'does not'}"
            )
        if token in found.values():
            raise ConfigError(f"{place}: another client or operator has the same token")
        found[client] = token
    return found


class AccessControl:
    """Checks tokens and counts requests. `clock` is in seconds since any moment, and never set."""

    def __init__(self, config: ServeConfig, tokens: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._tokens = {name: f"Bearer {token}".encode() for name, token in tokens.items()}
        self._demanded = any(not name.startswith(OPERATOR) for name in tokens)
        self._most, self._per_minute, self._clock = config.max_under_way, config.requests_per_minute, clock
        self._allowed: dict[str, tuple[float, float]] = {}
        self.under_way = 0

    @property
    def has_tokens(self) -> bool:
        """True if a client needs a token. Operators may have some without that."""
        return self._demanded

    def client(self, authorization: str | None) -> str:
        """The name of the client whose token it is; empty where none is asked for. Raises HttpError (401)."""
        given = (authorization or "").encode("latin-1", "replace")
        owner = find_owner(given, self._tokens)
        if owner is None and not self._demanded:
            return ""
        if owner is None:
            said = "a token is missing" if authorization is None else "this token is not known"
            raise HttpError(401, "invalid_api_key", f"{said}: the service asks for Authorization: Bearer TOKEN")
        return owner

    @contextmanager
    def enter(self, client: str) -> Iterator[None]:
        """While a request is under way. Raises TooManyRequests."""
        if self.under_way >= self._most:
            raise TooManyRequests(f"{self._most} requests are under way, which is the most (max_under_way)", 1.0)
        self._take(client)
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def _take(self, client: str) -> None:
        """A bucket for each client: it holds a minute's requests and fills evenly."""
        if self._per_minute is None:
            return
        now = self._clock()
        left, since = self._allowed.get(client, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + max(0.0, now - since) * self._per_minute / 60)
        if left < 1:
            self._allowed[client] = left, now
            raise TooManyRequests(
                f"{self._per_minute} requests a minute are allowed (requests_per_minute)",
                (1 - left) * 60 / self._per_minute,
            )
        self._allowed[client] = left - 1, now
