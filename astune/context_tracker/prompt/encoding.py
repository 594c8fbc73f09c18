"""A tokenizer's texts and ids: texts are encoded piece by piece, so that what many prompts share is tokenized once; the
vocabulary tells, without tokenizing, the bytes of a token and the fewest tokens that a text can have."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from astune.errors import WorkflowError

LONG_TEXT = 2**16
"""Characters that take long to tokenize: tens of milliseconds."""
_MOST_KEPT = 512
_LONGEST_KEPT = 2**13
"""Characters. So what is kept takes no more than some 20 MB."""


class TextEncoder:
    """Token ids of texts, by the pieces that begin with the special token that the template opens its prompts with.

    Episodes share what the system message says, the tools, and in a group the question. The tokenizer itself takes a
    text apart at such tokens before anything else, so the ids of the pieces are those of the text. A tokenizer that may
    see the token otherwise, or in a part of another token, is given the whole.
    """

    def __init__(self, tokenizer: Tokenizer, generation_prompt: str) -> None:
        self._tokenizer = tokenizer
        self._cut = _cut(list(tokenizer.get_added_tokens_decoder().values()), generation_prompt)
        self._kept = lru_cache(_MOST_KEPT)(self._pack)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Special tokens written in it are recognised; nothing is added.

        Raises WorkflowError for text that UTF-8 cannot write.
        """
        try:
            if len(text) > LONG_TEXT:  # the same ids, and other threads run meanwhile, which `encode` holds up
                return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
            first, *others = [text] if self._cut is None else text.split(self._cut)
            ids: list[int] = []
            for piece in (first, *(f"{self._cut}{other}" for other in others)):
                if len(piece) > _LONGEST_KEPT:
                    ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
                elif piece:
                    ids += memoryview(self._kept(piece)).cast("i").tolist()
            return ids
        except (TypeError, UnicodeEncodeError):
            raise WorkflowError("the text holds half of a surrogate pair, which UTF-8 cannot write") from None

    def _pack(self, text: str) -> bytes:
        return array("i", self._tokenizer.encode(text, add_special_tokens=False).ids).tobytes()


def _cut(added: list[AddedToken], generation_prompt: str) -> str | None:
    """The token that a prompt's end begins with, if it is one wherever it stands in a text."""
    found = [token for token in added if token.content and generation_prompt.startswith(token.content)]
    cut = max(found, key=lambda token: len(token.content), default=None)
    if cut is None or cut.lstrip or cut.single_word or cut.normalized:
        return None
    begun = [cut.content[:size] for size in range(1, len(cut.content))]
    for token in added:
        if token.content != cut.content and (
            cut.content in token.content or any(token.content.endswith(part) for part in begun)
        ):
            return None
    return cut.content


_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A byte that is part of no other token, as vocabularies of SentencePiece write it."""
_KEEPS_ALL = ("ByteLevel", "Digits", "Metaspace", "Split", "Punctuation", "UnicodeScripts")
_MAX_UTF8_BYTES = 4
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

    def pieces(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
        """One string per token, which together are what `decode` gives; a character stands at its last token."""
        pieces: list[str] = []
        before: list[int] = []
        group: list[int] = []
        for place, token in enumerate(ids, start=1):
            group.append(token)
            text = decode([*before, *group])[len(decode(before)) :]
            if text.endswith("\ufffd") and len(group) < _MAX_UTF8_BYTES and place < len(ids):
                pieces.append("")
            else:
                pieces.append(text)
                before, group = group, []
        return pieces

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
        """True if there is a token for every byte, so that no text is unknown."""
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
