"""Texts of very many tokens, fast: a token's text is looked up once, not decoded at every place where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astune.viewer.run_config import Pieces

BROKEN = "\ufffd"
"""What decoding gives for bytes that are no whole character."""


class TokenTexts:
    """`texts.of(ids)` gives one text per id, and the places where `pieces` says something else than that.

    >>> TokenTexts(lambda ids: [chr(64 + id) for id in ids]).of([2, 1, 2])
    ({2: 'B', 1: 'A'}, [])
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._known: dict[int, str] = {}
        self._anchor: int | None = None

    def of(self, ids: Sequence[int]) -> tuple[Mapping[int, str], list[tuple[int, str]]]:
        """Texts of distinct ids within a text, and exceptions as (place, text): the first token, before which some
        tokenizers write no space, and tokens that hold a part of a character, with the one after them."""
        texts = {token: self._inside(token) for token in dict.fromkeys(ids)}
        odd = dict(zip((0,), self._pieces(ids[:1]), strict=False))
        place = 0 if BROKEN in texts.values() else len(ids)
        while place < len(ids):
            start = place
            while place < len(ids) and texts[ids[place]] == BROKEN:
                place += 1
            if place > start:
                before, stop = max(0, start - 1), min(len(ids), place + 1)
                odd |= zip(range(start, stop), self._pieces(ids[before:stop])[start - before :], strict=True)
            place += 1
        return texts, [(place, text) for place, text in odd.items() if text != texts[ids[place]]]

    def _inside(self, token: int) -> str:
        """The text of the token where it is not the first; `BROKEN` for a part of a character."""
        if token not in self._known:
            if BROKEN in self._pieces([token])[0]:
                self._known[token] = BROKEN
            else:
                self._anchor = token if self._anchor is None else self._anchor
                self._known[token] = self._pieces([self._anchor, token])[1]
        return self._known[token]
