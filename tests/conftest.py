"""For all tests: no test fails because the machine is busy, and the longest ones begin first. Ctrl-C is heard, also
where a script starts the tests with `&`, which has them ignore it."""

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
