"""Leases: who may do what only one may do at a time, over processes and machines.

A holder renews its lease while it works. One that died does not, so that after `until` another may take it; at once,
where the holder begins with the name of a process of this machine (`astune.support.processes`) that has ended. Who does
something that must not be done twice asks `keep` in the same transaction: nobody can take the lease before that ends.
"""

from __future__ import annotations

import sqlalchemy as sa

from astune.store.tables import leases
from astune.support.processes import has_ended


def take(connection: sa.Connection, name: str, holder: str, now: float, seconds: float) -> bool:
    """Whether `holder` has the lease from now on: if nobody has it, or it has run out, or it was its own."""
    before = connection.scalar(sa.select(leases.c.holder).where(leases.c.name == name))
    dead = before is not None and has_ended(before)
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
    """Renew it; False if it is the holder's no more, be it only that it has run out."""
    own = (leases.c.name == name, leases.c.holder == holder, leases.c.until > now)
    return bool(connection.execute(leases.update().where(*own).values(until=now + seconds)).rowcount)


def give_back(connection: sa.Connection, name: str, holder: str) -> None:
    """Others may take it at once."""
    connection.execute(leases.delete().where(leases.c.name == name, leases.c.holder == holder))


def held_by(connection: sa.Connection, name: str, now: float) -> str | None:
    """Who has it; None if nobody."""
    found = sa.select(leases.c.holder).where(leases.c.name == name, leases.c.until > now)
    holder: str | None = connection.scalar(found)
    return None if holder is None or has_ended(holder) else holder
