"""Who is refused by all servers: pages of browsers, by every way that they have to a machine's servers."""

from __future__ import annotations

import socket
from typing import Any

import httpx
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from astune.support.http.browser_requests import Guarded
from astune.support.http.service import HttpError
from tests.rows import each_row

BY_ADDRESS = {"Host": "127.0.0.1:8010", "Content-Type": "application/json"}


def refuse(refusal: HttpError) -> ASGIApp:
    return PlainTextResponse(refusal.message, refusal.status)


async def status(sent: dict[str, str], method: str = "POST", body: bytes | None = b"{}", **rules: Any) -> int:
    transport = httpx.ASGITransport(Guarded(Response("taken"), refuse, **rules))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        request = client.build_request(method, "/feedback", content=body, headers=sent)
        reply = await client.send(request)
    return reply.status_code


@each_row(
    ("host", "expected"),
    [
        *[
            (host, 200)
            for host in ("127.0.0.1", "10.0.0.7:80", "[::1]:8010", "[fe80::1%25eth0]", "LOCALHOST:1", "localhost.", "")
        ],
        (socket.gethostname(), 200),
        ("shop.example", 200),
        ("SHOP.example.:8010", 200),
        *[
            (host, 403)
            for host in ("evil.example", "127.0.0.1.evil.example", "a.shop.example", "localhost.evil.example")
        ],
        *[
            (host, 403)
            for host in ("evil.example:127.0.0.1", "evil@127.0.0.1", "127.0.0.1, evil.example", "2130706433")
        ],
    ],
)
async def test_a_server_is_asked_for_by_its_address_or_by_a_name_that_it_knows(host: str, expected: int) -> None:
    for method, body in (("GET", None), ("POST", b"{}")):
        assert await status({**BY_ADDRESS, "Host": host}, method, body, hosts=["Shop.Example"]) == expected
    assert await status({**BY_ADDRESS, "Host": host}, any_name=True) == 200


@each_row(
    ("origin", "expected"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://127.0.0.1:8010", 403),
        ("https://shop.example.evil.example", 403),
        ("https://shop.example:8443", 200),
        ("https://shop.example", 200),
    ],
)
async def test_no_page_is_answered_but_those_of_names_that_lead_here(origin: str, expected: int) -> None:
    for rules in ({}, {"any_name": True}, {"any_name": True, "any_type": True}):
        for method in ("GET", "POST", "OPTIONS"):
            assert await status({**BY_ADDRESS, "Origin": origin}, method, hosts=["shop.example"], **rules) == expected


@each_row(
    ("kind", "expected"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        (None, 415),
        *[(kind, 415) for kind in ("", "text/plain", "text/plain; application/json", "application/json, text/plain")],
        *[
            (kind, 415)
            for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "text/ping")
        ],
    ],
)
async def test_a_body_says_that_it_is_json(kind: str | None, expected: int) -> None:
    sent = {"Host": "127.0.0.1"} | ({} if kind is None else {"Content-Type": kind})
    assert await status(sent) == await status({**sent, "Transfer-Encoding": "chunked"}, body=None) == expected
    assert await status(sent, any_name=True) == expected
    assert await status(sent, any_type=True) == await status(sent, "GET", None) == 200
    assert await status(sent, body=None) == (200 if kind is None else expected)  # as a commit of Trinity's client


async def test_a_header_that_is_sent_twice_is_read_twice() -> None:
    transport = httpx.ASGITransport(Guarded(Response("taken"), refuse))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for name, values in (
            ("Content-Type", ("text/plain", "application/json")),
            ("Host", ("evil.example", "127.0.0.1")),
        ):
            headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json")]
            headers = [pair for pair in headers if pair[0] != name] + [(name, value) for value in values]
            assert (await client.post("/", content=b"{}", headers=headers)).status_code >= 400


async def test_a_refusal_says_what_to_do() -> None:
    transport = httpx.ASGITransport(Guarded(Response("taken"), refuse, advice="name it in KEY"))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        assert (await client.get("/")).text == "the service is asked for as 'shop.example': name it in KEY"
        plain = await client.post("/", data={"a": "1"}, headers={"Host": "127.0.0.1"})
    assert plain.text == (
        "a body is sent with the header Content-Type: application/json, this one is 'application/x-www-form-urlencoded'"
    )
