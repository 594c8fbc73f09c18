"""The collector leaves out what stays, and finds what is left of cycles all the same."""

from __future__ import annotations

import gc
import weakref

import pytest

from astune.support import short_pauses as module
from astune.support.short_pauses import FEWEST, short_pauses


@pytest.fixture(autouse=True)
def _thaws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as in other tests: `tests/garbage.py`."""
    monkeypatch.setattr(module, "gc", gc)


class Node:
    """Holds itself once `loop` is called."""

    def loop(self) -> None:
        self.itself = self


def test_what_was_in_use_is_not_looked_at_again() -> None:
    with short_pauses():
        node = Node()
        node.loop()
        gc.collect()
        gone = weakref.ref(node)
        del node
        gc.collect()
        assert gone() is not None
    gc.collect()
    assert gone() is None


def test_what_was_left_of_a_cycle_is_found_once_as_much_again_was_kept() -> None:
    with short_pauses():
        for _ in range(2):
            node = Node()
            node.loop()
            gc.collect()
            gone = weakref.ref(node)
            del node
            collections = 0
            while gone() is not None:
                gc.collect()
                collections += 1
            assert 1 < collections <= 4 * FEWEST


def test_nothing_stays_frozen_behind_it() -> None:
    frozen, callbacks = gc.get_freeze_count(), len(gc.callbacks)
    with short_pauses(), short_pauses():
        pass
    assert gc.get_freeze_count() <= frozen
    assert len(gc.callbacks) == callbacks
