"""Responses and their events as OpenAI's types have them, and conversations that stay one timeline."""

import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.rows import each_row

TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": True}]
THOUGHT = "<think>\nI add.\n</think>\n\n"
ONE = '<tool_call>\n{"name": "add",  "arguments": {"x":1}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "add", "arguments": {"x" : 2}}\n</tool_call>'
ASK = {"role": "user", "content": "Hi"}


def result(call_id, output="1"):
    return {"type": "function_call_output", "call_id": call_id, "output": output}


async def ask(client, items, **options):
    return await client.responses.create(model="m", input=items, **options)


# Answers


NEWER = {"completed_at", "cache_write_tokens"}
"""What the types of the oldest supported package do not know yet."""


def assert_complete(model):
    """Nothing is in it that OpenAI's types do not know."""
    if isinstance(model, BaseModel):
        assert set(model.model_extra or ()) <= NEWER, f"{type(model).__name__}: {model.model_extra}"
        for name in type(model).model_fields:
            assert_complete(getattr(model, name))
    elif isinstance(model, list):
        for each in model:
            assert_complete(each)


async def raw(client, items=(ASK,), **options):
    """The response as it was sent, and as OpenAI's own type reads it."""
    answer = await client.responses.with_raw_response.create(model="m", input=list(items), **options)
    body = json.loads(answer.http_response.text)
    # `store` is in OpenAI's documentation of the response and not in its types.
    response = Response.model_validate({name: value for name, value in body.items() if name != "store"}, strict=True)
    assert_complete(response)
    return body, response


async def test_a_response_has_its_items_its_usage_and_what_was_asked(make_tuner):
    tuner, tracker, _ = make_tuner([THOUGHT + "Let me see.\n" + ONE + "\n" + TWO])
    body, response = await raw(
        tuner.openai_client(), instructions="Add.", tools=TOOLS, temperature=0.5, metadata={"a": "b"}
    )
    (turn,) = tracker.turns
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    name = response.id.removeprefix("resp_")
    assert [item.id for item in response.output] == [f"rs_{name}", f"msg_{name}", f"fc_{name}_0", f"fc_{name}_1"]
    assert {item.status for item in response.output} == {"completed"}
    thought, message, first, second = response.output
    assert (thought.content[0].text, thought.summary) == ("I add.", [])
    assert (response.output_text, message.content[0].annotations, message.content[0].logprobs) == (
        "Let me see.",
        [],
        [],
    )
    assert (first.name, first.arguments, first.call_id) == ("add", '{"x":1}', "c00000000")
    assert json.loads(second.arguments) == {"x": 2}
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(turn.prompt_ids), len(turn.output_ids))
    assert response.usage.total_tokens == len(turn.prompt_ids) + len(turn.output_ids)
    assert (response.status, response.incomplete_details, response.error) == ("completed", None, None)
    assert (response.instructions, response.temperature, response.metadata) == ("Add.", 0.5, {"a": "b"})
    assert response.tools[0].model_dump(exclude_unset=True) == {**TOOLS[0], "description": None}
    assert (name[-2:], response.model, body["store"]) == ("_0", "m", True)


async def test_reasoning_tokens_are_those_of_its_text(make_tuner, chat_format):
    tuner, _, _ = make_tuner(["<think>\nGrüße 🌍\n</think>\n\n4", "4"])
    _, response = await raw(tuner.openai_client())
    assert response.usage.output_tokens_details.reasoning_tokens == len(chat_format.encode("Grüße 🌍"))
    _, response = await raw(tuner.openai_client())
    assert response.usage.output_tokens_details.reasoning_tokens == 0


async def test_an_answer_cut_within_its_reasoning_is_incomplete_and_goes_on(make_tuner):
    tuner, tracker, _ = make_tuner([THOUGHT, "Bye"])
    client = tuner.openai_client()
    _, response = await raw(client, max_output_tokens=4)
    assert (response.status, response.completed_at, response.output_text) == ("incomplete", None, response.output_text)
    assert response.output[-1].status == "incomplete"
    await ask(client, "Go on", previous_response_id=response.id)
    assert len(tracker.turns) == 2


async def test_an_empty_answer_has_an_empty_message(make_tuner):
    tuner, _, _ = make_tuner([""])
    _, response = await raw(tuner.openai_client())
    assert response.output[0].content[0].text == ""


async def test_logprobs_are_those_of_the_turn(make_tuner, chat_format):
    tuner, tracker, _ = make_tuner(["Grüße 🌍!"])
    _, response = await raw(tuner.openai_client(), include=["message.output_text.logprobs"])
    logprobs = response.output[0].content[0].logprobs
    (turn,) = tracker.turns
    assert [token.logprob for token in logprobs] == list(turn.logprobs)
    assert b"".join(bytes(token.bytes) for token in logprobs) == chat_format.decode(turn.output_ids).encode()


async def test_without_parallel_calls_the_agent_gets_the_first(make_tuner):
    tuner, _, _ = make_tuner([ONE + "\n" + TWO])
    _, response = await raw(tuner.openai_client(), tools=TOOLS, parallel_tool_calls=False)
    assert [item.id for item in response.output] == [response.id.replace("resp_", "fc_") + "_0"]


class Point(BaseModel):
    x: int


async def test_parsed_output_begins_as_json(make_tuner):
    tuner, _, _ = make_tuner(['"x": 3}'])
    response = await tuner.openai_client().responses.parse(model="m", input="Where?", text_format=Point)
    assert response.output_parsed == Point(x=3)


# Streams


async def events_of(tuner, **options):
    client = tuner.openai_client()
    answer = await client.responses.with_raw_response.create(model="m", input="Hi", stream=True, **options)
    text = (await answer.http_response.aread()).decode()
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
    return events


ITEM = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


async def test_a_stream_is_the_sequence_of_events_that_openai_sends(make_tuner):
    tuner, _, _ = make_tuner([THOUGHT + "Let me see.\n" + ONE])
    events = await events_of(tuner, tools=TOOLS, include=["message.output_text.logprobs"])
    names = [event["type"].removeprefix("response.") for event in events]
    items = [name.format(kind) for kind in ("reasoning_text", "output_text") for name in ITEM]
    assert names == ["created", "in_progress", *items, *CALL, "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


async def test_openais_stream_helper_adds_the_events_up_to_the_response(make_tuner):
    tuner, tracker, _ = make_tuner([THOUGHT + "Let me see.\n" + ONE + "\n" + TWO])
    async with tuner.openai_client().responses.stream(model="m", input="Hi", tools=TOOLS) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    texts = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    calls = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
    assert (texts, [json.loads(call) for call in calls]) == (["Let me see."], [{"x": 1}, {"x": 2}])
    assert (response.output_text, len(response.output)) == ("Let me see.", 4)
    assert response.usage.output_tokens == len(tracker.turns[0].output_ids)


async def test_the_stream_of_an_answer_that_was_cut_ends_incomplete(make_tuner):
    tuner, _, _ = make_tuner(["one two three four five"])
    events = await events_of(tuner, max_output_tokens=3)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


# Conversations stay one timeline

ANSWERS = {
    "text": "Fine, and you?",
    "call": ONE,
    "reasoning and call": THOUGHT + ONE,
    "parallel calls": ONE + "\n" + TWO,
    "text and call": "Let me see.\n" + ONE,
    "everything": THOUGHT + "Let me see.\n" + ONE + "\n" + TWO,
}
answers = each_row("answer", ANSWERS.values(), ids=ANSWERS.keys())


def results_of(response):
    """What the agent says next: the results of the calls, or a new message where there are none."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [result(call.call_id, call.arguments) for call in calls] or [ASK]


def whole(response):
    return [*response.output, *results_of(response)]


def interleaved(response):
    """Each call with its result after it."""
    items = []
    for item in response.output:
        items += [item, *([result(item.call_id)] if item.type == "function_call" else [])]
    return items if items[-1] is not response.output[-1] else [*items, ASK]


def without_reasoning(response):
    return [*(item for item in response.output if item.type != "reasoning"), *results_of(response)]


def without_ids(response):
    items = [item.model_dump(mode="json", exclude_unset=True) for item in response.output]
    return [*({k: v for k, v in item.items() if k not in ("id", "status")} for item in items), *results_of(response)]


@answers
@pytest.mark.parametrize("send_back", [whole, interleaved, without_reasoning, without_ids])
async def test_an_answer_that_is_sent_back_continues_the_timeline(make_tuner, answer, send_back):
    tuner, tracker, policy = make_tuner([answer, answer, "Bye"])
    client, items = tuner.openai_client(), [ASK]
    for _ in range(2):
        items += send_back(await ask(client, items, instructions="Be brief.", tools=TOOLS))
    await ask(client, items, instructions="Be brief.", tools=TOOLS)
    (timeline,) = tracker.timelines()
    assert (len(timeline.spans), timeline.fork) == (3, None)
    for earlier, later in zip(tracker.turns, tracker.turns[1:], strict=False):
        ids = (*earlier.prompt_ids, *earlier.output_ids)
        assert tuple(later.prompt_ids)[: len(ids)] == ids
    assert [tuple(turn.prompt_ids) for turn in tracker.turns] == [prompt for prompt, _ in policy.calls]


@answers
async def test_a_stored_response_is_continued_by_its_id(make_tuner, answer):
    tuner, tracker, _ = make_tuner([answer, answer, "Bye"])
    client, items, previous = tuner.openai_client(), [ASK], None
    for _ in range(3):
        before = previous
        response = await ask(
            client, items, instructions="Be brief.", tools=TOOLS, previous_response_id=previous, stream=False
        )
        items, previous = results_of(response), response.id
    (timeline,) = tracker.timelines()
    assert len(timeline.spans) == 3
    assert response.previous_response_id == before != previous


@answers
async def test_items_given_by_their_id_continue_the_timeline(make_tuner, answer):
    tuner, tracker, _ = make_tuner([answer, "Bye"])
    client = tuner.openai_client()
    response = await ask(client, [ASK], tools=TOOLS)
    references = [{"type": "item_reference", "id": item.id} for item in response.output]
    await ask(client, [ASK, *references, *results_of(response)], tools=TOOLS)
    (timeline,) = tracker.timelines()
    assert len(timeline.spans) == 2


async def test_both_ways_of_going_on_are_the_same_conversation(make_tuner):
    tuner, tracker, _ = make_tuner(["One", "Two", "Three"])
    client = tuner.openai_client()
    first = await ask(client, "Hi", instructions="Be brief.")
    second = await ask(client, "Go on", instructions="Be brief.", previous_response_id=first.id)
    items = [ASK, *first.output, {"role": "user", "content": "Go on"}, *second.output, ASK]
    await ask(client, items, instructions="Be brief.")
    assert len(tracker.timelines()) == 1


async def test_a_conversation_begun_as_chat_completions_goes_on_here(make_tuner):
    tuner, tracker, _ = make_tuner([THOUGHT + ONE, "Bye"])
    client = tuner.openai_client()
    tools = [{"type": "function", "function": {"name": "add", "parameters": TOOLS[0]["parameters"]}}]
    answer = await client.chat.completions.create(model="m", messages=[ASK], tools=tools)
    (call,) = answer.choices[0].message.tool_calls
    item = {"type": "function_call", "call_id": call.id, **call.function.model_dump()}
    await ask(client, [ASK, item, result(call.id)], tools=TOOLS)
    assert len(tracker.timelines()) == 1


async def test_instructions_are_those_of_the_request_alone(make_tuner):
    tuner, tracker, _ = make_tuner(["One", "Two"])
    client = tuner.openai_client()
    first = await ask(client, "Hi", instructions="Be brief.")
    await ask(client, "Hi", instructions="Be kind.", previous_response_id=first.id)
    assert [message["content"] for message in tracker.turns[1].messages] == ["Be kind.", "Hi", "One", "Hi"]
    assert [timeline.fork for timeline in tracker.timelines()] == [None, "system_changed"]


async def test_a_response_may_be_continued_twice(make_tuner):
    tuner, tracker, _ = make_tuner(["One", "Two", "Three"])
    client = tuner.openai_client()
    first = await ask(client, "Hi")
    for text in ("left", "right"):
        await ask(client, text, previous_response_id=first.id)
    assert [timeline.fork for timeline in tracker.timelines()] == [None, "branch"]


async def test_calls_that_were_withheld_begin_a_timeline(make_tuner):
    tuner, tracker, _ = make_tuner([ONE + "\n" + TWO, "Bye"])
    client = tuner.openai_client()
    response = await ask(client, [ASK], tools=TOOLS, parallel_tool_calls=False)
    await ask(client, results_of(response), tools=TOOLS, previous_response_id=response.id)
    assert [timeline.fork for timeline in tracker.timelines()] == [None, "history_edited"]


async def test_an_answer_that_the_agent_changed_forks(make_tuner):
    tuner, tracker, _ = make_tuner(["Five.", "Six."])
    client = tuner.openai_client()
    await client.responses.create(model="m", input=[ASK])
    edited = {"role": "assistant", "content": "Six."}
    await client.responses.create(model="m", input=[ASK, edited, {"role": "user", "content": "Sure?"}])
    assert [line.fork for line in tracker.timelines()] == [None, "history_edited"]


async def test_a_forced_call_begins_in_the_prompt(make_tuner, chat_format):
    tuner, tracker, _ = make_tuner([' {"a": 1}}\n</tool_call>'])
    choice = {"type": "function", "name": "add"}
    response = await tuner.openai_client().responses.create(model="m", input="?", tools=TOOLS, tool_choice=choice)
    assert [(item.name, item.arguments) for item in response.output] == [("add", '{"a": 1}')]
    assert chat_format.decode(tracker.turns[0].prompt_ids).endswith('{"name": "add", "arguments":')


async def test_what_was_not_stored_cannot_be_referred_to(make_tuner):
    tuner, tracker, _ = make_tuner(["One", "Two"])
    client = tuner.openai_client()
    lost = await ask(client, "Hi", store=False)
    kept = await ask(client, "Hi")
    with pytest.raises(openai.BadRequestError, match=f"There are: {kept.id}") as error:
        await ask(client, "Hi", previous_response_id=lost.id)
    assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError) as error:
        await ask(client, [{"type": "item_reference", "id": lost.output[0].id}])
    assert (error.value.code, error.value.param) == ("item_not_found", "input[0].id")
    assert len(tracker.turns) == 2


async def test_stored_responses_are_those_of_one_agent_of_one_episode(make_tuner):
    tuner, _, _ = make_tuner(["One"])
    other, _, _ = make_tuner(["One"])
    known = await ask(tuner.openai_client("solver"), "Hi")
    for client in (tuner.openai_client("critic"), other.openai_client("solver")):
        with pytest.raises(openai.BadRequestError, match="There are: none"):
            await ask(client, "Hi", previous_response_id=known.id)
