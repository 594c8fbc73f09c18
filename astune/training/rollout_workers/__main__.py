"""The process of a worker: `python -m astune.training.rollout_workers`, started by `process`.

Messages come from standard input and go to standard output, which nothing else uses: what the user's code prints goes
to the run as messages. The process ends when it is told to, and at once when its input closes: the run has died.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import select
import sys
import threading

from astune.errors import AstuneError
from astune.monitor.blocking import LoopWatch
from astune.support.concurrency import run_and_leave
from astune.support.visible import make_logs_visible
from astune.training.rollout_workers.messages import (
    CutOff,
    FrameReader,
    FromWorker,
    Leave,
    Ready,
    Start,
    StopAttempt,
    ToWorker,
    Work,
    frame,
)
from astune.training.rollout_workers.output import SentOutput, set_levels
from astune.training.rollout_workers.worker import EpisodeWorker

logger = logging.getLogger(__name__)


class Wire:
    """The two pipes to the run. Threads may send."""

    def __init__(self) -> None:
        self.reading, self._writing = os.dup(0), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        data = memoryview(frame(message))
        with self._lock:
            while data:
                try:
                    data = data[os.write(self._writing, data) :]
                except BrokenPipeError:
                    os._exit(1)

    def watch(self) -> None:
        """End with the run, however that ends and whatever the event loop is at."""
        threading.Thread(target=self._watch, daemon=True, name="end of the run").start()

    def _watch(self) -> None:
        hung_up = select.poll()
        hung_up.register(self.reading, 0)
        hung_up.poll()
        os._exit(1)


async def serve(wire: Wire) -> None:
    """Take messages in until the last one."""
    inbox: asyncio.Queue[ToWorker] = asyncio.Queue()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: FrameReader(inbox.put_nowait), os.fdopen(wire.reading, "rb")
    )
    start = await inbox.get()
    assert isinstance(start, Start)
    sys.path[:] = start.import_path
    set_levels(start.levels)
    try:
        worker = EpisodeWorker(start.config, start.chat_format, start.context_length, wire.send)
        async with worker.setup.open():
            wire.send(Ready())
            with LoopWatch(logger.warning):
                await _work(worker, inbox)
                await worker.stop_all()
    except AstuneError as error:
        wire.send(Ready(error=str(error)))


async def _work(worker: EpisodeWorker, inbox: asyncio.Queue[ToWorker]) -> None:
    while True:
        message = await inbox.get()
        if isinstance(message, Work):
            worker.take(message)
        elif isinstance(message, StopAttempt):
            worker.stop(message.attempt)
        elif isinstance(message, CutOff):
            worker.cut_off(message.attempt)
        elif isinstance(message, Leave):
            return


def main() -> None:
    wire = Wire()
    wire.watch()
    faulthandler.enable(2)
    make_logs_visible()
    output = SentOutput(wire.send)
    run_and_leave(serve(wire))
    output.end()
    os._exit(0)  # whatever threads the user's code has left behind


if __name__ == "__main__":
    main()
