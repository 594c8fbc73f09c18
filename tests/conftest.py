"""For all tests: no test fails because the machine is busy, and the longest ones begin first. Ctrl-C is heard, also
where a script starts the tests with `&`, which has them ignore it."""

import gc
import signal

import pytest
from hypothesis import settings

settings.register_profile("astune", deadline=None)
settings.load_profile("astune")
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers one takes the slow tests, and the others meanwhile do the rest."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import live to the end: the collector need not look at them again and again,
    which takes half a second each time."""
    gc.freeze()
