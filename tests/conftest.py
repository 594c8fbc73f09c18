"""For all tests: no test fails because the machine is busy, and the longest ones begin first. Ctrl-C is heard, also
where a script starts the tests with `&`, which has them ignore it."""

import gc
import signal

import pytest
from hypothesis import Phase, settings

from tests.garbage import collect_all, keep_frozen

# The same examples each time, but for constants of modules that are imported by then: what fails in CI is a fault of
# the change. Others are tried with PYTEST_ARGS=--hypothesis-profile=thorough
settings.register_profile("astune", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, derandomize=False, max_examples=1000)
# For scripts/planted_faults: a failure is not made small.
settings.register_profile("first", settings.get_profile("astune"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("astune")
signal.signal(signal.SIGINT, signal.default_int_handler)
keep_frozen()
TESTS_A_COLLECTION = 100
"""After so many tests the collector looks at everything, once."""
started = 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers one takes the slow tests, and the others meanwhile do the rest."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Thousands of tests and all that they import live to the end: the collector need not look at them again and again,
    which takes half a second each time. Every run of training has it look at all that is not frozen."""
    global started
    if started % TESTS_A_COLLECTION == 0:
        collect_all()
    gc.freeze()
    started += 1
