"""`openai_app` over HTTP on this machine, for agents in other processes and languages.

One server per process, started by the first call and stopped when the process ends. It runs in a thread of its
own, with an event loop of its own; `openai_app.Endpoint` hands each call over to the loop of its episode.
"""

from __future__ import annotations

import atexit
import functools
import threading

import uvicorn

from astune.errors import RolloutError
from astune.gateway.app import OpenAIApp, openai_app
from astune.gateway.http import refuse
from astune.support.http.browser_requests import Guarded
from astune.support.http.serving import BACKLOG, bound_socket, server_config, url_of


class HttpServer:
    """`app` at an address, by default a free port of the loopback interface, which no other machine can reach.
    Connections are taken from the moment this returns.

    Whoever can reach another `host` can call the models of the episodes that run, if they know the token in the URL.

    Raises:
        RolloutError: the address cannot be used.
    """

    def __init__(self, app: OpenAIApp, *, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            self._socket = bound_socket(host, port)
        except OSError as error:
            raise RolloutError(f"cannot serve at {host}:{port}: {error.strerror or error}") from error
        self._socket.listen(BACKLOG)
        self.origin = url_of(host, self._socket)
        guarded = Guarded(app.asgi, refuse, any_name=True, any_type=True)  # the token in the URL is what no page has
        config = server_config(guarded, log_config=None)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="astune-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop at once; calls under way are cut off."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()


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
