import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.support.resources import tiny_model_dir
from scripts.tiny_model.demonstrations import Habits, demonstrations
from scripts.tiny_model.tokenizer import PHRASES, VOCABULARY, save_tokenizer, train_tokenizer
from tutorial.math_agent.make_tasks import problems

TOKENIZER = Tokenizer.from_file(str(tiny_model_dir() / "tokenizer.json"))
FORMAT = ChatFormat.load(tiny_model_dir())


def test_the_shipped_files_are_what_the_script_writes(tmp_path):
    texts = [problem.query for problem in islice(problems("warmup", seed=0), 20_000)]
    save_tokenizer(train_tokenizer(texts), tmp_path, context_length=2048)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (tiny_model_dir() / name).read_bytes()


@given(st.text(max_size=80))
def test_any_text_can_be_written_and_reads_the_same(text):
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == TOKENIZER.normalizer.normalize_str(text)


@given(st.integers(0, 10**9))
def test_every_digit_is_a_token(number):
    assert TOKENIZER.encode(str(number)).tokens == list(str(number))


def test_tags_are_single_tokens_that_stay_visible_and_phrases_are_single_tokens():
    assert TOKENIZER.get_vocab_size() == VOCABULARY
    for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", *PHRASES):
        (token,) = TOKENIZER.encode(tag).ids
        assert TOKENIZER.decode([token], skip_special_tokens=True) == tag


def test_prompts_of_the_demo_are_short():
    for talk in islice(demonstrations(1, Habits()), 200):
        if talk.messages[0]["content"].startswith("Use the calculator"):
            assert len(FORMAT.encode(FORMAT.render(talk.messages[:2], talk.tools))) <= 95


QWEN3 = """<|im_start|>system
Be brief.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "look"}}
{"type": "function", "function": {"name": "go"}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
Where?<|im_end|>
<|im_start|>assistant
Here.<|im_end|>
<|im_start|>user
And now?<|im_end|>
<|im_start|>assistant
<think>
I should look.
</think>

Let me see.
<tool_call>
{"name": "look", "arguments": {"at": "door"}}
</tool_call>
<tool_call>
{"name": "go", "arguments": {"to": "door"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
open
</tool_response>
<tool_response>
done
</tool_response><|im_end|>
<|im_start|>assistant
"""


def test_the_template_writes_tools_calls_results_and_reasoning_as_qwen3_does():
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "go")]
    calls = [
        {"type": "function", "function": {"name": "look", "arguments": {"at": "door"}}},
        {"type": "function", "function": {"name": "go", "arguments": '{"to": "door"}'}},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "<think>\nforgotten\n</think>\n\nHere."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "I should look.", "tool_calls": calls},
        {"role": "tool", "content": "open"},
        {"role": "tool", "content": "done"},
    ]
    assert FORMAT.render(messages, tools) == QWEN3


def test_thinking_is_switched_off_with_an_empty_block_and_only_on_request():
    question = [{"role": "user", "content": "Where?"}]
    assert FORMAT.render(question) == "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
    quiet = ChatFormat.load(tiny_model_dir(), template_kwargs={"enable_thinking": False})
    assert quiet.render(question).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("number", range(3))
def test_transformers_renders_and_encodes_the_same_tokens(number):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model_dir())
    talk = next(islice(demonstrations(2, Habits()), number, None))
    ids = tokenizer.apply_chat_template(list(talk.messages), tools=list(talk.tools))["input_ids"]
    assert FORMAT.encode(FORMAT.render(talk.messages, talk.tools, add_generation_prompt=False)) == ids


def test_the_config_says_how_an_answer_ends():
    config = json.loads(Path(tiny_model_dir() / "generation_config.json").read_text())
    assert TOKENIZER.token_to_id("<|im_end|>") in config["eos_token_id"]
    assert FORMAT.close_token == "<|im_end|>"
    assert FORMAT.context_length == 2048
