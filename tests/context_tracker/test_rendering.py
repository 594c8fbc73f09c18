"""A rendering that goes on from an earlier one is the template's own of the whole conversation, letter for letter."""

import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.template import compile_resumable
from astune.errors import WorkflowError
from astune.testing import write_test_model_dir
from tests.rows import each_row

TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
HISTORIES = int(os.environ.get("HISTORIES", "500")) // 50
TEXTS = (
    "",
    " ",
    "Hi",
    "né 你好 \U0001f600",
    "<tool_response>\nx\n</tool_response>",
    '{"x": 1}',
    "  padded\n",
    "[1, 2]",
)
REASONING = ("", "Hm.", "\nfirst\nthen\n", "</think>")
OWN = {
    "counts": "{% for m in messages %}{{ m.role }} {{ loop.index }} of {{ loop.length }}\n{% endfor %}",
    "at_the_time": "{% for m in messages %}{{ m.role }}{{ strftime_now('%H') }}{{ m.content }}\n{% endfor %}",
    "looks_at_the_end": "{% for m in messages %}{{ messages[-1].content }}{{ messages|length }}\n{% endfor %}",
    "looks_back": "{% for m in messages %}{{ messages[loop.index0 - 1].content }}|{{ m.content }}\n{% endfor %}",
    "looks_ahead": "{% for m in messages %}{{ m.role }}{{ (messages[loop.index0 + 1] or m).content }}{% endfor %}",
    "looks_further": "{% for m in messages %}{{ m.role }}{{ (messages[loop.index0 + 2] or m).content }}{% endfor %}",
    "neighbours": "{% for m in messages %}{{ (loop.previtem or m).role }}{{ (loop.nextitem or m).role }}{% endfor %}",
    "counts_roles": (
        "{% set ns = namespace(n=0, all=[]) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}"
        "{% continue %}{% endif %}{% set ns.all = ns.all + [m.role] %}{{ ns.n }}{{ m.content }}{% endfor %}{{ ns.all }}"
    ),
    "ends_early": "{% for m in messages %}{% if loop.index0 > 3 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "last_user": (
        "{% set ns = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.at = loop.index0 %}"
        "{% endif %}{% endfor %}{% macro show(m) %}{{ m.content }}{{ ns.at }}{% endmacro %}"
        "{% for m in messages[1:] %}{{ show(m) }}{% endfor %}"
    ),
    "macro_of_all": (
        "{% macro all() %}{{ messages|length }}{% endmacro %}{% for m in messages %}{{ all() }}{{ m.role }}{% endfor %}"
    ),
    "leaks_nothing": (
        "{% set x = 'out' %}{% for m in messages %}{{ x }}{% if m.role == 'user' %}{% set x = m.content %}{% endif %}"
        "{{ x }}{{ y }}{% set y = 1 %}\n{% endfor %}{{ x }}"
    ),
}


@cache
def format_of(name: str) -> ChatFormat:
    with TemporaryDirectory() as folder:
        path = write_test_model_dir(Path(folder))
        own = {each.stem: each for each in TEMPLATES}
        if name != "shipped":
            text = OWN[name] if name in OWN else own[name].read_text(encoding="utf-8")
            (path / "chat_template.jinja").write_text(text, encoding="utf-8")
        return ChatFormat.load(path)


def tool(name):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}


def random_message(chance: Random, before: list) -> dict:
    role = chance.choice(("user", "assistant", "assistant", "tool", "system"))
    message = {"role": role, "content": chance.choice(TEXTS)}
    if role == "assistant" and chance.random() < 0.5:
        arguments = chance.choice(('{"x": 1}', "{}", '{"a": "é", "b": [1.0, true, null]}', "broken"))
        count = chance.choice((1, 1, 2))
        calls = [{"id": f"c{len(before)}{n:07d}"[:9], "type": "function"} for n in range(count)]
        message["tool_calls"] = [call | {"function": {"name": "add", "arguments": arguments}} for call in calls]
        message["content"] = chance.choice((None, *TEXTS))
    if role == "assistant" and chance.random() < 0.5:
        message["reasoning_content"] = chance.choice(REASONING)
    if role == "tool":
        calls = [call["id"] for earlier in before for call in earlier.get("tool_calls") or ()]
        message["tool_call_id"] = chance.choice(calls or ["none00000"])
    return message


def next_messages(chance: Random, messages: list) -> list:
    """What an agent sends next: mostly all of it and more; also the same, less, or with something changed."""
    done = chance.random()
    if done < 0.15 and messages:
        place = chance.randrange(len(messages))
        return [*messages[:place], random_message(chance, messages[:place]), *messages[place + 1 :]]
    if done < 0.25 and len(messages) > 2:
        return messages[: chance.randrange(1, len(messages))]
    if done < 0.3 and len(messages) > 2:
        return [messages[0], *messages[2:]]
    if done < 0.35:
        return messages
    longer = list(messages)
    for _ in range(chance.choice((1, 2, 2, 3))):
        longer.append(random_message(chance, longer))
    return longer


def begun(chance: Random) -> list:
    """Roles in the order that every template takes, so that none refuses from the start."""
    messages = [{"role": "system", "content": "Be brief."}] if chance.random() < 0.6 else []
    return [*messages, {"role": "user", "content": "What is 2 + 2?"}]


def or_error(render):
    try:
        return render()
    except WorkflowError as error:
        return f"refused: {error}"


@each_row("name", ["shipped", *(path.stem for path in TEMPLATES), *OWN])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=max(5, HISTORIES))
def test_a_rendering_that_goes_on_from_any_earlier_one_is_the_whole_rendering(name, seed):
    chance, chat_format = Random(seed), format_of(name)
    messages, tools, earlier = begun(chance), (), [None]
    offered = ((), (tool("add"),), (tool("add"), tool("look_up")))
    for _ in range(8):
        whole = or_error(lambda: chat_format.render(messages, tools))  # noqa: B023
        before = chance.choice((earlier[-1], earlier[-1], chance.choice(earlier)))
        made = or_error(lambda: chat_format.render_on(before, messages, tools))  # noqa: B023
        assert (made if isinstance(made, str) else made.text) == whole
        if not isinstance(made, str):
            earlier.append(made)
        elif len(messages) > 4:
            messages = begun(chance)
        if chance.random() < 0.2:
            tools = chance.choice(offered)
        messages = alternating(chance, messages) if chance.random() < 0.5 else next_messages(chance, messages)


def alternating(chance: Random, messages: list) -> list:
    """Goes on as agents do: a call and its result, or an answer and the next question."""
    if messages[-1]["role"] == "assistant":
        return [*messages, {"role": "user", "content": chance.choice(TEXTS)}]
    if chance.random() < 0.6:
        return [*messages, *tool_round(len(messages), chance.choice(TEXTS))]
    return [*messages, {"role": "assistant", "content": "Four."}]


def tool_round(number: int, result: str = "1") -> list:
    call = {"id": f"c{number:08d}", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "content": "I call.", "tool_calls": [call], "reasoning_content": "Hm."}
    return [said, {"role": "tool", "tool_call_id": call["id"], "content": result}]


@each_row("name", ["shipped", "qwen2_5", "qwen3", "qwen3_6", "llama3_1", "glm4moe", "nemotron_3_nano"])
def test_after_a_call_of_a_tool_only_what_is_new_is_written(name):
    chat_format, messages = format_of(name), begun(Random(0))
    for number in range(5):
        messages = [*messages, *tool_round(number)]
    first = chat_format.render_on(None, messages, (tool("add"),))
    second = chat_format.render_on(first, [*messages, *tool_round(5)], (tool("add"),))
    loops = [(loop, second.loops[number]) for number, loop in first.loops.items()]
    taken_over = [sum(one is other for one, other in zip(old.marks, new.marks, strict=False)) for old, new in loops]
    assert max(taken_over) >= len(messages) - 2


@pytest.mark.parametrize("name", ["counts", "ends_early"])
def test_a_loop_that_reads_what_may_change_is_left_as_it_is(name):
    assert compile_resumable(OWN[name]) is None
