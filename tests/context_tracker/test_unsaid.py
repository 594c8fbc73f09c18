"""What a template drops is mapped or named, and is never lost in silence."""

import json
import os
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.unsaid import find_unsaid
from astune.errors import ModelError, WorkflowError
from tests.context_tracker.test_template_families import (
    ADD,
    FAMILIES,
    TEMPLATES,
    call,
    family_of,
)
from tests.rows import each_row

USER = {"role": "user", "content": "first question"}
ANSWER = {"role": "assistant", "content": "an answer"}
MORE = {"role": "user", "content": "second question"}
ROLES = ("system", "developer", "user", "assistant", "tool")


def system(text, role="system"):
    return {"role": role, "content": text}


@each_row("role", ["system", "developer"])
@each_row("family", FAMILIES, ids=lambda family: family.template)
def test_instructions_reach_the_model_wherever_they_stand(family, role, formats):
    said = [system("be brief"), system("be kind", role), USER, ANSWER, system("be polite", role), MORE]
    written = formats[family.template].render(said)
    formats[family.template].check_said(written, said)
    assert all(message["content"] in written for message in said)


def test_instructions_are_joined_only_where_the_template_loses_them(formats):
    said = [system("be brief"), USER, ANSWER, system("be kind"), MORE]
    assert "be brief\n\nbe kind" in formats["gptoss"].render(said)
    written = formats["qwen3"].render(said)
    assert written.index("an answer") < written.index("be kind") < written.index("second question")


def test_a_role_that_the_template_knows_stays(formats):
    assert "<|start|>developer" in formats["gptoss"].render([system("be brief", "developer"), USER])
    assert formats["qwen3"].render([system("be brief", "developer"), USER]) == formats["qwen3"].render(
        [system("be brief"), USER]
    )


@pytest.mark.parametrize("template", ["deepseekv3", "deepseek_r1_distill", "phi3_5"])
def test_tools_that_the_template_drops_are_an_error_by_name(template, write_dir):
    source = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    builder = PromptBuilder(ChatFormat.load(write_dir(source)))
    with pytest.raises(WorkflowError, match="drops the tool 'add'"):
        builder.build("a", [USER], [ADD])


def test_text_beside_a_call_that_was_sampled_keeps_its_tokens_and_one_by_hand_is_an_error(formats):
    llama = formats["llama3_1"]
    message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call({"n": 1})]}
    result = {"role": "tool", "tool_call_id": "call00001", "content": "one"}
    builder = PromptBuilder(llama)
    prompt = builder.build("a", [USER], [ADD])
    sampled = llama.encode('Let me see.<|python_tag|>{"name": "add", "parameters": {"n": 1}}<|eot_id|>')
    builder.record("a", prompt, sampled, message)
    goes_on = builder.build("a", [USER, message, result], [ADD])
    assert goes_on.fork is None and goes_on.ids[: len(prompt.ids) + len(sampled)] == (*prompt.ids, *sampled)
    with pytest.raises(WorkflowError, match=r"drops messages\[1\] \(assistant\): 'Let me see.'"):
        PromptBuilder(llama).build("a", [USER, message, result], [ADD])


def test_only_what_is_new_is_looked_for_and_in_the_new_part(write_dir):
    """A second message that says what the first one said is dropped all the same."""
    template = (
        "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat_format = ChatFormat.load(write_dir(template), tool_call_format="hermes")
    builder = PromptBuilder(chat_format)
    prompt = builder.build("a", [{"role": "user", "content": "four"}])
    builder.record("a", prompt, chat_format.encode("Yes<|im_end|>"), {"role": "assistant", "content": "Yes"})
    history = [{"role": "user", "content": "four"}, {"role": "assistant", "content": "Yes"}]
    with pytest.raises(WorkflowError, match=r"drops messages\[2\] \(tool\): 'four'"):
        builder.build("a", [*history, {"role": "tool", "content": "four"}])


@each_row("template", [family.template for family in FAMILIES])
def test_what_a_call_says_is_found_however_the_template_writes_it(template, formats):
    if not family_of(template).calls:
        return
    arguments = {"text": "naïve \"quoted\"\n<b> & 'c' \\ \t", "object": {"deep": ["one\ntwo"]}, "n": 12, "yes": True}
    said = [USER, {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}]
    said += [{"role": "tool", "tool_call_id": "call00001", "content": json.dumps(arguments, indent=2)}]
    formats[template].check_said(formats[template].render(said, [ADD]), said, [ADD])


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=8).filter(str.strip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ROLES), texts), min_size=1, max_size=6), st.data())
def test_a_message_is_missed_exactly_if_it_was_dropped(said, data):
    """Each text stands in marks of its own, so that none can stand within another one."""
    messages = [{"role": role, "content": f"[{place}:{text}]"} for place, (role, text) in enumerate(said)]
    dropped = data.draw(st.sets(st.sampled_from(range(len(messages)))))
    order = data.draw(st.permutations([place for place in range(len(messages)) if place not in dropped]))
    written = "|".join(messages[place]["content"] for place in order)
    assert len(list(find_unsaid(written, messages))) == len(dropped)


def test_a_short_text_is_not_found_within_a_longer_one():
    messages = [{"role": "tool", "content": "42"}, {"role": "user", "content": "is it 42?"}]
    assert [one[:18] for one in find_unsaid("<user>is it 42?", messages)] == ["drops messages[0] "]
    assert not list(find_unsaid("<user>is it 42?<tool>42", messages))


def test_reasoning_in_marks_of_the_template_may_be_left_out():
    said = [{"role": "assistant", "content": "[hm]\nSo far.\n[/hm]\nForty-two."}]
    assert not list(find_unsaid("<assistant>Forty-two.", said))
    assert list(find_unsaid("<assistant>", said))


COLLECTION = os.environ.get("ASTUNE_TEMPLATES")
"""A folder of chat templates, `*.jinja`: the project ships few."""
CONVERSATIONS = {
    "instructions": [system("be brief"), system("be kind", "developer"), USER, ANSWER, system("be polite"), MORE],
    "text beside a call": [
        USER,
        {"role": "assistant", "content": "let me see", "tool_calls": [call({"text": "seven"})]},
        {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": "the result"},
        MORE,
    ],
    "two calls": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call({"text": "seven"}), call({"text": "eight"}, 2)]},
        *({"role": "tool", "tool_call_id": f"call0000{n}", "name": "add", "content": f"result {n}"} for n in (1, 2)),
    ],
    "an answer at the end": [USER, ANSWER],
}


@pytest.mark.skipif(COLLECTION is None, reason="ASTUNE_TEMPLATES names no folder of chat templates")
@pytest.mark.parametrize("path", sorted(Path(COLLECTION or ".").glob("*.jinja")), ids=lambda path: path.stem)
def test_no_template_of_a_collection_drops_anything_in_silence(path, write_dir):
    try:
        chat_format = ChatFormat.load(write_dir(path.read_text(encoding="utf-8")))
    except ModelError as error:
        pytest.skip(str(error)[:200])
    for said, tools in product(CONVERSATIONS.values(), ([], [ADD])):
        try:
            written = chat_format.render(said, tools)
            PromptBuilder(chat_format).build("a", said, tools)
        except WorkflowError:
            continue  # by name, at the first call
        parts = [message["content"] for message in said if message["content"]]
        parts += [word for word in ("seven", "eight") if word in json.dumps(said)] + ["Adds."] * bool(tools)
        assert [part for part in parts if part not in written] == []
