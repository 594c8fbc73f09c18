"""What formats read of answers with hostile strings, and tools under a name that the template has for them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.prompt.chat_format import ChatFormat
from tests.context_tracker.own_templates import NO_CALLS_WRITTEN, WRITES_CALLS
from tests.context_tracker.test_template_families import ADD, QUESTION, call

TAGS = ("</parameter>", "</invoke>", "</function>", "<function=", "</arg_value:opensource>", "<tool_call:opensource>")
HOLD_TAGS = ("minimax_m2", "seed_oss", "hunyuan_3")
hostile = st.lists(st.sampled_from([*TAGS, "\n", "a", " b"]), max_size=4).map("".join)


@pytest.fixture(scope="module")
def formats(write_dir):
    return {name: ChatFormat.load(write_dir(WRITES_CALLS[name])) for name in HOLD_TAGS}


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(HOLD_TAGS), st.lists(hostile, min_size=1, max_size=2))
def test_a_call_is_read_though_its_strings_hold_tags(formats, name, said):
    message = {"role": "assistant", "content": None, "tool_calls": [call({"text": text, "n": 1}) for text in said]}
    prompt = formats[name].render([QUESTION], [ADD])
    text = formats[name].render([QUESTION, message], [ADD], add_generation_prompt=False).removeprefix(prompt)
    read = formats[name].parse_text(text.removesuffix("<|im_end|>\n"), [ADD]).tool_calls
    assert [json.loads(one.arguments) for one in read] == [{"text": one, "n": 1} for one in said]


def test_a_template_that_takes_tools_under_a_name_of_its_own_gets_them(write_dir):
    """SmolLM3 wants them as `xml_tools`, and writes no calls."""
    template = NO_CALLS_WRITTEN["hermes"].replace("if tools", "if xml_tools").replace("{{ tools", "{{ xml_tools")
    chat_format = ChatFormat.load(write_dir(template))
    assert chat_format.tool_call_format == "hermes" and chat_format.call_problem is None
    assert '"add"' in chat_format.render([QUESTION], [ADD])
