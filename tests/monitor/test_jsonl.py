"""What is written is strict JSON, whatever a list holds."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astune.monitor.jsonl import plain

NUMBERS = (
    st.floats()
    | st.integers()
    | st.booleans()
    | st.none()
    | st.sampled_from([1 << 8191, 1 << 8192, -(1 << 8192), "text"])
)


@given(st.lists(st.floats(), max_size=5) | st.lists(st.integers(), max_size=5) | st.lists(NUMBERS, max_size=5))
def test_a_list_is_written_as_its_items_are(items: list[Any]) -> None:
    found = plain(items)
    assert found == [plain(item) for item in items] == plain(tuple(items))
    assert list(map(type, found)) == [type(plain(item)) for item in items]
    json.dumps(found, allow_nan=False)


def test_numbers_that_json_lacks_are_none_and_huge_ones_a_text() -> None:
    assert plain([1.0, math.nan, -math.inf]) == [1.0, None, None]
    assert plain([1, -(1 << 8192)]) == [1, hex(-(1 << 8192))]
