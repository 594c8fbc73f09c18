"""How families of models write an answer: reasoning, content and tool calls, in the formats that templates teach.

A new format is a subclass of `AnswerFormat`, a line here and a row in tests/context_tracker/test_template_families.py.
"""

from __future__ import annotations

from astune.context_tracker.prompt.answer_formats.base import (
    THINK,
    AnswerFormat,
    ReasoningMarks,
    any_of,
    split_reasoning,
)
from astune.context_tracker.prompt.answer_formats.deepseek import DeepSeekV3
from astune.context_tracker.prompt.answer_formats.gemma import Gemma4
from astune.context_tracker.prompt.answer_formats.harmony import Harmony
from astune.context_tracker.prompt.answer_formats.marked import Llama3Json, Mistral, MistralArgs, MistralCallId
from astune.context_tracker.prompt.answer_formats.plain import Plain
from astune.context_tracker.prompt.answer_formats.tagged import Glm, Hermes, Qwen3Coder

__all__ = ["FORMATS", "THINK", "AnswerFormat", "ReasoningMarks", "any_of", "detect_format", "split_reasoning"]

FORMATS: dict[str, AnswerFormat] = {
    form.name: form
    for form in (
        Hermes(),
        Qwen3Coder(),
        Llama3Json(),
        Mistral(),
        MistralArgs(),
        MistralCallId(),
        DeepSeekV3(),
        Glm(),
        Harmony(),
        Gemma4(),
        Plain(),
    )
}
"""By name; "none" is the last."""


def detect_format(template: str) -> str:
    """The name of the format that a chat template teaches, "none" if it is none of those known."""
    return next((name for name, form in FORMATS.items() if form.is_taught_by(template)), "none")
