"""TRL beside a benchmark that takes turns with it."""

from __future__ import annotations

from beside import Peer, started  # isort: skip  (first: as things were)

import contextlib
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAME = f"TRL {version('trl')}"


class Trl:
    """A trainer that makes a step when it is told."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def step(self) -> dict[str, Any]:
        """`seconds` of a step and `rollout` of them, tokens `sampled`, of `prompt`, and `computed` with padding."""
        return self._peer.ask("step")

    def save(self, file: Path) -> None:
        """Write the weights as torch does."""
        self._peer.ask(f"save {file}")


@contextlib.contextmanager
def trl(
    model: Path,
    rows: list[dict[str, Any]],
    reward: str,
    config: dict[str, Any],
    tools_from: Path | None = None,
    threads: int = 0,
) -> Iterator[Trl]:
    """Train `model` on `rows` with the `reward` of that name in `trl_process.py`, with what `config` gives GRPOConfig,
    and with the calculator of a folder as a tool; `threads` of torch, 0 for as many as it takes by itself."""
    tools = None if tools_from is None else str(tools_from)
    given = {"model": str(model), "rows": rows, "reward": reward, "config": config, "threads": threads}
    with started(sys.executable, "trl_process.py", {**given, "tools_from": tools}) as peer:
        yield Trl(peer)
