import json

import pytest

from astune.context_tracker.chat_format import ChatFormat
from astune.context_tracker.messages import meaning
from astune.context_tracker.render import PromptBuilder

USER = {"role": "user", "content": "What is 6 times 7?"}
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "calc", "arguments": {"x":1e2}}\n</tool_call>'


def answered(chat_format, output, *, messages=(USER,), tools=(), builder=None):
    """A builder that has recorded `output` sampled after `messages`; its prompt, sampled ids and the message."""
    builder = builder or PromptBuilder(chat_format)
    prompt = builder.build("a", messages, tools)
    ids = chat_format.encode(output)
    parsed = chat_format.parse(ids, tools)
    message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for i, call in enumerate(parsed.tool_calls)
        ]
    builder.record("a", prompt, ids, message)
    return builder, prompt, ids, message


def tool_result(text="42"):
    return {"role": "tool", "tool_call_id": "call_0", "content": text}


def without_reasoning(message):
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def test_the_first_prompt_is_the_templates_rendering(chat_format):
    prompt = PromptBuilder(chat_format).build("a", [USER])
    assert prompt.fork is None
    assert list(prompt.ids) == chat_format.encode(chat_format.render([USER]))


def test_sampled_tokens_are_kept_where_the_tokenizer_would_merge_them(chat_format):
    builder = PromptBuilder(chat_format)
    prompt = builder.build("a", [USER])
    sampled = [*(chat_format.encode(letter)[0] for letter in "assistant"), chat_format.stop_token_ids[0]]
    assert chat_format.encode("assistant<|im_end|>") != sampled
    answer = {"role": "assistant", "content": "assistant"}
    builder.record("a", prompt, sampled, answer)
    again = builder.build("a", [USER, answer, USER])
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(sampled)] == (*prompt.ids, *sampled)
    assert chat_format.decode(again.ids) == chat_format.render([USER, answer, USER])


def rewritten(message, **changes):
    return {**message, **changes}


def with_arguments(message, text):
    call = message["tool_calls"][0]
    return {**message, "tool_calls": [{**call, "function": {**call["function"], "arguments": text}}]}


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message,
        lambda message: rewritten(message, content=[{"type": "text", "text": "Look."}]),
        lambda message: rewritten(message, name="solver", refusal=None, audio=None),
        lambda message: with_arguments(message, '{"x": 100.0}'),
        lambda message: with_arguments(message, '{"x": 100}'),
        without_reasoning,
    ],
)
@pytest.mark.parametrize("fixture", ["chat_format", "qwen3"])
def test_an_answer_equal_in_meaning_keeps_its_tokens(request, fixture, change):
    chat_format = request.getfixturevalue(fixture)
    output = f"<think>\nHm.\n</think>\n\nLook.\n{CALL}<|im_end|>"
    builder, prompt, ids, message = answered(chat_format, output, tools=TOOLS)
    user = {"role": "user", "name": "me", "content": [{"type": "text", "text": USER["content"]}]}
    again = builder.build("a", [user, change(message), tool_result()], TOOLS)
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    rest = chat_format.decode(again.ids[len(prompt.ids) + len(ids) :])
    assert rest == ("\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda message: rewritten(message, content="Look. "),
        lambda message: rewritten(message, content="Looked."),
        lambda message: with_arguments(message, '{"x": 101}'),
        lambda message: rewritten(message, tool_calls=[]),
        lambda message: rewritten(message, reasoning_content="Another reason."),
    ],
)
def test_an_answer_that_was_edited_is_rendered_anew(chat_format, change):
    output = f"<think>\nHm.\n</think>\n\nLook.\n{CALL}<|im_end|>"
    builder, _, _, message = answered(chat_format, output, tools=TOOLS)
    messages = [USER, change(message), tool_result()]
    again = builder.build("a", messages, TOOLS)
    assert again.fork == "history_edited"
    assert list(again.ids) == chat_format.encode(chat_format.render(messages, TOOLS))


@pytest.mark.parametrize("fixture", ["chat_format", "qwen3", "qwen3_6"])
@pytest.mark.parametrize("dropped", [True, False])
def test_reasoning_is_gone_once_the_template_drops_it(request, fixture, dropped):
    chat_format = request.getfixturevalue(fixture)
    opened = "" if chat_format.render([USER]).endswith("<think>\n") else "<think>\n"
    builder, _, _, message = answered(chat_format, opened + "Hm.\n</think>\n\n42.<|im_end|>")
    assert message["reasoning_content"] == "Hm."
    messages = [USER, without_reasoning(message) if dropped else message, {"role": "user", "content": "Sure?"}]
    again = builder.build("a", messages)
    assert again.fork == "reasoning_stripped"
    assert list(again.ids) == chat_format.encode(chat_format.render(messages))
    assert "Hm." not in chat_format.decode(again.ids)


def test_reasoning_two_answers_back_is_named_as_the_cause(qwen3):
    builder, _, _, call = answered(qwen3, f"<think>\nHm.\n</think>\n\n{CALL}<|im_end|>", tools=TOOLS)
    history = [USER, call, tool_result()]
    builder, _, _, answer = answered(qwen3, "42<|im_end|>", messages=history, tools=TOOLS, builder=builder)
    again = builder.build("a", [*history, answer, {"role": "user", "content": "Sure?"}], TOOLS)
    assert again.fork == "reasoning_stripped"


def test_an_empty_reasoning_block_that_the_template_drops_is_not_kept(qwen3):
    builder, _, _, message = answered(qwen3, f"<think>\n\n</think>\n\n{CALL}<|im_end|>", tools=TOOLS)
    again = builder.build("a", [USER, message, tool_result()], TOOLS)
    assert again.fork == "reasoning_stripped"
    assert "<think>" not in qwen3.decode(again.ids)


def test_after_reasoning_was_dropped_the_conversation_extends_again(qwen3):
    builder, _, _, first = answered(qwen3, "<think>\nHm.\n</think>\n\n42.<|im_end|>")
    history = [USER, without_reasoning(first), {"role": "user", "content": "Sure?"}]
    builder, prompt, ids, call = answered(
        qwen3, f"<think>\nLet me.\n</think>\n\n{CALL}<|im_end|>", messages=history, tools=TOOLS, builder=builder
    )
    again = builder.build("a", [*history, without_reasoning(call), tool_result()], TOOLS)
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)


def test_reasoning_stays_through_a_tool_loop_though_the_agent_drops_it(qwen3_6):
    call = "Hm.\n</think>\n\n<tool_call>\n<function=calc>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
    builder, prompt, ids, message = answered(qwen3_6, call + "<|im_end|>", tools=TOOLS)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"x": "1"}
    again = builder.build("a", [USER, without_reasoning(message), tool_result()], TOOLS)
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)


def test_an_answer_cut_at_its_length_is_closed_by_the_template(chat_format):
    builder, prompt, ids, message = answered(chat_format, "Forty")
    again = builder.build("a", [USER, message, USER])
    assert again.fork is None
    assert chat_format.decode(again.ids[len(prompt.ids) + len(ids) :]).startswith("<|im_end|>\n<|im_start|>user")


def test_reasoning_cut_at_its_length_is_closed_by_the_template(qwen3):
    builder, prompt, ids, message = answered(qwen3, "<think>\nForty", tools=TOOLS)
    assert message == {"role": "assistant", "content": None, "reasoning_content": "Forty"}
    again = builder.build("a", [USER, message, tool_result()], TOOLS)
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    assert qwen3.decode(again.ids[len(prompt.ids) + len(ids) :]).startswith("\n</think>\n\n<|im_end|>\n")


def test_other_tools_are_named_as_the_cause_and_what_was_sampled_stays(chat_format):
    builder, _, ids, message = answered(chat_format, f"<think>\nHm.\n</think>\n\n{CALL}<|im_end|>", tools=TOOLS)
    messages = [USER, without_reasoning(message), tool_result()]
    again = builder.build("a", messages, ())
    assert again.fork == "tools_changed"
    before, after = chat_format.render([USER]), chat_format.render([USER, message, tool_result()])
    rest = after[after.index("<|im_end|>", len(before)) + len("<|im_end|>") :]
    assert list(again.ids) == [*chat_format.encode(before), *ids, *chat_format.encode(rest)]


def test_a_template_that_rewrites_history_is_named_as_the_cause(write_dir):
    template = (
        "{{ messages | length }} messages\n{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    counting = ChatFormat.load(write_dir(template))
    builder, _, _, message = answered(counting, "42<|im_end|>")
    again = builder.build("a", [USER, message, USER])
    assert again.fork == "template_not_append_only"
    assert list(again.ids) == counting.encode(counting.render([USER, message, USER]))


def test_a_template_that_trims_answers_keeps_the_sampled_tokens(write_dir):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    trimming = ChatFormat.load(write_dir(template))
    builder, prompt, ids, message = answered(trimming, "42. \n<|im_end|>")
    assert message["content"] == "42. \n"
    again = builder.build("a", [USER, message, USER])
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)


def test_a_trimmed_answer_that_was_cut_is_closed_by_the_template(write_dir):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    trimming = ChatFormat.load(write_dir(template))
    builder, prompt, ids, message = answered(trimming, "42. ")
    again = builder.build("a", [USER, message, USER])
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    assert trimming.decode(again.ids[len(prompt.ids) + len(ids) :]).startswith("<|im_end|>\n<|im_start|>user")


def test_a_template_that_writes_other_arguments_than_were_sampled_is_not_gone_on_with(write_dir):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}<tool_call>"
        '{"name": "calc", "arguments": {}}</tool_call>{% endif %}<|im_end|>\n{% endfor %}'
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    lossy = ChatFormat.load(write_dir(template))
    builder, _, _, message = answered(lossy, f"Look. {CALL}<|im_end|>", tools=TOOLS)
    assert builder.build("a", [USER, message, tool_result()], TOOLS).fork == "template_not_append_only"


def test_the_longest_of_all_earlier_conversations_is_gone_on_with(chat_format):
    builder, _, _, first = answered(chat_format, "One<|im_end|>")
    history = [USER, first, {"role": "user", "content": "More"}]
    builder, prompt, ids, second = answered(chat_format, "Two<|im_end|>", messages=history, builder=builder)
    answered(chat_format, "Elsewhere<|im_end|>", messages=[{"role": "user", "content": "Hi"}], builder=builder)
    again = builder.build("a", [*history, second, USER])
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    side = builder.build("a", [USER, first, {"role": "user", "content": "Less"}])
    assert side.fork is None


def test_of_two_answers_with_equal_text_the_one_with_the_reasoning_sent_is_gone_on_with(qwen3):
    builder, _, first_ids, first = answered(qwen3, f"<think>\nA\n</think>\n\n{CALL}<|im_end|>", tools=TOOLS)
    answered(qwen3, f"<think>\nB\n</think>\n\n{CALL}<|im_end|>", tools=TOOLS, builder=builder)
    again = builder.build("a", [USER, first, tool_result()], TOOLS)
    assert qwen3.decode(first_ids) in qwen3.decode(again.ids)
    newest = builder.build("a", [USER, without_reasoning(first), tool_result()], TOOLS)
    assert "<think>\nB\n</think>" in qwen3.decode(newest.ids)


def test_agents_do_not_share_conversations(chat_format):
    builder, _, _, message = answered(chat_format, "One<|im_end|>")
    other = builder.build("b", [USER, message, USER])
    assert other.fork is None
    assert list(other.ids) == chat_format.encode(chat_format.render([USER, message, USER]))


def test_a_history_that_begins_with_a_malformed_call_is_kept(chat_format):
    output = '<tool_call>\n{"name": "calc", "arguments": {"x": 1}\n</tool_call><|im_end|>'
    builder, prompt, ids, message = answered(chat_format, output, tools=TOOLS)
    assert message["content"] == output.removesuffix("<|im_end|>")
    again = builder.build("a", [USER, message, USER], TOOLS)
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)


def test_meanings_tell_messages_apart_by_every_counted_part():
    base = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    others = [
        {**base, "role": "user"},
        {**base, "content": "y"},
        {**base, "tool_calls": []},
        {**base, "tool_call_id": "1"},
        with_arguments(base, "{"),
    ]
    said = {meaning([each], 0) for each in (base, *others)}
    assert len(said) == len(others) + 1
