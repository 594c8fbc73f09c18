"""A conversation written down in OpenAI's shape, block by block."""

from __future__ import annotations

from typing import Any

Content = str | list[dict[str, Any]]


class Conversation:
    """Takes what was said, thought, called and answered in its order; text and calls of the assistant that follow each
    other are one message.

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
        """Whether the last message is the assistant's and may go on."""
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
        message["content"] = content if said is None else _joined(said, content)

    def think(self, text: str) -> None:
        """Before the assistant's next words: a thought ends the message before it."""
        self.end()
        if text:
            self.thoughts.append({"step": self._answers + 1, "content": text})

    def call(self, call_id: str, name: str, arguments: str) -> None:
        called = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant().setdefault("tool_calls", []).append(called)
        self._called.add(call_id)

    def result(self, call_id: str, name: str, content: Content) -> None:
        """Of a call before it; one whose call is gone, as a history that was compressed has them, is left out."""
        self.end()
        if call_id in self._called:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    def end(self) -> None:
        """What comes next is another message."""
        self._open = False

    def _assistant(self) -> dict[str, Any]:
        if not self._open:
            self.messages.append({"role": "assistant", "content": None})
            self._open, self._answers = True, self._answers + 1
        return self.messages[-1]

    def whole(self) -> None:
        """Leaves out a thought that nothing followed."""
        self.thoughts = [thought for thought in self.thoughts if thought["step"] <= self._answers]


def _joined(first: Content, second: Content) -> Content:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    parts = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in (first, second)]
    return parts[0] + parts[1]
