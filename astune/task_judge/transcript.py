"""Messages as a text that a judge, or a person, can read.

    [user]
      What is 6 * 12?
    [assistant]
      calls multiply {"a": 6, "b": 12}
    [tool]
      72

What is said stands indented, so that nothing in it can pass for the line that names who speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astune.types import Turn

Message = Mapping[str, Any]


def conversation(messages: Sequence[Message]) -> str:
    """Role, text, tool calls and tool results, in OpenAI's shape; without the reasoning of models that report it."""
    return "\n".join(_message(message) for message in messages)


def transcript(turns: Sequence[Turn]) -> str:
    """All that was said to and by the agents of an episode, agent by agent in the order in which they came in.

    A conversation is shown once, as its last call has it. One that an agent began anew, or whose history was rewritten,
    is another one.
    """
    agents = list(dict.fromkeys(turn.agent for turn in turns))
    parts = []
    for agent in agents:
        own = sorted((turn for turn in turns if turn.agent == agent), key=lambda turn: turn.call)
        for turn in own:
            if not any(_continues(later, turn) for later in own):
                head = [f"=== {agent} ==="] if len(agents) > 1 else []
                parts.append("\n".join([*head, conversation([*turn.messages, turn.response])]))
    return "\n\n".join(parts)


def _continues(later: Turn, turn: Turn) -> bool:
    """Whether the messages of `later` have those of `turn` and more."""
    return len(later.messages) > len(turn.messages) and later.messages[: len(turn.messages)] == turn.messages


def _message(message: Message) -> str:
    name = message.get("name")
    lines = [f"[{message.get('role', 'assistant')}{f' {name}' if name else ''}]"]
    text = content_text(message.get("content"))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        text += f"\ncalls {function.get('name')} {function.get('arguments')}"
    return "\n".join([*lines, indented(text)]) if text.strip() else lines[0]


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip("\n").splitlines())


def content_text(content: Any) -> str:
    """The text of a message's content, whether it is one text or a list of parts; other parts go by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part["text"]) if "text" in part else f"({part.get('type')})" for part in content)
