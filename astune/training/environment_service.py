"""Start the environment service that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from astune.clients.own_env_service import own_service
from astune.config.schema import AstuneConfig


@contextmanager
def environment_service(config: AstuneConfig) -> Iterator[AstuneConfig]:
    """Yield `config` with the address of the service that it says to start; the service runs as long as the block."""
    with own_service(config.task_reader.env_service) as service:
        reader = config.task_reader.model_copy(update={"env_service": service})
        yield config.model_copy(update={"task_reader": reader})
