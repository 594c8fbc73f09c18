import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.clients.limited_model import CircuitBreaker, RateLimit


@given(
    per_minute=st.floats(0.2, 300),
    pauses=st.lists(st.floats(0, 90) | st.just(0.0), min_size=1, max_size=400),
)
def test_no_minute_has_more_requests_than_allowed(per_minute, pauses):
    limit, now, sent = RateLimit(per_minute), 0.0, []
    for pause in pauses:
        now += pause
        now += limit.wait(now)
        limit.take(now)
        sent.append(now)
    for at, first in enumerate(sent):
        assert sum(first <= time < first + 60 - 1e-6 for time in sent[at:]) <= math.ceil(per_minute)


def test_requests_come_evenly_after_a_small_burst_and_the_rate_is_used():
    limit, now, waits = RateLimit(60), 100.0, []
    for _ in range(60):
        waits.append(limit.wait(now))
        now += waits[-1]
        limit.take(now)
    assert waits[:6] == pytest.approx([0.0] * 6, abs=1e-9)
    assert waits[6:] == pytest.approx([60 / 55] * 54)


def test_a_rest_doubles_up_to_5_minutes_and_ends_with_an_answer():
    breaker, now, rests = CircuitBreaker(), 0.0, []
    for _ in range(6):
        assert not breaker.resting(now)
        rests.append(breaker.note_failure(now))
        assert breaker.resting(now + rests[-1] - 0.01)
        now += rests[-1]
    assert rests == [30, 60, 120, 240, 300, 300]
    breaker.note_answer()
    assert breaker.note_failure(now) == 30


def test_calls_that_were_under_way_do_not_lengthen_the_rest():
    breaker = CircuitBreaker()
    assert [breaker.note_failure(0.0), breaker.note_failure(1.0), breaker.note_failure(29.0)] == [30.0, 0.0, 0.0]
    assert not breaker.resting(30.0)
