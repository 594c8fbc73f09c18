"""Turn a text that a person writes into the tokens that a model would have sampled, or refuse it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from astune.context_tracker.calls import Call
from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import parse_arguments
from astune.context_tracker.prompt.tool_calls import ParsedMessage
from astune.context_tracker.write_answer import answer_ids, find_opened_reasoning
from astune.errors import WorkflowError, nearest
from astune.types import Generation

CALL = "/call"
_SPACE = re.compile(r"\s+")


class NotAnAnswer(ValueError):
    """A text is no answer that the agent could be given; the message says why."""


def read_typed_answer(chat_format: ChatFormat, call: Call, text: str) -> Generation:
    """Read a text that a person writes as tokens, with the one that ends the answer; log-probabilities are 0.0.

        read_typed_answer(chat_format, call, 'I will add.\\n/call add {"a": 1, "b": 2}')

    `text` is the raw text of the answer, markup included, or lines with `/call NAME {arguments}`, which the template
    writes, or both. Raises NotAnAnswer where it looks like a tool call in the model's format and is none, names a
    tool that the agent does not offer, or lacks required arguments.
    """
    lines = text.splitlines()
    called = [line for line in lines if line.lstrip().split(" ")[0] == CALL]
    if not called:
        return raw_answer(chat_format, call, text)
    calls = [read_call(line, call) for line in called]
    rest = "\n".join(line for line in lines if line not in called).strip()
    said = _parse(chat_format, call, rest)
    check_text(chat_format, call, said)
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    raw = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in said.tool_calls]
    return message_answer(chat_format, call, {**message, "tool_calls": [*raw, *calls]})


def raw_answer(chat_format: ChatFormat, call: Call, text: str) -> Generation:
    """The raw text of an answer as tokens; a token at its end that ends an answer is not written twice."""
    ids = chat_format.encode(text)
    if not ids or ids[-1] not in chat_format.stop_token_ids:
        ids.append(chat_format.stop_token_ids[0])
    if call.request.prompt is None:
        said = call.prompt.answer_start + chat_format.decode(ids[:-1])
        check_text(chat_format, call, chat_format.parse_text(said, call.request.tools, prompt=call.prompt.ending))
    return _make_generation(ids)


def message_answer(chat_format: ChatFormat, call: Call, message: Mapping[str, Any]) -> Generation:
    """OpenAI's assistant message as the tokens that say it (see `write_answer.answer_ids`)."""
    try:
        return _make_generation(answer_ids(chat_format, call, message))
    except WorkflowError as error:
        raise NotAnAnswer(str(error)) from error


def read_call(line: str, call: Call) -> dict[str, Any]:
    """The tool call of a line `/call NAME {arguments}`; without arguments they are `{}`."""
    _, _, rest = line.strip().partition(" ")
    name, _, arguments = rest.strip().partition(" ")
    arguments = arguments.strip() or "{}"
    check_call(name, arguments, call)
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def check_text(chat_format: ChatFormat, call: Call, said: ParsedMessage) -> None:
    """Raises NotAnAnswer for calls that cannot be made, and for text that was meant as one."""
    for one in said.tool_calls:
        check_call(one.name, one.arguments, call)
    form = FORMATS[chat_format.tool_call_format]
    if form.name == "none" or said.content is None:
        return
    start = form.call_start(None)
    markup = re.match(r"\s*(<[^<>]*>|\[[A-Z_]+\])", start)
    mark = _SPACE.sub("", markup.group(1) if markup else start)
    if mark not in _SPACE.sub("", said.content):
        return
    if not call.request.tools:
        raise NotAnAnswer(f"this looks like a tool call ({mark}), and the agent offers no tools in this call")
    raise NotAnAnswer(
        f"this looks like a tool call and cannot be read as one{_find_json_fault(said.content, mark)}. "
        f"A call in the format {form.name!r} begins with {start!r}; '{CALL} NAME {{arguments}}' writes one for you"
    )


def check_call(name: str, arguments: str, call: Call) -> None:
    """Raises NotAnAnswer unless the agent offers the tool and the arguments are an object with all it requires."""
    tools = {tool["function"]["name"]: tool["function"] for tool in call.request.tools}
    if not tools:
        raise NotAnAnswer("the agent offers no tools in this call")
    if not call.request.may_call:
        raise NotAnAnswer("the agent asks for an answer without tool calls (tool_choice: none)")
    if name not in tools:
        raise NotAnAnswer(f"there is no tool {name!r}.{nearest(name, tools)} The agent offers: {', '.join(tools)}")
    given = parse_arguments(arguments)
    if given is None:
        raise NotAnAnswer(f"the arguments of {name} are not a JSON object{_explain_no_object(arguments)}: {arguments}")
    parameters = tools[name].get("parameters") or {}
    known = parameters.get("properties") or {}
    missing = [key for key in parameters.get("required") or () if key not in given]
    if missing:
        other = "".join(nearest(key, missing) for key in given if key not in known)
        raise NotAnAnswer(f"{name} needs {', '.join(map(repr, missing))}.{other} Its arguments: {', '.join(known)}")


def _parse(chat_format: ChatFormat, call: Call, text: str) -> ParsedMessage:
    """A text in front of `/call` lines taken apart. Where the prompt has opened reasoning, it is reasoning only if
    it closes it."""
    marks = find_opened_reasoning(chat_format, call)
    inside = marks is None or marks.closing in text
    tools: Sequence[Mapping[str, Any]] = call.request.tools
    return chat_format.parse_text(text, tools, prompt=call.prompt.ending if inside else "")


def _find_json_fault(content: str, mark: str) -> str:
    """The fault of the JSON behind `mark`; "" if it has none, or there is no JSON."""
    _, _, after = content.rpartition(mark)
    start = after.find("{")
    if start < 0:
        return ""
    try:
        json.JSONDecoder().raw_decode(after, start)
    except ValueError as error:
        return f" ({error})"
    return ""


def _explain_no_object(arguments: str) -> str:
    try:
        return f" but a JSON {type(json.loads(arguments)).__name__}"
    except (ValueError, RecursionError) as error:
        return f" ({error})"


def _make_generation(ids: Sequence[int]) -> Generation:
    return Generation(tuple(ids), (0.0,) * len(ids), policy_version=0, finish_reason="stop")
