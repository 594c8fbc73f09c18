"""Reads OpenTelemetry's spans of agents and models, with attributes `gen_ai.*`, from OTLP JSON: what a collector's file
exporter writes, or the body of a request to it.

An exchange is the newest `chat` span of a trace, which holds the conversation up to its answer; without one, the
`invoke_agent` span. Feedback is an event `gen_ai.evaluation.result`, as a log record, within a span or as one, of any
span of the trace, or of the answer with its `gen_ai.response.id`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from astune.traces.record import (
    BROKEN,
    FeedbackInTrace,
    Message,
    ReadingRules,
    TracedConversation,
    TracedExchange,
    Unread,
    UnreadableTrace,
    link,
    messages_of_parts,
    on_scale,
    read_consent,
    read_json,
    read_label,
)

EVALUATION = "gen_ai.evaluation.result"
OF_USERS = ("user", "feedback", "thumb", "rating", "correction")
"""Parts of the names of evaluations that people make; others are judges' and may mean the opposite."""
NO_SESSION = "[no_session_id]"
"""What AgentScope writes for none."""


def is_otlp(row: Mapping[str, Any]) -> bool:
    """True for a line of spans or log records."""
    return bool(row.keys() & {"resourceSpans", "resourceLogs"})


@dataclass
class _Trace:
    place: str = ""
    spans: list[dict[str, Any]] = field(default_factory=list)
    flags: list[dict[str, Any]] = field(default_factory=list)


class _Spans:
    """Spans and evaluations as they come, in any order and from several files."""

    def __init__(self) -> None:
        self.traces: dict[str, _Trace] = defaultdict(_Trace)
        self.evaluations: list[tuple[str, dict[str, Any]]] = []
        """The trace, and the attributes."""

    def add(self, place: str, row: Mapping[str, Any]) -> None:
        for kind, scopes, items in (("Spans", "scopeSpans", "spans"), ("Logs", "scopeLogs", "logRecords")):
            for resource in row.get(f"resource{kind}", []):
                flags = _attributes(resource.get("resource", {}))
                for scope in resource.get(scopes, []):
                    for item in scope.get(items, []):
                        self._add_item(place, item, flags)

    def _add_item(self, place: str, item: Mapping[str, Any], flags: dict[str, Any]) -> None:
        attributes, trace = _attributes(item), str(item.get("traceId") or item.get("spanId", ""))
        if "gen_ai.evaluation.name" in attributes or EVALUATION in (item.get("eventName"), item.get("name")):
            self.evaluations.append((trace, attributes))
        elif "spanId" in item and any(name.startswith(("gen_ai.", "llm.")) for name in attributes):
            found = self.traces[trace]
            found.place = found.place or place
            found.spans.append({**attributes, "end": int(item.get("endTimeUnixNano") or 0)})
            found.flags += [flags, attributes]
            events = (event for event in item.get("events", []) if event.get("name") == EVALUATION)
            self.evaluations += [(trace, _attributes(event)) for event in events]


def read_spans(
    lines: Iterable[tuple[str, Mapping[str, Any]]], rules: ReadingRules
) -> Iterator[TracedConversation | Unread]:
    """The conversations of spans; those of traces without a conversation's id are of one exchange."""
    spans = _Spans()
    for line in lines:
        try:
            spans.add(*line)
        except BROKEN as error:
            yield Unread(line[0], f"no OTLP JSON: {error}")
    said, unread = _match(spans, rules)
    yield from unread
    found: dict[str, list[tuple[int, TracedExchange, _Trace]]] = defaultdict(list)
    for name, trace in spans.traces.items():
        trace.spans.sort(key=lambda span: span["end"])
        try:
            exchange = _exchange(trace)
        except BROKEN as error:
            yield Unread(f"{trace.place} trace {name}", str(error))
            continue
        exchange.feedback = said[name]
        ids = [span["gen_ai.conversation.id"] for span in trace.spans if "gen_ai.conversation.id" in span]
        known = ids and ids[0] != NO_SESSION
        found[str(ids[0]) if known else f"trace {name}"].append((trace.spans[-1]["end"], exchange, trace))
    for conversation, parts in found.items():
        parts.sort(key=lambda part: part[0])
        consent = read_consent([flags for _, _, trace in parts for flags in trace.flags], rules)
        names = {str(message.pop("name")) for _, one, _ in parts for message in one.messages if "name" in message}
        exchanges = [one for _, one, _ in parts]
        link(exchanges)
        yield TracedConversation("spans", conversation, exchanges, consent, frozenset(names))


def _match(spans: _Spans, rules: ReadingRules) -> tuple[dict[str, list[FeedbackInTrace]], list[Unread]]:
    """The feedback of each trace, and what cannot be read, is of no trace, or does not count."""
    of_answer = {
        str(span["gen_ai.response.id"]): name
        for name, trace in spans.traces.items()
        for span in trace.spans
        if "gen_ai.response.id" in span
    }
    said, unread = defaultdict[str, list[FeedbackInTrace]](list), list[Unread]()
    for trace, attributes in spans.evaluations:
        name = str(attributes.get("gen_ai.evaluation.name", ""))
        owner = trace if trace in spans.traces else of_answer.get(str(attributes.get("gen_ai.response.id")))
        counts = name in rules.evaluations if rules.evaluations else any(part in name.casefold() for part in OF_USERS)
        try:
            if not counts:
                raise UnreadableTrace("not by a user, it seems: name it with --evaluation if it counts")
            if owner is None:
                raise UnreadableTrace("of no span that is here")
            said[owner].append(_feedback(name, attributes, rules))
        except UnreadableTrace as error:
            unread.append(Unread(f"evaluation {name!r} of trace {trace or owner}", str(error), "evaluation"))
    return said, unread


def _feedback(name: str, attributes: Mapping[str, Any], rules: ReadingRules) -> FeedbackInTrace:
    words, label = attributes.get("gen_ai.evaluation.explanation"), attributes.get("gen_ai.evaluation.score.label")
    if "correction" in name.casefold():
        if not isinstance(words, str) or not words.strip():
            raise UnreadableTrace("a correction without gen_ai.evaluation.explanation, which is to hold it")
        return FeedbackInTrace(name, correction=words.strip())
    score = attributes.get("gen_ai.evaluation.score.value")
    return FeedbackInTrace(name, read_label(label) if score is None else on_scale(score, rules.scale or (0.0, 1.0)))


def _exchange(trace: _Trace) -> TracedExchange:
    by_kind = {str(span.get("gen_ai.operation.name")): span for span in trace.spans if "gen_ai.input.messages" in span}
    span = by_kind.get("chat") or by_kind.get("invoke_agent")
    if span is None:
        raise UnreadableTrace(
            "no gen_ai.input.messages: an older convention, or the content of messages was not recorded"
        )
    system = read_json(span.get("gen_ai.system_instructions", []), list)
    messages = [*messages_of_parts("system", system), *_messages(span, "gen_ai.input.messages")]
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not places:
        raise UnreadableTrace("no message of a user")
    asked = places[-1] + 1
    answer = [*messages[asked:], *_messages(span, "gen_ai.output.messages")]
    tools: list[Mapping[str, Any]] = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in read_json(span.get("gen_ai.tool.definitions", []), list)
    ]
    reasons = str(span.get("gen_ai.response.finish_reasons", ""))
    stopped = "interrupted" in reasons or not answer
    return TracedExchange(trace.place, messages[:asked], answer, tools, stopped=stopped)


def _messages(span: Mapping[str, Any], name: str) -> Iterator[Message]:
    for message in read_json(span.get(name, []), list):
        for one in messages_of_parts(message["role"], message.get("parts", [])):
            named = one["role"] == "user" and message.get("name")
            yield {**one, "name": message["name"]} if named else one


def _attributes(item: Mapping[str, Any]) -> dict[str, Any]:
    return {str(one.get("key")): _value(one.get("value", {})) for one in item.get("attributes", [])}


def _value(value: Mapping[str, Any]) -> Any:
    """The content of an AnyValue of OTLP JSON."""
    for kind, held in value.items():
        if kind == "arrayValue":
            return [_value(each) for each in held.get("values", [])]
        if kind == "kvlistValue":
            return _attributes({"attributes": held.get("values", [])})
        return int(held) if kind == "intValue" else held
    return None
