"""Ports of this machine that nobody uses."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(number: int) -> list[int]:
    """So many different ones. Nothing holds them: another program may take one in the meantime."""
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(server.getsockname()[1]) for server in servers]
