"""Write a given assistant message as the tokens that a model would sample for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astune.context_tracker.calls import Call
from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.answer_formats.base import ReasoningMarks
from astune.context_tracker.prompt.builder import Prompt
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import REASONING_KEYS, reasoning_of
from astune.context_tracker.prompt.sampled_answer import Beginnings
from astune.context_tracker.prompt.tool_calls import ParsedMessage
from astune.errors import WorkflowError
from astune.ropes import common_start

_PROBE = "ANSWER-PROBE"


def write_after(
    chat_format: ChatFormat, prompt: Prompt, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> str | None:
    """The template's text of the answer `message` after `prompt`, without the token that closes it; None where it does
    not write the answer after the prompt."""
    if prompt.match is None:
        return None
    rendering = chat_format.render([*prompt.match.messages, message], tools, add_generation_prompt=False)
    start = len(prompt.rendering)
    closing = chat_format.find_closing(rendering, start) if Beginnings(rendering).has(prompt.rendering) else None
    return None if closing is None else rendering[start : closing[0]]


def answer_ids(chat_format: ChatFormat, call: Call, message: Mapping[str, Any]) -> list[int]:
    """The tokens that a model samples to say `message`, OpenAI's assistant message, when it gets `call`.

        answer_ids(chat_format, call, {"role": "assistant", "content": "4"})    # 4<|im_end|>

    The template writes it. Reasoning that it leaves out of a history stands in the marks of the model's family; the
    start that the agent forced is part of the prompt and left out. The last token ends the answer. A text that looks
    like a tool call is text, as in an answer to a prompt that offers no tools. Raises WorkflowError where the template
    cannot write the message so that its tool calls and its reasoning can be read.
    """
    if call.prompt.match is None:
        raise WorkflowError("a raw prompt goes on as text: it has no place for tool calls or reasoning")
    messages = call.prompt.match.messages
    text, mark = _write(chat_format, call, messages, message)
    calls = message.get("tool_calls") or ()
    reasoning, said = reasoning_of(message), _read(chat_format, call, text, calls)
    if reasoning and not said.reasoning:
        text = reasoning_text(chat_format, call, reasoning) + text
        said = _read(chat_format, call, text, calls)
    wanted, found = ([one["function"]["name"] for one in calls], [one.name for one in said.tool_calls])
    if found != wanted:
        read = f"calls of {', '.join(found)} are" if found else "no call is"
        raise WorkflowError(
            f"the chat template does not write the calls of {', '.join(wanted)} so that they can be read back: {read} "
            f"read in {text[:100]!r}"
        )
    if reasoning and not said.reasoning:
        raise WorkflowError("the chat template does not write an answer with reasoning so that it can be read back")
    chat_format.check_said(text, [{**message, "tool_calls": None}])
    start = call.prompt.answer_start
    if not text.startswith(start):
        raise WorkflowError(f"the agent makes the answer begin with {start!r}, and this one begins with {text[:60]!r}")
    return [*chat_format.encode(text[len(start) :]), _stop_id(chat_format, call, messages, message, mark)]


def reasoning_text(chat_format: ChatFormat, call: Call, reasoning: str) -> str:
    """`reasoning` as an answer to `call` begins with it: it stands in the marks that the prompt has opened, or else in
    marks of its own. "" is an empty block."""
    opened = find_opened_reasoning(chat_format, call)
    marks = opened or FORMATS[chat_format.tool_call_format].reasoning[0]
    line = "\n" if marks.empty_rest.startswith("\n") else ""
    if opened is None:
        return marks.opening + line + reasoning + marks.empty_rest
    return ("" if not reasoning or call.prompt.ending.endswith("\n") else line) + reasoning + marks.empty_rest


def find_opened_reasoning(chat_format: ChatFormat, call: Call) -> ReasoningMarks | None:
    """The marks of reasoning that the prompt has opened, inside of which the answer begins."""
    return FORMATS[chat_format.tool_call_format].find_opened(call.prompt.ending)


def _write(
    chat_format: ChatFormat, call: Call, messages: Sequence[Mapping[str, Any]], message: Mapping[str, Any]
) -> tuple[str, str | None]:
    """The answer without its end, and the special token that the template ends it with, None if it writes none.

    Where a template ends its prompts with something that its history has not (`<think>`, or an empty block of
    reasoning), the answer without reasoning follows on what both begin with, and reasoning opened in the prompt is
    closed first.
    """
    tools = call.request.tools
    prompt = chat_format.render(messages, tools)
    rendering = chat_format.render([*messages, message], tools, add_generation_prompt=False)
    start, lead = len(prompt), ""
    if not rendering.startswith(prompt):
        plain = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        probe = {"role": "assistant", "content": _PROBE}
        start = common_start(prompt, chat_format.render([*messages, probe], tools, add_generation_prompt=False))
        rendering = chat_format.render([*messages, plain], tools, add_generation_prompt=False)
        if not rendering.startswith(prompt[:start]):
            raise WorkflowError("the chat template writes the conversation in another way once it is answered")
        if find_opened_reasoning(chat_format, call) is not None:
            lead = reasoning_text(chat_format, call, reasoning_of(message) or "")
    closing = chat_format.find_closing(rendering, start)
    end, mark = (len(rendering), None) if closing is None else closing
    return lead + _without_block(chat_format, call, rendering[start:end], reasoning_of(message), bool(lead)), mark


def _without_block(chat_format: ChatFormat, call: Call, text: str, reasoning: str | None, closed: bool) -> str:
    """The text without an empty block of reasoning that the template adds (Qwen3's does to the last answer only), or
    without the rest of the one that the prompt has opened if that is closed already."""
    opened = find_opened_reasoning(chat_format, call)
    if opened is not None and closed:
        return text.removeprefix(opened.closing).lstrip("\n") if text.startswith(opened.closing) else text
    return text if reasoning or opened is not None else text.removeprefix(reasoning_text(chat_format, call, ""))


def _stop_id(
    chat_format: ChatFormat,
    call: Call,
    messages: Sequence[Mapping[str, Any]],
    message: Mapping[str, Any],
    mark: str | None,
) -> int:
    """The token that ends the answer: the template's own, or that which opens the message after it (GLM)."""
    if mark is None:
        calls = message.get("tool_calls") or ()
        results: list[Mapping[str, Any]] = [
            {"role": "tool", "tool_call_id": one.get("id", ""), "content": _PROBE} for one in calls
        ]
        after = results or [{"role": "user", "content": _PROBE}]
        base = chat_format.render([*messages, message], call.request.tools, add_generation_prompt=False)
        longer = chat_format.render([*messages, message, *after], call.request.tools, add_generation_prompt=False)
        found = chat_format.find_closing(longer, common_start(base, longer))
        mark = None if found is None else found[1]
    ids = chat_format.encode(mark or "")
    return ids[0] if len(ids) == 1 and ids[0] in chat_format.stop_token_ids else chat_format.stop_token_ids[0]


def _read(chat_format: ChatFormat, call: Call, text: str, calls: Sequence[Mapping[str, Any]]) -> ParsedMessage:
    """The text taken apart; calls are looked for where the message has some, whether or not tools are offered."""
    return chat_format.parse_text(text, (call.request.tools or None) if calls else (), prompt=call.prompt.ending)
