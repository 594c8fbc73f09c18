"""One request over a connection of its own, as bytes."""

from __future__ import annotations

import asyncio


async def exchange(host: str, port: int, sent: bytes) -> tuple[int, bytes]:
    """Status and body of the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)
    finally:
        writer.close()
