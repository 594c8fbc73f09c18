"""`openai_app` over HTTP on this machine, for agents in other processes and languages.

One server per process, started by the first call and stopped when the process ends. It runs in a thread of its
own, with an event loop of its own; `openai_app.Endpoint` hands each call over to the loop of its episode.
"""

from __future__ import annotations

import atexit
import functools
import socket
import threading

import uvicorn

from astune.gateway.app import OpenAIApp, openai_app


class HttpServer:
    """`app` on a free port of the loopback interface. Connections are taken from the moment this returns."""

    def __init__(self, app: OpenAIApp) -> None:
        # The protocol is named because asyncio turns Nagle's delay (40 ms an answer) off for such sockets only.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(1024)
        self.origin = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app.asgi, loop="asyncio", ws="none", lifespan="off", log_level="warning", access_log=False, log_config=None
        )
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


@functools.cache
def http_server() -> HttpServer:
    """The server of this process."""
    server = HttpServer(openai_app())
    atexit.register(server.close)
    return server
