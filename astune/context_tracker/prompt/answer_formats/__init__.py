"""The formats in which families of models write an answer, as their templates teach it: reasoning, content, tool calls.

A new format is a subclass of `AnswerFormat`, a line here and in `astune.config.schema`, and a row in
tests/context_tracker/test_template_families.py. A format whose notation is known already only names its marks:
`ListedCalls`, `NamedCalls`, `Tagged`, `Lfm2`."""

from __future__ import annotations

from astune.context_tracker.prompt.answer_formats.base import (
    THINK,
    AnswerFormat,
    Plain,
    ReasoningMarks,
    any_of,
    split_reasoning,
)
from astune.context_tracker.prompt.answer_formats.gemma import Gemma4
from astune.context_tracker.prompt.answer_formats.harmony import Harmony
from astune.context_tracker.prompt.answer_formats.listed import (
    Apertus,
    Apriel,
    Cohere,
    GigaChat,
    Granite3,
    MiniMaxM1,
    NemotronNano2,
)
from astune.context_tracker.prompt.answer_formats.marked import Llama3Json, Mistral, MistralArgs, MistralCallId
from astune.context_tracker.prompt.answer_formats.named import (
    DeepSeekV3,
    DeepSeekV31,
    Functionary,
    Hunyuan,
    KimiK2,
)
from astune.context_tracker.prompt.answer_formats.pythonic import Lfm2, MiniCpm
from astune.context_tracker.prompt.answer_formats.tagged import (
    DeepSeekV4,
    DeepSeekV32,
    Glm,
    Hermes,
    Hunyuan3,
    MiniCpm5,
    MiniMaxM2,
    Qwen3Coder,
    SeedOss,
)

__all__ = ["FORMATS", "THINK", "AnswerFormat", "ReasoningMarks", "any_of", "split_reasoning"]

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
        DeepSeekV31(),
        DeepSeekV32(),
        DeepSeekV4(),
        Glm(),
        Harmony(),
        Gemma4(),
        MiniCpm(),
        MiniCpm5(),
        Lfm2(),
        Granite3(),
        Apertus(),
        Apriel(),
        NemotronNano2(),
        KimiK2(),
        MiniMaxM1(),
        MiniMaxM2(),
        SeedOss(),
        Hunyuan(),
        Hunyuan3(),
        Cohere(),
        GigaChat(),
        Functionary(),
        Plain(),
    )
}
"""By name; "none" is the last."""
