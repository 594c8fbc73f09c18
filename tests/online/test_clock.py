"""The time of a process that runs for long."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.online.clock import STEP, SteadyClock

CORRECTION = STEP / 4


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1e5),
            st.one_of(st.floats(-CORRECTION, CORRECTION), st.sampled_from([-3600.0, 3600.0, -1.7e9, 4e7])),
        ),
        max_size=20,
    )
)
def test_it_goes_on_as_time_passes_whatever_the_machines_clock_is_set_to(happens):
    passed, off = [0.0], [0.0]
    clock = SteadyClock(lambda: 1.7e9 + passed[0] + off[0], lambda: passed[0])
    told, allowed = [clock()], 0.0
    for seconds, change in happens:
        passed[0] += seconds
        off[0] += change
        allowed += CORRECTION
        told.append(clock())
        assert abs(told[-1] - (1.7e9 + passed[0])) <= STEP + allowed
    assert told == sorted(told)


def test_it_says_once_that_the_clock_was_set_and_follows_it_when_it_is_right_again(caplog: pytest.LogCaptureFixture):
    passed, off = [0.0], [0.0]
    clock = SteadyClock(lambda: 1000.0 + passed[0] + off[0], lambda: passed[0])
    with caplog.at_level(logging.ERROR):
        for off[0] in (-3600.0, -3600.0):
            passed[0] += 1
            assert clock() == 1000.0 + passed[0]
    (said,) = caplog.messages
    assert "set by -3600 seconds" in said
    off[0] = 5.0
    assert clock() == 1005.0 + passed[0]
    assert len(caplog.messages) == 1
