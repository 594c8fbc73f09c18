"""Ctrl-C, and the signals that count as one. Only the main thread hears of signals; in others nothing is changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_ctrl_c(handle: Callable[[], None]) -> Iterator[None]:
    """Calls `handle` on Ctrl-C instead of raising KeyboardInterrupt, between two instructions of whatever goes on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: handle())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """The first SIGTERM (a scheduler, `kill`) or SIGHUP (the terminal was closed) does what Ctrl-C does; more of them
    do nothing, as systems send several. `nohup` is heeded. A shell without job control, as a script's, has what it
    starts with `&` ignore Ctrl-C; it is heard again, or SIGTERM would be lost with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    sent: list[bool] = []

    def forward(*_: object) -> None:
        if not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
