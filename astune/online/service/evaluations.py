"""OpenTelemetry in: `gen_ai.evaluation.result` events of a collector (OTLP/HTTP, JSON) as bodies of feedback.

    {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"eventName": "gen_ai.evaluation.result", "attributes": [
        {"key": "gen_ai.response.id", "value": {"stringValue": "chatcmpl-5e1f_0"}},
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "tone"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.8}}]}]}]}]}

Other log records are left alone, and so are events that this service sent itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astune.online.store.feedback.states import UNNAMED
from astune.online.telemetry import EVALUATION, KIND
from astune.online.wire import WireError

NAME, VALUE, LABEL = (f"gen_ai.evaluation.{last}" for last in ("name", "score.value", "score.label"))
LABELS: Mapping[str, str] = {
    "pass": "up",
    "positive": "up",
    "good": "up",
    "fail": "down",
    "negative": "down",
    "bad": "down",
}
"""Labels that are as good as a thumb."""
NO_NAMES = ("", UNNAMED, "user_feedback")
"""Names of a score that is the reward without a name."""
MOST_EVENTS = 1000
"""Events of one body."""


def read_evaluations(body: object) -> list[dict[str, Any]]:
    """The events of a body of `/v1/logs`, each as a body of `/feedback`. Raises WireError for what is no such body."""
    found = [_to_feedback(record) for record in _records(body) if _is_evaluation(record)]
    if len(found) > MOST_EVENTS:
        raise WireError(f"{len(found)} events in one body; at most {MOST_EVENTS}", "resourceLogs")
    return found


def _records(body: object) -> Iterator[Mapping[str, Any]]:
    places = [("", body)]
    for name in ("resourceLogs", "scopeLogs", "logRecords"):
        below = []
        for path, each in places:
            some = each.get(name, []) if isinstance(each, Mapping) else None
            if not isinstance(some, list):
                raise WireError(
                    f"{path or 'the body'}: expected an object with a list {name!r}, as OTLP's JSON has it", name
                )
            below += [(f"{name}[{number}]", one) for number, one in enumerate(some)]
        places = below
    for path, record in places:
        if not isinstance(record, Mapping):
            raise WireError(f"{path}: expected an object, got {record!r:.100}", path)
        yield record


def _is_evaluation(record: Mapping[str, Any]) -> bool:
    its = _attributes(record)
    return EVALUATION in (record.get("eventName"), its.get("event.name")) and KIND not in its


def _attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name; integers are texts in OTLP's JSON."""
    found: dict[str, Any] = {}
    for each in record.get("attributes") or ():
        if isinstance(each, Mapping) and isinstance(each.get("value"), Mapping):
            for kind, value in each["value"].items():
                is_number = kind in ("intValue", "doubleValue") and isinstance(value, str | int | float)
                found[str(each.get("key"))] = _number(value) if is_number else value
    return found


def _number(value: Any) -> Any:
    try:
        return float(value)
    except ValueError:
        return value


def _to_feedback(record: Mapping[str, Any]) -> dict[str, Any]:
    its = _attributes(record)
    name, value, label = its.get(NAME, ""), its.get(VALUE), str(its.get(LABEL, "")).lower()
    said: dict[str, Any] = {"msg_ids": [its["gen_ai.response.id"]] if "gen_ai.response.id" in its else []}
    if value is None and label in LABELS:
        said["thumb"] = LABELS[label]
    elif value is not None:
        said |= {"reward": value} if name in NO_NAMES else {"rewards": {name: value}}
    for key, ours in (("gen_ai.evaluation.explanation", "comment"), ("user.id", "user")):
        if its.get(key):
            said[ours] = its[key]
    return said
