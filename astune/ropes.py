"""Sequences that share their beginnings: the messages of a conversation, and what texts and token ids are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

Part = TypeVar("Part", bytes, str, tuple[Mapping[str, Any], ...])
"""The parts that a rope is made of."""
MOST_SHOWN = 32
"""Items of a sequence that `repr` shows."""
Kind = TypeVar("Kind", bound="Rope[Any]")


class Rope(Generic[Part]):
    """A sequence made of the one that it goes on from and of what is its own. So each call of a conversation, which
    repeats all before it, takes memory for what is new. Its value never changes; where it is cut may.

    >>> first = Messages([{"role": "user"}])
    >>> longer = first.and_then({"role": "assistant"})
    >>> longer.before is first, len(longer), longer.start(1) is first
    (True, 2, True)
    """

    __slots__ = ("_length", "_link")
    _length: int
    _link: tuple[Rope[Part] | None, Part]
    WIDTH: ClassVar[int] = 1
    """`len` of the part that holds one item."""

    def __init__(self, own: Part, before: Rope[Part] | None = None) -> None:
        self._link = (before, own)
        self._length = len(own) // self.WIDTH + (0 if before is None else before._length)

    @classmethod
    def make(cls: type[Kind], own: Any, before: Kind | None) -> Kind:
        """`own`, taken as it is, after `before`."""
        rope = cls.__new__(cls)
        Rope.__init__(rope, own, before)
        return rope

    @property
    def before(self: Kind) -> Kind | None:
        """The sequence that this one goes on from; None if it stands alone."""
        return cast("Kind | None", self._link[0])

    @property
    def own(self) -> Part:
        """The part that comes after `before`."""
        return self._link[1]

    def share(self, before: Rope[Part] | None, own: Part) -> None:
        """Hold the same as `before` and `own` from now on, which others hold too: saves memory, changes no value.

        `before` must be shorter than this (so links never run in a circle). One assignment, so that a reader in
        another thread sees the old cut or the new one.
        """
        self._link = (before, own)

    def links(self: Kind) -> Iterator[tuple[Kind, Any]]:
        """This rope and those that it goes on from, the longest first, each with its own part."""
        link: Any = self
        while link is not None:
            before, own = link._link
            yield link, own
            link = before

    def parts(self) -> list[Part]:
        """In their order."""
        parts = [own for _, own in self.links()]
        parts.reverse()
        return parts

    def start(self: Kind, size: int) -> Kind:
        """The first `size` items, shared with this rope. Raises IndexError if it has fewer."""
        if not 0 <= size <= self._length:
            raise IndexError(f"the first {size} of {self._length}")
        link: Any = self
        while link is not None:
            before, own = link._link
            place = (size - len(link)) * self.WIDTH + len(own)
            if place == len(own):
                return cast("Kind", link)
            if place > 0:
                upper = self.make(own[:place], before)
                link.share(upper, own[place:])
                return upper
            link = before
        return self.make(self.own[:0], None)

    def __len__(self) -> int:
        return self._length


def show_rope(items: Sequence[Any]) -> str:
    """Write a rope for `repr`: only its length if it is long. asyncio shows an episode with a task that has ended, and
    as each turn of a conversation repeats all before it, the whole text would grow with the square of its length."""
    name = type(items).__name__
    return f"{name}({list(items)})" if len(items) <= MOST_SHOWN else f"<{name}: {len(items)}>"


class Messages(Rope[tuple[Mapping[str, Any], ...]], Sequence[Mapping[str, Any]]):
    """The messages of a request, in OpenAI's shape. Equal to the list or tuple of them. They must not be changed, as
    other requests hold them too."""

    __slots__ = ()

    def __init__(self, own: Iterable[Mapping[str, Any]] = (), before: Messages | None = None) -> None:
        super().__init__(tuple(own), before)

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]]) -> Messages:
        """`messages` itself if it is a rope already."""
        return messages if isinstance(messages, Messages) else cls(messages)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return chain.from_iterable(self.parts())

    def and_then(self, *messages: Mapping[str, Any]) -> Messages:
        """These, and `messages` after them."""
        return Messages(messages, before=self) if messages else self

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Mapping[str, Any], ...]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | tuple[Mapping[str, Any], ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        place = index + len(self) if index < 0 else index
        for link, own in self.links() if place < len(self) else ():
            if place >= len(link) - len(own):
                return cast("Mapping[str, Any]", own[place - len(link)])
        raise IndexError(f"message {index} of {len(self)}")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, (Messages, tuple, list)):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return show_rope(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (tuple(self),)


def common_start(left: Sequence[object], right: Sequence[object]) -> int:
    """Count the entries at the start that are equal.

    >>> common_start([1, 2, 3], [1, 2, 4])
    2
    """
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (one, other) in pairs if one is not other and one != other), min(len(left), len(right)))
