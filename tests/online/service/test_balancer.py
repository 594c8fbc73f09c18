"""Several servers behind Debian's HAProxy: one is killed, one drains, one hangs, one is full. Nothing is lost."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from astune.online.store.assignments import assign, load_plan
from astune.online.store.releases import open_release
from astune.online.store.versions import ModelVersion, add, register
from astune.store import open_database, tables
from astune.support.http.serving import bound_socket
from tests.online.service.conftest import user

HAPROXY = shutil.which("haproxy") or ("/usr/sbin/haproxy" if Path("/usr/sbin/haproxy").exists() else "")
SERVERS = {"well": {}, "full": {"max_under_way": 1}, "killed": {}, "draining": {"drain_seconds": 2.0}, "hanging": {}}
USERS, CALLS = 12, 8
BALANCER = """\
global
    log /dev/null local0
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 2s
    retries 3
    option redispatch
    retry-on all-retryable-errors
frontend all
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    balance roundrobin
    option httpchk GET /ready
    default-server check inter 250ms fall 2 rise 1
{servers}
"""


@pytest.fixture
def servers(tmp_path):
    """Processes and their addresses by name."""
    database = open_database(f"sqlite:///{tmp_path}/online.db")
    with database.writing() as connection:
        register(connection, ModelVersion(0))
        add(connection, ModelVersion(1, parent=0))
        open_release(connection, 1, {}, role="command", now=1.0)
        connection.execute(tables.releases.update().values(state="testing", stage=0, share=0.5, salt="5e1f"))
    command = [sys.executable, "-m", "tests.online.service.scripted_server", str(tmp_path)]
    running = {
        name: subprocess.Popen([*command, json.dumps({"port": 0, **more})], stdout=subprocess.PIPE, text=True)
        for name, more in SERVERS.items()
    }
    yield database, running, {name: each.stdout.readline().strip() for name, each in running.items()}
    for each in running.values():
        each.send_signal(signal.SIGCONT)
        each.kill()
        each.wait()
        each.stdout.close()
    database.close()


@pytest.fixture
def balancer(servers, tmp_path):
    """The address of a HAProxy before them."""
    with bound_socket("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
    lines = "\n".join(f"    server {name} {url.removeprefix('http://')}" for name, url in servers[2].items())
    (tmp_path / "haproxy.cfg").write_text(BALANCER.format(port=port, servers=lines))
    proxy = subprocess.Popen([HAPROXY, "-f", str(tmp_path / "haproxy.cfg"), "-db"])
    yield f"http://127.0.0.1:{port}"
    proxy.kill()
    proxy.wait()


async def ask(http, body, headers):
    """As OpenAI's clients do: again where the answer did not come, or says to come back."""
    for count in range(60):
        try:
            repeated = {"x-stainless-retry-count": str(count)}
            said = await http.post("/v1/chat/completions", json=body, headers={**headers, **repeated})
        except httpx.TransportError:
            said = None
        if said is not None and said.status_code == 200:
            return said
        assert said is None or said.status_code in (429, 502, 503, 504), said.text
        await asyncio.sleep(0.2)
    raise AssertionError("no answer after sixty tries")


@pytest.mark.release
@pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed")
@pytest.mark.fault(
    "Online training",
    "of several servers behind a balancer one is killed, one drains, one hangs and one is full",
    "every call is answered and in the store, each conversation by one version, and who was assigned to what is exact",
)
async def test_behind_a_balancer_nothing_is_lost_and_assignments_are_exact(servers, balancer):
    database, running, _ = servers
    acknowledged, versions = [], {}

    async def talk(name):
        async with httpx.AsyncClient(base_url=balancer, timeout=30, trust_env=False) as http:
            messages = []
            for _ in range(CALLS):
                messages.append(user("Hi"))
                body = {"messages": messages, "user": name}
                said = await ask(http, body, {"X-ASTune-Conversation": name})
                acknowledged.append(said.json()["id"])
                versions.setdefault(name, set()).add(int(said.headers["x-astune-version"]))
                messages.append(said.json()["choices"][0]["message"])

    async def answered(count):
        while len(acknowledged) < count:
            await asyncio.sleep(0.01)

    talks = [asyncio.create_task(talk(f"user-{number}")) for number in range(USERS)]
    await answered(USERS)
    running["hanging"].send_signal(signal.SIGSTOP)
    running["draining"].terminate()
    await answered(2 * USERS)
    running["killed"].kill()
    await answered(4 * USERS)
    running["hanging"].send_signal(signal.SIGCONT)
    await asyncio.gather(*talks)
    assert await asyncio.to_thread(running["draining"].wait, 60) == 0
    with database.reading() as connection:
        release = load_plan(connection).release
        known = set(connection.scalars(sa.select(tables.requests.c.msg_id)))
        rows = {(row.unit, row.stage, row.arm) for row in connection.execute(tables.assignments.select())}
    assert len(acknowledged) == len(set(acknowledged)) == USERS * CALLS and set(acknowledged) <= known
    arms = {name: assign(release, f"user::{name}") for name in versions}
    assert versions == {name: {0 if arm == "champion" else 1} for name, arm in arms.items()}
    assert rows == {(f"user::{name}", 0, arm) for name, arm in arms.items()}
