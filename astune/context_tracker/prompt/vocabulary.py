"""Read from a vocabulary, without tokenizing: the bytes of a token, and the fewest tokens that a text can have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How vocabularies of SentencePiece write a byte that is part of no other token."""
_KEEPS_ALL = ("ByteLevel", "Digits", "Metaspace", "Split", "Punctuation", "UnicodeScripts")
_COMPOSED = 4
"""NFC makes a text at most so much shorter: seven bytes, U+1FBE U+0308 U+0301, become the two of U+0390."""


class Vocabulary:
    """The tokens of `tokenizer` as bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
        decoder = tokenizer.decoder
        byte_level = decoder is not None and decoder.decode(["\u0120"]) == " "
        self._byte_of = _byte_alphabet() if byte_level else {}

    def bytes_of(self, token: int, text: str) -> bytes:
        """The bytes that the token stands for; `text` is how it is shown, which half of a character cannot be."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._added:
            return self._added.get(token, text).encode()
        byte = _BYTE.fullmatch(piece)
        if byte is not None:
            return bytes.fromhex(byte.group(1))
        if self._byte_of and all(character in self._byte_of for character in piece):
            return bytes(self._byte_of[character] for character in piece)
        return text.encode()

    def most_bytes(self) -> int | None:
        """Most bytes of text that one token can stand for; None if there is no such limit, as in vocabularies that
        have one token for all that they do not know, or drop white space."""
        tokenizer = self._tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        shrinks = _shrinks(_parts(tokenizer.normalizer, "normalizers"))
        cuts = _parts(tokenizer.pre_tokenizer, "pretokenizers")
        kept = all(part["type"] in _KEEPS_ALL and part.get("behavior") != "Removed" for part in cuts)
        whole = kept and self._has_all_bytes() and not any(token.lstrip or token.rstrip for token in added)
        if not whole or shrinks is None:
            return None
        sizes = (len(piece) if self._byte_of else len(piece.encode()) for piece in tokenizer.get_vocab(False))
        return shrinks * max(chain(sizes, (len(token.content.encode()) for token in added)))

    def _has_all_bytes(self) -> bool:
        """Whether there is a token for every byte, so that no text is unknown."""
        model = self._tokenizer.model
        if not isinstance(model, models.BPE):
            return False
        written = self._byte_of or ([f"<0x{byte:02X}>" for byte in range(256)] if model.byte_fallback else [])
        return bool(written) and all(self._tokenizer.token_to_id(piece) is not None for piece in written)


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: itself where it can be seen, and the others
    in order from U+0100 on."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    seen = {character: ord(character) for character in alphabet if ord(character) < 256}
    hidden = (byte for byte in range(256) if byte not in seen.values())
    return seen | dict(zip(sorted(character for character in alphabet if ord(character) > 255), hidden, strict=True))


def _parts(part: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """The settings of a part of a tokenizer, those of a sequence one by one."""
    if part is None:
        return ()
    settings = json.loads(part.__getstate__())
    parts: Sequence[Mapping[str, Any]] = settings[name] if settings["type"] == "Sequence" else (settings,)
    return parts


def _shrinks(normalizers: Sequence[Mapping[str, Any]]) -> int | None:
    """The factor by which normalizers can shorten a text before it is tokenized; None if that is not known."""
    most = 1
    for part in normalizers:
        pattern = part.get("pattern", {}).get("String")
        if part["type"] == "NFC":
            most *= _COMPOSED
        elif (
            part["type"] == "Replace" and pattern is not None and len(part["content"].encode()) >= len(pattern.encode())
        ):
            continue
        elif part["type"] != "Prepend":
            return None
    return most
