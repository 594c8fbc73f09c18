"""Online training under load and under kills: what the service has acknowledged is there afterwards, and is trained at
most once.

    kills   SIGKILL of each role and of all at once, in turn, at random moments, while sessions ask and rate
    load    512 sessions for minutes, with commits under way: nothing is lost and memory does not grow
"""

from __future__ import annotations

import asyncio
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

from astune.cli.endings import DONE
from tests.attack.found import Found
from tests.attack.load import MOST_GROWTH, percentiles
from tests.attack.online_clients import Clients, Kept, is_settled, look
from tests.attack.online_releases import check_releases, hold_waiting
from tests.attack.online_roles import QUICK, ROLES, WITH_RELEASES, Roles

COMMITS = {"every_episodes": 16, "min_episodes": 4}
KILLED = (*((name,) for name in WITH_RELEASES), WITH_RELEASES)
"""Each in turn, as often as is asked for."""
USERS = 25
"""That a session stands for."""
PAUSE = 10.0
"""Mean seconds between two calls of a session under load: two cores answer about fifty calls a second."""
SETTLE_SECONDS = 240.0


def attack_by_kills(kills: int = 20, sessions: int = 8, seed: int = 0, store: str | None = None) -> Iterator[Found]:
    """`store` is an empty database, by default a file of SQLite."""
    with tempfile.TemporaryDirectory() as name:
        roles = Roles(Path(name), COMMITS, QUICK, store=store)
        try:
            yield from _kills(roles, kills, sessions, seed)
        finally:
            roles.close()


def _kills(roles: Roles, kills: int, sessions: int, seed: int) -> Iterator[Found]:
    roles.start(*roles.names)
    clients = Clients(roles.host, roles.port, users=USERS)
    roles.wait(roles.is_up)
    asyncio.run(_under_kills(roles, clients, kills, sessions, seed))
    yield from judge("online kills", roles, clients)


def judge(kind: str, roles: Roles, clients: Clients) -> Iterator[Found]:
    """What must hold after anything, once the sessions have ended."""
    settled = _settled(roles)
    kept = look(roles.store, clients.ledger)
    yield Found(f"{kind}: training comes to its end", settled, _told(kept))
    yield from _owed(kind, clients, kept)
    yield _ended(kind, roles)
    yield from check_releases(kind, roles.store, roles.folder)


async def _under_kills(roles: Roles, clients: Clients, kills: int, sessions: int, seed: int) -> None:
    draw = random.Random(seed)
    work = [asyncio.create_task(clients.session(number, seed)) for number in range(sessions)]
    for killed in KILLED * kills:
        await until_more(clients, draw.randint(10, 40))
        await asyncio.sleep(draw.uniform(0.0, 1.0))
        for role in killed:
            roles.kill(role)
        roles.start(*killed)
        await asyncio.to_thread(roles.wait, roles.is_up)
    await until_more(clients, 20)
    clients.stop.set()
    await asyncio.gather(*work)


async def until_more(clients: Clients, rated: int) -> None:
    """Until so many more answers were rated."""
    wanted, end = len(clients.ledger.rated) + rated, time.monotonic() + SETTLE_SECONDS
    while len(clients.ledger.rated) < wanted:
        if time.monotonic() > end:
            raise RuntimeError(f"no answer was rated for {SETTLE_SECONDS:.0f} seconds: {clients.ledger.failed}")
        await asyncio.sleep(0.05)


def attack_by_load(seconds: float = 300.0, sessions: int = 512, seed: int = 0) -> Iterator[Found]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(8192, hard)), hard))
    with tempfile.TemporaryDirectory() as name:
        roles = Roles(Path(name), {"every_episodes": 64, "min_episodes": 4})
        try:
            yield from _load(roles, seconds, sessions, seed)
        finally:
            roles.close()


def _load(roles: Roles, seconds: float, sessions: int, seed: int) -> Iterator[Found]:
    roles.start(*roles.names)
    clients = Clients(roles.host, roles.port, pause=min(PAUSE, seconds / 4))
    roles.wait(roles.is_up)
    memory = asyncio.run(_under_load(roles, clients, seconds, sessions, seed))
    settled = _settled(roles)
    kept, ledger = look(roles.store, clients.ledger), clients.ledger
    calls = f"{len(ledger.answered):,} calls of {sessions} sessions, {len(ledger.rated):,} rated"
    lost = f"{calls}; not acknowledged: {dict(ledger.failed)}" if ledger.failed else calls
    yield Found("online load: training comes to its end", settled, _told(kept))
    yield Found("online load: every request is acknowledged", not ledger.failed and bool(ledger.rated), lost)
    yield from _owed("online load", clients, kept)
    yield Found("online load: latency of a call", True, percentiles(ledger.seconds))
    for role in ROLES:
        held = [sample[role] for sample in memory]
        early, late = held[len(held) // 3], held[-1]
        told = ", ".join(f"{held[n * len(held) // 10]:.0f}" for n in range(10))
        told = f"{told}, {late:.0f} MiB, from the beginning to the end"
        yield Found(f"online load: memory of {role} stays", late < early * MOST_GROWTH, told)
    yield _ended("online load", roles)


async def _under_load(
    roles: Roles, clients: Clients, seconds: float, sessions: int, seed: int
) -> list[dict[str, float]]:
    """What each role held, from time to time."""
    work = [asyncio.create_task(clients.session(number, seed)) for number in range(sessions)]
    memory, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        memory.append({role: roles.memory(role) for role in ROLES})
        await asyncio.sleep(0.5)
    clients.stop.set()
    await asyncio.gather(*work)
    return memory


def _settled(roles: Roles) -> bool:
    """Ask for a last commit, and wait until it is made. What was to be released meanwhile is held."""
    commit = Request(f"http://{roles.host}:{roles.port}/commit", b"{}", {"Content-Type": "application/json"})
    with urlopen(commit, timeout=60) as answer:
        asked = answer.status == 200

    def is_done() -> bool:
        if "release" in roles.names:
            hold_waiting(roles.store)
        return is_settled(roles.store)

    return asked and roles.wait(is_done, SETTLE_SECONDS)


def _ended(kind: str, roles: Roles) -> Found:
    codes = {name: roles.stop(name) for name in roles.running}
    return Found(f"{kind}: all roles end when they are told to", set(codes.values()) == {DONE}, str(codes))


def _owed(kind: str, clients: Clients, kept: Kept) -> Iterator[Found]:
    ledger = clients.ledger
    answers, rewards = f"{len(ledger.answered):,} acknowledged", f"{len(ledger.rated):,} acknowledged"
    yield Found(f"{kind}: every answer is in the store", not kept.lost_answers, f"{answers}, {kept.lost_answers} lost")
    same = not kept.other_texts and not ledger.twice
    yield Found(f"{kind}: the store has what was answered", same, f"{kept.other_texts} other, {ledger.twice} ids twice")
    yield Found(f"{kind}: every reward is in the store", not kept.lost_rewards, f"{rewards}, {kept.lost_rewards} lost")
    once = kept.trained > 0 and not kept.trained_twice
    yield Found(f"{kind}: an answer is trained at most once", once, _told(kept))
    explained = f"{sum(kept.untrained.values())} are not, {kept.unexplained} of them without a reason"
    yield Found(f"{kind}: what was rated is trained, or it is said why not", not kept.unexplained, explained)


def _told(kept: Kept) -> str:
    twice = f"{kept.trained} answers trained, {kept.trained_twice} twice"
    return f"{kept.versions} versions, commits {dict(kept.commits)}, {twice}; rated and not: {dict(kept.untrained)}"
