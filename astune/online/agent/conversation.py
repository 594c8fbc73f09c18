"""A conversation written down in OpenAI's shape, block by block."""

from __future__ import annotations

from typing import Any

Content = str | list[dict[str, Any]]


class Conversation:
    """Takes texts, thoughts, tool calls and their results in order; consecutive texts and calls of the assistant are
    one message.

    >>> written = Conversation()
    >>> written.say("user", "Where?"); written.think("I should look."); written.call("c1", "look", "{}")
    >>> written.result("c1", "look", "there"); written.say("assistant", "There.")
    >>> [message["role"] for message in written.messages]
    ['user', 'assistant', 'tool', 'assistant']
    >>> written.thoughts
    [{'step': 1, 'content': 'I should look.'}]
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.thoughts: list[dict[str, Any]] = []
        self._open = False
        """True while the last message is the assistant's and may go on."""
        self._answers = 0
        self._called: set[str] = set()

    def say(self, role: str, content: Content) -> None:
        if not content:
            return
        if role != "assistant":
            self.end()
            self.messages.append({"role": role, "content": content})
            return
        message = self._assistant()
        said = message["content"]
        if said is None:
            message["content"] = content
        elif isinstance(said, str) and isinstance(content, str):
            message["content"] = said + content
        else:
            parts = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in (said, content)]
            message["content"] = parts[0] + parts[1]

    def think(self, text: str) -> None:
        """Add a thought, which ends the message before it and belongs to the assistant's next one."""
        self.end()
        if text:
            self.thoughts.append({"step": self._answers + 1, "content": text})

    def call(self, call_id: str, name: str, arguments: str) -> None:
        called = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant().setdefault("tool_calls", []).append(called)
        self._called.add(call_id)

    def result(self, call_id: str, name: str, content: Content) -> None:
        """Add the result of an earlier call. A result whose call is missing, as in a compressed history, is left
        out."""
        self.end()
        if call_id in self._called:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    def end(self) -> None:
        """End the message: the next block begins another."""
        self._open = False

    def _assistant(self) -> dict[str, Any]:
        if not self._open:
            self.messages.append({"role": "assistant", "content": None})
            self._open, self._answers = True, self._answers + 1
        return self.messages[-1]

    def whole(self) -> None:
        """Drop a thought at the end that no message followed."""
        self.thoughts = [thought for thought in self.thoughts if thought["step"] <= self._answers]
