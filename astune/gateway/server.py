"""`openai_app` over HTTP on this machine, for agents in other processes and languages.

One server per process, started by the first call and stopped when the process ends. It runs in a thread of its
own, with an event loop of its own; `openai_app.Endpoint` hands each call over to the loop of its episode.
"""

from __future__ import annotations

import atexit
import functools
import threading

from astune.errors import RolloutError
from astune.gateway.app import OpenAIApp, openai_app
from astune.gateway.http import answer_error
from astune.support.http.browser_requests import Guarded
from astune.support.http.serving import ServerThread, bound_socket, server_config, url_of


class HttpServer:
    """`app` at an address, by default a free port of the loopback interface, which no other machine can reach.
    Connections are taken from the moment this returns.

    Whoever can reach another `host` can call the models of the episodes that run, if they know the token in the URL.

    Raises:
        RolloutError: the address cannot be used.
    """

    def __init__(self, app: OpenAIApp, *, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            listener = bound_socket(host, port)
        except OSError as error:
            raise RolloutError(f"cannot serve at {host}:{port}: {error.strerror or error}") from error
        self.origin = url_of(host, listener)
        # The token in the URL is what no page has.
        guarded = Guarded(app.asgi, answer_error, any_name=True, any_type=True)
        self._thread = ServerThread(server_config(guarded, log_config=None), listener, "astune-http")
        self._thread.start()

    def close(self) -> None:
        """Stop at once; calls under way are cut off."""
        self._thread.close(at_once=True)


_making = threading.Lock()


def http_server() -> HttpServer:
    """The server of this process. Threads may ask for it at the same time."""
    with _making:
        return _make()


@functools.cache
def _make() -> HttpServer:
    server = HttpServer(openai_app())
    atexit.register(server.close)
    return server
