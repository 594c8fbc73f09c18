"""What every reader makes of its source: conversations, their exchanges, and what was said of the answers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from astune.config.section import flatten
from astune.context_tracker.prompt.messages import REASONING_KEYS, show_content
from astune.online.follow.followed import Followed, FollowKind

Message = dict[str, Any]
"""In OpenAI's shape."""
GOOD = {"up", "thumb_up", "thumbs_up", "good", "like", "liked", "positive", "pass", "correct", "👍", "yes", "true", "1"}
BAD = {"down", "thumb_down", "thumbs_down", "bad", "dislike", "disliked", "negative", "fail", "incorrect", "👎", "no"}
BAD |= {"false", "0", "-1"}
YES = {"true", "yes", "y", "1", "given", "granted", "opt_in", "allow", "allowed", "agreed", "accepted"}
AGREED = {"consent", "consents", "consented", "optin"}
ALLOWED = {"allow", "allows", "allowed", "may", "can", "permit", "permitted", "agree", "agreed", "ok", "use", "for"}
REFUSED = {"no", "not", "dont", "never", "deny", "exclude", "out", "optout"}
ABOUT = {"date", "at", "time", "timestamp", "version", "id", "text", "url", "source", "by", "marketing", "cookies"}
ABOUT |= {"cookie", "analytics", "newsletter"}
"""Words of the names of flags that say whether a person agreed to training, or did not; with one of `ABOUT` it is not
that flag. Of a name with the word training, a word of `ALLOWED` is enough."""
PURPOSE = {"train", "training", "model", "improve", "improvement"}
"""The last name of a flag may have these alone, too."""
ROLES = ("system", "developer", "user", "assistant", "tool")
NAMES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "ai": "assistant"}
"""Roles as ShareGPT and others call them."""
_BLOCK = re.compile(r"TextBlock\(type='text', text=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")


@dataclass(frozen=True)
class ReadingRules:
    """How feedback and consent are read. `scale` of ratings: None is 1 to 5, of OpenTelemetry's scores 0 to 1.
    `consent` names the flag that must say yes. `evaluations` are the names of OpenTelemetry's that count; none: those
    of users."""

    scale: tuple[float, float] | None = None
    consent: str | None = None
    evaluations: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FeedbackInTrace:
    """What somebody said of an answer: `value` from 0 to 1, or a correction. `how` they said it."""

    how: str
    value: float | None = None
    correction: str | None = None


@dataclass
class TracedExchange:
    """What a user said, as the last of `messages`, and what came of it: calls of tools, results, and last the answer.
    Nothing where none came; `stopped` if the user did not wait for its end, or it broke."""

    place: str
    messages: list[Message]
    answer: list[Message]
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    feedback: list[FeedbackInTrace] = field(default_factory=list)
    followed: Followed | None = None
    stopped: bool = False

    @property
    def question(self) -> str:
        return show_content(self.messages[-1])


@dataclass
class TracedConversation:
    """Exchanges in their order. `consent` is None where nothing says whether the person agreed to training; `people`
    are the names that it is known to have."""

    source: str
    name: str
    exchanges: list[TracedExchange]
    consent: bool | None = None
    people: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Unread:
    """What a reader could not read or may not take. `reason` is one of `astune.data.made.REASONS`."""

    place: str
    why: str
    reason: str = "unread"


class UnreadableTrace(ValueError):
    """What stands there is no conversation that can be read."""


BROKEN = (AttributeError, KeyError, TypeError, ValueError)
"""What reading raises of JSON that has another shape, UnreadableTrace among them."""


def read_conversation(
    source: str, name: str, rows: Sequence[tuple[str, Any]], around: Mapping[str, Any], rules: ReadingRules
) -> TracedConversation:
    """The conversation of messages, each with its place: OpenAI's, or AgentScope's. Feedback and flags stand in a
    message, in its `metadata`, or `around` all, which is then feedback on the last answer. Raises BROKEN."""
    exchanges: list[TracedExchange] = []
    before: list[Message] = []
    tools = read_json(around.get("tools") or [], list)
    flags, people = _with_metadata(around), set[str]()
    for place, row in rows:
        if not isinstance(row, Mapping):
            raise UnreadableTrace(f"a message that is no object but {type(row).__name__}")
        flags += _with_metadata(row)
        for message in _messages(row):
            if message["role"] == "user" and (not exchanges or exchanges[-1].answer):
                exchanges.append(TracedExchange(place, [*before, message], [], tools))
            elif exchanges and message["role"] == "user":  # nothing was said between two messages: one question
                joined = "\n".join(map(show_content, (before.pop(), message)))
                message = exchanges[-1].messages[-1] = {"role": "user", "content": joined}
            elif exchanges and message["role"] in ("assistant", "tool"):
                exchanges[-1].answer.append(message)
            before.append(message)
        if row["role"] in ("user", "human") and isinstance(row.get("name"), str):
            people.add(row["name"])
        elif exchanges:
            exchanges[-1].feedback += [one for part in _with_metadata(row) for one in read_feedback(part, rules)]
            exchanges[-1].stopped = row.get("finished_reason") not in (None, "completed")
    if not exchanges:
        raise UnreadableTrace("no message of a user")
    exchanges[-1].feedback += [one for part in _with_metadata(around) for one in read_feedback(part, rules)]
    link(exchanges)
    return TracedConversation(source, name, exchanges, read_consent(flags, rules), frozenset(people))


def messages_of(row: Any) -> list[Any]:
    """The messages of an object of a chat log: in OpenAI's shape, or in ShareGPT's, `conversations` of `from` and
    `value`. Raises UnreadableTrace."""
    row = row if isinstance(row, Mapping) else {}
    names = ("messages", "conversations", "conversation")
    found = next((row[name] for name in names if isinstance(row.get(name), list)), None)
    if found is None:
        raise UnreadableTrace("neither a conversation, with a list `messages`, nor OTLP JSON")
    plain = [
        {**one, "role": one["from"], "content": one.get("value")} if isinstance(one, Mapping) and "from" in one else one
        for one in found
    ]
    return [{"role": "system", "content": row["system"]}, *plain] if isinstance(row.get("system"), str) else plain


def _with_metadata(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    metadata = row.get("metadata")
    return [row, metadata] if isinstance(metadata, Mapping) else [row]


def _messages(row: Mapping[str, Any]) -> list[Message]:
    role, content = NAMES.get(str(row.get("role")), row.get("role")), row.get("content")
    if role not in ROLES or not isinstance(content, str | list | None):
        raise UnreadableTrace(f"a message of role {role!r} with {type(content).__name__}")
    if isinstance(content, list) and role != "tool":
        return [*messages_of_parts(role, content)]
    kept = {key: row[key] for key in ("tool_calls", "tool_call_id", *REASONING_KEYS) if row.get(key)}
    return [{"role": role, "content": show_content(row), **kept}]


def link(exchanges: Sequence[TracedExchange]) -> None:
    """Say of each exchange what followed it; of the last, if it has an answer, that nothing did."""
    for one, after in pairwise([*exchanges, None]):
        assert one is not None, "none stands last"
        kind: FollowKind = "silence"
        if after is not None:  # an edited question is a message in much the same words
            kind = "retry" if after.messages == one.messages else "message"
        if one.answer:
            said = "" if after is None else after.question
            answer = show_content(one.answer[-1])
            one.followed = Followed(kind, one.question, answer, (one.messages[-1], *one.answer), said)


def messages_of_parts(role: str, parts: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """Messages of a list of parts: those of OpenTelemetry, or AgentScope's blocks. An answer that called tools in
    between is several. Raises UnreadableTrace for a part that is no text."""
    text: list[str] = []
    said: Message = {}
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind in ("text", "reasoning", "thinking"):
            content = next((str(part[name]) for name in ("content", "text", "thinking") if name in part), "")
            if kind == "text":
                text.append(content)
            else:
                said["reasoning_content"] = said.get("reasoning_content", "") + content
        elif kind == "tool_call":
            given = part.get("arguments", part.get("input", {}))
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            function = {"name": str(part.get("name")), "arguments": arguments}
            said.setdefault("tool_calls", []).append({"id": part.get("id"), "type": "function", "function": function})
        elif kind in ("tool_call_response", "tool_result"):
            if text or said:
                yield {"role": role, "content": "\n".join(text) or None, **said}
            text, said = [], {}
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": _result_text(part)}
        elif kind != "hint":
            raise UnreadableTrace(f"a part of type {kind!r}: expected text")
    if text or said:
        yield {"role": role, "content": "\n".join(text) or None, **said}


def _result_text(part: Mapping[str, Any]) -> str:
    """The text of a tool's result; AgentScope writes blocks into spans as Python shows them."""
    found = next((part[name] for name in ("response", "result", "output") if name in part), "")
    if isinstance(found, list):
        return "".join(str(block.get("text", "")) if isinstance(block, Mapping) else str(block) for block in found)
    blocks = _BLOCK.findall("".join(read_json(found, list))) if isinstance(found, str) and "TextBlock(" in found else []
    if blocks:
        return "".join(ast.literal_eval(block) for block in blocks)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def read_json(value: Any, kind: type) -> Any:
    """`value`, or what its text is as JSON. Raises UnreadableTrace for what is no `kind`."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise UnreadableTrace(f"not JSON: {error}") from error
    if not isinstance(found, kind):
        raise UnreadableTrace(f"expected a {kind.__name__}, found {type(found).__name__}")
    return found


def read_feedback(row: Mapping[str, Any], rules: ReadingRules) -> list[FeedbackInTrace]:
    """The feedback in a message or a line, by itself or under `feedback`: `thumb`, `rating`, `correction`. Raises
    UnreadableTrace for a value that means nothing."""
    inner = row.get("feedback")
    found = []
    for each in inner if isinstance(inner, list) else [] if inner is None else [inner]:
        found += read_feedback(each if isinstance(each, Mapping) else {"thumb": each}, rules)
    for name in ("thumb", "thumbs"):
        if row.get(name) is not None:
            found.append(FeedbackInTrace("thumb", read_label(row[name])))
    if row.get("rating") is not None:
        found.append(FeedbackInTrace("rating", on_scale(row["rating"], rules.scale or (1.0, 5.0))))
    if isinstance(row.get("correction"), str) and row["correction"].strip():
        found.append(FeedbackInTrace("correction", correction=row["correction"].strip()))
    return found


def read_label(value: Any) -> float:
    """1 for what is for an answer, 0 for what is against it."""
    word = _fold(value)
    if word not in GOOD | BAD:
        raise UnreadableTrace(f"feedback {value!r:.30}: expected up or down")
    return float(word in GOOD)


def on_scale(value: Any, scale: tuple[float, float]) -> float:
    """A number of a scale as one from 0 to 1."""
    low, high = scale
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise UnreadableTrace(f"rating {value!r:.30}: expected a number from {low:g} to {high:g} (--ratings)")
    return (value - low) / (high - low)


def read_consent(rows: Iterable[Mapping[str, Any]], rules: ReadingRules) -> bool | None:
    """Tell whether a person agreed to training, by the flags in `rows`, of whatever spelling: one that says no counts
    more. With `rules.consent` that flag alone counts, and where it is not there nobody agreed."""
    found = []
    for name, value in (flag for row in rows for flag in _flags(row)):
        sense = name == rules.consent if rules.consent is not None else _sense_of(name)
        if value is not None and sense is not None and (sense or rules.consent is None):
            said = [_fold(each) for each in (value if isinstance(value, list) else [value])]
            found.append(any(word in YES or word.startswith("train") for word in said) == sense)
    return all(found) if found else (None if rules.consent is None else False)


def _flags(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a row by their dotted names. A text in a list is a flag that is set, and `{key: ..., value: ...}`
    the flag of that key."""
    for name, value in flatten(row):
        yield name, value
        for each in value if isinstance(value, list) else ():
            if isinstance(each, str) and _sense_of(each) is False:
                yield each, True
            elif isinstance(each, Mapping) and "value" in each:
                yield str(each.get("key", each.get("name"))), each["value"]


def _fold(value: Any) -> str:
    return re.sub("[ -](?=[a-z])", "_", str(value).strip().casefold())


def _sense_of(name: str) -> bool | None:
    """True for a flag that says yes where a person agreed, False for one that says yes where not, None for others.

    >>> [_sense_of(name) for name in ("user.consent", "doNotTrain", "privacy.optedOut", "consent.date")]
    [True, False, False, None]
    """
    words, last = (_words(part) for part in (name, name.rpartition(".")[2]))
    training = any(word.startswith(("train", "improve")) for word in words)
    if words & ABOUT and not training:
        return None
    opted = words & {"opt", "opted", "optout"}
    if words & REFUSED and (training or opted):
        return False
    agrees = (
        words & AGREED or (opted and "in" in words) or (training and words & ALLOWED) or (training and last <= PURPOSE)
    )
    return True if agrees else None


def _words(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])|\W", "_", name).lower().split("_"))
