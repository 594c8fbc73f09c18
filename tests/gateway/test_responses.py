"""`/v1/responses` with OpenAI's own client: what an agent sends back must be the tokens that were sampled."""

import openai
import pytest
from openai.types.responses import Response

from astune.context_tracker.forks import HISTORY_EDITED
from astune.gateway.errors import ApiError
from astune.gateway.responses import parse_response
from astune.gateway.responses_request import StoredResponses
from tests.rows import each_row

THINK = "<think>\nLet me see.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "add",  "arguments": {"a":2, "b":3}}\n</tool_call>'
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": True}
QUESTION = {"role": "user", "content": "2 + 3?"}


def refusal(**fields):
    with pytest.raises(ApiError) as raised:
        parse_response({"input": "Hi", **fields}, StoredResponses())
    assert raised.value.status == 400
    return raised.value


def as_sent(response):
    """The items of a response as agents send them back."""
    return [item.model_dump(exclude_none=True) for item in response.output]


def results(response):
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "5"} for call in calls]


def one_timeline(tracker, answers, chat_format):
    (timeline,) = tracker.timelines()
    sampled = [chat_format.decode(timeline.token_ids[span.start : span.stop]) for span in timeline.spans]
    assert sampled == [f"{answer}<|im_end|>" for answer in answers]


@each_row("answer", ["Five.", THINK + "Five.", CALL, THINK + CALL, f"I add.\n{CALL}", f"{THINK}I add.\n{CALL}\n{CALL}"])
@each_row("way", ["items", "items without ids", "previous_response_id"])
async def test_a_conversation_that_goes_on_is_one_timeline(make_tuner, chat_format, answer, way):
    answers = [answer, "So it is five."]
    tuner, tracker, _ = make_tuner(answers)
    client = tuner.openai_client()
    first = await client.responses.create(model="m", input=[QUESTION], tools=[ADD], instructions="Be brief.")
    more = results(first) or [{"role": "user", "content": "Sure?"}]
    if answer.startswith(THINK) and not results(first):
        more = [{"role": "system", "content": "Go on."}]  # a user message would let the template drop the reasoning
    if way == "previous_response_id":
        rest = {"input": more, "previous_response_id": first.id}
    else:
        items = as_sent(first)
        if way == "items without ids":
            items = [{name: value for name, value in item.items() if name != "id"} for item in items]
        rest = {"input": [QUESTION, *items, *more]}
    second = await client.responses.create(model="m", tools=[ADD], instructions="Be brief.", **rest)
    assert second.output_text == "So it is five."
    one_timeline(tracker, answers, chat_format)


async def test_an_answer_is_told_in_items_that_openais_types_know(make_tuner):
    tuner, _, _ = make_tuner([f"{THINK}I add.\n{CALL}"])
    response = await tuner.openai_client().responses.create(model="m", input="2 + 3?", tools=[ADD])
    Response.model_validate(response.model_dump(), strict=False)
    reasoning, message, call = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Let me see.")
    assert (message.type, message.content[0].text) == ("message", "I add.")
    assert (call.type, call.name, call.arguments) == ("function_call", "add", '{"a":2, "b":3}')
    assert (response.status, response.output_text, response.error) == ("completed", "I add.", None)
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens


async def test_an_answer_that_was_cut_off_is_incomplete(make_tuner):
    tuner, _, _ = make_tuner(["One two three four five six seven."])
    response = await tuner.openai_client().responses.create(model="m", input="Count.", max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output[0].status, response.usage.output_tokens) == ("incomplete", 3)


async def test_a_streamed_response_is_the_same_response_in_openais_events(make_tuner):
    answer = f"{THINK}I add.\n{CALL}"
    tuner, _, _ = make_tuner([answer, answer])
    client = tuner.openai_client()
    whole = await client.responses.create(model="m", input="2 + 3?", tools=[ADD], store=False)
    events = [
        event async for event in await client.responses.create(model="m", input="2 + 3?", tools=[ADD], stream=True)
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed"
    for kind in ("reasoning_text.delta", "output_text.delta", "function_call_arguments.delta"):
        assert kinds.count(kind) == 1
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 3
    said = [[item.type, item.status] for item in events[-1].response.output]
    assert said == [[item.type, item.status] for item in whole.output]
    assert events[-1].response.output_text == whole.output_text


async def test_an_answer_that_the_agent_changed_forks(make_tuner):
    tuner, tracker, _ = make_tuner(["Five.", "Six."])
    client = tuner.openai_client()
    await client.responses.create(model="m", input=[QUESTION])
    edited = {"role": "assistant", "content": "Six."}
    await client.responses.create(model="m", input=[QUESTION, edited, {"role": "user", "content": "Sure?"}])
    assert [line.fork for line in tracker.timelines()] == [None, HISTORY_EDITED]


async def test_a_forced_call_begins_in_the_prompt(make_tuner, chat_format):
    tuner, tracker, _ = make_tuner([' {"a": 1}}\n</tool_call>'])
    choice = {"type": "function", "name": "add"}
    response = await tuner.openai_client().responses.create(model="m", input="?", tools=[ADD], tool_choice=choice)
    assert [(item.name, item.arguments) for item in response.output] == [("add", '{"a": 1}')]
    assert chat_format.decode(tracker.turns[0].prompt_ids).endswith('{"name": "add", "arguments":')


async def test_json_is_begun_in_the_prompt(make_tuner):
    tuner, _, _ = make_tuner(['"a": 1}'])
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    response = await tuner.openai_client().responses.create(model="m", input="?", text=form)
    assert response.output_text == '{"a": 1}'


async def test_a_response_that_is_not_stored_cannot_be_continued(make_tuner):
    tuner, _, _ = make_tuner(["Hi.", "Ho."])
    client = tuner.openai_client()
    first = await client.responses.create(model="m", input="Hi", store=False)
    with pytest.raises(openai.BadRequestError, match="no stored response"):
        await client.responses.create(model="m", input="More", previous_response_id=first.id)


@each_row(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0]"),
        ({"tool_choice": {"type": "function", "name": "gone"}}, "tool_choice"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"reasoning": {"budget": 3}}, "reasoning.budget"),
        ({"text": {"verbosity": 3}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"conversation": "c"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "msg_9"}]}, "input[0].id"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields, param):
    assert refusal(**fields).param == param


def test_a_misspelt_field_gets_the_nearest_name():
    assert "'temperature'" in refusal(temprature=1).message
