"""What every policy refuses to answer, in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from astune.errors import ContextOverflow, PolicyError
from astune.types import Sampling


def check_answerable(prompt_ids: Sequence[int], sampling: Sampling, context_length: int) -> None:
    """Raises PolicyError for an empty prompt, ContextOverflow where the prompt leaves no room for the longest answer.

    >>> check_answerable([5, 6], Sampling(max_tokens=3), context_length=4)
    Traceback (most recent call last):
    astune.errors.ContextOverflow: prompt of 2 tokens and answer of up to 3 exceed the context length of 4
    """
    if not len(prompt_ids):
        raise PolicyError("cannot continue an empty prompt")
    if len(prompt_ids) + sampling.max_tokens > context_length:
        raise ContextOverflow(
            f"prompt of {len(prompt_ids)} tokens and answer of up to {sampling.max_tokens} exceed the context length "
            f"of {context_length}"
        )
