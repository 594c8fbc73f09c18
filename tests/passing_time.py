"""Time that passes at once, for tests of limits: what waits for one meets it, however busy the machine was before."""

import asyncio


def pass_time(seconds: float) -> None:
    """The clock of the running event loop goes on by so many seconds, to which its timeouts look."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]
