"""An environment service that does what its address says: `URL/any-name/reset,half/step` resets the connection of the
first step, cuts the reply to the second, and answers the third.

A name that begins with `plain` is a service without the header Astune-Env-Protocol,
which acts on every step that it gets; others keep the reply to a step's Idempotency-Key.
"""

import asyncio
import json
import socket
import struct
import threading
from collections import Counter
from email.utils import formatdate

import anyio

from astune.clients.env_requests import connections

TOOL = {"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}
INFO = {"env_type": "game", "task_id": "t", "steps": 0}
NOTHING_ACTS = {"reset", "page", "500", "500_json", "failed", "busy", "busy_date", "busy_nonsense", "busy_json", "lost"}
NOTHING_ACTS |= {"404", "401", "redirect", "no_http", "html"}
"""Faults of a service that did not do what it was asked for. All others did."""


def data_of(call, body):
    """What a service that is well answers."""
    if call == "get_env_profile":
        return ["a", "b"]
    if call in ("create", "step"):
        state = [{"role": "user", "content": f"after {body.get('messages')}"}]
        return {"state": state, "reward": 0.5, "is_terminated": False, "info": {"tools": [TOOL]}}
    return {"evaluate": 0.25, "get_info": INFO, "release": True}[call]


def error(code):
    return json.dumps({"success": False, "error": {"code": code, "message": f"the message of {code}"}})


def reply(status, body, **headers):
    body = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Said", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def success(data):
    return json.dumps({"success": True, "data": data})


REPLIES = {
    "page": reply(502, "<html><h1>Bad Gateway</h1></html>", Content_Type="text/html"),
    "html": reply(200, "<html>We are sorry</html>", Content_Type="text/html"),
    "500": reply(500, "Internal Server Error"),
    "500_json": reply(500, '{"detail": "Internal Server Error"}'),
    "failed": reply(500, error("environment_failed")),
    "busy": reply(503, "soon", Retry_After="0"),
    "busy_date": reply(503, "soon", Retry_After=formatdate(0, usegmt=True)),
    "busy_nonsense": reply(503, "soon", Retry_After="tomorrow, perhaps"),
    "busy_json": reply(503, error("full"), Retry_After="0"),
    "lost": reply(404, error("unknown_instance")),
    "404": reply(404, "Not Found"),
    "401": reply(401, error("unauthorized")),
    "redirect": reply(307, "", Location="http://127.0.0.1:9/elsewhere"),
    "no_http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "wrong_json": reply(200, '{"success": true, "data"'),
    "empty": reply(200, ""),
    "gzip": reply(200, b"\x1f\x8b\x08garbage", Content_Encoding="gzip"),
    "list": reply(200, "[1, 2]"),
    "denied": reply(200, '{"success": false, "data": "out of order"}'),
    "latin1": reply(200, '{"data": "h\xe4"}'.encode("latin-1")),
    "deep": reply(200, "[" * 200_000),
    "surrogate": reply(200, '{"success": true, "data": "\\ud800"}'),
    "shape": reply(200, success("strange")),
    "nan": reply(200, '{"success": true, "data": NaN}'),
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b'{"success": true, ',
    "half_head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half_chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n{",
    "stall": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
    "announced": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b" " * 100_000,
}
HANGS_UP = {"half", "half_head", "half_chunk", "no_http"}
WAITS = {"stall", "announced"}


class MisbehavingService:
    """`with MisbehavingService() as service:` serves at `service.url`, in a thread."""

    def __init__(self):
        self.seen = Counter()
        """Requests by (name, call)."""
        self.acted = Counter()
        """Steps that were carried out, by (name, the message's content)."""
        self.keys = set()
        self.bodies = []
        self.headers = []
        self.open = self.accepted = 0
        """Connections: those that are open, and all there ever were."""
        self._kept = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc_info):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def is_left_alone(self):
        """Waits until no connection is open but those that clients on this loop keep for later calls."""
        kept = await connections()
        with anyio.fail_after(60):
            while self.open > len(kept.idle):
                await asyncio.sleep(0.005)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self):
        self._stop, self._tasks = asyncio.Event(), set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        self.open += 1
        self.accepted += 1
        try:
            while await self._answered(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answered(self, reader, writer):
        """Whether the connection may be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        text = await reader.readexactly(int(headers.get("content-length", 0)))
        name, script, call = first.split()[1].strip("/").split("/")
        self.headers.append(headers)
        self.bodies.append(json.loads(text or b"{}"))
        fault = self._fault(name, script, call)
        good = None if fault in NOTHING_ACTS else self._act(name, call, self.bodies[-1], headers)
        return await self._send(fault, good, name, reader, writer)

    def _fault(self, name, script, call):
        number = self.seen[name, call]
        self.seen[name, call] += 1
        faults = script.split(",")
        return faults[number] if number < len(faults) else "well"

    def _act(self, name, call, body, headers):
        """The reply of a service that is well; a step counts unless its key is that of the last."""
        key = headers.get("idempotency-key")
        if call == "step":
            self.keys.add(key)
            last_key, last_reply = self._kept.get(name, (None, None))
            if key == last_key and not name.startswith("plain"):
                return last_reply
            self.acted[name, body["messages"]["content"]] += 1
        good = success(data_of(call, body))
        if call == "step":
            self._kept[name] = key, good
        return good

    async def _send(self, fault, good, name, reader, writer):
        protocol = {} if name.startswith("plain") else {"Astune-Env-Protocol": "1"}
        if fault == "well":
            writer.write(reply(200, good, **protocol))
        elif fault in ("reset", "reset_after"):
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return False
        elif fault == "slow":
            await reader.read()  # until the client hangs up
        elif fault == "drip":
            writer.write(reply(200, good)[:-1].replace(b"\r\n\r\n", b"\r\nX: "))
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()  # raises where the client has hung up
                await asyncio.sleep(0.02)
        elif fault == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not reader.at_eof():
                writer.write(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)  # others shall have their turn
        else:
            writer.write(REPLIES[fault])
        await writer.drain()
        if fault in WAITS:
            await reader.read()
        if fault in HANGS_UP:
            writer.close()
            await writer.wait_closed()
        return fault not in HANGS_UP | WAITS | {"slow", "drip", "endless"}
