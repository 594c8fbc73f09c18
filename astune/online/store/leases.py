"""Leases: who may do what only one may do at a time, over processes and machines.

A holder renews its lease while it works. After `until` another may take the lease of one that died; at once, if the
name of the holder begins with that of a process of this machine (`name_of`) that has ended. Work that must not be done
twice calls `keep` in its own transaction: nobody can take the lease before that transaction ends.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from astune.errors import StoreError
from astune.store.database import Database
from astune.store.tables import leases

_DEAD = "ZX"
"""States of a process that has ended, whether or not its parent has asked for its exit code."""


class LeaseWatch:
    """The last state of a lease that a waiting process has seen. A lease that was not renewed for its length by the
    clock of the waiting process has ended, whatever clock its holder has."""

    def __init__(self) -> None:
        self._seen: tuple[str, float] | None = None
        self._since = 0.0

    def is_over(self, holder: str, until: float, now: float, seconds: float) -> bool:
        if self._seen != (holder, until):
            self._seen, self._since = (holder, until), now
        return now >= self._since + seconds


def take(
    connection: sa.Connection, name: str, holder: str, now: float, seconds: float, others: LeaseWatch | None = None
) -> bool:
    """Take the lease if nobody has it, if it has run out, or if `holder` has it already. True if `holder` has it
    now."""
    found = connection.execute(sa.select(leases.c.holder, leases.c.until).where(leases.c.name == name)).first()
    before = None if found is None else str(found.holder)
    dead = before is not None and has_ended(before)
    if found is not None and others is not None:
        dead = others.is_over(*found, now, seconds) or dead
    free = sa.or_(leases.c.holder.in_([holder, before] if dead else [holder]), leases.c.until <= now)
    taken = connection.execute(
        leases.update().where(leases.c.name == name, free).values(holder=holder, until=now + seconds)
    )
    if taken.rowcount:
        return True
    try:
        with connection.begin_nested():
            connection.execute(leases.insert().values(name=name, holder=holder, until=now + seconds))
    except sa.exc.IntegrityError:  # another one has it
        return False
    return True


def keep(connection: sa.Connection, name: str, holder: str, now: float, seconds: float) -> bool:
    """Renew the lease; False if the holder has lost it or it has run out."""
    own = (leases.c.name == name, leases.c.holder == holder, leases.c.until > now)
    return bool(connection.execute(leases.update().where(*own).values(until=now + seconds)).rowcount)


@contextmanager
def renewing(database: Database, name: str, holder: str, clock: Callable[[], float], seconds: float) -> Iterator[None]:
    """Renew the lease in a thread of its own, while the block works for longer than the lease lasts. Whether it was
    kept, the work asks in its own transaction."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(seconds / 6):
            try:
                database.write(lambda each: keep(each, name, holder, clock(), seconds))
            except (sa.exc.SQLAlchemyError, StoreError):
                continue

    thread = threading.Thread(target=beat, name="astune-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def give_back(connection: sa.Connection, name: str, holder: str) -> None:
    """End the lease, so that others may take it at once."""
    connection.execute(leases.delete().where(leases.c.name == name, leases.c.holder == holder))


def find_holder(connection: sa.Connection, name: str, now: float) -> str | None:
    """The process that has the lease; None if no living one has it."""
    found = sa.select(leases.c.holder).where(leases.c.name == name, leases.c.until > now)
    holder: str | None = connection.scalar(found)
    return None if holder is None or has_ended(holder) else holder


def name_of(pid: int) -> str:
    """Name a living process as `machine:place/pid:start`; no two living ones have the same name. `place` stands for
    this boot of this machine and, in a container, for the container. `place` and `start` are empty on a system without
    /proc."""
    place = started = ""
    if (found := _stat(pid)) is not None:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().partition("-")[0]
        place, started = f"{boot}-{os.readlink('/proc/self/ns/pid').strip('pid:[]')}", found[1]
    return f"{socket.gethostname()}:{place}/{pid}:{started}"


def has_ended(name: str) -> bool:
    """True if the process with this name (`name_of`; a further part after `/` is allowed) has ended. False if that
    cannot be known: for a process on another machine or in another container, and for a text that is no such name."""
    of_machine, _, process = name.partition("/")
    pid, _, started = process.partition("/")[0].partition(":")
    if not started or not pid.isdecimal() or of_machine != name_of(os.getpid()).partition("/")[0]:
        return False
    found = _stat(int(pid))
    return found is None or found[0] in _DEAD or found[1] != started


def _stat(pid: int) -> tuple[str, str] | None:
    """State and time of start, in ticks since the system started; None if there is no such process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return after_name[0], after_name[19]
