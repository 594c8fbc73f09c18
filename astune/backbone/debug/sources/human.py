"""Let a person type the model's answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from astune.backbone.debug.sources.typed_answer import NotAnAnswer, message_answer, raw_answer, read_call
from astune.backbone.debug.terminal import Terminal
from astune.context_tracker.calls import Answer, Call, read_answer
from astune.context_tracker.prompt.messages import content_text
from astune.context_tracker.scripted_policy import cut_short
from astune.errors import PolicyError, nearest
from astune.support.terminal import Text
from astune.types import Generation, Sampling

HELP = {
    "TEXT": "the answer, in one line",
    "/call NAME {arguments}": "call a tool, arguments in JSON; several lines are several calls, an empty line sends",
    "/think TEXT": "reasoning before the answer",
    "/raw": "the raw text of the answer, markup included; a line . sends it",
    "/undo": "take the last /call or /think back",
    "/tools": "what the agent lets the model call",
    "/messages": "what the agent sent",
    "/help": "this list",
}
RAW_HELP = "markup included; . sends, '.3 TEXT' replaces line 3, .cancel goes back"
_COMMANDS = tuple(usage.split()[0] for usage in HELP if usage.startswith("/"))
_REPLACE = re.compile(r"\.(\d+)(?: (.*))?")


@dataclass
class _Draft:
    """One answer, as far as it was typed."""

    call: Call
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)

    def message(self, text: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        return message | ({"tool_calls": self.calls} if self.calls else {})


class HumanSource:
    """Stands in for the policy. Everything else waits while a person types; what cannot be sent is asked again."""

    is_policy = True

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._welcomed = False

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        """Raises PolicyError at the end of the input, and Interrupted for Ctrl-C."""
        if not self._welcomed:
            self._say("You are the model: type its answer in one line, or /help.")
            self._welcomed = True
        draft = _Draft(call)
        generation = None
        while generation is None:
            line = self._ask("more> " if draft.calls or draft.reasoning else "answer> ", call)
            try:
                generation = self._take(draft, line)
            except NotAnAnswer as reason:
                self._say(f"Not sent: {reason}", style="red")
        output_ids, finish_reason = cut_short(generation.output_ids, sampling, call.chat_format.decode)
        if finish_reason == "length":
            self._say(f"Cut after {sampling.max_tokens} tokens, as a model's answer would be.")
        logprobs = generation.logprobs[: len(output_ids)]
        sent = replace(generation, output_ids=output_ids, logprobs=logprobs, finish_reason=finish_reason)
        return read_answer(call, sent)

    def _take(self, draft: _Draft, line: str) -> Generation | None:
        """The answer if `line` completes it."""
        command, _, rest = line.strip().partition(" ")
        if command == "/call":
            draft.calls.append(read_call(line, draft.call))
        elif command == "/think":
            draft.reasoning.append(rest)
        elif command == "/raw":
            return self._raw(draft)
        elif command == "/undo":
            kept = draft.calls or draft.reasoning
            if not kept:
                raise NotAnAnswer("there is nothing to take back")
            kept.pop()
        elif command in ("/help", "/tools", "/messages"):
            self._show(command, draft.call)
        elif command.startswith("/"):
            raise NotAnAnswer(f"there is no {command}.{nearest(command, _COMMANDS)} /help lists what there is")
        elif command or draft.calls:
            if draft.call.request.prompt is not None or (draft.call.prompt.answer_start and not draft.calls):
                return raw_answer(draft.call.chat_format, draft.call, line)
            return message_answer(draft.call.chat_format, draft.call, draft.message(line if line.strip() else None))
        else:
            self._say("Type the answer in one line, or /help.")
        return None

    def _raw(self, draft: _Draft) -> Generation | None:
        """Lines up to one that is a dot. Those that cannot be sent are kept, to be corrected."""
        self._say(f"The raw text of the answer, {RAW_HELP}.")
        self._say(self._number_lines(draft.raw))
        while (line := self._ask("raw> ", draft.call)) != ".cancel":
            place = _REPLACE.fullmatch(line)
            if line == ".":
                try:
                    return raw_answer(draft.call.chat_format, draft.call, "\n".join(draft.raw))
                except NotAnAnswer as reason:
                    self._say(f"Not sent: {reason}", style="red")
                    self._say(self._number_lines(draft.raw))
            elif place is not None and 0 < int(place[1]) <= len(draft.raw):
                draft.raw[int(place[1]) - 1] = place[2] or ""
            else:
                draft.raw.append(line)
        return None

    def _show(self, command: str, call: Call) -> None:
        if command == "/help":
            for usage, meaning in HELP.items():
                self._say(f"  {usage:<24} {meaning}")
        elif command == "/tools":
            self._say("\n".join(_list_tools(call)) or "  The agent offers no tools in this call.")
        else:
            self._say("\n".join(_list_messages(call)))

    def _ask(self, prompt: str, call: Call) -> str:
        line = self._terminal.ask(prompt)
        if line is None:
            raise PolicyError(f"model call {call.number + 1} of agent {call.agent!r} has no answer: the input ended")
        return line

    def _number_lines(self, lines: list[str]) -> str:
        return "\n".join(f"{number:>3} {line}" for number, line in enumerate(lines, 1))

    def _say(self, text: str, style: str = "dim") -> None:
        if text:
            self._terminal.console.print(Text(text, style), soft_wrap=True)


def _list_tools(call: Call) -> Iterable[str]:
    for tool in call.request.tools:
        function = tool["function"]
        parameters = function.get("parameters") or {}
        required = parameters.get("required") or ()
        yield f"  {function['name']}: {function.get('description') or 'no description'}"
        for name, schema in (parameters.get("properties") or {}).items():
            yield f"    {name}{'' if name in required else ' (optional)'}: {json.dumps(schema, ensure_ascii=False)}"


def _list_messages(call: Call) -> Iterable[str]:
    if call.request.prompt is not None:
        yield "  a raw prompt"
    for message in call.request.messages:
        yield f"  [{message.get('role')}] {content_text(message)}".replace("\n", "\n    ")
        for one in message.get("tool_calls") or ():
            yield f"    calls {one['function']['name']} {one['function']['arguments']}"
