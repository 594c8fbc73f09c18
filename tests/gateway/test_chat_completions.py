import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.gateway.chat_completions import _HONOURED, _IGNORED, _NEUTRAL, parse_call
from astune.gateway.errors import ApiError

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def parse(**fields):
    return parse_call({"model": "m", "messages": MESSAGES, **fields})


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


def test_tool_choice_none_shows_the_model_no_tools():
    assert list(parse(tools=TOOLS, tool_choice="auto").request.tools) == TOOLS
    assert parse(tools=TOOLS, tool_choice="none").request.tools == ()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_tool_call_is_refused(choice):
    error = refusal(tools=TOOLS, tool_choice=choice)
    assert error.param == "tool_choice"
    assert "'auto' or 'none'" in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("stop", "\n"),
        ("stop", ["\n"]),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("top_logprobs", 3),
        ("parallel_tool_calls", False),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
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


@pytest.mark.parametrize(("field", "values"), _NEUTRAL.items())
def test_an_option_at_the_value_that_asks_for_nothing_is_accepted(field, values):
    for value in values:
        assert parse(**{field: value}).request == parse().request


@pytest.mark.parametrize("field", sorted(_IGNORED))
def test_fields_that_cannot_change_a_token_are_accepted(field):
    assert parse(**{field: "x"}).request == parse().request


@given(st.text(min_size=1).filter(lambda name: name not in {*_HONOURED, *_IGNORED, *_NEUTRAL}), st.integers())
def test_no_unknown_option_is_ever_ignored(name, value):
    assert refusal(**{name: value}).param == name


@pytest.mark.parametrize(
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
