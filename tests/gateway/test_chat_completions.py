import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.gateway.chat_completions import KNOWN, parse_chat_completion
from astune.gateway.errors import ApiError
from tests.rows import each_row

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def parse(**fields):
    return parse_chat_completion({"model": "m", "messages": MESSAGES, **fields})


def refusal(**fields):
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert error.value.status == 400
    assert error.value.body()["error"]["type"] == "invalid_request_error"
    return error.value


def test_the_options_that_change_an_answer_reach_the_tracker():
    request = parse(tools=TOOLS, temperature=0, top_p=0.5, seed=7, max_tokens=9).request
    assert (request.temperature, request.top_p, request.seed, request.max_tokens) == (0.0, 0.5, 7, 9)
    assert list(request.tools) == TOOLS
    assert list(request.messages) == MESSAGES


def test_options_that_are_absent_or_null_leave_the_defaults_of_the_run():
    for call in (parse(), parse(temperature=None, top_p=None, seed=None, max_tokens=None, tools=None, stop=None)):
        request = call.request
        assert (request.temperature, request.top_p, request.seed, request.max_tokens) == (None, None, None, None)
        assert request.tools == ()
        assert not (call.stream or call.logprobs or call.token_ids or call.include_usage)


def test_both_names_of_the_token_limit_count_and_the_smaller_wins():
    assert parse(max_completion_tokens=5).request.max_tokens == 5
    assert parse(max_tokens=7, max_completion_tokens=5).request.max_tokens == 5


def test_tool_choice_none_shows_the_tools_and_reads_no_calls():
    free, none = (parse(tools=TOOLS, tool_choice=choice).request for choice in ("auto", "none"))
    assert list(free.tools) == list(none.tools) == TOOLS
    assert (free.may_call, none.may_call) == (True, False)


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(("choice", "tool"), [("required", None), (NAMED, "f")])
def test_a_tool_call_can_be_forced(choice, tool):
    request = parse(tools=TOOLS, tool_choice=choice).request
    assert (request.force, request.force_tool, list(request.tools)) == ("tool_call", tool, TOOLS)
    assert parse(tools=TOOLS).request.force is None


@each_row(
    ("choice", "tools"),
    [
        ("required", []),
        (NAMED, []),
        ({"type": "function", "function": {"name": "g"}}, TOOLS),
        ({"type": "function", "function": {}}, TOOLS),
        ({"type": "allowed_tools"}, TOOLS),
        ("any", TOOLS),
    ],
)
def test_a_tool_call_that_cannot_be_forced_is_refused(choice, tools):
    assert refusal(tools=tools, tool_choice=choice).param == "tool_choice"


def test_json_is_forced_where_no_tool_is_offered():
    schema = {"type": "json_schema", "json_schema": {"name": "point", "schema": {"type": "object"}}}
    for json_format in ({"type": "json_object"}, schema):
        assert parse(response_format=json_format).request.force == "json_object"
        assert parse(response_format=json_format, tools=TOOLS, tool_choice="none").request.force == "json_object"
        assert parse(response_format=json_format, tools=TOOLS).request.force is None
        assert parse(response_format=json_format, tools=TOOLS, tool_choice="required").request.force == "tool_call"
    assert parse(response_format={"type": "text"}).request.force is None


@each_row(("stop", "texts"), [("\n", ("\n",)), (["a", "b"], ("a", "b")), ([], ()), ("", ()), (["", "a"], ("a",))])
def test_stop_is_a_text_or_up_to_four(stop, texts):
    assert parse(stop=stop).request.stop == texts


def test_the_number_of_answers_and_of_tool_calls_are_read():
    assert (parse().n, parse(n=3).n) == (1, 3)
    assert parse().parallel_tool_calls
    assert not parse(parallel_tool_calls=False).parallel_tool_calls


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
    assert list(parse(messages=messages, tools=tools).request.messages) == messages


@each_row(
    ("field", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("top_logprobs", 3),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", 3),
        ("top_k", 5),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("audio", {"voice": "alloy"}),
        ("functions", []),
        ("tempreature", 1),
    ],
)
def test_an_option_that_is_not_honoured_is_refused_by_name(field, value):
    error = refusal(**{field: value})
    assert error.param == field
    assert field in error.message


def test_a_mistyped_option_gets_the_nearest_name():
    assert "Did you mean 'temperature'?" in refusal(tempreature=1).message


@each_row(("field", "values"), KNOWN.neutral.items())
def test_an_option_at_the_value_that_asks_for_nothing_is_accepted(field, values):
    for value in values:
        assert parse(**{field: value}).request == parse().request


@each_row("field", sorted(KNOWN.ignored))
def test_fields_that_cannot_change_a_token_are_accepted(field):
    assert parse(**{field: "x"}).request == parse().request


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


@each_row(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "human", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"seed": "one"}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"logprobs": 1}, "logprobs"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"stream_options": {"include_usage": 1}}, "include_usage"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(fields, param):
    error = refusal(**fields)
    assert error.param == param
    assert error.code == "invalid_value"


def test_the_older_function_call_is_refused_by_name():
    messages = [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]
    assert refusal(messages=messages).param == "messages[0].function_call"
