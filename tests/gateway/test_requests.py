"""What the requests of the three kinds say: one suite for chat completions, completions and responses."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.gateway import chat_completions, completions, responses
from astune.gateway.responses_request import StoredResponses
from astune.support.http.service import HttpError
from tests.rows import each_row

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
FLAT = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}]
NAMED = {"type": "function", "function": {"name": "f"}}
CHAT, TEXT, RESPONSES = "chat completions", "completions", "responses"
KINDS = {
    CHAT: (chat_completions.KNOWN, chat_completions.parse_chat_completion, {"messages": HI}),
    TEXT: (completions.KNOWN, completions.parse_completion, {"prompt": "Hi"}),
    RESPONSES: (responses.KNOWN, lambda body: responses.parse_response(body, StoredResponses()), {"input": "Hi"}),
}


def parse(kind, **fields):
    _, read, least = KINDS[kind]
    return read({"model": "m", **least, **fields})


def refusal(kind, **fields):
    with pytest.raises(HttpError) as error:
        parse(kind, **fields)
    assert error.value.status == 400
    return error.value


# Options


@each_row("kind", KINDS)
def test_the_options_that_change_an_answer_reach_the_tracker(kind):
    limit = "max_output_tokens" if kind == RESPONSES else "max_tokens"
    more = {} if kind == RESPONSES else {"seed": 7, "stop": ["a"]}
    call = parse(kind, temperature=0, top_p=0.5, stream=True, **{limit: 9}, **more)
    request = call.request
    assert (request.temperature, request.top_p, request.max_tokens, call.stream) == (0.0, 0.5, 9, True)
    if more:
        assert (request.seed, request.stop) == (7, ("a",))


@each_row("kind", KINDS)
def test_options_that_are_absent_or_null_leave_the_defaults_of_the_run(kind):
    known, _, least = KINDS[kind]
    for call in (parse(kind), parse(kind, **dict.fromkeys({*known.honoured} - {*least}))):
        request = call.request
        assert (request.temperature, request.top_p, request.seed, request.max_tokens) == (None, None, None, None)
        assert (request.tools, request.stop, request.force, call.n) == ((), (), None, 1)
        assert not (call.stream or call.logprobs or call.notes)


@each_row(("kind", "name"), [(kind, name) for kind in KINDS for name in sorted(KINDS[kind][0].ignored)])
def test_fields_that_cannot_change_a_token_are_accepted(kind, name):
    assert parse(kind, **{name: "x"}).request == parse(kind).request


@each_row(("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind][0].neutral])
def test_an_option_at_the_value_that_asks_for_nothing_is_accepted(kind, name):
    for value in KINDS[kind][0].neutral[name]:
        assert parse(kind, **{name: value}).request == parse(kind).request


@each_row(
    ("kind", "fields", "param"),
    [
        (CHAT, {"frequency_penalty": 0.5}, "frequency_penalty"),
        (CHAT, {"presence_penalty": -1}, "presence_penalty"),
        (CHAT, {"logit_bias": {"5": 1}}, "logit_bias"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"top_k": 5}, "top_k"),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        (CHAT, {"audio": {"voice": "alloy"}}, "audio"),
        (CHAT, {"functions": []}, "functions"),
        (CHAT, {"tempreature": 1}, "tempreature"),
        (TEXT, {"echo": True}, "echo"),
        (TEXT, {"best_of": 2}, "best_of"),
        (TEXT, {"suffix": "x"}, "suffix"),
        (TEXT, {"logprobs": 1}, "logprobs"),
        (TEXT, {"top_k": 3}, "top_k"),
        (TEXT, {"messages": []}, "messages"),
        (TEXT, {"promt": "x"}, "promt"),
        (RESPONSES, {"top_logprobs": 3}, "top_logprobs"),
        (RESPONSES, {"stream_options": {"include_obfuscation": True}}, "stream_options"),
        (RESPONSES, {"prompt": {"id": "p"}}, "prompt"),
        (RESPONSES, {"context_management": [{"type": "compaction"}]}, "context_management"),
        (RESPONSES, {"seed": 1}, "seed"),
        (RESPONSES, {"stop": ["a"]}, "stop"),
        (RESPONSES, {"n": 2}, "n"),
        (RESPONSES, {"messages": []}, "messages"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"reasoning": {"budget": 3}}, "reasoning.budget"),
        (RESPONSES, {"conversation": "c"}, "conversation"),
    ],
)
def test_an_option_that_is_not_honoured_is_refused_by_name(kind, fields, param):
    error = refusal(kind, **fields)
    assert (error.param, error.code in ("unsupported_parameter", "unknown_parameter")) == (param, True)
    assert param in error.message


@each_row("kind", (CHAT, RESPONSES))
def test_a_misspelt_field_gets_the_nearest_name(kind):
    assert "Did you mean 'temperature'?" in refusal(kind, temprature=1).message


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "a request has an option that ASTune does not know",
    "a bad request that names it and the nearest one",
)
@given(st.sampled_from(sorted(KINDS)), st.text(min_size=1), st.integers())
def test_no_unknown_option_is_ever_ignored(kind, name, value):
    known = KINDS[kind][0]
    if name not in {*known.honoured, *known.ignored, *known.neutral, *known.noted}:
        assert refusal(kind, **{name: value}).param == name


NO_PROMPTS = (None, "", [], [[]], [""], 3, [1, -1], [1, True], [1, 2.0], [1, "a"], [2**31], {})
NO_CHOICES = (
    ("required", []),
    (NAMED, []),
    ({"type": "function", "function": {"name": "g"}}, TOOLS),
    ({"type": "function", "function": {}}, TOOLS),
    ({"type": "allowed_tools"}, TOOLS),
    ("any", TOOLS),
)
ASK = {"role": "user", "content": "Hi"}
CALL_ITEM = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}


def result(call_id, output="1"):
    return {"type": "function_call_output", "call_id": call_id, "output": output}


@each_row(
    ("kind", "fields", "param"),
    [
        (RESPONSES, {"reasoning": {"summary": 1}}, "reasoning.summary"),
        (CHAT, {"reasoning_effort": 3}, "reasoning_effort"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "Hi"}, "messages"),
        (CHAT, {"messages": ["Hi"]}, "messages[0]"),
        (CHAT, {"messages": [{"role": "human", "content": "Hi"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        (CHAT, {"temperature": -1}, "temperature"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"temperature": True}, "temperature"),
        (CHAT, {"temperature": float("nan")}, "temperature"),
        (CHAT, {"temperature": float("inf")}, "temperature"),
        (CHAT, {"top_p": 1.5}, "top_p"),
        (CHAT, {"top_p": 0}, "top_p"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        (CHAT, {"seed": "one"}, "seed"),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"stream_options": True}, "stream_options"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"n": 129}, "n"),
        (CHAT, {"n": "2"}, "n"),
        (CHAT, {"stop": 3}, "stop"),
        (CHAT, {"stop": ["a", 3]}, "stop"),
        (CHAT, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        (CHAT, {"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (CHAT, {"response_format": {"type": "grammar"}}, "response_format.type"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (CHAT, {"stream_options": {"include_usage": 1}}, "include_usage"),
        (CHAT, {"tools": [{"name": "f"}]}, "tools[0]"),
        (CHAT, {"tools": [{"type": "function", "function": {}}]}, "tools[0]"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": "f"}]}, "messages[0].tool_calls"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls"),
        (RESPONSES, {"input": None}, "input"),
        (RESPONSES, {"input": 3}, "input"),
        (RESPONSES, {"input": ["Hi"]}, "input[0]"),
        (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (RESPONSES, {"input": [{"content": "x"}]}, "input[0].role"),
        (RESPONSES, {"input": [ASK, {"role": "user", "content": 3}]}, "input[1].content"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}, "input[0].content"),
        (RESPONSES, {"input": [{**CALL_ITEM, "call_id": None}]}, "input[0].call_id"),
        (RESPONSES, {"input": [{**CALL_ITEM, "name": None}]}, "input[0].name"),
        (RESPONSES, {"input": [{**CALL_ITEM, "arguments": {}}]}, "input[0].arguments"),
        (RESPONSES, {"input": [CALL_ITEM, {**result("a"), "call_id": 3}]}, "input[1].call_id"),
        (RESPONSES, {"input": [CALL_ITEM, result("a", [{"type": "input_file"}])]}, "input[1].output"),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": [], "content": "x"}]}, "input[0].content"),
        (RESPONSES, {"instructions": [ASK]}, "instructions"),
        (RESPONSES, {"tools": {}}, "tools"),
        (RESPONSES, {"tools": ["f"]}, "tools[0]"),
        (RESPONSES, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0]"),
        (RESPONSES, {"tools": FLAT, "tool_choice": "any"}, "tool_choice"),
        (RESPONSES, {"tools": FLAT, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (RESPONSES, {"tools": FLAT, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"text": "json"}, "text"),
        (RESPONSES, {"text": {"format": "json"}}, "text.format.type"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "p"}}}, "text.format.schema"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        (RESPONSES, {"reasoning": "high"}, "reasoning"),
        (RESPONSES, {"include": "x"}, "include"),
        (RESPONSES, {"temperature": -1}, "temperature"),
        (RESPONSES, {"top_p": 2}, "top_p"),
        (RESPONSES, {"stream": 1}, "stream"),
        (RESPONSES, {"store": "no"}, "store"),
        (RESPONSES, {"parallel_tool_calls": 1}, "parallel_tool_calls"),
        (RESPONSES, {"previous_response_id": 3}, "previous_response_id"),
        (RESPONSES, {"metadata": "x"}, "metadata"),
        (RESPONSES, {"model": 3}, "model"),
        (RESPONSES, {"reasoning": {"effort": 3}}, "reasoning.effort"),
        (RESPONSES, {"text": {"verbosity": 3}}, "text.verbosity"),
        (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format.type"),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "gone"}}, "tool_choice"),
        (RESPONSES, {"include": ["file_search_call.results"]}, "include[0]"),
        (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        *((TEXT, {"prompt": prompt}, "prompt") for prompt in NO_PROMPTS),
        *((CHAT, {"tools": tools, "tool_choice": choice}, "tool_choice") for choice, tools in NO_CHOICES),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(kind, fields, param):
    error = refusal(kind, **fields)
    assert (error.param, error.code) == (param, "invalid_value")


# Tools and the shape of the answer


@each_row(
    ("kind", "tools", "choice", "named"),
    [
        (CHAT, TOOLS, NAMED, "f"),
        (CHAT, TOOLS, "required", None),
        (RESPONSES, FLAT, {"type": "function", "name": "f"}, "f"),
        (RESPONSES, FLAT, "required", None),
    ],
)
def test_a_tool_call_can_be_forced_or_forbidden(kind, tools, choice, named):
    free, none, forced = (parse(kind, tools=tools, tool_choice=each).request for each in ("auto", "none", choice))
    assert (forced.force, forced.force_tool) == ("tool_call", named)
    assert free == parse(kind, tools=tools).request
    assert [(len(each.tools), each.may_call) for each in (free, none, forced)] == [(1, True), (1, False), (1, True)]


SCHEMA = {"name": "point", "schema": {"type": "object"}, "strict": True}


@each_row("kind", (CHAT, RESPONSES))
def test_json_is_forced_where_no_tool_is_offered(kind):
    tools = TOOLS if kind == CHAT else FLAT

    def force(form, **more):
        return parse(
            kind, **({"response_format": form} if kind == CHAT else {"text": {"format": form}}), **more
        ).request.force

    named = {"type": "json_schema"} | ({"json_schema": SCHEMA} if kind == CHAT else SCHEMA)
    for form in ({"type": "json_object"}, named):
        assert force(form) == "json_object"
        assert force(form, tools=tools, tool_choice="none") == "json_object"
        assert force(form, tools=tools) is None
        assert force(form, tools=tools, tool_choice="required") == "tool_call"
    assert force({"type": "text"}) is None


# Chat completions


def test_both_names_of_the_token_limit_count_and_the_smaller_wins():
    assert parse(CHAT, max_completion_tokens=5).request.max_tokens == 5
    assert parse(CHAT, max_tokens=7, max_completion_tokens=5).request.max_tokens == 5


@each_row(("stop", "texts"), [("\n", ("\n",)), (["a", "b"], ("a", "b")), ([], ()), ("", ()), (["", "a"], ("a",))])
def test_stop_is_a_text_or_up_to_four(stop, texts):
    assert parse(CHAT, stop=stop).request.stop == texts


def test_the_number_of_answers_and_of_tool_calls_are_read():
    assert (parse(CHAT).n, parse(CHAT, n=3).n) == (1, 3)
    assert parse(CHAT).parallel_tool_calls
    assert not parse(CHAT, parallel_tool_calls=False).parallel_tool_calls


def test_what_real_clients_add_to_messages_and_tools_is_accepted():
    messages = [
        {"role": "user", "name": "me", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I add.",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [{"id": "a", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "4"}], "tool_calls": None},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": None, "strict": True, "parameters": {}}}]
    assert list(parse(CHAT, messages=messages, tools=tools).request.messages) == messages


def test_the_older_function_call_is_refused_by_name():
    messages = [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]
    assert refusal(CHAT, messages=messages).param == "messages[0].function_call"


# Completions


@each_row(("given", "prompt"), [("Hi", "Hi"), (["Hi"], "Hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ([0], (0,))])
def test_a_prompt_is_a_text_or_token_ids(given, prompt):
    call = parse(TEXT, prompt=given, n=2, logprobs=0)
    assert (call.request.prompt, call.request.messages, call.n, call.logprobs) == (prompt, (), 2, True)


@each_row("prompts", [["a", "b"], [[1], [2]]])
def test_several_prompts_in_one_call_are_refused(prompts):
    error = refusal(TEXT, prompt=prompts)
    assert error.param == "prompt" and "ask once for each" in error.message


# Responses


def messages_of(*items):
    return list(parse(RESPONSES, input=list(items)).request.messages)


def test_instructions_and_a_text_are_a_system_and_a_user_message():
    messages = parse(RESPONSES, instructions="Be brief.").request.messages
    assert messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})


def test_a_message_is_a_text_or_text_parts_and_needs_no_type():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of(
        {"role": "user", "content": parts}, {"type": "message", "role": "developer", "content": "c"}
    ) == [
        {"role": "user", "content": "ab"},
        {"role": "developer", "content": "c"},
    ]


def test_functions_take_the_shape_that_templates_know():
    tool = {"strict": True, "type": "function", "description": "d", "parameters": {"type": "object"}, "name": "f"}
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    (read,) = parse(RESPONSES, tools=[tool]).request.tools
    assert json.dumps(read) == json.dumps({"type": "function", "function": function})
    (bare,) = parse(
        RESPONSES, tools=[{"type": "function", "name": "f", "description": None, "defer_loading": False}]
    ).request.tools
    assert bare == {"type": "function", "function": {"name": "f"}}


@each_row("kind", ["file_search", "computer_use_preview", "code_interpreter", "custom", None])
def test_tools_that_openai_runs_are_refused_by_name(kind):
    error = refusal(RESPONSES, tools=[*FLAT, {"type": kind}])
    assert (error.param, error.code) == ("tools[1]", "unsupported_parameter")
    assert repr(kind) in error.message


def test_what_a_function_cannot_do_here_is_refused_by_name():
    assert (
        refusal(RESPONSES, tools=[{"type": "function", "name": "f", "defer_loading": True}]).param
        == "tools[0].defer_loading"
    )


def test_the_defaults_of_the_agents_sdk_that_nothing_comes_of_are_ignored_with_a_note():
    call = parse(RESPONSES, reasoning={"effort": "none", "summary": "auto"}, text={"verbosity": "low"})
    assert call.request == parse(RESPONSES).request
    assert [note.partition(". ")[0] for note in call.notes] == [
        "reasoning.effort is ignored",
        "reasoning.summary is ignored",
        "text.verbosity is ignored",
    ]
    assert parse(RESPONSES).notes == ()


@pytest.mark.parametrize("empty", [None, {}, {"effort": None, "summary": None}])
def test_reasoning_that_asks_for_nothing_is_accepted(empty):
    assert parse(RESPONSES, reasoning=empty).request == parse(RESPONSES).request


@each_row("kind", ["web_search_call", "computer_call", "custom_tool_call", ["x"], 3])
def test_items_of_a_kind_that_is_not_supported_are_refused_by_name(kind):
    error = refusal(RESPONSES, input=[ASK, {"type": kind}])
    assert (error.param, error.code) == ("input[1].type", "unsupported_parameter")


def test_an_item_that_is_not_stored_cannot_be_referred_to():
    assert refusal(RESPONSES, input=[{"type": "item_reference", "id": "msg_9"}]).param == "input[0].id"


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
