"""The error of a client, which it hears of in words; every other error in a request is the server's."""

from __future__ import annotations

from astune.errors import AstuneError


class RequestError(AstuneError):
    """The client asked for something that cannot be done. `status` is HTTP's, where no answer is fetched later."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def not_found(message: str) -> RequestError:
    return RequestError(message, status=404)
