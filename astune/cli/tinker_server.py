"""`astune tinker-server`: the local model and sampler behind the HTTP protocol of the tinker SDK."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError, explain_missing
from astune.support.run_log import open_log
from astune.support.visible import log_as_server, tell

EXAMPLES = """\
  {program} tinker-server --model tiny                     on the CPU, for a first try
  {program} tinker-server --model Qwen/Qwen3-0.6B --dir runs/tinker --port 0
  TINKER_API_KEY=tml-mine {program} tinker-server --model models/qwen --device cuda:1"""


def add_tinker_server(commands: Commands) -> None:
    command = commands.add_parser("tinker-server", help="serve a model to clients of the tinker SDK", examples=EXAMPLES)
    command.set_defaults(execute=tinker_server)
    command.add_argument("--model", required=True, metavar="M", help="'tiny', a folder or a hub id")
    command.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which only this machine reaches")
    command.add_argument("--port", type=int, default=10610, help="default: 10610; 0 takes a free one")
    command.add_argument(
        "--dir", type=Path, default=Path("runs/tinker"), metavar="FOLDER", help="of checkpoints; default: runs/tinker"
    )
    command.add_argument("--device", default="auto", help="'auto' (CUDA if there is one), 'cpu', 'cuda' or 'cuda:N'")
    command.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    command.add_argument("--slots", type=int, default=64, metavar="N", help="answers sampled side by side; default: 64")


def tinker_server(known: argparse.Namespace) -> int:
    """Serves until Ctrl-C. The key is that of TINKER_API_KEY, or a new one."""
    with explain_missing("the tinker server", "'astune[local,lora]' 'tinker>=0.25,<0.39'"):
        from astune.tinker_server.server import TinkerServerConfig, new_api_key, serve
    if known.slots < 1:
        raise ConfigError(f"--slots {known.slots}: 1 or more")
    log_as_server(known.log_level)
    open_log(known.dir, as_json=False, role="tinker-server")
    key = os.environ.get("TINKER_API_KEY") or new_api_key()
    place = (known.dir, known.host, known.port)
    config = TinkerServerConfig(known.model, *place, known.device, known.dtype, known.slots, api_key=key)

    def ready(address: str) -> None:
        tell(f"serves  {known.model} at {address}; checkpoints in {known.dir}; Ctrl-C ends. For clients:", flush=True)
        tell(f"export TINKER_BASE_URL={address}\nexport TINKER_API_KEY={key}", flush=True)

    try:
        serve(config, ready)
    except KeyboardInterrupt:
        tell("stopped")
    return 0
