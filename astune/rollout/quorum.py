"""A step that waits for its slowest episodes no longer than its others are worth."""

from __future__ import annotations

import asyncio
import math
from typing import Any


class Quorum:
    """Once `part` of `episodes` have ended, the others have `patience` seconds more; then they are `late`.

    quorum = Quorum(128, part=0.9, patience=30.0)
    quorum.ended()              # as each episode ends, before it is judged
    await quorum.late.wait()    # whoever plays one: it is cut off
    """

    def __init__(self, episodes: int, part: float, patience: float) -> None:
        self._missing = math.ceil(part * episodes - 1e-9)  # 0.07 of 100 are 7, whatever floats make of it
        self._patience = patience
        self.late = asyncio.Event()

    def ended(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            asyncio.get_running_loop().call_later(self._patience, self.late.set)


async def late_before(late: asyncio.Event | None, ended: asyncio.Future[Any]) -> bool:
    """Wait until an episode has ended, or is late before that: whether it is."""
    if late is None:
        await asyncio.wait({ended})
        return False
    waiting = asyncio.ensure_future(late.wait())
    try:
        await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return not ended.done()
