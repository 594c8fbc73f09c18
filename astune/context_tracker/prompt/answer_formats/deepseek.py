# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""DeepSeek's three notations: that of V3 and R1, that of V3.1, and that of V3.2 and V4."""

from __future__ import annotations

from astune.context_tracker.prompt.answer_formats.named import NamedCalls
from astune.context_tracker.prompt.answer_formats.tagged import Tagged
from astune.context_tracker.prompt.tagged_text import Tags


class DeepSeekV3(NamedCalls):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, then the arguments as a json code block."""

    name = "deepseek_v3"
    next_openings = ("<｜tool▁outputs▁begin｜>",)  # R1's template does not close an answer with one call
    block = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>")
    call_marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")


class DeepSeekV31(NamedCalls):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`."""

    name = "deepseek_v31"
    block = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
    call_marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")


class DeepSeekV32(Tagged):
    """`<｜DSML｜invoke name="f"><｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter></｜DSML｜invoke>` in
    `<｜DSML｜function_calls>`; an argument that is not a string is JSON."""

    name = "deepseek_v32"
    block = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    first = ('<｜DSML｜invoke name="', '">')
    tags = Tags(
        start=r'<｜DSML｜invoke name="(?P<name>[^"<>\n]+)">',
        argument=r'<｜DSML｜parameter name="(?P<key>[^"<>\n]+)"\s+string="(?P<string>true|false)">',
        closing="</｜DSML｜parameter>",
        end="</｜DSML｜invoke>",
        stray="<｜DSML｜invoke",
    )
    call_marks = ("<｜DSML｜function_calls>", "<｜DSML｜invoke")


class DeepSeekV4(DeepSeekV32):
    """The notation of DeepSeek V3.2, in `<｜DSML｜tool_calls>`."""

    name = "deepseek_v4"
    block = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    call_marks = ("<｜DSML｜tool_calls>", "<｜DSML｜invoke")
