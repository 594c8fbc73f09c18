"""The server's process: socket, event loop, and what a client needs to know."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from astune.config.schema import ModelConfig
from astune.errors import ConfigError
from astune.sampling import LEAST_TEMPERATURE, MOST_TEMPERATURE, is_greedy
from astune.support.http.serving import claim_address, serve_until_signal, server_config, url_of
from astune.tinker_server.app import tinker_app
from astune.tinker_server.service import TinkerService

_KEEP_ALIVE_SECONDS = 3600
"""Longer than any client pauses, for a connection that ends just as it is used again fails the request."""


def new_api_key() -> str:
    """The SDK sends no key that begins otherwise."""
    return f"tml-{secrets.token_urlsafe(24)}"


@dataclass(frozen=True)
class TinkerServerConfig:
    """`model` is 'tiny', a folder or a hub id; checkpoints live in `directory`, which belongs to one server at a time.

    `slots` answers are sampled side by side. `versions` of the weights stay in memory for sampling.
    `training_temperature` divides the logits in training, where the answers are sampled at a temperature other than 1.
    """

    model: str
    directory: Path
    host: str = "127.0.0.1"
    port: int = 10610
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    slots: int = 64
    versions: int = 3
    training_temperature: float = 1.0
    micro_batch_tokens: int | None = None
    """Most tokens that are trained at once, where memory has room for more."""
    api_key: str = field(default_factory=new_api_key, repr=False)


def serve(config: TinkerServerConfig, ready: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> None:
    """Serve until Ctrl-C, or until `stop` says so. `ready` hears the address when the model is there.

    Raises:
        ConfigError: the address, the device or the precision cannot be used.
        ModelError: the model cannot be read.
    """
    if not config.api_key.startswith("tml-"):
        raise ConfigError("the key of a tinker server begins with 'tml-': the SDK sends no other")
    if is_greedy(config.training_temperature) or config.training_temperature > MOST_TEMPERATURE:
        raise ConfigError(
            f"training_temperature {config.training_temperature}: expected {LEAST_TEMPERATURE} to {MOST_TEMPERATURE:g}"
        )
    asyncio.run(_serve(config, ready, stop))


async def _serve(config: TinkerServerConfig, ready: Callable[[str], None], stop: Callable[[], bool]) -> None:
    model = _model_config(config)
    listener = claim_address(config.host, config.port, "--port 0 takes a free one")
    service = TinkerService(
        model,
        config.directory,
        slots=config.slots,
        versions=config.versions,
        training_temperature=config.training_temperature,
        micro_batch_tokens=config.micro_batch_tokens,
    )
    try:
        await service.open()
        served = server_config(
            tinker_app(service, config.api_key), timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=1
        )
        await serve_until_signal(served, listener, lambda: ready(url_of(config.host, listener)), stop=stop)
    finally:
        listener.close()
        service.close()


def _model_config(config: TinkerServerConfig) -> ModelConfig:
    try:
        return ModelConfig(path=config.model, device=config.device, dtype=config.dtype)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"the model to serve: {told}") from error
