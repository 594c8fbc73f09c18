"""Calls of OpenAI clients, in the process and over HTTP, recorded as turns of an episode."""

import asyncio
import json
import math
import socket
import threading
from dataclasses import replace

import httpx
import openai
import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatRequest
from astune.errors import RolloutError
from astune.gateway.app import openai_app
from astune.gateway.server import http_server
from astune.testing import write_test_model_dir
from tests.passing_time import pass_time

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
]
CALL = '<think>\nI add.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "add",  "arguments": {"x":1}}\n</tool_call>'


def client_of(tuner, way, **options):
    """An AsyncOpenAI client in the process or over HTTP."""
    if way == "in process":
        return tuner.openai_client(**options)
    return openai.AsyncOpenAI(base_url=tuner.base_url(**options), api_key="x", max_retries=0)


ways = pytest.mark.parametrize("way", ["in process", "over HTTP"])


async def ask(client, messages=HI, **options):
    return await client.chat.completions.create(model="m", messages=messages, **options)


@ways
async def test_an_answer_has_its_parts_its_usage_and_its_turn(make_tuner, way):
    tuner, tracker, _ = make_tuner([CALL])
    async with client_of(tuner, way) as client:
        answer = await ask(client, tools=TOOLS)
    (turn,) = tracker.turns
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.reasoning_content == "I add."
    assert choice.message.tool_calls[0].function.name == "add"
    assert choice.message.tool_calls[0].function.arguments == '{"x":1}'
    assert answer.usage.prompt_tokens == len(turn.prompt_ids)
    assert answer.usage.completion_tokens == len(turn.output_ids)
    assert answer.usage.total_tokens == len(turn.prompt_ids) + len(turn.output_ids)
    assert answer.model == "m"
    assert choice.logprobs is None
    assert "token_ids" not in choice.model_extra
    assert "prompt_token_ids" not in answer.model_extra


@ways
async def test_a_streamed_answer_adds_up_to_the_same_message(make_tuner, way):
    tuner, tracker, _ = make_tuner([CALL])
    async with client_of(tuner, way) as client:
        stream = await ask(client, tools=TOOLS, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert "".join(delta.model_extra.get("reasoning_content", "") for delta in deltas) == "I add."
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.index, call.function.name, call.function.arguments) == (0, "add", '{"x":1}')
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(tracker.turns[0].output_ids)


async def test_a_stream_without_include_usage_has_none(make_tuner):
    tuner, _, _ = make_tuner(["Hello"])
    chunks = [chunk async for chunk in await ask(tuner.openai_client(), stream=True)]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@ways
async def test_logprobs_and_token_ids_are_those_of_the_turn(make_tuner, chat_format, way):
    tuner, tracker, _ = make_tuner(["Grüße 🌍!"])
    async with client_of(tuner, way) as client:
        answer = await ask(client, logprobs=True, extra_body={"return_token_ids": True})
    (turn,) = tracker.turns
    content = answer.choices[0].logprobs.content
    assert [token.logprob for token in content] == list(turn.logprobs)
    assert "".join(token.token for token in content) == chat_format.decode(turn.output_ids)
    assert b"".join(bytes(token.bytes) for token in content) == chat_format.decode(turn.output_ids).encode()
    assert answer.choices[0].token_ids == list(turn.output_ids)
    assert answer.prompt_token_ids == list(turn.prompt_ids)


@ways
async def test_a_logprob_that_is_no_number_is_null(make_tuner, way):
    tuner, _, policy = make_tuner(["Hello"])
    generate = policy.generate

    async def without_numbers(prompt_ids, sampling):
        answer = await generate(prompt_ids, sampling)
        return replace(answer, logprobs=[math.nan] * len(answer.output_ids))

    policy.generate = without_numbers
    async with client_of(tuner, way) as client:
        answer = await ask(client, logprobs=True)
    assert {token.logprob for token in answer.choices[0].logprobs.content} == {None}


@ways
async def test_an_answer_given_back_as_an_object_continues_the_timeline(make_tuner, way):
    tuner, tracker, _ = make_tuner([CALL, "It is 1."])
    async with client_of(tuner, way) as client:
        message = (await ask(client, tools=TOOLS)).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "1"}
        assert (await ask(client, [*HI, message, result], tools=TOOLS)).choices[0].message.content == "It is 1."
    (timeline,) = tracker.timelines()
    assert len(timeline.spans) == 2
    assert timeline.token_ids[: len(tracker.turns[1].prompt_ids)] == tracker.turns[1].prompt_ids


async def test_tool_calls_given_back_as_objects_inside_a_dict_continue_the_timeline(make_tuner):
    tuner, tracker, _ = make_tuner([CALL, "It is 1."])
    client = tuner.openai_client()
    message = (await ask(client, tools=TOOLS)).choices[0].message
    replay = {"role": "assistant", "content": message.content, "tool_calls": message.tool_calls}
    await ask(client, (*HI, replay, {"role": "tool", "tool_call_id": "c00000000", "content": "1"}), tools=TOOLS)
    assert len(tracker.timelines()) == 1


async def test_the_in_process_client_sends_what_the_plain_client_sends(make_tuner):
    """`_Completions.create` skips the client's own conversion; the policy must see no difference."""
    tuner, _, policy = make_tuner(lambda prompt: "Hello")
    options = {"tools": TOOLS, "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 7, "seed": 3, "user": "me"}
    messages = [
        {
            "role": "system",
            "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}],
            "name": "s",
        },
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call_of("a")]},
        {"role": "tool", "tool_call_id": "a", "content": "5"},
    ]
    await ask(tuner.openai_client(), messages, **options, n=openai.NOT_GIVEN, stop=openai.omit)
    async with client_of(tuner, "over HTTP") as client:
        await ask(client, messages, **options)
    assert policy.calls[0] == policy.calls[1]


def call_of(call_id):
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}}


@ways
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_option_is_a_bad_request_that_names_it(make_tuner, way, stream):
    tuner, tracker, _ = make_tuner(["Hello"])
    async with client_of(tuner, way) as client:
        with pytest.raises(openai.BadRequestError) as error:
            await ask(client, frequency_penalty=1, stream=stream)
    assert error.value.param == "frequency_penalty"
    assert "is not supported here" in error.value.message
    assert tracker.turns == ()
    assert tuner.failures == []


@ways
async def test_limits_are_bad_requests_with_a_code_and_are_remembered(make_tuner, way):
    tuner, tracker, _ = make_tuner(["Hello"], max_turns=1, context_length=40)
    async with client_of(tuner, way) as client:
        with pytest.raises(openai.BadRequestError) as overflow:
            await ask(client, [{"role": "user", "content": "word " * 50}])
        with pytest.raises(openai.BadRequestError) as text:
            await client.completions.create(model="m", prompt="word " * 50)
        assert [type(error).__name__ for error in tuner.failures] == ["ContextOverflow", "ContextOverflow"]
        await ask(client)
        assert (tuner.failures, tuner.recovered) == ([], 2)
        with pytest.raises(openai.BadRequestError) as turns:
            await ask(client)
    assert (overflow.value.code, overflow.value.param) == ("context_length_exceeded", "messages")
    assert (text.value.code, text.value.param) == ("context_length_exceeded", "prompt")
    assert all("(context_length_exceeded)" in error.value.message for error in (overflow, text))
    assert turns.value.code == "max_turns_exceeded"
    assert [type(error).__name__ for error in tuner.failures] == ["TooManyTurns"]
    assert len(tracker.turns) == 1


@pytest.mark.fault("The OpenAI-compatible endpoint", "the engine fails", "a server error that no client repeats")
@ways
async def test_a_policy_that_fails_is_a_server_error_that_no_client_retries(make_tuner, way):
    tuner, _, policy = make_tuner([])
    async with client_of(tuner, way).with_options(max_retries=3) as client:
        with pytest.raises(openai.InternalServerError, match="has 0 answers"):
            await ask(client)
    assert len(policy.calls) == 1
    assert [type(error).__name__ for error in tuner.failures] == ["PolicyError"]


async def test_a_conversation_that_cannot_be_rendered_is_a_bad_request(make_tuner, tmp_path):
    no_calls = ChatFormat.load(write_test_model_dir(tmp_path), tool_call_format="none")
    tuner, _, _ = make_tuner(["Hello"], chat_format=no_calls)
    with pytest.raises(openai.BadRequestError, match=r"set astune\.model\.tool_call_format"):
        await ask(tuner.openai_client(), tools=TOOLS)


async def test_agents_and_trainability_are_told_apart(make_tuner):
    tuner, tracker, _ = make_tuner(["a", "b", "c"])
    await ask(tuner.openai_client("solver"))
    await ask(tuner.openai_client("user", trainable=False))
    await tuner.chat(ChatRequest(HI), name="critic")
    assert [(turn.agent, turn.trainable) for turn in tracker.turns] == [
        ("solver", True),
        ("user", False),
        ("critic", True),
    ]


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "an agent uses the address of another episode",
    "each address leads to its own episode only",
)
async def test_episodes_do_not_see_each_other(make_tuner):
    first, first_tracker, _ = make_tuner(["one"])
    second, second_tracker, _ = make_tuner(["two"])
    answers = await asyncio.gather(ask(first.openai_client()), ask(second.openai_client()))
    assert [answer.choices[0].message.content for answer in answers] == ["one", "two"]
    assert len(first_tracker.turns) == len(second_tracker.turns) == 1


async def test_closing_one_client_leaves_the_others_alone(make_tuner):
    tuner, _, _ = make_tuner(["one", "two"])
    async with tuner.openai_client() as client:
        await ask(client)
    assert (await ask(tuner.openai_client())).choices[0].message.content == "two"


@pytest.mark.fault(
    "The OpenAI-compatible endpoint", "an agent calls after the end of its episode", "a 404 that says so"
)
@ways
async def test_after_the_episode_nothing_can_be_called(make_tuner, way):
    tuner, _, policy = make_tuner(["Hello"])
    async with client_of(tuner, way) as client:
        tuner.close()
        with pytest.raises(openai.NotFoundError, match="its episode is over"):
            await ask(client)
    with pytest.raises(RolloutError, match="test/t1/0 is over"):
        tuner.openai_client()
    with pytest.raises(RolloutError, match="test/t1/0 is over"):
        await tuner.chat(ChatRequest(HI))
    assert policy.calls == []
    assert openai_app()._endpoints == {}


async def test_closing_cancels_the_calls_under_way_and_tells_the_http_client(make_tuner):
    tuner, tracker, policy = make_tuner(["never"])
    begun, never = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(prompt_ids, sampling):
        begun.set()
        await never.wait()

    policy.generate = wait_for_ever
    async with client_of(tuner, "over HTTP") as client:
        call = asyncio.create_task(ask(client))
        await begun.wait()
        tuner.close()
        with pytest.raises(openai.NotFoundError, match="its episode is over"):
            await call
    assert tracker.turns == ()


async def test_a_blocking_client_in_a_thread_of_its_own_is_served(make_tuner):
    tuner, tracker, _ = make_tuner(["Hello"])
    url = tuner.base_url()

    def agent():
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
            return client.chat.completions.create(model="m", messages=HI).choices[0].message.content

    assert await asyncio.to_thread(agent) == "Hello"
    assert len(tracker.turns) == 1


async def test_an_in_process_client_works_from_another_event_loop(make_tuner):
    tuner, tracker, _ = make_tuner(["Hello"])
    client = tuner.openai_client()
    answer = await asyncio.to_thread(lambda: asyncio.run(ask(client)))
    assert answer.choices[0].message.content == "Hello"
    assert len(tracker.turns) == 1


async def test_the_url_carries_a_token_and_bad_requests_get_json(make_tuner):
    tuner, _, _ = make_tuner(["Hello"])
    url = tuner.base_url()
    origin, token, version = url.rsplit("/", 2)
    assert version == "v1"
    assert len(token) >= 32
    assert tuner.base_url() == url
    assert tuner.base_url("other") != url
    async with httpx.AsyncClient() as client:
        models = (await client.get(f"{url}/models")).json()
        assert [model["id"] for model in models["data"]] == ["agent"]
        guess = await client.get(f"{origin}/guess/v1/models")
        assert (guess.status_code, guess.json()["error"]["code"]) == (404, "episode_over")
        broken = await client.post(f"{url}/chat/completions", content=b"{")
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
        listed = await client.post(f"{url}/chat/completions", content=b"[]")
        assert listed.status_code == 400
        answer = await client.post(f"{url}/chat/completions", content=json.dumps({"model": "m", "messages": HI}))
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"


async def test_there_is_one_server_for_all_episodes(make_tuner):
    urls = [make_tuner(["Hello"])[0].base_url() for _ in range(3)]
    assert len({url.split("/")[2] for url in urls}) == 1
    assert sum(thread.name == "astune-http" for thread in threading.enumerate()) == 1


def test_small_answers_are_not_held_back_for_more():
    """asyncio turns Nagle's algorithm off only where the listening socket names its protocol."""
    assert http_server()._thread.listener.proto == socket.IPPROTO_TCP


async def test_raw_responses_work(make_tuner):
    tuner, _, _ = make_tuner(["Hello"])
    raw = await tuner.openai_client().chat.completions.with_raw_response.create(model="m", messages=HI)
    assert raw.status_code == 200
    assert raw.parse().choices[0].message.content == "Hello"


@ways
async def test_n_answers_to_one_prompt_are_n_turns_that_share_it(make_tuner, way):
    tuner, tracker, _ = make_tuner(["one", "two", "three"])
    async with client_of(tuner, way) as client:
        answer = await ask(client, n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (0, "one"),
        (1, "two"),
        (2, "three"),
    ]
    assert len({turn.prompt_ids for turn in tracker.turns}) == 1
    assert [timeline.fork for timeline in tracker.timelines()] == [None, "best_of_n", "best_of_n"]
    assert answer.usage.prompt_tokens == len(tracker.turns[0].prompt_ids)
    assert answer.usage.completion_tokens == sum(len(turn.output_ids) for turn in tracker.turns)


async def test_n_streamed_answers_are_told_apart_by_their_index(make_tuner):
    tuner, tracker, _ = make_tuner(["one", "two"])
    stream = await ask(tuner.openai_client(), n=2, stream=True, extra_body={"return_token_ids": True})
    chunks = [chunk async for chunk in stream]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "one", 1: "two"}
    ends = [chunk.choices[0] for chunk in chunks if chunk.choices[0].finish_reason]
    assert [end.token_ids for end in ends] == [list(turn.output_ids) for turn in tracker.turns]
    prompts = [chunk.prompt_token_ids for chunk in chunks if "prompt_token_ids" in chunk.model_extra]
    assert prompts == [list(tracker.turns[0].prompt_ids)]


async def test_a_stop_text_ends_the_message_and_is_part_of_the_turn(make_tuner, chat_format):
    tuner, tracker, policy = make_tuner(["4 STOP"])
    answer = await ask(tuner.openai_client(), stop="STOP")
    assert answer.choices[0].message.content.strip() == "4"
    assert policy.calls[0][1].stop == ("STOP",)
    assert "STOP" in chat_format.decode(tracker.turns[0].output_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_without_parallel_tool_calls_the_agent_gets_the_first(make_tuner, stream):
    two = CALL + CALL[CALL.index("\n<tool_call>") :]
    tuner, _, _ = make_tuner([two, two])
    client = tuner.openai_client()

    async def calls(**options):
        answer = await ask(client, tools=TOOLS, stream=stream, **options)
        if not stream:
            return answer.choices[0].message.tool_calls
        return [call async for chunk in answer for call in chunk.choices[0].delta.tool_calls or ()]

    assert len(await calls()) == 2
    assert len(await calls(parallel_tool_calls=False)) == 1


async def test_a_call_that_is_sent_again_is_marked_as_a_retry(make_tuner):
    tuner, tracker, _ = make_tuner(["lost", "kept"])
    client = tuner.openai_client()
    await ask(client, extra_headers={"x-stainless-retry-count": "0"})
    assert [turn.excluded for turn in tracker.turns] == [None]
    answer = await ask(client, extra_headers={"x-stainless-retry-count": "1"})
    assert answer.choices[0].message.content == "kept"
    assert [turn.excluded for turn in tracker.turns] == ["retried", None]


@pytest.mark.fault(
    "The OpenAI-compatible endpoint", "a client gives up and sends its request again", "one turn is recorded"
)
async def test_an_openai_client_that_times_out_and_asks_again_leaves_one_turn(make_tuner):
    """The first answer never comes: the client gives up, which cancels it, and repeats the request."""
    tuner, tracker, policy = make_tuner(["Hello"])
    generate, cancelled = policy.generate, []

    async def slow_at_first(prompt_ids, sampling):
        if cancelled:
            return await generate(prompt_ids, sampling)
        pass_time(61)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    policy.generate = slow_at_first
    async with openai.AsyncOpenAI(base_url=tuner.base_url(), api_key="x", max_retries=1, timeout=60) as client:
        assert (await ask(client)).choices[0].message.content == "Hello"
    assert cancelled == [True]
    assert len(tracker.turns) == 1
    assert tracker.turns[0].trainable
    assert tuner.failures == []


@pytest.mark.fault("The OpenAI-compatible endpoint", "a client hangs up", "its call is cancelled and leaves no turn")
async def test_a_client_that_goes_away_cancels_its_call(endless):
    tuner, tracker, call = endless
    host, port, path = tuner.base_url().replace("http://", "").replace(":", "/", 1).split("/", 2)
    body = json.dumps({"model": "m", "messages": HI}).encode()
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /{path}/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await asyncio.wait_for(call.begun.wait(), 60)
    assert not call.cancelled.is_set()
    writer.close()
    await writer.wait_closed()
    await asyncio.wait_for(call.cancelled.wait(), 60)
    assert tracker.turns == ()
    assert tracker.lost_calls == 1


@ways
async def test_a_text_is_continued_as_it_is(make_tuner, chat_format, way):
    tuner, tracker, _ = make_tuner([" there"] * 3)
    async with client_of(tuner, way) as client:
        answer = await client.completions.create(model="m", prompt="Hello", logprobs=0, n=2)
        again = await client.completions.create(
            model="m", prompt=list(tracker.turns[0].prompt_ids), extra_body={"return_token_ids": True}
        )
    first, second, third = tracker.turns
    assert chat_format.decode(first.prompt_ids) == "Hello"
    assert first.prompt_ids == second.prompt_ids == third.prompt_ids
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (0, " there", "stop"),
        (1, " there", "stop"),
    ]
    assert answer.object == "text_completion"
    assert answer.usage.completion_tokens == len(first.output_ids) + len(second.output_ids)
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs == list(first.logprobs)
    text = "".join(logprobs.tokens)
    assert text.startswith(" there")
    assert all(text[at:].startswith(piece) for at, piece in zip(logprobs.text_offset, logprobs.tokens, strict=True))
    assert logprobs.text_offset[0] == 0
    assert again.choices[0].logprobs is None
    assert again.choices[0].token_ids == list(third.output_ids)
    assert again.choices[0].prompt_token_ids == list(third.prompt_ids)


async def test_a_streamed_text_adds_up(make_tuner):
    tuner, tracker, _ = make_tuner([" there", " you"])
    stream = await tuner.openai_client().completions.create(
        model="m", prompt="Hello", n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [(choice.index, choice.text) for chunk in chunks for choice in chunk.choices] == [(0, " there"), (1, " you")]
    assert chunks[-1].usage.prompt_tokens == len(tracker.turns[0].prompt_ids)
