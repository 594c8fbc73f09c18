"""Redaction of texts before they are written: `astune.online.redact`, a function of your own.

    def without_numbers(message):      # OpenAI's shape: role, content, tool_calls, reasoning_content, ...
        return {**message, "content": re.sub(r"\\d", "#", message["content"] or "")}

Messages go through it before anything is written; what the model reads and answers is not touched. Token ids spell
the text, so a request of which it changed a message is written without any and never trained.
"""

from __future__ import annotations

import copy
import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.errors import PluginError
from astune.plugins import load_plugin

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Redacted:
    """Messages that may be written. `changed`: at least one of them was changed, so no token ids may be written,
    neither of a prompt with that message nor of the answer."""

    messages: tuple[Message, ...]
    changed: bool


class Redactor:
    """Applies the plug-in, and fails closed: where it raises, or returns no message, nothing of the message is written.
    Without a plug-in everything is written as it is. `changes` counts messages, comments and corrections that are
    not written as they were, each time; `failures` those that the plug-in could not redact. Any thread may come; the
    plug-in is called by one at a time."""

    def __init__(self, function: Callable[[dict[str, Any]], object] | None) -> None:
        self._function = function
        self._calling = threading.Lock()
        self.changes = self.failures = 0

    @classmethod
    def of(cls, spec: str | None) -> Redactor:
        """The one that `astune.online.redact` names. Raises PluginError where it names no function."""
        function = None if spec is None else load_plugin(spec, kind="redaction plug-in")
        if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
            raise PluginError(f"astune.online.redact: {spec!r} is not a plain function of a message")
        return cls(function)

    def apply(self, messages: Sequence[Message]) -> Redacted:
        """Redact `messages`. The plug-in sees copies, so the caller's stay as they are.

        A request whose history is written already (`messages_kept`) needs no second look at it: it is redacted if
        the request it follows is, or if one of its new messages is changed here.
        """
        if self._function is None:
            return Redacted(tuple(messages), False)
        written: list[Message] = []
        failed = 0
        for message in messages:
            with self._calling:  # for each message: who waits, waits for no long conversation
                allowed = self._redact_message(self._function, message)
            failed += allowed is None
            role = message.get("role") if message.get("role") in ROLES else "user"
            written.append({"role": role, "content": ""} if allowed is None else allowed)
        changes = sum(new != dict(old) for new, old in zip(written, messages, strict=True))
        with self._calling:
            self.changes += changes
            self.failures += failed
        return Redacted(tuple(written), changes > 0 or failed > 0)

    def text(self, text: str | None, role: str = "user") -> str | None:
        """Redact a comment on an answer or, with role "assistant", a corrected answer; None if nothing may be
        written."""
        if text is None or self._function is None:
            return text
        content = self.apply([{"role": role, "content": text}]).messages[0].get("content")
        return content if isinstance(content, str) and content else None

    @staticmethod
    def _redact_message(function: Callable[[dict[str, Any]], object], message: Message) -> dict[str, Any] | None:
        try:
            allowed = function(copy.deepcopy(dict(message)))
            if not isinstance(allowed, Mapping) or allowed.get("role") not in ROLES:
                return None
            text = json.dumps(dict(allowed), allow_nan=False)
        except (Exception, SystemExit):  # its text may hold the message, so it is not even passed on
            return None
        plain: dict[str, Any] = json.loads(text)
        return plain
