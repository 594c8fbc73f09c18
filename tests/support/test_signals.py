"""Ctrl-C, and the signals that count as one."""

from __future__ import annotations

import signal

import pytest

from astune.support.signals import on_ctrl_c, signals_as_ctrl_c


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_the_first_signal_counts_as_ctrl_c_and_nohup_is_heeded(number: int) -> None:
    heard: list[int] = []
    with on_ctrl_c(lambda: heard.append(1)), signals_as_ctrl_c():
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [1]
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with on_ctrl_c(lambda: heard.append(2)), signals_as_ctrl_c():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert heard == [1]


@pytest.mark.fault(
    "Runs and resuming", "a script starts a run with `&`, and later sends SIGTERM", "it ends as by Ctrl-C at any time"
)
def test_sigterm_is_heard_where_ctrl_c_was_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), signals_as_ctrl_c():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
