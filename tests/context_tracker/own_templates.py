# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""Templates of our own, a few lines each, that write calls as the families do whose templates are not among the files.

Each writes tools, reasoning nowhere, and messages as `<|im_start|>role`, `<|im_end|>`.
"""

_FRAME = """{%- if tools %}<|im_start|>system
{{ tools | tojson }} BEGINNING<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% if m.tool_calls %}CALLS{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"


def _template(calls: str, teaches: str = "") -> str:
    return _FRAME.replace("CALLS", calls).replace("BEGINNING", teaches)


def _in_list(before: str, after: str, item: str, between: str = ", ") -> str:
    comma = "{% if not loop.last %}" + between + "{% endif %}{% endfor %}"
    return _template(before + _EACH + item + comma + after)


def _named(before: str, start: str, between: str, end: str, after: str) -> str:
    return _template(before + _EACH + start + between + "{{ f.arguments | tojson }}" + end + "{% endfor %}" + after)


_VALUE = "{{ v if v is string else v | tojson }}"
_CDATA = "{% if v is string and ('<' in v or '\\n' in v) %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}"
"""Text of more than one line or with tags in a block, and Python's notation for what is no text: MiniCPM5."""


def _tagged(
    before: str, call: tuple[str, str, str], argument: tuple[str, str, str], after: str, value: str = _VALUE
) -> str:
    arguments = "{% for k, v in f.arguments.items() %}" + f"{argument[0]}{{{{ k }}}}{argument[1]}{value}{argument[2]}"
    each = f"{_EACH}{call[0]}{{{{ f.name }}}}{call[1]}{arguments}{{% endfor %}}{call[2]}{{% endfor %}}"
    return _template(before + each + after)


_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_DSML = ('<｜DSML｜invoke name="', '">\n', "</｜DSML｜invoke>\n")
_DSML_KEY = "\" string=\"{{ 'true' if v is string else 'false' }}\">"
_DSML_ARGUMENT = ('<｜DSML｜parameter name="', _DSML_KEY, "</｜DSML｜parameter>\n")
_O = ":opensource>"

WRITES_CALLS = {
    "apriel": _in_list("<tool_calls>[", "]</tool_calls>", _JSON[:-1] + ', "id": "{{ c.id }}"}'),
    "apertus": _in_list("<|tools_prefix|>[", "]<|tools_suffix|>", '{"{{ f.name }}": {{ f.arguments | tojson }}}'),
    "nemotron_nano": _in_list("<TOOLCALL>[", "]</TOOLCALL>", _JSON),
    "minimax_m1": _in_list("<tool_calls>\n", "\n</tool_calls>", _JSON, "\n"),
    "cohere": _in_list(
        "<|START_ACTION|>[\n",
        "\n]<|END_ACTION|>",
        '{{ "    " }}{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
        '"parameters": {{ f.arguments | tojson }}}',
    ),
    "gigachat": _in_list("<|function_call|>", "", _JSON, "\n"),
    "kimi_k2": _named(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "deepseek_v31": _named(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>{{ f.name }}",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "hunyuan": _named(
        "<tool_calls>",
        "<tool_call>function<tool_sep>{{ f.name }}",
        "\n```json\n",
        "\n```</tool_call>\n",
        "</tool_calls>",
    ),
    "functionary": _named("", "<function={{ f.name }}", ">", "</function>", ""),
    "minimax_m2": _tagged(
        "<minimax:tool_call>\n",
        ('<invoke name="', '">\n', "</invoke>\n"),
        ('<parameter name="', '">', "</parameter>\n"),
        "</minimax:tool_call>",
    ),
    "seed_oss": _tagged(
        "",
        ("\n<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>"),
        ("<parameter=", ">", "</parameter>\n"),
        "",
    ),
    "minicpm5": _tagged(
        "", ('\n<function name="', '">', "</function>"), ('<param name="', '">', "</param>"), "", _CDATA
    ),
    "hunyuan_3": _tagged(
        f"<tool_calls{_O}\n",
        (f"<tool_call{_O}", f"<tool_sep{_O}\n", f"</tool_call{_O}\n"),
        (f"<arg_key{_O}", f"</arg_key{_O}\n<arg_value{_O}", f"</arg_value{_O}\n"),
        f"</tool_calls{_O}",
    ),
    "deepseek_v32": _tagged("<｜DSML｜function_calls>\n", _DSML, _DSML_ARGUMENT, "</｜DSML｜function_calls>"),
    "deepseek_v4": _tagged("<｜DSML｜tool_calls>\n", _DSML, _DSML_ARGUMENT, "</｜DSML｜tool_calls>"),
}
"""By the format that its calls are in."""
GLM_IN_ONE_LINE = [
    _tagged(
        "",
        ("<tool_call>", edge, f"{{{{ {edge!r} }}}}</tool_call>"),
        ("<arg_key>", f"</arg_key>{edge}<arg_value>", "</arg_value>"),
        "",
    )
    for edge in ("", "\n")
]
"""The layouts of GLM 4.7 and Spark, and of Ling 3, which has a line break everywhere but between two arguments."""
STEP = _tagged(
    "", ("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"), ("<parameter=", ">\n", "\n</parameter>\n"), ""
)
"""Step 3.5's calls follow each other without a line break."""
_OTHER = '{{ tools | tojson }} Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>'
WRITES_CALLS["apriel"] = WRITES_CALLS["apriel"].replace(
    "{{ tools | tojson }}", _OTHER
)  # it teaches one and writes another
MINICPM_3 = _template(
    f"\n<|tool_call_start|>\n```python\n{_EACH}{{{{ f.name }}}}("
    "{% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{{ ',' if not loop.last }}{% endfor %})\n"
    "{% endfor %}```\n<|tool_call_end|>"
).replace(
    "{{ m.content", "{% if m.thought %}<|thought_start|>\n{{ m.thought }}\n<|thought_end|>\n{% endif %}{{ m.content"
)
"""It writes calls, and the reasoning under a name of its own."""
NO_CALLS_WRITTEN = {
    "hermes": _FRAME.replace("CALLS", "").replace("BEGINNING", '<tool_call>\n{"name": <name>, "arguments": <object>}'),
    "lfm2": _FRAME.replace("CALLS", "").replace("BEGINNING", "<|tool_list_start|>"),
    "minicpm": _FRAME.replace("CALLS", "").replace("BEGINNING", "<|tool_call_start|>\n```python\nf(x=1)\n```"),
    "granite": _FRAME.replace("CALLS", "").replace("BEGINNING", "Answer with <|tool_call|> and a list"),
}
"""They teach a format, and leave it to the caller to write the calls into the content."""
