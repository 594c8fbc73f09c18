import pytest

from astune.gateway.completions import KNOWN, parse_completion
from astune.gateway.errors import ApiError
from tests.rows import each_row


def parse(**fields):
    return parse_completion({"model": "m", "prompt": "Hi", **fields})


@each_row(("given", "prompt"), [("Hi", "Hi"), (["Hi"], "Hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ([0], (0,))])
def test_a_prompt_is_a_text_or_token_ids(given, prompt):
    assert parse(prompt=given).request.prompt == prompt


@each_row("prompt", [None, "", [], [[]], [""], 3, [1, -1], [1, True], [1, 2.0], [1, "a"], [2**31], {}])
def test_what_cannot_be_continued_is_refused(prompt):
    with pytest.raises(ApiError) as error:
        parse(prompt=prompt)
    assert (error.value.param, error.value.code) == ("prompt", "invalid_value")


def test_several_prompts_in_one_call_are_refused():
    for prompts in (["a", "b"], [[1], [2]]):
        with pytest.raises(ApiError, match="ask once for each") as error:
            parse(prompt=prompts)
        assert error.value.param == "prompt"


def test_options_reach_the_tracker():
    call = parse(max_tokens=9, temperature=0, top_p=0.5, seed=7, stop=["a"], n=2, stream=True, logprobs=0)
    request = call.request
    assert (request.temperature, request.top_p, request.seed, request.max_tokens) == (0.0, 0.5, 7, 9)
    assert (request.stop, request.messages, call.n, call.stream, call.logprobs) == (("a",), (), 2, True, True)
    assert not parse().logprobs


@each_row(("field", "values"), KNOWN.neutral.items())
def test_an_option_at_the_value_that_asks_for_nothing_is_accepted(field, values):
    for value in values:
        assert parse(**{field: value}).request == parse().request


@each_row(
    ("field", "value"),
    [("echo", True), ("best_of", 2), ("suffix", "x"), ("logprobs", 1), ("top_k", 3), ("messages", []), ("promt", "x")],
)
def test_an_option_that_is_not_honoured_is_refused_by_name(field, value):
    with pytest.raises(ApiError) as error:
        parse(**{field: value})
    assert error.value.status == 400
    assert error.value.param == field
