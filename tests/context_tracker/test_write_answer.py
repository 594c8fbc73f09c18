"""An assistant message as the tokens that a model samples for it, under every family's real template."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.calls import Call, ChatRequest, read_answer
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.tool_calls import ParsedMessage, WrittenCall
from astune.context_tracker.tracker import ContextTracker
from astune.context_tracker.write_answer import answer_ids
from astune.errors import WorkflowError
from astune.types import Generation, Sampling
from tests.context_tracker.test_template_families import (
    ADD,
    FAMILIES,
    QUESTION,
    answers,
    assert_says,
    call,
)
from tests.rows import each_row

BY_NAME = {family.template: family for family in FAMILIES}
SAID = ("qwen2_5", "qwen3", "mistral_v13", "deepseekv3")
"""Families whose templates write any text and any call as they are."""


def a_call(chat_format: ChatFormat, tools=(ADD,), before=(QUESTION,), start: str = "") -> Call:
    make_start = (lambda ending: start) if start else None
    prompt = PromptBuilder(chat_format).build("a", before, tools, answer_start=make_start)
    return Call("a", ChatRequest(before, tools), prompt, 0, True, None, chat_format)


def read_back(chat_format: ChatFormat, asked: Call, message) -> ParsedMessage:
    """What the agent gets for the tokens of `message`."""
    ids = answer_ids(chat_format, asked, message)
    assert ids[-1] in chat_format.stop_token_ids
    assert not set(ids[:-1]) & set(chat_format.stop_token_ids)
    got = read_answer(asked, Generation(tuple(ids), (0.0,) * len(ids), 0, "stop")).message
    calls = [WrittenCall(one["function"]["name"], one["function"]["arguments"]) for one in got.get("tool_calls", ())]
    return ParsedMessage(got["content"], got.get("reasoning_content"), tuple(calls))


@each_row("family", FAMILIES, ids=lambda family: family.template)
def test_every_message_of_every_family_reads_back_as_it_was(family, formats):
    asked = a_call(formats[family.template], (ADD,) if family.calls else ())
    for message in answers(family):
        assert_says(read_back(formats[family.template], asked, message), message)


@each_row("name", ["qwen2_5", "llama3_1", "mistral_v11", "deepseekv3", "qwen3_instruct_2507"])
def test_reasoning_that_the_template_leaves_out_of_a_history_is_sampled_all_the_same(name, formats):
    message = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.\nSo."}
    assert_says(read_back(formats[name], a_call(formats[name]), message), message)


def test_the_token_at_the_end_is_the_one_that_the_model_samples(formats):
    def last(name, message):
        return formats[name].decode(answer_ids(formats[name], a_call(formats[name]), message)[-1:])

    text, calling = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": None}
    calling["tool_calls"] = [call({"n": 1})]
    assert (last("glm4moe", text), last("glm4moe", calling)) == ("<|user|>", "<|observation|>")
    assert (last("gptoss", text), last("gptoss", calling)) == ("<|return|>", "<|call|>")
    assert (last("qwen3", text), last("qwen3", calling)) == ("<|im_end|>", "<|im_end|>")


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(SAID), texts, st.lists(st.dictionaries(texts, values, max_size=4), max_size=3))
def test_any_message_of_text_and_calls_reads_back_as_it_was(formats, name, text, arguments):
    content = text.strip() or (None if arguments else "-")
    message = {"role": "assistant", "content": content}
    if arguments:
        message["tool_calls"] = [call(one, number) for number, one in enumerate(arguments, 1)]
    assert_says(read_back(formats[name], a_call(formats[name]), message), message)


def test_a_second_answer_goes_on_from_the_first_without_a_fork(formats):
    """The tokens written are those the template writes of the answer later on."""

    class Written:
        context_length = 10_000

        async def generate(self, prompt_ids, sampling):
            message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call({"n": 1})]}
            ids = tuple(answer_ids(formats["qwen3"], a_call(formats["qwen3"]), message))
            return Generation(ids, (0.0,) * len(ids), 0, "stop")

    async def play() -> ContextTracker:
        tracker = ContextTracker(Written(), formats["qwen3"], Sampling(1000), max_turns=5, seed=1)
        answer = await tracker.chat("a", ChatRequest([QUESTION], (ADD,)))
        result = {"role": "tool", "tool_call_id": answer.message["tool_calls"][0]["id"], "content": "4"}
        await tracker.chat("a", ChatRequest([QUESTION, answer.message, result], (ADD,)))
        return tracker

    assert len(asyncio.run(play()).timelines()) == 1


def test_a_forced_start_is_part_of_the_prompt_and_left_out(formats):
    chat_format = formats["qwen3"]
    asked = a_call(chat_format, start='<tool_call>\n{"name": "add", "arguments":')
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1})]}
    assert chat_format.decode(answer_ids(chat_format, asked, message)) == ' {"n": 1}}\n</tool_call><|im_end|>'
    with pytest.raises(WorkflowError, match="makes the answer begin with '<tool_call>"):
        answer_ids(chat_format, asked, {"role": "assistant", "content": "4"})


@pytest.mark.parametrize("name", ["gptoss", "llama3_1", "gemma3"])
def test_calls_that_a_template_cannot_write_are_refused(name, formats):
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1}), call({"n": 2}, 2)]}
    with pytest.raises(WorkflowError):
        answer_ids(formats[name], a_call(formats[name], (ADD,) if BY_NAME[name].calls else ()), message)


def test_a_raw_prompt_has_no_place_for_calls(formats):
    builder = PromptBuilder(formats["qwen3"])
    prompt = builder.finish(builder.draft_text("a", "Once upon"))
    asked = Call("a", ChatRequest((), prompt="Once upon"), prompt, 0, True, None, formats["qwen3"])
    with pytest.raises(WorkflowError, match="raw prompt"):
        answer_ids(formats["qwen3"], asked, {"role": "assistant", "content": json.dumps({})})
