"""The door of a sandbox: a proxy outside, which passes connections on to the named hosts and to no other.

The sandbox has no network but its own loopback. Its first process listens there and hands the socket out; what connects
to it comes here. Nothing but `CONNECT` is answered, so what goes over a connection is end to end, as HTTPS is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable

import anyio

logger = logging.getLogger(__name__)

PORT = 3128
"""Where the door is inside."""
PROXY = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), f"http://127.0.0.1:{PORT}")
SECONDS = 10.0
"""To say where to, and to get there."""
MOST = 32
"""Connections at the same time."""
OF_CLOUDS = {"100.100.100.200", "192.0.0.192", "fd00:ec2::254"}
"""Addresses of clouds' metadata beside the link-local ones."""


def is_forbidden(address: str) -> bool:
    """Tell whether nothing is passed on to it, whatever its name: this machine's addresses, metadata of clouds."""
    at = ipaddress.ip_address(address.partition("%")[0])
    at = getattr(at, "ipv4_mapped", None) or at
    if at.is_link_local or at.is_unspecified or at.is_multicast or at.is_loopback or str(at) in OF_CLOUDS:
        return True
    with socket.socket(socket.AF_INET if at.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(at), 0))
        except OSError:
            return False
        return True


class Door:
    def __init__(self, hosts: Iterable[str], forbidden: Callable[[str], bool] = is_forbidden) -> None:
        """`hosts` are names with or without a port, which is 443."""
        self.hosts = {host.lower() if ":" in host else f"{host.lower()}:443" for host in hosts}
        self._forbidden = forbidden
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for each in self._open:
            each.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with anyio.fail_after(SECONDS):
                answer, there = await self._connect(await reader.readuntil(b"\r\n\r\n"))
            writer.write(f"HTTP/1.1 {answer}\r\n\r\n".encode())
            await writer.drain()
            if there is not None:
                with contextlib.closing(there[1]):
                    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
            logger.debug("a connection out of a sandbox ended: %s", error)
        finally:
            self._open.discard(task)
            writer.close()

    async def _connect(self, head: bytes) -> tuple[str, tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
        """The status, and where it is a good one the streams to the host."""
        method, target, *_ = [*head.decode("latin-1").lower().split(" "), ""]
        if method != "connect":
            return "405 only CONNECT is answered, as for https", None
        if target not in self.hosts:
            return "403 not named in astune.rollout.workspace.hosts", None
        if len(self._open) > MOST:
            return "503 too many connections", None
        host, _, port = target.rpartition(":")
        with contextlib.suppress(OSError):
            for *_, address in await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM):
                if not self._forbidden(str(address[0])):
                    return "200 connected", await asyncio.open_connection(str(address[0]), int(port))
        return "502 not reached", None


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes until its end, which is passed on too."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
