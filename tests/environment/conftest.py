"""A service of `Rooms`, reached over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from astune.testing import EnvServer
from tests.environment.rooms import Caller, Rooms


@pytest.fixture
def rooms() -> Rooms:
    return Rooms()


@pytest.fixture
def serve(rooms: Rooms) -> Iterator[Callable[..., Caller]]:
    """Starts a service of `rooms` with the given limits. At the end every room has been closed once, none while
    something was under way in it."""
    with ExitStack() as stack:

        def start(**limits: Any) -> Caller:
            server = stack.enter_context(EnvServer([rooms], **limits))
            caller = Caller(server.url)
            stack.callback(caller.http.close)
            return caller

        yield start
        rooms.gate.set()
    assert [room.closes for room in rooms.made] == [1] * len(rooms.made)
    assert not any(room.collided for room in rooms.made)


@pytest.fixture
def caller(serve: Callable[..., Caller]) -> Caller:
    return serve()
