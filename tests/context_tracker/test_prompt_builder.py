import json

import pytest

from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import meaning
from astune.token_ids import TokenIds
from tests.context_tracker.parsing import parse
from tests.rows import each_row

USER = {"role": "user", "content": "What is 6 times 7?"}
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "calc", "arguments": {"x":1e2}}\n</tool_call>'


def answered(chat_format, output, *, messages=(USER,), tools=(), builder=None):
    """A builder that has recorded `output` sampled after `messages`; its prompt, sampled ids and the message."""
    builder = builder or PromptBuilder(chat_format)
    prompt = builder.build("a", messages, tools)
    ids = chat_format.encode(output)
    parsed = parse(chat_format, ids, tools)
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
        lambda message: with_arguments(message, {"x": 100}),
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


@each_row(
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
        "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        '{% for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
        "{{ c.function.arguments | tojson | replace('100.0', '0') }}}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
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


def with_ids(message, prefix):
    return {**message, "tool_calls": [{**call, "id": prefix + call["id"]} for call in message["tool_calls"]]}


def test_a_prompt_is_the_rope_of_the_one_before_and_its_answer(chat_format):
    builder, prompt, ids, message = answered(chat_format, "One<|im_end|>")
    again = builder.build("a", [USER, message, USER])
    assert again.ids.before.before is prompt.ids
    assert list(again.ids.before) == [*prompt.ids, *ids]
    other = builder.build("a", [USER, message, {"role": "user", "content": "Else"}])
    assert other.ids.before is again.ids.before


def test_memory_of_texts_is_linear_in_the_conversation(chat_format):
    builder, history, prompts = PromptBuilder(chat_format), [USER], []
    for turn in range(20):
        _, prompt, _, message = answered(chat_format, f"Answer {turn}<|im_end|>", messages=history, builder=builder)
        prompts.append(prompt)
        history = [*history, message, {"role": "user", "content": f"Question {turn}"}]
    own = sum(len(prompt.rendering.own) for prompt in prompts)
    assert own == len(prompts[-1].rendering) == len(chat_format.render(history[:-2]))
    assert sum(len(prompt.ids.own) for prompt in prompts) < len(prompts[-1].ids.pack())


def test_ids_rewritten_in_call_and_result_mean_the_same(chat_format):
    builder, prompt, ids, message = answered(chat_format, f"{CALL}\n{CALL}<|im_end|>", tools=TOOLS)
    results = [{"role": "tool", "tool_call_id": f"new_call_{i}", "content": str(i)} for i in range(2)]
    again = builder.build("a", [USER, with_ids(message, "new_"), *results], TOOLS)
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    builder.record("a", again, chat_format.encode("Done<|im_end|>"), {"role": "assistant", "content": "Done"})
    own = [{**each, "tool_call_id": each["tool_call_id"].removeprefix("new_")} for each in results]
    history = [USER, message, *own, {"role": "assistant", "content": "Done"}]
    assert builder.build("a", [*history, USER], TOOLS).fork is None
    crossed = [USER, message, {**own[0], "tool_call_id": "call_1"}]
    assert meaning(crossed, 2) != meaning([USER, message, own[0]], 2)


def test_a_template_that_writes_ids_is_given_those_that_were_sampled_under(write_dir):
    template = (
        "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{{ m.tool_call_id }}"
        '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "calc", "arguments": '
        "{{ c.function.arguments | tojson }}}\n</tool_call>{{ c.id }}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    writing = ChatFormat.load(write_dir(template), tool_call_format="hermes")
    builder, _, _, message = answered(writing, f"{CALL}call_0<|im_end|>", tools=TOOLS)
    message["content"] = None
    builder = PromptBuilder(writing)
    prompt = builder.build("a", [USER], TOOLS)
    builder.record("a", prompt, writing.encode(f"{CALL}<|im_end|>"), message)
    again = builder.build(
        "a", [USER, with_ids(message, "new_"), {**tool_result(), "tool_call_id": "new_call_0"}], TOOLS
    )
    assert "call_0" in writing.decode(again.ids)
    assert "new_call_0" not in writing.decode(again.ids)


def test_what_clients_add_to_an_answer_means_nothing(chat_format):
    builder, prompt, ids, message = answered(chat_format, f"{CALL}<|im_end|>", tools=TOOLS)
    added = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "reasoning": None, "content": ""}
    again = builder.build("a", [USER, message | added, tool_result()], TOOLS)
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)


def odd(chat_format, text):
    """One token per character, then the closing token."""
    return [*(i for letter in text for i in chat_format.encode(letter)), chat_format.stop_token_ids[0]]


def three_answers(chat_format, texts=("Same", "Same", "Same")):
    """A conversation of three answers, each with tokens of its own; the messages and the sampled ids."""
    builder, history, sampled = PromptBuilder(chat_format), [{"role": "system", "content": "Be brief."}], []
    for number, text in enumerate(texts):
        history = [*history, {"role": "user", "content": f"Question {number}"}]
        prompt = builder.build("a", history)
        ids = odd(chat_format, text)
        if number == 1:
            ids = [*chat_format.encode(text), ids[-1]]
        message = {"role": "assistant", "content": text}
        builder.record("a", prompt, ids, message)
        history, sampled = [*history, message], [*sampled, ids]
    return builder, history, sampled


@pytest.mark.parametrize("edited", [0, 1, 3, 5])
def test_equal_answers_keep_each_its_own_tokens_through_an_edit(chat_format, edited):
    builder, history, sampled = three_answers(chat_format)
    history[edited] = {**history[edited], "content": "Edited"}
    again = builder.build("a", [*history, USER])
    assert again.fork == ("history_edited" if edited else "system_changed")
    text = chat_format.render([*history, USER])
    pieces = text.split("Same<|im_end|>")
    expected = chat_format.encode(pieces[0])
    for ids, piece in zip(sampled, pieces[1:], strict=True):
        expected += [*ids, *chat_format.encode(piece)]
    assert list(again.ids) == expected


def test_edits_in_many_places_leave_the_answers_between_them(chat_format):
    builder, history, sampled = three_answers(chat_format, ("First", "Second", "Third"))
    for place in (1, 3, 5):
        history[place] = {**history[place], "content": "[cleared]"}
    again = builder.build("a", [*history, USER])
    packed = again.ids.pack()
    assert all(TokenIds(ids).pack() in packed for ids in sampled)
    assert chat_format.decode(again.ids) == chat_format.render([*history, USER])


def test_a_fork_is_gone_on_from_like_any_prompt(chat_format):
    builder, history, _ = three_answers(chat_format)
    changed = [{"role": "system", "content": "It is noon."}, *history[1:], USER]
    prompt = builder.build("a", changed)
    ids = odd(chat_format, "Fourth")
    builder.record("a", prompt, ids, {"role": "assistant", "content": "Fourth"})
    again = builder.build("a", [*changed, {"role": "assistant", "content": "Fourth"}, USER])
    assert again.fork is None
    assert again.ids.before.before is prompt.ids
    assert builder.build("a", [*history, USER]).fork is None


def test_another_system_message_of_the_same_length_is_seen(chat_format):
    builder, history, _ = three_answers(chat_format)
    changed = [{"role": "system", "content": "Be quick."}, *history[1:], USER]
    again = builder.build("a", changed)
    assert again.fork == "system_changed"
    assert chat_format.decode(again.ids) == chat_format.render(changed)


def test_a_change_is_compared_with_the_conversation_it_was_made_to(chat_format):
    builder = PromptBuilder(chat_format)
    histories, sampled = {"x": [], "y": []}, {"x": [], "y": []}
    for number, name in enumerate("xyyx"):
        system = {"role": "system", "content": f"It is {number} o'clock."}
        question = {"role": "user", "content": f"{name} asks {number}"}
        histories[name] = [system, *histories[name][1:], question]
        prompt = builder.build("a", histories[name])
        assert prompt.fork == (None, "new_conversation", "system_changed", "system_changed")[number]
        packed = prompt.ids.pack()
        assert all(TokenIds(ids).pack() in packed for ids in sampled[name])
        message = {"role": "assistant", "content": f"answer {number}"}
        sampled[name].append(odd(chat_format, message["content"]))
        builder.record("a", prompt, sampled[name][-1], message)
        histories[name].append(message)


def test_of_equal_answers_the_one_with_the_tools_sent_is_gone_on_from(chat_format):
    builder = PromptBuilder(chat_format)
    answer = {"role": "assistant", "content": "One"}
    prompts = [builder.build("a", [USER], tools) for tools in ((), TOOLS)]
    for prompt in prompts:
        builder.record("a", prompt, chat_format.encode("One<|im_end|>"), answer)
    again = builder.build("a", [USER, answer, USER])
    assert again.fork is None
    assert again.ids.before.before is prompts[0].ids


def test_the_same_request_with_other_tools_is_named_as_such(chat_format):
    builder, _, _, _ = answered(chat_format, "One<|im_end|>")
    assert builder.build("a", [USER], TOOLS).fork == "tools_changed"


def test_another_conversation_of_the_agent_is_named_as_one(chat_format):
    builder, history, _ = three_answers(chat_format)
    prompt = builder.build("a", [history[0], {"role": "user", "content": "Something else"}])
    assert prompt.fork == "new_conversation"
    assert builder.build("b", [history[0], {"role": "user", "content": "Something else"}]).fork is None


def test_a_message_added_without_the_answer_is_no_fork_of_its_own(chat_format):
    builder, _, _, _ = answered(chat_format, "One<|im_end|>")
    assert builder.build("a", [USER, {"role": "user", "content": "Hello?"}]).fork is None


def test_a_forced_start_is_context_and_part_of_the_answer(chat_format):
    builder = PromptBuilder(chat_format)
    start = '<tool_call>\n{"name": "calc", "arguments": '
    prompt = builder.build("a", [USER], TOOLS, answer_start=lambda ending: start)
    plain = chat_format.encode(chat_format.render([USER], TOOLS))
    assert list(prompt.ids) == plain + chat_format.encode(start)
    ids = chat_format.encode('{"x":1}}\n</tool_call><|im_end|>')
    function = {"name": "calc", "arguments": '{"x":1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_0", "function": function}]}
    builder.record("a", prompt, ids, message)
    again = builder.build("a", [USER, message, tool_result()], TOOLS)
    assert again.fork is None
    assert again.ids[: len(prompt.ids) + len(ids)] == (*prompt.ids, *ids)
    other = builder.build("a", [USER, message, tool_result()], [*TOOLS, *TOOLS])
    assert other.fork == "tools_changed"
    assert TokenIds(chat_format.encode(start) + ids).pack() in other.ids.pack()


def test_raw_text_keeps_the_tokens_of_the_text_it_goes_on_from(chat_format):
    builder = PromptBuilder(chat_format)
    prompt = builder.finish(builder.draft_text("a", "Question: 6 times 7? "))
    assert list(prompt.ids) == chat_format.encode("Question: 6 times 7? ")
    ids = odd(chat_format, "Answer")
    builder.record("a", prompt, ids, None)
    again = builder.finish(builder.draft_text("a", "Question: 6 times 7? Answer and so on"))
    assert list(again.ids) == [*prompt.ids, *ids[:-1], *chat_format.encode(" and so on")]
    assert again.fork is None
    with_end = builder.finish(builder.draft_text("a", "Question: 6 times 7? Answer<|im_end|> and so on"))
    assert list(with_end.ids.before) == [*prompt.ids, *ids]
    assert with_end.ids.before.before is prompt.ids
    assert list(with_end.ids) == [*prompt.ids, *ids, *chat_format.encode(" and so on")]
    more = odd(chat_format, "answer")
    builder.record("a", again, more, None)
    longest = builder.finish(builder.draft_text("a", "Question: 6 times 7? Answer and so onanswer More"))
    assert list(longest.ids) == [*again.ids, *more[:-1], *chat_format.encode(" More")]
    shorter = builder.finish(builder.draft_text("a", "Question: 6 times 7? Answer!"))
    assert list(shorter.ids) == [*prompt.ids, *ids[:-1], *chat_format.encode("!")]
    assert list(builder.finish(builder.draft_text("b", "Question: 6 times 7? Answer")).ids) == chat_format.encode(
        "Question: 6 times 7? Answer"
    )
    assert list(builder.finish(builder.draft_text("a", [1, 2, 3])).ids) == [1, 2, 3]


def test_messages_that_the_caller_changes_later_stay_as_they_were_sent(chat_format):
    builder, history = PromptBuilder(chat_format), [dict(USER)]
    prompt = builder.build("a", history)
    builder.record("a", prompt, chat_format.encode("One<|im_end|>"), {"role": "assistant", "content": "One"})
    history[0]["content"] = "Changed"
    assert builder.build("a", [USER, {"role": "assistant", "content": "One"}, USER]).fork is None
