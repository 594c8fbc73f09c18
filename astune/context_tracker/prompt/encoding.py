"""Text as token ids, where what many prompts have in common is tokenized once."""

from __future__ import annotations

from array import array
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer

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
        self._kept = lru_cache(_MOST_KEPT)(self._packed)

    def encode(self, text: str) -> list[int]:
        """Raises WorkflowError for text that UTF-8 cannot write."""
        try:
            if len(text) > LONG_TEXT:  # the same ids, and other threads run meanwhile, which `encode` holds up
                return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
            if self._cut is None:
                return self._piece(text)
            first, *others = text.split(self._cut)
            ids = self._piece(first) if first else []
            for other in others:
                ids += self._piece(self._cut + other)
            return ids
        except (TypeError, UnicodeEncodeError):
            raise WorkflowError("the text holds half of a surrogate pair, which UTF-8 cannot write") from None

    def _piece(self, text: str) -> list[int]:
        if len(text) > _LONGEST_KEPT:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return memoryview(self._kept(text)).cast("i").tolist()

    def _packed(self, text: str) -> bytes:
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
