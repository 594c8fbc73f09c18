"""Does the chat template write everything an agent sends, and does a conversation that goes on keep its tokens?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.call_check import OFFERS_TOOLS
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.template_style import CALL, NAME, RESULT, TOOL
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.model import KEY
from astune.doctor.findings import Finding, fail, ok, warn
from astune.errors import WorkflowError

Message = Mapping[str, Any]

USER: Message = {"role": "user", "content": "user-probe"}
SECOND_CALL: Message = {
    **CALL["tool_calls"][0],
    "id": "probe0001",
    "function": {"name": NAME, "arguments": '{"word": "second-probe", "count": 4}'},
}
SECOND_RESULT: Message = {**RESULT, "tool_call_id": "probe0001", "content": "second-result-probe"}
ANSWER: Message = {"role": "assistant", "content": "assistant-probe"}
AFTER_REASONING = "a new user message after reasoning"
COST = (
    "the answers after it become training rows of their own: all tokens before them are computed again, at every such "
    "place, and a long episode costs several times as much"
)


def check_template(checked: CheckedConfig) -> Iterator[Finding]:
    where, chat_format = checked.where(KEY), checked.chat_format
    problems = [*_roles(chat_format, where), *_stop(chat_format, where)]
    problems += _tools(checked)
    if not problems:
        problems += _prefix(chat_format, checked, _offers_tools(checked))
    yield from problems
    if not problems:
        calls = f"tool calls written as {chat_format.tool_call_format!r} and read back"
        without = "no known way to write tool calls, and the workflow offers no tools"
        yield ok(
            f"writes system, user, assistant{', tool' if chat_format.tool_call_format != 'none' else ''} messages; "
            f"{calls if chat_format.tool_call_format != 'none' else without}; "
            f"answers end with {chat_format.decode(chat_format.stop_token_ids[:1])!r}; a conversation keeps its tokens"
        )


def _offers_tools(checked: CheckedConfig) -> bool | None:
    """True if the workflow offered tools in the dry run; None if there was none, or none that called the model."""
    played = checked.played
    if played is None:
        return None
    if played.turns:
        return bool(checked.dry_run.tools)
    return True if played.error is not None and OFFERS_TOOLS in played.error.message else None


def _roles(chat_format: ChatFormat, where: str) -> Iterator[Finding]:
    fix = "use another model or template: astune.model.path with a chat_template.jinja that writes it"
    for role, messages in {"system": [SYSTEM, USER], "user": [USER], "assistant": [USER, ANSWER, USER]}.items():
        try:
            written = chat_format.render(messages)
        except WorkflowError as error:
            advice = "write the instructions into the user message" if role == "system" else fix
            yield (warn if role == "system" else fail)(f"{role} message: {error}", where=where, fix=advice)
            continue
        if f"{role}-probe" not in written:
            yield fail(f"the chat template drops {role} messages: the model would never see them", where=where, fix=fix)
            return
    problems = {situation: _problem(chat_format, messages, tools) for situation, (messages, tools) in _SENT.items()}
    calls = chat_format.tool_call_format != "none"
    found = {name: told for name, told in problems.items() if told is not None and (calls or not _SENT[name][1])}
    if found:
        *others, last = found
        yield warn(
            f"an agent that sends {' or '.join(filter(None, [', '.join(others), last]))} ends with an error: "
            f"{next(iter(found.values()))}",
            where=where,
            fix="nothing, if your agent sends none; else write it into another message, or use another template",
        )


SYSTEM: Message = {"role": "system", "content": "system-probe"}
_SENT: dict[str, tuple[Sequence[Message], Sequence[Message]]] = {
    "a developer message": ([{**SYSTEM, "role": "developer"}, USER], ()),
    "two system messages": ([{**SYSTEM, "content": "first-probe"}, SYSTEM, USER], ()),
    "a later system message": ([USER, ANSWER, SYSTEM, {**USER, "content": "later-probe"}], ()),
    "text beside a tool call": ([USER, {**CALL, "content": "text-probe"}, RESULT], [TOOL]),
    "two tool calls at once": (
        [USER, {**CALL, "tool_calls": [*CALL["tool_calls"], SECOND_CALL]}, RESULT, SECOND_RESULT],
        [TOOL],
    ),
}
"""Messages that an agent may send: the messages, and the tools that go with them."""


def _problem(chat_format: ChatFormat, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str | None:
    """Why the template cannot be given a conversation; None if it writes all of it."""
    try:
        chat_format.check_said(chat_format.render(messages, tools), messages)
    except WorkflowError as error:
        return str(error)
    return None


def _stop(chat_format: ChatFormat, where: str) -> Iterator[Finding]:
    if not chat_format.stop_token_ids:
        yield fail(
            "no token is known that ends an answer: every answer would run on to max_tokens",
            where=where,
            fix="set eos_token in tokenizer_config.json, or eos_token_id in generation_config.json, of the model",
        )


def _tools(checked: CheckedConfig) -> Iterator[Finding]:
    """Find what keeps agents from using tools."""
    offered, problem = _offers_tools(checked), checked.chat_format.call_problem
    for_chat_alone = checked.chat_format.tool_call_format == "none" and not offered
    if problem is None or for_chat_alone:
        return
    told, unused = (warn, " (the dry run offered no tools)") if offered is False else (fail, "")
    yield told(problem.what + unused, where=checked.where(problem.key), fix=problem.fix)


def _prefix(chat_format: ChatFormat, checked: CheckedConfig, offered: bool | None) -> Iterator[Finding]:
    """A warning for each way to go on with a conversation for which the template writes the past anew: the tracker
    would begin a new timeline there, and this is the label it would give."""
    turns = () if checked.played is None else checked.played.turns
    # only then would dropped reasoning matter
    asks_again = any(sum(message.get("role") == "user" for message in turn.messages) > 1 for turn in turns)
    situations: dict[str, tuple[Sequence[Message], str | None]] = {"a new user message": ([USER], None)}
    if chat_format.reasoning_openings:
        reasons = {**ANSWER, "reasoning_content": "reasoning-probe"}
        if "reasoning-probe" in chat_format.render([USER, reasons], add_generation_prompt=False):
            situations[AFTER_REASONING] = ([USER], "Hm.")
    if offered is not False and chat_format.tool_call_format != "none":
        situations["a tool result"] = ([RESULT], None)
    for name, (more, reasoning) in situations.items():
        fork = _fork(chat_format, more, reasoning)
        if fork is None or (reasoning is not None and not asks_again):
            continue
        yield warn(
            f"after {name} the template writes what was before differently (fork: {fork}): {COST}",
            where=checked.where(KEY),
            fix="nothing breaks; to avoid it use a template that only appends"
            + (", or a model without reasoning (chat_template_kwargs: {enable_thinking: false})" if reasoning else ""),
        )


def _fork(chat_format: ChatFormat, more: Sequence[Message], reasoning: str | None) -> str | None:
    """Why the prompt with `more` messages does not go on from the tokens before; None if it does."""
    builder = PromptBuilder(chat_format)
    tools = [TOOL] if more[0]["role"] == "tool" else []
    answer = CALL if tools else ANSWER if reasoning is None else {**ANSWER, "reasoning_content": reasoning}
    prompt = builder.build("probe", [USER], tools)
    text = _answer_text(chat_format, answer, tools)
    builder.record("probe", prompt, [*chat_format.encode(text), chat_format.stop_token_ids[0]], answer)
    return builder.build("probe", [USER, answer, *more], tools).fork


def _answer_text(chat_format: ChatFormat, answer: Message, tools: Sequence[Message]) -> str:
    """The text that a model would sample to say `answer`, as its own template writes it."""
    prompt = chat_format.render([USER], tools)
    written = chat_format.render([USER, answer], tools, add_generation_prompt=False)
    if not written.startswith(prompt):
        return json.dumps(answer["content"] or "")
    closing = chat_format.find_closing(written, len(prompt))
    return written[len(prompt) : closing[0] if closing else None]
