import json
import pickle
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.prompt.chat_format import ChatFormat, ParsedMessage, WrittenCall
from astune.errors import ModelError, WorkflowError
from tests.context_tracker.parsing import parse
from tests.rows import each_row

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": 'Says <b>"ü"</b>',
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
]
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße 🎉 <think>"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call_0_0", "type": "function", "function": {"name": "find", "arguments": {"n": 1, "ü": "<&>"}}},
            {"id": "call_0_1", "type": "function", "function": {"name": "find", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_0_0", "content": "one"},
    {"role": "tool", "tool_call_id": "call_0_1", "content": "two"},
    {"role": "assistant", "content": "Done.", "reasoning_content": "Easy."},
    {"role": "user", "content": "Thanks"},
]


def as_wire(messages):
    """The same messages as an OpenAI client sends them: arguments as JSON text, content as parts."""
    wire = json.loads(json.dumps(messages))
    for message in wire:
        message["content"] = [{"type": "text", "text": message["content"]}]
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return wire


@each_row("template", ["qwen3.jinja", "qwen2_5.jinja", "qwen3_6.jinja", None])
@each_row("length", [2, 3, 5, 6, 7])
@each_row("tools", [[], TOOLS])
def test_prompts_equal_those_of_transformers(write_dir, model_dir, template, length, tools):
    transformers = pytest.importorskip("transformers")
    path = model_dir if template is None else write_dir(template)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    ours = ChatFormat.load(path, template_kwargs={"enable_thinking": length == 7})
    messages = CONVERSATION[:length]
    for generate in (True, False):
        arguments = {"tools": tools or None, "add_generation_prompt": generate, "enable_thinking": length == 7}
        text = theirs.apply_chat_template(messages, tokenize=False, **arguments)
        ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **arguments)
        assert ours.render(as_wire(messages), tools, add_generation_prompt=generate) == text
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids) == text


def test_templates_get_the_helpers_and_special_tokens_of_transformers(write_dir):
    template = (
        "{{ eos_token }}{{ pad_token }}{{ bos_token }}{{ strftime_now('%Y') }}"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ shout }}"
    )
    loaded = ChatFormat.load(write_dir(template), template_kwargs={"shout": "!"}, clock=datetime(1999, 1, 2))
    assert loaded.render([{"role": "user", "content": "a"}] * 2) == "<|im_end|><|endoftext|>1999a!"


def test_a_template_is_told_one_time_in_every_process(write_dir):
    messages = [{"role": "user", "content": "a"}]
    path = write_dir("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    begun = ChatFormat.load(path)
    fixed = ChatFormat.load(path, clock=datetime(2001, 1, 31, 12))
    other = fixed.at(datetime(2001, 2, 1))
    for chat_format in (begun, fixed, other):
        written = chat_format.render(messages)
        assert written == f"{chat_format.clock:%Y-%m-%d %H:%M:%S.%f}a"
        assert pickle.loads(pickle.dumps(chat_format)).render(messages) == written
    assert fixed.clock < other.clock < begun.clock
    assert other.call_problem is fixed.call_problem is not None, "found out once for a format, not at each time"


def test_block_tags_leave_no_white_space_behind(write_dir):
    template = "{% for m in messages %}\n  {% if m.content %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}"
    assert ChatFormat.load(write_dir(template)).render([{"role": "user", "content": "a"}] * 2) == "a\na\n"


def test_templates_tell_a_call_without_text_and_find_reasoning_under_both_names(write_dir):
    template = "{% for m in messages %}{{ m.content is none }} {{ m.thinking }} {{ m.reasoning_content }};{% endfor %}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [call]},
        {"role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": []},
    ]
    assert ChatFormat.load(write_dir(template)).render(messages) == "True why why;False so so;"


def test_a_conversation_the_template_refuses_is_an_error_that_says_so(write_dir):
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(WorkflowError, match=r"\(user, tool\): no tools here"):
        ChatFormat.load(write_dir(template)).render(
            [{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "1"}]
        )


def test_only_text_parts_are_taken(chat_format):
    with pytest.raises(WorkflowError, match="'image_url'"):
        chat_format.render([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_the_named_tool_template_is_used_when_there_are_tools(model_dir, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}), encoding="utf-8")
    loaded = ChatFormat.load(tmp_path)
    assert loaded.render([{"role": "user", "content": "a"}]) == "plain"
    assert loaded.render([{"role": "user", "content": "a"}], TOOLS) == "with tools"


@pytest.mark.parametrize(
    ("missing", "told"),
    [("tokenizer.json", "no tokenizer.json.*save_pretrained"), ("chat_template.jinja", "no chat template.*instruct")],
)
def test_a_missing_file_is_named_with_the_way_to_make_it(write_dir, missing, told):
    path = write_dir("qwen3.jinja")
    (path / missing).unlink()
    with pytest.raises(ModelError, match=told):
        ChatFormat.load(path)


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('never') }}"])
def test_a_template_that_does_not_work_is_a_model_error(write_dir, template):
    with pytest.raises(ModelError, match="the chat template of"):
        ChatFormat.load(write_dir(template))


def test_files_that_are_not_what_they_should_be_are_named(write_dir):
    path = write_dir("qwen3.jinja")
    (path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        ChatFormat.load(path)
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        ChatFormat.load(path)


def test_an_unknown_tool_call_format_names_the_nearest(model_dir):
    with pytest.raises(ModelError, match="Did you mean 'hermes'"):
        ChatFormat.load(model_dir, tool_call_format="hermez")


def test_answers_end_at_the_closing_token_and_at_every_eos(chat_format):
    ids = {text: chat_format.encode(text)[0] for text in ("<|im_end|>", "<|endoftext|>")}
    assert chat_format.close_token == "<|im_end|>"
    assert chat_format.stop_token_ids == (ids["<|im_end|>"], ids["<|endoftext|>"])


def test_the_context_length_is_the_models(chat_format, write_dir):
    assert chat_format.context_length == 4096
    path = write_dir("qwen3.jinja")
    (path / "config.json").unlink()
    assert ChatFormat.load(path).context_length is None


@given(text=st.text())
def test_pieces_are_one_per_token_and_read_as_the_text(chat_format, text):
    ids = chat_format.encode(text)
    pieces = chat_format.pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text == chat_format.decode(ids)


def test_a_character_cut_in_half_is_shown_as_such(chat_format):
    assert chat_format.pieces(chat_format.encode("aé")[:2]) == ["a", "\ufffd"]


@given(data=st.binary())
def test_pieces_of_any_tokens_are_one_per_token(chat_format, data):
    ids = [byte % 256 for byte in data]
    assert len(chat_format.pieces(ids)) == len(ids)


def test_an_answer_is_taken_apart(chat_format):
    call = '<tool_call>\n{"name": "find", "arguments": {"n":1}}\n</tool_call>'
    ids = chat_format.encode(f"<think>\nHm.\n</think>\n\nLook.\n{call}<|im_end|>")
    assert parse(chat_format, ids) == ParsedMessage("Look.", "Hm.", (WrittenCall("find", '{"n":1}'),))
    assert parse(chat_format, ids[:-1]) == parse(chat_format, ids)
    assert parse(chat_format, ids, tools=()) == ParsedMessage("Look.\n" + call, "Hm.", ())


def test_reasoning_that_the_prompt_opened_is_reasoning(qwen3_6):
    assert parse(qwen3_6, qwen3_6.encode("Hm.\n</think>\n\nSo.<|im_end|>")) == ParsedMessage("So.", "Hm.", ())


def test_what_the_template_writes_parses_back(chat_format, qwen3):
    for loaded in (chat_format, qwen3):
        messages = as_wire(CONVERSATION[:3])
        written = loaded.render(messages, TOOLS, add_generation_prompt=False)
        answer = written[len(loaded.render(messages[:2], TOOLS)) :].removesuffix("\n")
        parsed = parse(loaded, loaded.encode(answer), TOOLS)
        assert (parsed.content, parsed.reasoning) == ("Let me look.", "Hm.")
        assert [json.loads(call.arguments) for call in parsed.tool_calls] == [{"n": 1, "ü": "<&>"}, {}]
