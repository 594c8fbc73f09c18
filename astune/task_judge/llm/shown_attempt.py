"""The text of a task, and of an attempt at it, that an LLM judge is shown.

    [user]
      What is 6 * 12?
    [assistant]
      calls multiply {"a": 6, "b": 12}
    [tool]
      72

The text of a message stands indented, so that nothing in it can pass for the line that names who speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.answer_text import answer_text, cut_off
from astune.task_judge.math.final_answer import extract_answer
from astune.types import Episode, StopReason, Task, Turn


@dataclass(frozen=True)
class ShownAttempt:
    """An attempt as the judge sees it. `text=None`: it has no answer, `missing` says why."""

    text: str | None
    missing: str = ""


def show_task(task: Task) -> str:
    """The question, or the conversation that the task starts from."""
    return conversation(task.messages) if len(task.messages) > 1 else task.query


def show_attempt(task: Task, episode: Episode, config: TaskJudgeConfig) -> ShownAttempt:
    """The final answer, or with `llm.shown: transcript` all that was said and the final answer behind it.

    With an `answer_format` other than "auto" only what that format marks is the answer. An attempt that ended in the
    middle has none. Raises `JudgeError` as `answer_text` does.
    """
    answer = answer_text(task, episode)
    if cut_off(episode, answer):
        return ShownAttempt(None, "the answer was cut off before it ended")
    if config.answer_format != "auto":
        final = extract_answer(answer, config.answer_format)
        if final is None:
            return ShownAttempt(None, f"no answer in the format {config.answer_format!r}")
        answer = final.text
    if config.llm.shown == "transcript" and episode.turns and episode.stop_reason is StopReason.COMPLETED:
        said = indent(answer.strip() or "(none)")
        return ShownAttempt(f"{transcript(episode.turns)}\n\n=== final answer ===\n{said}")
    if not answer.strip():
        return ShownAttempt(None, "no answer")
    return ShownAttempt(answer)


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
    """True if the messages of `later` are those of `turn` and more."""
    return len(later.messages) > len(turn.messages) and later.messages[: len(turn.messages)] == turn.messages


def _message(message: Message) -> str:
    name = message.get("name")
    lines = [f"[{message.get('role', 'assistant')}{f' {name}' if name else ''}]"]
    text = content_text(message.get("content"))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        text += f"\ncalls {function.get('name')} {function.get('arguments')}"
    return "\n".join([*lines, indent(text)]) if text.strip() else lines[0]


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip("\n").splitlines())


def content_text(content: Any) -> str:
    """The text of a message's content, whether it is one text or a list of parts; other parts go by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part["text"]) if "text" in part else f"({part.get('type')})" for part in content)
