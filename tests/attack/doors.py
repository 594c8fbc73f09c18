"""Malformed requests at every server, over raw sockets: each gets a status of its kind, none a 500, and afterwards the
server answers as before and holds no connection more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.attack.found import Found
from tests.attack.servers import TINKER_PYTHON, Served

SECONDS = 5.0
"""The longest that an answer may take."""
UNFINISHED_SECONDS = 36.0
"""The longest that a request may stay unfinished: what servers allow, and as much again as a busy machine needs."""
CLOSED = 0
"""The status where the server closes the connection without one."""
SPARE_FILES = 2
REFUSED = frozenset(range(400, 500))
FAIR = REFUSED | {CLOSED}


class Case(NamedTuple):
    """What is sent, the statuses that are fair, and whether the request is unfinished: then the server waits before it
    closes the connection. `drop` is sent again and again."""

    name: str
    sent: bytes
    fair: frozenset[int] = FAIR
    unfinished: bool = False
    drop: bytes = b""


def cases(served: Served) -> Iterator[Case]:
    yield from _of_http(served)
    yield from _of_json(served)
    if served.kind == "gateway":
        yield from _of_the_gateway(served)
    elif served.kind == "environment":
        yield from _of_the_environment(served)
    else:
        yield from _of_tinker(served)


def _of_http(served: Served) -> Iterator[Case]:
    host, request = served.authority, served.request
    good = request.bytes(host)
    first_line, _, rest = good.partition(b"\r\n")
    yield Case("the first bytes of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32))
    yield Case("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    yield Case("HTTP/9.9", first_line.replace(b"HTTP/1.1", b"HTTP/9.9") + b"\r\n" + rest)
    yield Case("nothing", b"", unfinished=True)
    yield Case("half a request line, then nothing", first_line[:9], unfinished=True)
    yield Case("half the headers, then nothing", good[: len(first_line) + 20], unfinished=True)
    yield Case("half a body, then nothing", good[:-5], unfinished=True)
    yield Case("headers in drops", first_line + b"\r\nX-Slow: ", unfinished=True, drop=b"a")
    yield Case("a length of -1", request.bytes(host, b"").replace(b"Content-Length: 0", b"Content-Length: -1"))
    long = request.bytes(host, b"").replace(b"Content-Length: 0", b"Content-Length: 1000000000000")
    yield Case("a length of 1 TB", long, unfinished=True)
    slow = request.bytes(host, b"").replace(b"Content-Length: 0", b"Content-Length: 1000")
    yield Case("a body in drops", slow, unfinished=True, drop=b" ")
    yield Case("a header of 1 MB", request.bytes(host, None, "X-Long: " + "a" * 2**20))
    yield Case("20,000 headers", request.bytes(host, None, *[f"X-{n}: 1" for n in range(20_000)]))
    yield Case("two lengths", request.bytes(host, b"{}", "Content-Length: 9"))
    chunked = request.bytes(host, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    yield Case("a chunk that is no number", chunked + b"zz\r\n{}\r\n")
    yield Case("a length and chunks", request.bytes(host, b"0\r\n\r\n", "Transfer-Encoding: chunked"))
    yield Case("GET", good.replace(b"POST", b"GET", 1), FAIR)
    yield Case("DELETE", good.replace(b"POST", b"DELETE", 1), FAIR)
    yield Case(
        "an upgrade to WebSocket", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    )
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    yield Case("an offer of HTTP/2", request.bytes(host, None, *offer), frozenset({request.status}))
    yield Case("another Origin", request.bytes(host, None, "Origin: http://evil.example"), frozenset({403}))
    up = b"POST /../../../etc/passwd HTTP/1.1\r\nHost: " + host.encode() + b"\r\nContent-Length: 0\r\n\r\n"
    yield Case("a path that leads up", up, REFUSED)
    yield Case("a path that leads up, in escapes", up.replace(b"/../", b"/%2e%2e%2f"), REFUSED)
    yield Case("a path with escapes of no text", up.replace(b"/../", b"/%ff%00%0d%0a"), REFUSED)
    wrong = first_line.replace(b"/v1/", b"x/v1/") + b"\r\n" + rest
    key = ("\r\n" + request.headers[0] if request.headers else "").encode()
    wrong = wrong.replace(key, b"") if key else wrong
    yield Case("a wrong key", wrong, frozenset({401, 403, 404}))
    length = b"Content-Length: %d" % len(good.partition(b"\r\n\r\n")[2])
    head = wrong.partition(b"\r\n\r\n")[0].replace(length, b"Content-Length: 100000000")
    yield Case("a wrong key before a body of 100 MB", head + b"\r\n\r\n", frozenset({401, 403, 404, 413}))


def _of_json(served: Served) -> Iterator[Case]:
    strict = REFUSED | ({200} if served.kind == "environment" else set())  # which asks for no field and ignores others
    for sent in (b"", b"{", b"null", b"1", b'"x"', b"[]", b"\xff\xfe", b"\x00"):
        yield Case(f"the body {sent!r}", served.request.bytes(served.authority, sent), REFUSED)
    for name, sent in {
        "an empty object": b"{}",
        "NaN": b'{"a": NaN}',
        "JSON of depth 400": b'{"a": ' * 400 + b"1" + b"}" * 400,
        "JSON of depth 200,000": b'{"a": ' * 200_000 + b"1" + b"}" * 200_000,
        "a number of 400 digits": b'{"n": ' + b"9" * 400 + b"}",
        "a number of 100,000 digits": b'{"n": ' + b"9" * 100_000 + b"}",
        "half a surrogate pair for a key": b'{"\\ud800": 1}',
    }.items():
        yield Case(name, served.request.bytes(served.authority, sent), strict)


def _of_the_gateway(served: Served) -> Iterator[Case]:
    messages = b'"messages": [{"role": "user", "content": "Hi"}]'

    def chat(name: str, fields: bytes, fair: frozenset[int] = REFUSED) -> Case:
        return Case(name, served.request.bytes(served.authority, b"{" + messages + b", " + fields + b"}"), fair)

    for field in (b'"temperature": NaN', b'"temperature": 1e999', b'"temperature": -1', b'"temperature": true'):
        yield chat(field.decode(), field)
    for field in (
        b'"top_p": 0',
        b'"top_p": NaN',
        b'"seed": 1.5',
        b'"max_tokens": 1e400',
        b'"n": 1000000',
        b'"stop": {}',
    ):
        yield chat(field.decode(), field)
    digits = b"9" * 400
    for name in (b"seed", b"max_tokens", b"n", b"temperature"):
        yield chat(f"{name.decode()} of 400 digits", b'"%s": %s' % (name, digits))
    deep = b'{"a": ' * 400 + b"1" + b"}" * 400
    tool = b'"tools": [{"type": "function", "function": {"name": "f", "parameters": ' + deep + b"}}]"
    yield chat("the schema of a tool of depth 400", tool)
    for megabytes in (1, 20):
        text = b'{"messages": [{"role": "user", "content": "' + b"a b " * (megabytes * 2**18) + b'"}]}'
        yield Case(f"{megabytes} MB of text", served.request.bytes(served.authority, text), FAIR)
    many = b'{"messages": [' + b",".join([b'{"role": "user", "content": "a"}'] * 100_000) + b"]}"
    yield Case("100,000 messages", served.request.bytes(served.authority, many), FAIR)
    path = served.request.path.replace("chat/completions", "completions")
    for prompt in (b"[-1]", b"[9999999]", b"[1.5]", b"[null]", b"[true]", b"[%s]" % digits, b"[[1.5]]"):
        text = served.request.bytes(served.authority, b'{"prompt": ' + prompt + b"}")
        yield Case(
            f"the prompt {prompt[:20].decode()}", text.replace(served.request.path.encode(), path.encode(), 1), REFUSED
        )


def _of_the_environment(served: Served) -> Iterator[Case]:
    host, request = served.authority, served.request
    elsewhere = request.bytes("evil.example").replace(request.headers[0].encode() + b"\r\n", b"")
    yield Case("another Host, without the token", elsewhere, REFUSED)  # with it, any name is fine
    plain = request.bytes(host).replace(b"application/json", b"text/plain")
    yield Case("a content type that pages may send", plain, REFUSED)
    untyped = request.bytes(host).replace(b"Content-Type: application/json\r\n", b"")
    yield Case("no content type, as pages may send", untyped, REFUSED)
    for name in ("../../etc/passwd", "a\x00b", "x" * 10_000, "..", "\u202e"):
        create = json.dumps({"env_type": "countdown", "task_id": name, "instance_id": "i"})
        sent = request.bytes(host, create.encode()).replace(b"/get_env_profile", b"/create", 1)
        yield Case(f"the task {name[:20]!r}", sent, REFUSED)


def _of_tinker(served: Served) -> Iterator[Case]:
    host, request = served.authority, served.request
    for name in ("../x", "/etc", 1.5, None, -1, {}, True):
        text = json.dumps({**request.body, "model_seq_id": name})
        yield Case(f"model_seq_id {name!r}", request.bytes(host, text.encode()), REFUSED)


async def knock(served: Served, sent: bytes, drop: bytes = b"", seconds: float = SECONDS) -> int | None:
    """The status of the answer, CLOSED, or None where the server waits for more."""
    reader, writer = await asyncio.open_connection(served.host, served.port)
    dripping = asyncio.ensure_future(_drip(writer, drop))
    try:
        writer.write(sent)
        line = await asyncio.wait_for(reader.readline(), seconds)
        return int(line.split()[1]) if line else CLOSED
    except ConnectionError:
        return CLOSED
    except asyncio.TimeoutError:
        return None
    finally:
        dripping.cancel()
        writer.close()


async def _drip(writer: asyncio.StreamWriter, drop: bytes) -> None:
    while drop:
        await asyncio.sleep(0.5)
        writer.write(drop)


async def _verdict(served: Served, case: Case, good: bytes, most: float) -> Found:
    started = time.monotonic()
    limit = UNFINISHED_SECONDS if case.unfinished else most
    attack = asyncio.ensure_future(knock(served, case.sent, case.drop, limit))
    await asyncio.sleep(0.01)
    alive = await knock(served, good, seconds=most)  # while the other is under way
    beside = time.monotonic() - started
    status = await attack
    seconds = time.monotonic() - started
    said = {None: "no answer", CLOSED: "closed"}.get(status, str(status))
    told = f"{said} in {seconds:.1f} s; a good request beside it: {alive} in {beside:.2f} s"
    passed = status in case.fair and alive == served.request.status and beside < most / 5
    return Found(f"doors: {served.kind}: {case.name}", passed, told)


async def _attack(served: Served, patient: bool, most: float) -> list[Found]:
    good = served.request.bytes(served.authority)
    if await knock(served, good, seconds=most) != served.request.status:
        return [Found(f"doors: {served.kind}: a good request", False, "is not answered")]
    before = served.open_files()
    every = list(cases(served))
    found = [await _verdict(served, case, good, most) for case in every if not case.unfinished]
    if patient:
        unfinished = (_verdict(served, case, good, most) for case in every if case.unfinished)
        found += await asyncio.gather(*unfinished)
    for _ in range(600):
        if (left := served.open_files() - before) <= SPARE_FILES:
            break
        await asyncio.sleep(0.1)
    found.append(Found(f"doors: {served.kind}: connections left open", left <= SPARE_FILES, str(left)))
    traces = served.tracebacks()
    found.append(
        Found(f"doors: {served.kind}: tracebacks in the log", not traces, "; ".join(sorted(set(traces)))[:200])
    )
    return found


def attack(
    kinds: tuple[str, ...] = ("gateway", "environment", "tinker"), *, patient: bool = True, most: float = SECONDS
) -> Iterator[Found]:
    """`patient` waits for unfinished requests to be closed. An answer may take `most` seconds, one to a good request
    beside it a fifth of that."""
    for kind in kinds:
        if kind == "tinker" and not TINKER_PYTHON.exists():
            yield Found("doors: tinker", None, f"not run: there is no {TINKER_PYTHON}")
            continue
        with Served(kind) as served:
            yield from asyncio.run(_attack(served, patient, most))
