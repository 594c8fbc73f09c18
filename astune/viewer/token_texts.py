"""Texts of very many tokens, fast: a token's text is looked up once, not decoded at every place where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astune.viewer.episode_view import Pieces

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
        tokenizers write no space, and tokens that hold a part of a character."""
        if not ids:
            return {}, []
        texts = {token: self._inside(token, ids) for token in dict.fromkeys(ids)}
        odd = [(0, self._pieces(ids[:1])[0])] if BROKEN not in texts[ids[0]] else []
        odd = [(place, text) for place, text in odd if text != texts[ids[0]]]
        place = 0
        while place < len(ids):
            if BROKEN not in texts[ids[place]]:
                place += 1
                continue
            start = place
            while place < len(ids) and BROKEN in texts[ids[place]]:
                place += 1
            before = ids[max(0, start - 1) : start]
            odd += zip(range(start, place), self._pieces([*before, *ids[start:place]])[len(before) :], strict=True)
        return texts, odd

    def _inside(self, token: int, ids: Sequence[int]) -> str:
        """The text of the token where it is not the first."""
        if token not in self._known:
            if self._anchor is None:
                whole = [other for other in ids if BROKEN not in self._pieces([other])[0]]
                self._anchor = whole[0] if whole else token
            self._known[token] = self._pieces([self._anchor, token])[1]
        return self._known[token]
