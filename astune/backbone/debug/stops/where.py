"""Find the lines of the user's code at which a suspended workflow stands."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import CoroutineType

from astune.support.user_code import by_user


def awaited_lines(work: object) -> list[str]:
    """The lines of the user's code at which the coroutine `work` and those that it awaits are suspended, the outermost
    first:

        ["agent.py:12 in execute:  reply = await agent.reply(message)"]

    Where one of them waits for tasks (`asyncio.gather`), its line is the last.
    """
    lines = []
    while isinstance(work, CoroutineType) and (frame := work.cr_frame) is not None:
        file = frame.f_code.co_filename
        if by_user(file):
            code = linecache.getline(file, frame.f_lineno, frame.f_globals).strip()
            lines.append(f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}:  {code}")
        work = work.cr_await
    return lines
