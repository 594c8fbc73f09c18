"""Prompts built from the tokens that were sent and sampled before, so that nothing is tokenized twice.

A chat request repeats the whole conversation. Tokenizing it again need not give the tokens that were sampled
(the model writes `{"x":1}`, the template writes `{"x": 1}`), and the agent may have dropped the reasoning.
So the new prompt is the old tokens plus the tokens of what the template writes after the last answer:

    sent      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    sampled   Hello<|im_end|>
    rest      \n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n     only this is tokenized

It works from renderings, for any template. Where the template writes the earlier part differently now (Qwen3
drops reasoning once a new user message comes), the whole is rendered anew, and the prompt says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.context_tracker.chat_format import ChatFormat
from astune.context_tracker.messages import prefix_keys, reasoning_of, same_arguments
from astune.context_tracker.tool_calls import ParsedMessage
from astune.token_ids import TokenIds

REASONING_STRIPPED = "reasoning_stripped"
TOOLS_CHANGED = "tools_changed"
HISTORY_EDITED = "history_edited"
NOT_APPEND_ONLY = "template_not_append_only"

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """Token ids to send, and why they do not extend an earlier conversation.

    `fork` is None for the first prompt and for a pure extension, else
    - "reasoning_stripped": the template drops reasoning that was sampled;
    - "tools_changed": the conversation goes on with other tools;
    - "history_edited": the history holds an assistant message that was not sampled in this place;
    - "template_not_append_only": the template writes earlier messages differently now.

    The other fields are what `PromptBuilder.record` needs: the messages as they were rendered (dropped
    reasoning put back), the template's own text of them, and the text of `ids`.
    """

    ids: TokenIds
    fork: str | None
    messages: tuple[Message, ...] = field(repr=False)
    tools: tuple[Message, ...] = field(repr=False)
    rendering: str = field(repr=False)
    text: str = field(repr=False)


@dataclass(frozen=True)
class _Conversation:
    """A prompt and its sampled answer. `messages` ends with the answer; `text` is the text of `ids`."""

    messages: tuple[Message, ...]
    tools: str
    rendering: str
    answer: ParsedMessage
    closed: bool
    ids: TokenIds
    text: str


class PromptBuilder:
    """Builds prompts from earlier conversations of the same agent. Invariant: `prompt.ids` is what is to be sent.

    prompt = builder.build("solver", messages, tools)
    output_ids = sample(prompt.ids)
    builder.record("solver", prompt, output_ids, answer_message)
    """

    def __init__(self, chat_format: ChatFormat) -> None:
        self._format = chat_format
        self._conversations: dict[str, dict[bytes, list[_Conversation]]] = {}

    def record(self, agent: str, prompt: Prompt, output_ids: Sequence[int], answer: Message) -> None:
        """Remember that `output_ids` was sampled after `prompt` and given to the agent as `answer`."""
        messages = (*prompt.messages, answer)
        conversation = _Conversation(
            messages=messages,
            tools=_tools_key(prompt.tools),
            rendering=prompt.rendering,
            answer=self._format.parse(output_ids, prompt.tools),
            closed=bool(output_ids) and output_ids[-1] in self._format.stop_token_ids,
            ids=prompt.ids + output_ids,
            text=prompt.text + self._format.decode(output_ids),
        )
        self._conversations.setdefault(agent, {}).setdefault(prefix_keys(messages)[-1], []).append(conversation)

    def build(self, agent: str, messages: Sequence[Message], tools: Sequence[Message] = ()) -> Prompt:
        """The prompt for `messages`, from the longest earlier conversation with equal tools that they continue.

        Earlier messages are compared in meaning (see `messages.prefix_keys`); reasoning that the agent
        dropped is put back, so that the template decides whether it stays.
        """
        tools_key = _tools_key(tools)
        known: tuple[Message, ...] = ()
        base = None
        for conversation in self._continued(agent, messages):
            known = known or conversation.messages
            if conversation.tools == tools_key:
                base = conversation
                break
        full = (*known, *messages[len(known) :])
        rendering = self._format.render(full, tools)
        rest = None if base is None else self._rest(base, rendering, tools)
        fork = None
        if len(known) > (0 if base is None else len(base.messages)):
            fork = TOOLS_CHANGED
        elif base is not None and rest is None:
            fork = self._cause(base, rendering, tools)
        elif agent in self._conversations and any(message.get("role") == "assistant" for message in full[len(known) :]):
            fork = HISTORY_EDITED
        if base is None or rest is None:
            ids, text = TokenIds(self._format.encode(rendering)), rendering
        else:
            ids, text = base.ids + self._format.encode(rest), base.text + rest
        return Prompt(ids, fork, full, tuple(tools), rendering, text)

    def _continued(self, agent: str, messages: Sequence[Message]) -> Iterator[_Conversation]:
        """Earlier conversations that `messages` continues: longest first, newest first among equals."""
        stored = self._conversations.get(agent, {})
        for key in reversed(prefix_keys(messages)) if stored else ():
            for conversation in reversed(stored.get(key, ())):
                if all(map(_same_reasoning, messages, conversation.messages)):
                    yield conversation

    def _rest(self, base: _Conversation, rendering: str, tools: Sequence[Message]) -> str | None:
        """What `rendering` holds after the answer of `base`; None if it does not hold the whole of `base`.

        Either the exact text of what was sent and sampled is there, or the template's own text of the prompt
        is there and the answer after it reads the same (arguments in another JSON layout, white space trimmed).
        """
        if rendering.startswith(base.text):
            return rendering[len(base.text) :]
        segment = self._answer_segment(base, rendering)
        if segment is None or not _same_answer(self._format.parse_text(segment, tools), base.answer):
            return None
        close = self._format.close_token or ""
        return rendering[len(base.rendering) + len(segment) + (len(close) if base.closed else 0) :]

    def _answer_segment(self, base: _Conversation, rendering: str) -> str | None:
        """The template's own text of the answer of `base`, up to the token that closes it."""
        close = self._format.close_token
        if close is None or not rendering.startswith(base.rendering):
            return None
        end = rendering.find(close, len(base.rendering))
        return None if end < 0 else rendering[len(base.rendering) : end]

    def _cause(self, base: _Conversation, rendering: str, tools: Sequence[Message]) -> str:
        """Why `rendering` does not extend `base`."""
        segment = self._answer_segment(base, rendering)
        if segment is not None:
            lost = base.answer.reasoning is not None and self._format.parse_text(segment, tools).reasoning is None
            return REASONING_STRIPPED if lost else NOT_APPEND_ONLY
        place = _first_difference(base.rendering, rendering)
        opening = "<think>"  # the texts may share its first characters, as in "<think>" and "<tool_call>"
        starts = range(max(0, place - len(opening) + 1), place + 1)
        return REASONING_STRIPPED if any(base.rendering.startswith(opening, i) for i in starts) else NOT_APPEND_ONLY


def _tools_key(tools: Sequence[Message]) -> str:
    """Equal for tools that every template writes equally."""
    return json.dumps(list(tools))


def _same_reasoning(sent: Message, sampled: Message) -> bool:
    """Whether the agent kept the reasoning as it was, or dropped it."""
    reasoning = reasoning_of(sent)
    return not reasoning or reasoning.strip() == (reasoning_of(sampled) or "").strip()


def _same_answer(written: ParsedMessage, sampled: ParsedMessage) -> bool:
    """Whether the template's text of an answer says what was sampled; an empty reasoning block counts as one."""
    if (written.reasoning is None) != (sampled.reasoning is None) or len(written.tool_calls) != len(sampled.tool_calls):
        return False
    calls = zip(written.tool_calls, sampled.tool_calls, strict=True)
    return (
        (written.content or "").strip() == (sampled.content or "").strip()
        and (written.reasoning or "").strip() == (sampled.reasoning or "").strip()
        and all(left.name == right.name and same_arguments(left.arguments, right.arguments) for left, right in calls)
    )


def _first_difference(left: str, right: str) -> int:
    """The length of the longest common prefix, by bisection."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low
