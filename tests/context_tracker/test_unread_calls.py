# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""Strings that hold a format's own marks, and answers that mean to call a tool and do not."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from astune.context_tracker.calls import ChatRequest, read_answer
from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.tool_calls import WrittenCall
from astune.types import Generation
from tests.context_tracker.own_templates import GLM_IN_ONE_LINE, STEP
from tests.context_tracker.test_template_families import (
    CALLING,
    CODER,
    EACH,
    IM,
    QUESTION,
    Family,
    call,
    each,
    results,
)
from tests.context_tracker.test_write_answer import a_call
from tests.rows import each_row

STRING = {"type": "string", "description": "One."}
EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edits.",
        "parameters": {
            "type": "object",
            "properties": {
                "old": STRING,
                "new": STRING,
                "n": {"type": "integer", "description": "One."},
                "list": {"type": "array", "description": "One."},
            },
            "required": ["old"],
        },
    },
}
QWEN_CALL = "<tool_call>\n<function=run>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
GLM_CALL = "<tool_call>run\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
WHOLE_CALLS = (QWEN_CALL, GLM_CALL)
"""Two of these in a string are calls for templates that place line breaks in another way: docs/context_tracker.md."""
MARKS = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "run", "arguments": {}}'],
    "qwen3_coder": ["<tool_call>", "</function>", "</tool_call>", "<parameter=x>", "<parameter=new>", "</parameter>"],
    "glm": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", GLM_CALL],
    "llama3_json": ["<|python_tag|>", '{"name": "run", "parameters": {}}'],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", '[{"name": "run", "arguments": {}}]'],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "\n```", "```json\n"],
    "harmony": ["<|channel|>", "<|message|>", "<|call|>", "<|end|>", "<|start|>assistant", " to=functions.run"],
    "gemma4": ['<|"|>', "<|tool_call>", "<tool_call|>", "call:run", "{", "}", ",x:", "]"],
}
MARKS |= {"mistral_args": MARKS["mistral"], "mistral_call_id": MARKS["mistral"]}
MARKS["qwen3_coder"] += [QWEN_CALL, "\n</parameter>\n</function>\n</tool_call>"]
OTHER_LAYOUTS = [
    *(Family(f"glm_{n}", **IM, form="glm", forced="", source=source) for n, source in enumerate(GLM_IN_ONE_LINE)),
    Family("step_3_5", **CODER, source=STEP),
]


def marks_of(form: str) -> list[str]:
    known = FORMATS[form]
    texts = [getattr(known, name, ()) for name in ("call_marks", "block", "call", "first", "marks", "lead")]
    tags = getattr(known, "tags", None)
    return MARKS.get(form) or [
        text for text in (*sum(map(tuple, texts), ()), *((tags.closing, tags.end) if tags else ())) if text
    ]


@pytest.fixture(scope="module")
def formats(formats):
    return {family.template: formats(family) for family in (*CALLING, *OTHER_LAYOUTS)}


def written(chat_format, family, message, tools=(EDIT,)) -> str:
    """The template's text of the message, without the token at its end: the strings may hold that, too."""
    rendering = chat_format.render([QUESTION, message], tools, add_generation_prompt=False).rstrip("\n")
    text = rendering[rendering.index(family.role) + len(family.role) :]
    return next((text.removesuffix(stop) for stop in family.stops if text.endswith(stop)), text)


def calling(*arguments, content=None):
    calls = [call(one, number, "edit") for number, one in enumerate(arguments, 1)]
    return {"role": "assistant", "content": content, "tool_calls": calls}


@each([*CALLING, *OTHER_LAYOUTS])
@EACH
@given(data=st.data())
def test_a_right_call_is_read_whatever_its_strings_hold(formats, family, data):
    """Either the same call, or one that is the same text for the template: then nothing tells them apart."""
    chat_format = formats[family.template]
    example = written(chat_format, family, calling({"new": "a"}))
    opening, _, closing = example[example.index(FORMATS[family.form].call_start(None)) :].rpartition("a")
    own = MARKS.get(family.form) or [*marks_of(family.form), "<" + opening.rpartition("<")[2], closing, example]
    own += ["<![CDATA[", "]]>"] * (family.form == "minicpm5")
    texts = st.lists(st.sampled_from([*own, "a", "\n", " ", '"']), max_size=5).map("".join)
    optional = {"new": texts, "n": st.integers(0, 9), "list": st.lists(texts, max_size=2)}
    given_arguments = st.fixed_dictionaries({"old": texts}, optional=optional)
    arguments = data.draw(given_arguments)
    assume(all(text.count(whole) < 2 for text in map(str, arguments.values()) for whole in (*WHOLE_CALLS, example)))
    assume(
        all(f"</tool_call>\n{whole}" not in str(arguments.get("new", "")) + arguments["old"] for whole in WHOLE_CALLS)
    )
    text = written(chat_format, family, calling(arguments))
    parsed = chat_format.parse_text(text, [EDIT], prompt=family.role)
    again = [(one.name, json.loads(one.arguments)) for one in parsed.tool_calls]
    if again != [("edit", arguments)]:
        assert (family.form == "gemma4" or hasattr(FORMATS[family.form], "tags")) and again
        calls = [call(one, number, name) for number, (name, one) in enumerate(again, 1)]
        message = {"role": "assistant", "content": parsed.content, "tool_calls": calls}
        in_order = sorted if family.form == "gemma4" else str  # Gemma's template sorts the arguments
        assert in_order(written(chat_format, family, message)) == in_order(text)


@each(OTHER_LAYOUTS)
@pytest.mark.parametrize("said", [[{"old": "a", "new": "b"}], [{"old": "a"}, {"old": "b"}]])
def test_calls_are_told_apart_in_each_layout(formats, family, said):
    """Where only one argument is required, all that follows could be its text."""
    text = written(formats[family.template], family, calling(*said))
    read = formats[family.template].parse_text(text, [EDIT], prompt=family.role).tool_calls
    assert [json.loads(one.arguments) for one in read] == said


@each_row(
    ("form", "arguments", "required"),
    [
        ("qwen3_coder", {"old": "<parameter=x>", "new": "</parameter>"}, ["old", "new"]),
        ("qwen3_coder", {"old": f"Write\n{QWEN_CALL}\nto run.", "new": f"{QWEN_CALL}\n{QWEN_CALL}", "n": 3}, ["old"]),
        ("qwen3_coder", {"old": "a\n</parameter>\n</function>\n</tool_call>\nb", "n": 3}, []),
        ("qwen3_coder", {"old": "a", "strange": "b"}, ["old"]),
        ("glm", {"old": "a</arg_value>\n</tool_call>\nb", "new": GLM_CALL, "n": 3}, ["old"]),
    ],
)
def test_what_is_meant_most_likely_comes_first(formats, form, arguments, required):
    parameters = EDIT["function"]["parameters"] | {"required": required}
    tool = EDIT | {"function": EDIT["function"] | {"parameters": parameters}}
    family = next(family for family in CALLING if family.form == form)
    text = written(formats[family.template], family, calling(arguments, {"old": "b"}, content="Two."), [tool])
    found = formats[family.template].parse_text(text, [tool], prompt=family.role)
    assert [json.loads(one.arguments) for one in found.tool_calls] == [arguments, {"old": "b"}]


@each_row(
    ("before", "old"),
    [
        ("", "a"),
        ("<tool_call>\n<function=edit>\n<parameter=old>\n1\n</function>\n</tool_call>\n", "a"),
        ("<tool_call>\n<function=edit>\n<parameter=old>\n1\n</parameter>\n</tool_call>\n", "a"),
        ("I close it with </tool_call> and </parameter>.\n", "a"),
        (
            "<tool_call>\n<function=edit>\n<parameter=n>\n1\n<parameter=old>\n2\n</parameter>\n</function>\n</tool_call>\n",
            "a",
        ),
    ],
)
@each_row("after", ["", "\nThe tag </tool_call> closes it."])
def test_a_good_call_is_read_beside_a_malformed_one_and_prose(before, old, after):
    good = f"<tool_call>\n<function=edit>\n<parameter=old>\n{old}\n</parameter>\n</function>\n</tool_call>"
    parsed = FORMATS["qwen3_coder"].read(before + good + after, [EDIT])
    assert parsed.tool_calls == (WrittenCall("edit", f'{{"old": "{old}"}}'),)
    assert parsed.content == ("\n".join(part.strip() for part in (before, after) if part) or None)


def answered(chat_format, text, *, tools=(EDIT,), finish_reason="stop", **request):
    asked = a_call(chat_format, tools)
    asked = (
        asked
        if not request
        else type(asked)("a", ChatRequest([QUESTION], tools, **request), asked.prompt, 0, True, None, chat_format)
    )
    ids = tuple(chat_format.encode(text))
    return read_answer(asked, Generation(ids, (0.0,) * len(ids), 0, finish_reason))


@pytest.mark.fault(
    "Agents and the engine",
    "the model means to call a tool, and no call can be read",
    "the agent gets text; the answer is counted, marked and trained like any other",
)
@each(CALLING)
def test_an_answer_with_call_marks_and_no_call_is_told_apart(formats, family):
    chat_format = formats[family.template]
    start = FORMATS[family.form].call_start("edit")
    lead = "\n</think>\n\n" if family.opens_thinking else ""
    text = written(chat_format, family, calling({"old": "a"}))
    text = lead + text[text.index(FORMATS[family.form].call_start(None)) :]
    assert not answered(chat_format, text).unread and answered(chat_format, text).message["tool_calls"]
    for broken in (
        lead + start,
        text[: text.index("a", text.index("old"))],
        text.replace("old", "o{d", 1)[: len(text) - 4],
    ):
        answer = answered(chat_format, broken)
        assert "tool_calls" not in answer.message and answer.unread
    assert not answered(chat_format, lead + start, tools=()).unread
    assert not answered(chat_format, lead + start, may_call=False).unread
    assert not answered(chat_format, lead + "Four.").unread


def test_a_call_within_reasoning_that_never_ends_is_told_apart(formats):
    assert answered(formats["qwen3_6"], f"I call it.\n{QWEN_CALL}").unread
    assert not answered(formats["qwen3_6"], f"Like {QWEN_CALL}?\n</think>\n\nNo.").unread


@pytest.mark.fault(
    "Agents and the engine",
    "the model's template would refuse a sampled call in the next prompt",
    "the call is text, and counted as one that cannot be read",
)
@each_row(
    ("template", "text", "calls"),
    [
        ("mistral_v11", '[TOOL_CALLS]edit[CALL_ID]abcdefgh1[ARGS]{"old": "a"}', 1),
        ("mistral_v11", '[TOOL_CALLS]edit[CALL_ID]call_1[ARGS]{"old": "a"}', 0),
        ("mistral_v11", '[TOOL_CALLS]edit[ARGS]{"old": "a"}', 1),
        ("mistral_v3", '[TOOL_CALLS][{"name": "edit", "arguments": {"old": "a"}, "id": "abcdefgh1"}]', 1),
        ("mistral_v3", '[TOOL_CALLS][{"name": "edit", "arguments": {"old": "a"}, "id": "abcdefghij"}]', 0),
        ("mistral_v3", '[TOOL_CALLS][{"name": "edit", "arguments": {"old": "a"}}]', 1),
        ("mistral_v3", 'I edit.[TOOL_CALLS][{"name": "edit", "arguments": {"old": "a"}}]', 0),
        (
            "gptoss",
            '<|channel|>commentary to=functions.edit<|message|>{"old": "a"}<|end|><|start|>assistant'
            '<|channel|>commentary to=functions.edit<|message|>{"old": "b"}',
            0,
        ),
        ("gptoss", "oops <|channel|>final<|message|>So.", 0),
        ("gptoss", '<|channel|>analysis<|message|>Hm. <|channel|>final<|message|>to=functions.edit{"old"', 0),
        ("llama3_1", 'I call.<|python_tag|>{"name": "edit", "parameters": {"old": "a"}}', 1),
    ],
)
def test_what_is_sampled_can_be_written_by_the_same_template(formats, template, text, calls):
    answer = answered(formats[template], text)
    assert len(answer.message.get("tool_calls", ())) == calls
    message = dict(answer.message)
    if calls:
        message["tool_calls"] = [{"id": "c00000000", **one} for one in message["tool_calls"]]
    formats[template].render([QUESTION, message, *results(message), QUESTION], [EDIT])
    assert answer.unread == (not calls and "to" in text.lower())
