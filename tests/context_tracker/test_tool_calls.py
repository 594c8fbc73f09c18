import json

from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.prompt.answer_formats import FORMATS, THINK, split_reasoning
from astune.context_tracker.prompt.tool_calls import WrittenCall
from tests.rows import each_row

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    },
}


def split_tool_calls(text, form, tools=None):
    parsed = FORMATS[form].read(text, tools)
    return parsed.content or "", parsed.tool_calls


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def test_hermes_arguments_keep_the_text_that_was_sampled():
    text = hermes("f", '{"city":"Z\\u00fcrich",   "scale":1e2}')
    assert split_tool_calls(text, "hermes") == ("", (WrittenCall("f", '{"city":"Z\\u00fcrich",   "scale":1e2}'),))


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4), st.sampled_from([None, 2]))
def test_any_object_survives_as_hermes_arguments(arguments, indent):
    written = json.dumps(arguments, indent=indent)
    content, calls = split_tool_calls("Text. " + hermes("f", written) + "\n", "hermes")
    assert content == "Text."
    assert json.loads(calls[0].arguments) == arguments


def test_two_calls_and_the_text_around_them():
    text = "One. " + hermes("f", "{}") + " Two. " + hermes("g", '{"x": [1, {"}": 2}]}') + "\n"
    content, calls = split_tool_calls(text, "hermes")
    assert content == "One.\nTwo."
    assert calls == (WrittenCall("f", "{}"), WrittenCall("g", '{"x": [1, {"}": 2}]}'))


@each_row(
    "inside",
    [
        '{"name": "f", "arguments": {"x": 1}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f"}',
        '{"name": 3, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "f", "arguments": {"x": "\\ud800"}}',
        '{"name": "f", "arguments": {"x": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}",
        "f(x=1)",
        "",
    ],
)
def test_malformed_calls_stay_in_the_text_unchanged(inside):
    text = f"Wait <tool_call>{inside}</tool_call> now "
    assert split_tool_calls(text, "hermes") == (text, ())


def test_a_good_call_beside_a_malformed_one_is_read_and_the_other_kept():
    bad = "<tool_call>{oops}</tool_call>"
    assert split_tool_calls(bad + hermes("f", "{}"), "hermes") == (bad, (WrittenCall("f", "{}"),))


def test_an_unclosed_call_stays_in_the_text():
    text = '<tool_call>\n{"name": "f", "arguments": {}}'
    assert split_tool_calls(text, "hermes") == (text, ())


def test_qwen3_coder_parameters_take_the_type_of_the_schema():
    text = (
        "<tool_call>\n<function=weather>\n<parameter=city>\n5\n</parameter>\n<parameter=days>\n5\n</parameter>\n"
        "<parameter=unit>\nnull\n</parameter>\n<parameter=note>\nline 1\n line 2\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    content, (call,) = split_tool_calls(text, "qwen3_coder", [WEATHER])
    assert content == ""
    assert call.name == "weather"
    assert json.loads(call.arguments) == {"city": "5", "days": 5, "unit": None, "note": "line 1\n line 2"}


@each_row(
    "inside",
    [
        "<function=f>",
        "<function=f>text</function>",
        "<function=f><parameter=x>1</function>",
        "<function=f><parameter=x>1</parameter>text<parameter=y>1</parameter></function>",
        "f()",
    ],
)
def test_malformed_qwen3_coder_calls_stay_in_the_text(inside):
    text = f"<tool_call>{inside}</tool_call>"
    assert split_tool_calls(text, "qwen3_coder") == (text, ())


def test_format_none_reads_no_calls():
    assert split_tool_calls(hermes("f", "{}"), "none") == (hermes("f", "{}"), ())


@each_row(
    ("text", "opened", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nso", False, ("why", "so")),
        ("\n<think>why</think>so", False, ("why", "so")),
        ("why\n</think>\n\nso", True, ("why", "so")),
        ("<think>why</think>so", True, ("why", "so")),
        ("still thinking", True, ("still thinking", "")),
        ("<think>\nstill thinking", False, ("still thinking", "")),
        ("<think>\n\n</think>\n\nso", False, ("", "so")),
        ("no reasoning", False, (None, "no reasoning")),
        ("a </think> b", False, (None, "a </think> b")),
    ],
)
def test_reasoning_is_split_from_the_text(text, opened, expected):
    assert split_reasoning(text, opened=THINK if opened else None) == expected


def test_the_format_is_read_off_the_template(qwen3, qwen3_6):
    assert qwen3.tool_call_format == "hermes"
    assert qwen3_6.tool_call_format == "qwen3_coder"
