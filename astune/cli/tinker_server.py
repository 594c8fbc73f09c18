"""`astune tinker-server`: the local model and sampler behind the HTTP protocol of the tinker SDK."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from astune.errors import ConfigError, MissingDependency
from astune.support.visible import log_as_server, tell


def tinker_server(
    model: str,
    host: str,
    port: int,
    directory: Path,
    device: str,
    dtype: Literal["auto", "float32", "bfloat16"],
    slots: int,
) -> int:
    """Serves until Ctrl-C. The key is that of TINKER_API_KEY, or a new one."""
    try:
        from astune.tinker_server.server import TinkerServerConfig, new_api_key, serve
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"the tinker server needs {error.name!r}: pip install 'astune[local]' 'tinker>=0.25,<0.26'"
        ) from error
    if slots < 1:
        raise ConfigError(f"--slots {slots}: 1 or more")
    log_as_server()
    key = os.environ.get("TINKER_API_KEY") or new_api_key()
    config = TinkerServerConfig(model, directory, host, port, device, dtype, slots, api_key=key)

    def ready(address: str) -> None:
        tell(f"serves  {model} at {address}; checkpoints in {directory}; Ctrl-C ends. For clients:", flush=True)
        tell(f"export TINKER_BASE_URL={address}\nexport TINKER_API_KEY={key}", flush=True)

    try:
        serve(config, ready)
    except KeyboardInterrupt:
        tell("stopped")
    return 0
