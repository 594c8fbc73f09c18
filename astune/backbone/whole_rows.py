"""Rows all of whose tokens but the first are scored, at temperature 1: what servers and trainer are compared by."""

from __future__ import annotations

from collections.abc import Sequence

from astune.types import Sample, Span, Timeline


def whole_row(token_ids: Sequence[int]) -> Sample:
    """A sample of two tokens or more whose log-probabilities are asked for. It has no advantage: nothing is to be
    learned from it."""
    span = Span(0, 1, len(token_ids), 0, 1.0, True, [0.0] * (len(token_ids) - 1))
    return Sample(Timeline("", token_ids, (span,)), (0.0,), (1.0,), "", "")
