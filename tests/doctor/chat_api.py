"""A chat API on this machine, as servers of models have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from astune.testing import ScriptedChatServer


@contextmanager
def api(completion: Mapping[str, Any] | int, models: Sequence[str] = ("small",)) -> Iterator[tuple[str, list[Any]]]:
    """The base URL and the list of request bodies. A number is the status of an error."""
    with ScriptedChatServer(lambda body: completion, models=models) as server:
        yield server.base_url, server.requests
