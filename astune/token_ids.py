"""Token ids and their log-probabilities, packed, and sharing what they extend."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload


class TokenIds(Sequence[int]):
    """An immutable sequence of token ids, 4 bytes each. Extending one copies only what is new:

        prompt = TokenIds([1, 2, 3])
        longer = prompt + [4, 5]        # holds `prompt` and its own two ids
        longer == (1, 2, 3, 4, 5), longer.before is prompt

    So the prompts of a conversation, each extending the one before, take memory linear in the last one. Equality
    and hash are by value; anything that walks all ids costs time linear in them. ids are in [0, 2**31).
    """

    __slots__ = ("_length", "before", "own")

    before: TokenIds | None
    """What this one extends; None if it stands alone."""
    own: bytes
    """The ids after `before`, as native 32-bit integers."""

    def __init__(self, ids: Iterable[int] = (), before: TokenIds | None = None) -> None:
        self.before = before
        self.own = ids.packed() if isinstance(ids, TokenIds) else array("i", ids).tobytes()
        self._length = len(self.own) // 4 + (0 if before is None else len(before))

    @classmethod
    def of(cls, ids: Sequence[int]) -> TokenIds:
        """`ids` itself if it is packed already."""
        return ids if isinstance(ids, TokenIds) else cls(ids)

    def packed(self) -> bytes:
        """All ids as native 32-bit integers: for `numpy.frombuffer(ids.packed(), "i")` and fast comparison."""
        if self.before is None:
            return self.own
        pieces = []
        link: TokenIds | None = self
        while link is not None:
            pieces.append(link.own)
            link = link.before
        return b"".join(reversed(pieces))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.packed()).cast("i").tolist())

    def __add__(self, ids: Iterable[int]) -> TokenIds:
        return TokenIds(ids, before=self)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        found = memoryview(self.packed()).cast("i")[index]
        return found if isinstance(found, int) else tuple(found.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self is other or (len(self) == len(other) and self.packed() == other.packed())
        if isinstance(other, (tuple, list)):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"TokenIds({list(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenIds, (tuple(self),)


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
        return f"Logprobs({list(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Logprobs, (tuple(self),)
