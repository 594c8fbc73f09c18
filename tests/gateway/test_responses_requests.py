"""What a request to the Responses API says: its options, and the messages that its items came from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.gateway.errors import ApiError
from astune.gateway.responses import KNOWN, parse_response
from astune.gateway.responses_request import StoredResponses
from tests.rows import each_row

TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": True}]
THOUGHT = "<think>\nI add.\n</think>\n\n"
ONE = '<tool_call>\n{"name": "add",  "arguments": {"x":1}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "add", "arguments": {"x" : 2}}\n</tool_call>'
ASK = {"role": "user", "content": "Hi"}


def parse(memory=None, **fields):
    return parse_response({"model": "m", "input": "Hi", **fields}, memory or StoredResponses())


def refusal(**fields):
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def messages_of(*items):
    return list(parse(input=list(items)).request.messages)


def result(call_id, output="1"):
    return {"type": "function_call_output", "call_id": call_id, "output": output}


# What a request says


def test_instructions_and_a_text_are_a_system_and_a_user_message():
    messages = parse(instructions="Be brief.").request.messages
    assert messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})


def test_a_message_is_a_text_or_text_parts_and_needs_no_type():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of(
        {"role": "user", "content": parts}, {"type": "message", "role": "developer", "content": "c"}
    ) == [
        {"role": "user", "content": "ab"},
        {"role": "developer", "content": "c"},
    ]


def test_options_reach_the_tracker():
    request = parse(temperature=0, top_p=0.5, max_output_tokens=9).request
    assert (request.temperature, request.top_p, request.max_tokens) == (0.0, 0.5, 9)
    assert (parse().stream, parse(stream=True).stream) == (False, True)


def test_functions_take_the_shape_that_templates_know():
    tool = {"strict": True, "type": "function", "description": "d", "parameters": {"type": "object"}, "name": "f"}
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    (read,) = parse(tools=[tool]).request.tools
    assert json.dumps(read) == json.dumps({"type": "function", "function": function})
    (bare,) = parse(
        tools=[{"type": "function", "name": "f", "description": None, "defer_loading": False}]
    ).request.tools
    assert bare == {"type": "function", "function": {"name": "f"}}


@each_row("kind", ["file_search", "computer_use_preview", "code_interpreter", "custom", None])
def test_tools_that_openai_runs_are_refused_by_name(kind):
    error = refusal(tools=[*TOOLS, {"type": kind}])
    assert (error.param, error.code) == ("tools[1]", "unsupported_parameter")
    assert repr(kind) in error.message


def test_what_a_function_cannot_do_here_is_refused_by_name():
    assert refusal(tools=[{"type": "function", "name": "f", "defer_loading": True}]).param == "tools[0].defer_loading"


def test_a_tool_call_can_be_forced_or_forbidden():
    request = parse(tools=TOOLS, tool_choice={"type": "function", "name": "add"}).request
    assert (request.force, request.force_tool) == ("tool_call", "add")
    request = parse(tools=TOOLS, tool_choice="required").request
    assert (request.force, request.force_tool) == ("tool_call", None)
    request = parse(tools=TOOLS, tool_choice="none").request
    assert (len(request.tools), request.may_call) == (1, False)
    assert parse(tools=TOOLS, tool_choice="auto").request == parse(tools=TOOLS).request


def test_json_is_forced_where_no_tool_is_offered():
    schema = {"type": "json_schema", "name": "point", "schema": {"type": "object"}, "strict": True}
    for json_format in ({"type": "json_object"}, schema):
        assert parse(text={"format": json_format}).request.force == "json_object"
        assert parse(text={"format": json_format}, tools=TOOLS).request.force is None
        assert parse(text={"format": json_format}, tools=TOOLS, tool_choice="none").request.force == "json_object"
    assert parse(text={"format": {"type": "text"}, "verbosity": None}).request.force is None


@each_row(
    ("field", "value", "param"),
    [
        ("reasoning", {"summary": 1}, "reasoning.summary"),
        ("top_logprobs", 3, "top_logprobs"),
        ("stream_options", {"include_obfuscation": True}, "stream_options"),
        ("prompt", {"id": "p"}, "prompt"),
        ("context_management", [{"type": "compaction"}], "context_management"),
        ("seed", 1, "seed"),
        ("stop", ["a"], "stop"),
        ("n", 2, "n"),
        ("messages", [], "messages"),
    ],
)
def test_an_option_that_is_not_honoured_is_refused_by_name(field, value, param):
    error = refusal(**{field: value})
    assert error.param == param
    assert param in error.message
    assert error.body()["error"]["type"] == "invalid_request_error"


def test_the_defaults_of_the_agents_sdk_that_nothing_comes_of_are_ignored_with_a_note():
    call = parse(reasoning={"effort": "none", "summary": "auto"}, text={"verbosity": "low"})
    assert call.request == parse().request
    assert [note.partition(". ")[0] for note in call.notes] == [
        "reasoning.effort is ignored",
        "reasoning.summary is ignored",
        "text.verbosity is ignored",
    ]
    assert parse().notes == ()


@pytest.mark.parametrize(("field", "values"), KNOWN.neutral.items())
def test_an_option_at_the_value_that_asks_for_nothing_is_accepted(field, values):
    for value in values:
        assert parse(**{field: value}).request == parse().request


@each_row("field", sorted(KNOWN.ignored))
def test_fields_that_cannot_change_a_token_are_accepted(field):
    assert parse(**{field: "x"}).request == parse().request


@pytest.mark.parametrize("empty", [None, {}, {"effort": None, "summary": None}])
def test_reasoning_that_asks_for_nothing_is_accepted(empty):
    assert parse(reasoning=empty).request == parse().request


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "a request has an option that ASTune does not know",
    "a bad request that names it and the nearest one",
)
@given(
    st.text(min_size=1).filter(lambda name: name not in {*KNOWN.honoured, *KNOWN.ignored, *KNOWN.neutral}),
    st.integers(),
)
def test_no_unknown_option_is_ever_ignored(name, value):
    assert refusal(**{name: value}).param == name


CALL_ITEM = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}


@each_row(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["Hi"]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [ASK, {"role": "user", "content": 3}]}, "input[1].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}, "input[0].content"),
        ({"input": [{**CALL_ITEM, "call_id": None}]}, "input[0].call_id"),
        ({"input": [{**CALL_ITEM, "name": None}]}, "input[0].name"),
        ({"input": [{**CALL_ITEM, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [CALL_ITEM, {**result("a"), "call_id": 3}]}, "input[1].call_id"),
        ({"input": [CALL_ITEM, result("a", [{"type": "input_file"}])]}, "input[1].output"),
        ({"input": [{"type": "reasoning", "summary": [], "content": "x"}]}, "input[0].content"),
        ({"instructions": [ASK]}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "p"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"reasoning": "high"}, "reasoning"),
        ({"include": "x"}, "include"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stream": 1}, "stream"),
        ({"store": "no"}, "store"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"metadata": "x"}, "metadata"),
        ({"model": 3}, "model"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(fields, param):
    error = refusal(**fields)
    assert (error.param, error.code) == (param, "invalid_value")


@pytest.mark.parametrize("kind", ["web_search_call", "custom_tool_call", ["x"], 3])
def test_items_of_a_kind_that_is_not_supported_are_refused_by_name(kind):
    error = refusal(input=[ASK, {"type": kind}])
    assert (error.param, error.code) == ("input[1].type", "unsupported_parameter")


# Items become the messages they came from


def reasoning(text, **ids):
    parts = [{"type": "reasoning_text", "text": text}] if text else None
    return {"type": "reasoning", "summary": [], "content": parts, **ids}


def said(text, **ids):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **ids}


def call(call_id, **ids):
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **ids}


def shape(messages):
    """Of each message what there is of reasoning, text and calls; of a result the call."""
    return [
        message["tool_call_id"]
        if message["role"] == "tool"
        else (
            message.get("reasoning_content"),
            message["content"],
            *(call["id"] for call in message.get("tool_calls", ())),
        )
        for message in messages
    ]


@each_row(
    ("items", "shapes"),
    [
        ([reasoning("r"), said("t"), call("a"), call("b")], [("r", "t", "a", "b")]),
        ([call("a"), call("b"), result("b"), result("a")], [(None, None, "a", "b"), "b", "a"]),
        ([call("a"), result("a"), call("b"), result("b")], [(None, None, "a"), "a", (None, None, "b"), "b"]),
        ([said("s"), said("t")], [(None, "s"), (None, "t")]),
        ([said(""), said("t")], [(None, ""), (None, "t")]),
        ([said("s"), reasoning("r"), said("t")], [(None, "s"), ("r", "t")]),
        ([call("a"), said("t")], [(None, None, "a"), (None, "t")]),
        ([reasoning("r"), reasoning("s"), said("t")], [("r", None), ("s", "t")]),
        ([call("call_1"), call("call_2")], [(None, None, "call_1", "call_2")]),
    ],
)
def test_items_without_ids_of_ours_are_one_answer_as_long_as_their_order_allows(items, shapes):
    assert shape(messages_of(*items)) == shapes


@each_row(
    ("items", "shapes"),
    [
        (
            [call("c00000000"), result("c00000000"), call("c00000001"), result("c00000001")],
            [(None, None, "c00000000", "c00000001"), "c00000000", "c00000001"],
        ),
        (
            [call("c00000000"), result("c00000000"), call("c00001000")],
            [(None, None, "c00000000"), "c00000000", (None, None, "c00001000")],
        ),
        ([call("x", id="fc_5e_0_0"), result("x"), call("y", id="fc_5e_0_1")], [(None, None, "x", "y"), "x"]),
        ([said("t", id="msg_5e_0"), call("c00001000")], [(None, "t"), (None, None, "c00001000")]),
        ([call("c00000000"), call("c00001000")], [(None, None, "c00000000"), (None, None, "c00001000")]),
        ([said("t"), call("c00000000"), call("c00001000")], [(None, "t", "c00000000"), (None, None, "c00001000")]),
        ([call("c00000000"), said("t", id="msg_5e_0"), reasoning("r", id="rs_5e_0")], [("r", "t", "c00000000")]),
    ],
)
def test_ids_of_ours_tell_which_items_are_one_answer(items, shapes):
    assert shape(messages_of(*items)) == shapes


def test_reasoning_that_only_another_model_can_read_is_no_message():
    assert messages_of(ASK, reasoning("", encrypted_content="gAAA"), ASK) == [ASK, ASK]
    assert shape(messages_of(reasoning(""), call("a"))) == [(None, None, "a")]
