"""Ids that no other task of the split has, for millions of tasks.

>>> ids = UniqueIds()
>>> [name if ids.add(name) else ids.add_copy(name) for name in ("a", "b", "a", "a")]
['a', 'b', 'a-2', 'a-3']
"""

from __future__ import annotations

from array import array

BUCKETS = 1 << 15


class UniqueIds:
    """The ids that were there. Keeps 64 bits of each, about 16 bytes where a set of texts takes 100.

    Two of a million ids share their 64 bits with a chance of 3 in 100 million; the later then counts as a copy.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._copies: dict[str, int] = {}

    def add(self, task_id: str) -> bool:
        """Add an id; False if it was there before."""
        number = hash(task_id)  # differs between processes, and does not leave this one
        bucket = self._buckets.get(number % BUCKETS)
        if bucket is None:
            self._buckets[number % BUCKETS] = array("q", [number])
        elif number in bucket:
            return False
        else:
            bucket.append(number)
        return True

    def add_copy(self, task_id: str) -> str:
        """The id with -2 after it, or with the next number if that is taken."""
        while True:
            number = self._copies.get(task_id, 1) + 1
            self._copies[task_id] = number
            if self.add(copy := f"{task_id}-{number}"):
                return copy
