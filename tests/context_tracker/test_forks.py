"""Real templates over several turns: which sampled tokens stay, what the prompt says, and where it forks and why."""

import re
from pathlib import Path

import pytest

from astune.context_tracker import forks
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import meaning
from astune.token_ids import TokenIds
from tests.context_tracker.parsing import parse
from tests.context_tracker.test_template_families import ADD, FAMILIES, Family
from tests.rows import each_row

SYSTEM = {"role": "system", "content": "Be brief."}
OTHER_TOOL = {**ADD, "function": {**ADD["function"], "name": "subtract"}}
LAYOUTS = ('{"n": 1}', '{"n":1}')
STOPS = {
    "glm4moe": {"user": "<|user|>", "tool": "<|observation|>"},
    "gptoss": {"user": "<|return|>", "tool": "<|call|>"},
    "gemma4": {"tool": "<|tool_response>"},
}
"""The token that the model samples last, before a user message or a tool result."""
EMPTY_BLOCKS = ("qwen3_5_nothink",)
"""Templates whose prompts end with an empty block of reasoning: the model does not reason."""


def user(text):
    return {"role": "user", "content": text}


def call_add(number):
    return {"id": f"call0000{number}", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}


class Agent:
    """Plays the agent and the model: sends requests, answers them with tokens no tokenizer would choose."""

    def __init__(self, family: Family, chat_format: ChatFormat):
        self.family = family
        self.format = chat_format
        self.builder = PromptBuilder(chat_format)
        self.added = {*family.tokens, "<think>", "</think>", "<tool_call>", "</tool_call>"}

    def sampled_text(self, text, reasoning, calls):
        """An answer as the model writes it: as its template does, with JSON laid out in another way."""
        family = self.family
        message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
        if reasoning is not None and family.writes_reasoning and family.template not in EMPTY_BLOCKS:
            message["reasoning_content"] = reasoning
        written = self.format.render([user("?"), message], [ADD] if calls else (), add_generation_prompt=False)
        start = written.index(family.role) + len(family.role)
        closing = self.format.find_closing(written, start)
        body = written[start:] if closing is None else written[start : closing[0]]
        if family.opens_thinking:
            body = f"{reasoning or ''}\n</think>\n\n{body.rpartition('</think>')[2].lstrip()}"
        elif reasoning is None or family.template in EMPTY_BLOCKS:
            body = body.removeprefix("<think>\n\n</think>\n\n")
        stop = STOPS.get(family.template, {}).get("tool" if calls else "user", family.stops[0])
        return body.replace(*LAYOUTS), stop

    def odd_ids(self, text, stop):
        """One token per character, but for special tokens: no tokenizer would choose these."""
        tokens = [self.format.decode([token]) for token in self.format.encode(text)]
        pieces = [piece if len(piece) > 1 and piece in self.added else None for piece in tokens]
        ids = []
        for token, piece in zip(self.format.encode(text), pieces, strict=True):
            ids += [token] if piece else [i for c in self.format.decode([token]) for i in self.format.encode(c)]
        assert self.format.decode(ids) == text
        return [*ids, *self.format.encode(stop)]

    def ask(self, messages, tools=(), text="The answer is 42.", reasoning=None, calls=()):
        """Send a request and answer it; returns the prompt, the sampled ids and the message."""
        tools = tools if self.family.calls else ()
        prompt = self.builder.build("a", messages, tools)
        ids = self.odd_ids(*self.sampled_text(text, reasoning, list(calls)))
        parsed = parse(self.format, ids, tools, prompt=prompt.ending)
        message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if calls:
            assert len(parsed.tool_calls) == len(calls), parsed
            message["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {"name": read.name, "arguments": read.arguments}}
                for call, read in zip(calls, parsed.tool_calls, strict=True)
            ]
        self.builder.record("a", prompt, ids, message)
        return prompt, ids, message


def after_two_answers(family, chat_format):
    """A conversation with two answers in plain text: the agent, its messages, and the sampled ids of both."""
    agent = Agent(family, chat_format)
    first = [SYSTEM, user("A?")]
    _, one, answer = agent.ask(first, text="The first answer.")
    second = [*first, answer, user("B?")]
    _, two, answer = agent.ask(second, text="The second answer.")
    return agent, [*second, answer], one, two


def after_a_call(family, chat_format):
    """A conversation with a tool call after reasoning: the agent, its messages up to the result, the call's turn."""
    agent = Agent(family, chat_format)
    first = [SYSTEM, user("A?")]
    prompt, ids, answer = agent.ask(first, [ADD], text=None, reasoning="Hm.", calls=[call_add(1)])
    return agent, [*first, answer, {"role": "tool", "tool_call_id": "call00001", "content": "4"}], prompt, ids


def holds(ids, part):
    """Whether the tokens are there, side by side."""
    packed, wanted = ids.pack(), TokenIds(part).pack()
    return any(packed.startswith(wanted, place) for place in range(0, len(packed), 4))


def in_order(ids, *parts):
    """Whether the tokens of all parts are there, one part after another."""
    marked = "".join(f" {token} " for token in ids)
    for part in parts:
        _, found, marked = marked.partition("".join(f" {token} " for token in part))
        if not found:
            return False
    return True


def assert_says(agent, prompt, messages, tools=()):
    """The prompt reads as a fresh rendering does, but for the model's own layout and its token for the end."""
    written = agent.format.render(messages, tools if agent.family.calls else ())
    read = agent.format.decode(list(prompt.ids))
    if agent.family.template == "gptoss":
        read = read.replace("<|return|>", "<|end|>")
    assert in_one_layout(read) == in_one_layout(written)


def in_one_layout(text):
    return re.sub(r"</think>\s*", "</think>", text.replace(*LAYOUTS))


REWRITES_ANSWERS = {
    "qwen3_6": forks.REASONING_STRIPPED,
    "deepseekv3": forks.REASONING_STRIPPED,
    "deepseek_r1_distill": forks.REASONING_STRIPPED,
    "nemotron_3_nano": forks.TEMPLATE_NOT_APPEND_ONLY,
}
"""Every answer begins inside reasoning that the prompt opened, and the next user message takes it away: nemotron
writes an empty block in another layout, the others none."""
REWRITES_PROMPTS = {
    "mistral_v3": forks.TEMPLATE_NOT_APPEND_ONLY,
    "qwen3_5_nothink": forks.TEMPLATE_NOT_APPEND_ONLY,
}
"""The answers stay: Mistral moves the system message to the last user message, Qwen3.5 drops the prompt's own block."""
DROPS_REASONING = ("qwen3", "qwen3_6", "nemotron_3_nano", "glm4moe", "gptoss", "gemma4")
DROPS_REASONING_IN_A_TOOL_LOOP = ("deepseekv3", "deepseek_r1_distill")
TELLS_NOT_WHERE = ("mistral_v3", "mistral_v11", "mistral_v13", "nemotron_3_nano")
"""After another kind of message these write another beginning of the answer, or none."""
FAMILY = each_row("family", FAMILIES, ids=lambda family: family.template)
CALLING = each_row("family", [family for family in FAMILIES if family.calls], ids=lambda family: family.template)


@FAMILY
def test_a_second_user_message(family, formats):
    agent = Agent(family, formats[family.template])
    messages = [SYSTEM, user("A?")]
    prompt, ids, answer = agent.ask(messages)
    messages = [*messages, answer, user("B?")]
    again = agent.builder.build("a", messages)
    assert again.fork == (REWRITES_ANSWERS | REWRITES_PROMPTS).get(family.template)
    assert holds(again.ids, ids) == (family.template not in REWRITES_ANSWERS)
    assert (list(again.ids[: len(prompt.ids) + len(ids)]) == [*prompt.ids, *ids]) == (again.fork is None)
    assert_says(agent, again, messages)


@FAMILY
def test_a_second_user_message_after_reasoning(family, formats):
    agent = Agent(family, formats[family.template])
    messages = [SYSTEM, user("A?")]
    _, ids, answer = agent.ask(messages, reasoning="Hm.")
    messages = [*messages, answer, user("B?")]
    again = agent.builder.build("a", messages)
    dropped = family.template in DROPS_REASONING
    expected = forks.REASONING_STRIPPED if dropped else (REWRITES_ANSWERS | REWRITES_PROMPTS).get(family.template)
    assert again.fork == expected
    assert holds(again.ids, ids) == (not dropped and family.template not in REWRITES_ANSWERS)
    assert_says(agent, again, messages)


@CALLING
def test_a_tool_round_trip(family, formats):
    agent, messages, prompt, ids = after_a_call(family, formats[family.template])
    without_reasoning = {key: value for key, value in messages[2].items() if key != "reasoning_content"}
    again = agent.builder.build("a", [*messages[:2], without_reasoning, messages[3]], [ADD])
    stripped = family.template in DROPS_REASONING_IN_A_TOOL_LOOP
    assert again.fork == (forks.REASONING_STRIPPED if stripped else None)
    assert (list(again.ids[: len(prompt.ids) + len(ids)]) == [*prompt.ids, *ids]) == (not stripped)
    assert_says(agent, again, messages, [ADD])


@CALLING
def test_a_tool_round_trip_under_another_system_message(family, formats):
    agent, messages, _, ids = after_a_call(family, formats[family.template])
    messages[0] = {"role": "system", "content": "Be long."}
    without_reasoning = {key: value for key, value in messages[2].items() if key != "reasoning_content"}
    again = agent.builder.build("a", [*messages[:2], without_reasoning, messages[3]], [ADD])
    assert again.fork == forks.SYSTEM_CHANGED
    assert holds(again.ids, ids) == (family.template not in DROPS_REASONING_IN_A_TOOL_LOOP)
    assert_says(agent, again, messages, [ADD])


CHANGES = {
    forks.SYSTEM_CHANGED: (lambda old: [{"role": "system", "content": "Be long."}, *old[1:], user("C?")], True),
    forks.HISTORY_EDITED: (lambda old: [SYSTEM, user("Other?"), *old[2:], user("C?")], True),
    forks.TRUNCATED: (lambda old: [SYSTEM, *old[3:], user("C?")], False),
    forks.COMPACTED: (lambda old: [SYSTEM, user("Summary."), *old[4:], user("C?")], False),
}
"""What is done to a history of two answers, and whether the first is left in it."""


@FAMILY
@pytest.mark.parametrize("cause", CHANGES)
def test_a_changed_history_keeps_the_tokens_of_the_answers_left_in_it(family, formats, cause):
    agent, history, one, two = after_two_answers(family, formats[family.template])
    change, keeps_first = CHANGES[cause]
    again = agent.builder.build("a", change(history))
    assert again.fork == cause
    rewritten = family.template in REWRITES_ANSWERS
    assert [holds(again.ids, ids) for ids in (one, two)] == [keeps_first and not rewritten, not rewritten]
    assert_says(agent, again, change(history))


@FAMILY
@pytest.mark.parametrize("cause", CHANGES)
def test_what_goes_on_from_a_changed_history_is_a_branch_of_it(family, formats, cause):
    """Nothing more is rewritten: the history is what the request before made it, or goes on from there."""
    agent, history, _, _ = after_two_answers(family, formats[family.template])
    changed = CHANGES[cause][0](history)
    _, _, answer = agent.ask(changed)
    assert agent.builder.build("a", changed).fork is None
    assert agent.builder.build("a", [*changed[:-1], user("D?")]).fork is None
    edited_again = [*changed[:-1], user("E?"), {"role": "assistant", "content": "By hand."}, user("F?")]
    assert agent.builder.build("a", edited_again).fork == forks.HISTORY_EDITED
    agent.ask([*changed, answer, user("D?")])  # the changed history is now known from a longer request only
    assert agent.builder.build("a", changed).fork is None


@CALLING
def test_what_goes_on_with_changed_tools_is_a_branch(family, formats):
    agent, history, _, _ = after_two_answers(family, formats[family.template])
    for tools in ([OTHER_TOOL], [ADD]):
        agent.ask([*history, user("C?")], tools)
    for tools in ([OTHER_TOOL], [ADD]):
        assert agent.builder.build("a", [*history, user("C?")], tools).fork is None
    first = Agent(family, agent.format)
    for tools in ([OTHER_TOOL], [ADD]):
        first.ask([SYSTEM, user("A?")], tools)
    assert first.builder.build("a", [SYSTEM, user("A?"), user("B?")], [OTHER_TOOL]).fork is None


@CALLING
def test_a_summary_in_tags_keeps_the_tokens_of_the_call_after_it(family, formats):
    agent, history, _, ids = after_a_call(family, formats[family.template])
    summary = [SYSTEM, user("<system-info>Long ago.</system-info>"), *history[2:]]
    again = agent.builder.build("a", summary, [ADD])
    assert again.fork == forks.HISTORY_EDITED
    assert holds(again.ids, ids) == (family.template not in DROPS_REASONING_IN_A_TOOL_LOOP)
    assert_says(agent, again, summary, [ADD])


@CALLING
def test_a_hint_taken_out_keeps_the_tokens_of_the_calls_beside_it(family, formats):
    agent, history, _, one = after_a_call(family, formats[family.template])
    _, two, answer = agent.ask([*history, user("Hint.")], [ADD], text=None, calls=[call_add(2)])
    messages = [*history, answer, {"role": "tool", "tool_call_id": "call00002", "content": '{"n": 5}'}]
    again = agent.builder.build("a", messages, [ADD])
    assert again.fork == forks.HISTORY_EDITED
    dropped = family.template in DROPS_REASONING_IN_A_TOOL_LOOP
    assert holds(again.ids, one) == (not dropped)
    assert in_order(again.ids, one, two) == (not dropped and family.template not in TELLS_NOT_WHERE)
    assert_says(agent, again, messages, [ADD])


@CALLING
def test_other_tools_keep_the_tokens_of_the_answers(family, formats):
    agent, history, one, two = after_two_answers(family, formats[family.template])
    again = agent.builder.build("a", [*history, user("C?")], [OTHER_TOOL])
    in_last_message = family.template == "mistral_v11"  # where its template writes tools: nothing earlier changes
    assert again.fork == (None if in_last_message else forks.TOOLS_CHANGED)
    assert [holds(again.ids, ids) for ids in (one, two)] == [family.template not in REWRITES_ANSWERS] * 2
    assert_says(agent, again, [*history, user("C?")], [OTHER_TOOL])


@FAMILY
def test_an_earlier_point_gone_on_from_once_more_is_no_fork_of_its_own(family, formats):
    agent, history, one, _ = after_two_answers(family, formats[family.template])
    again = agent.builder.build("a", [*history[:3], user("Elsewhere?")])
    assert again.fork == (REWRITES_ANSWERS | REWRITES_PROMPTS).get(family.template)
    assert holds(again.ids, one) == (family.template not in REWRITES_ANSWERS)


@FAMILY
def test_a_request_sent_again_is_the_same_prompt(family, formats):
    agent, history, _, _ = after_two_answers(family, formats[family.template])
    agent.builder.build("a", [*history, user("C?")])
    first = agent.builder.build("a", history[:2])
    assert first.fork is None
    assert list(first.ids) == agent.format.encode(agent.format.render(history[:2]))


def test_a_model_that_began_another_message_than_follows_is_not_gone_on_from(formats):
    chat_format = formats["glm4moe"]
    builder = PromptBuilder(chat_format)
    messages = [user("A?")]
    prompt = builder.build("a", messages, [ADD])
    text = "\n<think></think>\n<tool_call>add\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    ids = chat_format.encode(text + "<|user|>")
    answer = {"role": "assistant", "content": None, "tool_calls": [call_add(1)]}
    builder.record("a", prompt, ids, answer)
    messages = [*messages, answer, {"role": "tool", "tool_call_id": "call00001", "content": "4"}]
    again = builder.build("a", messages, [ADD])
    assert again.fork == forks.TEMPLATE_NOT_APPEND_ONLY
    assert chat_format.decode(list(again.ids)) == chat_format.render(messages, [ADD])


def test_an_end_of_text_token_stays_before_the_message_that_follows(formats):
    chat_format = formats["glm4moe"]
    builder = PromptBuilder(chat_format)
    prompt = builder.build("a", [user("A?")])
    ids = chat_format.encode("\n<think></think>\nThe answer.<|endoftext|>")
    answer = {"role": "assistant", "content": "The answer."}
    builder.record("a", prompt, ids, answer)
    again = builder.build("a", [user("A?"), answer, user("B?")])
    assert again.fork is None
    rest = chat_format.decode(list(again.ids)).partition("<|endoftext|>")[2]
    assert rest == "<|user|>\nB?<|assistant|>"


def conversation(letters):
    """`s` and `S` are system messages, digits are answers, the rest are user messages."""
    roles = {letter: "system" if letter in "sS" else "assistant" if letter.isdigit() else "user" for letter in letters}
    messages = [{"role": roles[letter], "content": letter} for letter in letters]
    return [meaning(messages, index) for index in range(len(messages))]


@each_row(
    ("earlier", "now", "cause"),
    [
        ("sa1b2", "Sa1b2c", forks.SYSTEM_CHANGED),
        ("sa1b2", "a1b2c", forks.SYSTEM_CHANGED),
        ("sa1", "Sa", forks.SYSTEM_CHANGED),
        ("sa1b2", "sa1x2c", forks.HISTORY_EDITED),
        ("sa1b2", "sa9b2c", forks.HISTORY_EDITED),
        ("sa1b2", "sa1b9c", forks.HISTORY_EDITED),
        ("sa1b2", "sa1b2c9d", forks.HISTORY_EDITED),
        ("sa1b2c3", "sa1b9c3d", forks.HISTORY_EDITED),
        ("sa1b2c3", "sb2c3d", forks.TRUNCATED),
        ("sa1b2c3", "s2c3d", forks.TRUNCATED),
        ("sa1b2c3", "sac3d", forks.TRUNCATED),
        ("sa1b2c3", "s1b2c3d", forks.TRUNCATED),
        ("sa1b2c3", "sa1c3d", forks.HISTORY_EDITED),
        ("sa1bh2", "sa1b2c", forks.HISTORY_EDITED),
        ("sah1", "sa1b", forks.HISTORY_EDITED),
        ("sa1b2c3", "sxc3d", forks.COMPACTED),
        ("sa1b2c3", "sax3d", forks.COMPACTED),
        ("sa1b2c3", "sx9c3d", forks.COMPACTED),
        ("sa1b2", "sx", forks.NEW_CONVERSATION),
        ("sa1b2", "sx9y", forks.NEW_CONVERSATION),
        ("a1", "x", forks.NEW_CONVERSATION),
        ("sa1", "Sx", forks.NEW_CONVERSATION),
    ],
)
def test_what_was_done_to_a_history_is_named(earlier, now, cause):
    changed = forks.of_prompt(
        goes_on=False,
        changed_from=conversation(earlier),
        now=conversation(now),
        other_tools=False,
        rewritten=False,
        reasoning_lost=lambda: False,
    )
    assert changed == cause


def test_only_forks_decides_on_a_cause():
    """The other modules bring facts: none names a label."""
    labels = {name for name, value in vars(forks).items() if name.isupper() and isinstance(value, str)}
    sources = {path.name: path.read_text() for path in Path(forks.__file__).parent.rglob("*.py")}
    del sources["forks.py"]
    spelled = {label for label in labels for text in sources.values() if re.search(rf"\b{label}\b", text)}
    quoted = {label for label in labels for text in sources.values() if f'"{getattr(forks, label)}"' in text}
    assert len(labels) == 15 and not spelled | quoted
