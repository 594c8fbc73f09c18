"""Token ids and their log-probabilities, packed, and sharing what they extend."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from astune.ropes import Rope, show_rope

WIDTH = 4
"""Bytes of a packed token id."""


class TokenIds(Rope[bytes], Sequence[int]):
    """An immutable sequence of token ids, 4 bytes each. Extending one copies only what is new:

    >>> prompt = TokenIds([1, 2, 3])
    >>> longer = prompt + [4, 5]        # a rope: holds `prompt` and its own two ids
    >>> longer == (1, 2, 3, 4, 5), longer.before is prompt
    (True, True)

    So the prompts of a conversation, each extending the one before, take memory linear in the last one. Equality
    and hash are by value; anything that walks all ids costs time linear in them. ids are in [0, 2**31).
    """

    __slots__ = ()
    WIDTH = WIDTH

    def __init__(self, ids: Iterable[int] = (), before: TokenIds | None = None) -> None:
        super().__init__(ids.pack() if isinstance(ids, TokenIds) else array("i", ids).tobytes(), before)

    @classmethod
    def of(cls, ids: Sequence[int]) -> TokenIds:
        """`ids` itself if it is packed already."""
        return ids if isinstance(ids, TokenIds) else cls(ids)

    @classmethod
    def from_packed(cls, data: bytes, before: TokenIds | None = None) -> TokenIds:
        """The ids that `data` holds as native 32-bit integers, after `before`; takes `data` as it is."""
        return cls.make(data, before)

    def pack(self) -> bytes:
        """All ids as native 32-bit integers: for `numpy.frombuffer(ids.pack(), "i")` and fast comparison."""
        before, own = self._link
        return own if before is None else b"".join(self.parts())

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.pack()).cast("i").tolist())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self[:])

    def __add__(self, ids: Iterable[int]) -> TokenIds:
        return TokenIds(ids, before=self)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        found = memoryview(self.pack()).cast("i")[index]
        return found if isinstance(found, int) else tuple(found.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self is other or (len(self) == len(other) and self.pack() == other.pack())
        if isinstance(other, (tuple, list)):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return show_rope(self)

    def __copy__(self) -> TokenIds:
        return self

    def __deepcopy__(self, memo: object) -> TokenIds:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenIds, (array("i", self.pack()),)


def count_shared_bytes(left: bytes, right: bytes) -> int:
    """Bytes of the whole tokens that both begin with, by bisection."""
    low, high = 0, min(len(left), len(right)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        same = left[low * WIDTH : middle * WIDTH] == right[low * WIDTH : middle * WIDTH]
        low, high = (middle, high) if same else (low, middle - 1)
    return low * WIDTH


class Logprobs(Sequence[float]):
    """An immutable sequence of log-probabilities, 8 bytes each. Equality and hash are by value."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._values = array("d", values)

    @classmethod
    def of(cls, values: Sequence[float]) -> Logprobs:
        """`values` itself if it is packed already."""
        return values if isinstance(values, Logprobs) else cls(values)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        return tuple(self._values[index]) if isinstance(index, slice) else self._values[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Logprobs, tuple, list)):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return show_rope(self)

    def __copy__(self) -> Logprobs:
        return self

    def __deepcopy__(self, memo: object) -> Logprobs:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Logprobs, (self._values,)
