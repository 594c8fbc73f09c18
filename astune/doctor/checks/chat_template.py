"""Does the chat template write everything an agent sends, and does a conversation that goes on keep its tokens?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import same_arguments
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.checks.model import KEY
from astune.doctor.findings import Finding, fail, ok, warn
from astune.errors import WorkflowError

Message = Mapping[str, Any]

TOOL: Message = {
    "type": "function",
    "function": {
        "name": "look_up_probe",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["word", "count"],
        },
    },
}
ARGUMENTS = '{"word": "naïve \\"quote\\"", "count": 3}'
USER: Message = {"role": "user", "content": "user-probe"}
CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c00000000", "type": "function", "function": {"name": "look_up_probe", "arguments": ARGUMENTS}}
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "c00000000", "name": "look_up_probe", "content": "tool-probe"}
ANSWER: Message = {"role": "assistant", "content": "assistant-probe"}
AFTER_REASONING = "a new user message after reasoning"
COST = (
    "the answers after it become training rows of their own: all tokens before them are computed again, at every such "
    "place, and a long episode costs several times as much"
)


def check_template(checked: CheckedConfig) -> Iterator[Finding]:
    where, chat_format = checked.where(KEY), checked.chat_format
    problems = [*_roles(chat_format, where), *_stop(chat_format, where)]
    offered = _offered(checked)
    problems += _tools(chat_format, offered, checked)
    if not problems:
        problems += _prefix(chat_format, checked, offered)
    yield from problems
    if not problems:
        calls = f"tool calls written as {chat_format.tool_call_format!r} and read back"
        without = "no known way to write tool calls, and the workflow offers no tools"
        yield ok(
            f"writes system, user, assistant{', tool' if chat_format.tool_call_format != 'none' else ''} messages; "
            f"{calls if chat_format.tool_call_format != 'none' else without}; "
            f"answers end with {chat_format.decode(chat_format.stop_token_ids[:1])!r}; a conversation keeps its tokens"
        )


def _offered(checked: CheckedConfig) -> bool | None:
    """True if the workflow offered tools in the dry run; None if there was no dry run."""
    try:
        return bool(checked.dry_run.tools)
    except Missing:
        return None


def _roles(chat_format: ChatFormat, where: str) -> Iterator[Finding]:
    fix = "use another model or template: astune.model.path with a chat_template.jinja that writes it"
    for role, messages in {
        "system": [{"role": "system", "content": "system-probe"}, USER],
        "user": [USER],
        "assistant": [USER, ANSWER, USER],
    }.items():
        try:
            written = chat_format.render(messages)
        except WorkflowError as error:
            advice = "write the instructions into the user message" if role == "system" else fix
            yield (warn if role == "system" else fail)(f"{role} message: {error}", where=where, fix=advice)
            continue
        if f"{role}-probe" not in written:
            yield fail(f"the chat template drops {role} messages: the model would never see them", where=where, fix=fix)


def _stop(chat_format: ChatFormat, where: str) -> Iterator[Finding]:
    if not chat_format.stop_token_ids:
        yield fail(
            "no token is known that ends an answer: every answer would run on to max_tokens",
            where=where,
            fix="set eos_token in tokenizer_config.json, or eos_token_id in generation_config.json, of the model",
        )


def _tools(chat_format: ChatFormat, offered: bool | None, checked: CheckedConfig) -> Iterator[Finding]:
    where = checked.where("astune.model.tool_call_format")
    if chat_format.tool_call_format == "none":
        if offered:
            yield fail(
                "the workflow offers tools, but how this model writes tool calls could not be read off its template",
                where=where,
                fix=f"set it to one of {', '.join(FORMATS)}, or use a model that was made for tools",
            )
        return
    told = warn if offered is False else fail
    unused = " (the dry run offered no tools)" if offered is False else ""
    try:
        prompt = chat_format.render([USER], [TOOL])
        written = chat_format.render([USER, CALL], [TOOL], add_generation_prompt=False)
        results = chat_format.render([USER, CALL, RESULT], [TOOL])
    except WorkflowError as error:
        yield told(f"{error}{unused}", where=checked.where(KEY), fix="use a model whose template writes tools")
        return
    fix = "use a model that was made for tools, or its template for tools"
    if "look_up_probe" not in prompt:
        yield told(f"the chat template drops the tools: the model would never see them{unused}", where=where, fix=fix)
    elif "tool-probe" not in results:
        yield told(f"the chat template drops the results of tools{unused}", where=where, fix=fix)
    elif not _reads_back(chat_format, prompt, written):
        yield told(
            f"a tool call that the template writes is not read back as it was: tool_call_format is "
            f"{chat_format.tool_call_format!r}{unused}",
            where=where,
            fix=f"'auto', or the one of {', '.join(FORMATS)} that fits the template",
        )


def _reads_back(chat_format: ChatFormat, prompt: str, written: str) -> bool:
    start = len(prompt) if written.startswith(prompt) else written.find("user-probe") + len("user-probe")
    closing = chat_format.find_closing(written, start)
    text = written[start : closing[0]] if closing is not None and start == len(prompt) else written[start:]
    calls = chat_format.parse_text(text, [TOOL], prompt=prompt).tool_calls
    return [call.name for call in calls] == ["look_up_probe"] and same_arguments(calls[0].arguments, ARGUMENTS)


def _prefix(chat_format: ChatFormat, checked: CheckedConfig, offered: bool | None) -> Iterator[Finding]:
    """A warning for each way to go on with a conversation for which the template writes the past anew: the tracker
    would begin a new timeline there, and this is the label it would give."""
    asks_again = _asks_again(checked)
    situations: dict[str, tuple[Sequence[Message], str | None]] = {"a new user message": ([USER], None)}
    if chat_format.reasoning_openings and _writes_reasoning(chat_format):
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


def _asks_again(checked: CheckedConfig) -> bool:
    """Whether a conversation of the dry run had more than one user message, so that dropped reasoning would matter."""
    try:
        turns = checked.dry_run.episode.turns
    except Missing:
        return False
    return any(sum(message.get("role") == "user" for message in turn.messages) > 1 for turn in turns)


def _writes_reasoning(chat_format: ChatFormat) -> bool:
    message = {**ANSWER, "reasoning_content": "reasoning-probe"}
    return "reasoning-probe" in chat_format.render([USER, message], add_generation_prompt=False)


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
