"""Databases of other kinds and schemas, and spans that AgentScope does not write."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from astune.config.schema import AstuneConfig
from astune.errors import StoreError, TaskError
from astune.store.database import open_database
from astune.traces.convert import TraceHarvest
from astune.traces.record import ReadingRules
from astune.traces.run import TraceJob, make_from_traces
from astune.traces.spans import EVALUATION


def harvest_of(source: Path, rules: ReadingRules | None = None) -> TraceHarvest:
    return make_from_traces(TraceJob(str(source), Path("out.jsonl"), rules or ReadingRules()), AstuneConfig())


def test_databases_that_are_none_of_ours_are_told(tmp_path: Path) -> None:
    def fails(name: str, statements: str, match: str) -> None:
        with sqlite3.connect(tmp_path / name) as connection:
            connection.executescript(statements)
        connection.close()
        with pytest.raises((TaskError, StoreError), match=match):
            harvest_of(tmp_path / name)

    other = "CREATE TABLE sessions (id, user_id, payload); CREATE TABLE messages (session_id, msg_id, {});"
    fails("other.db", "CREATE TABLE span_table (id)", "neither the tables.*it has span_table")
    fails("older.db", other.format("body"), "table messages has no created_at, payload")
    fails("empty.db", other.format("created_at, payload"), "no conversation could be read")
    rows = "INSERT INTO messages VALUES ('s', 'm', '2026-01-01', 'no JSON');"
    fails("broken.db", other.format("created_at, payload") + rows, "session s: not JSON")
    (tmp_path / "cut.db").write_bytes(b"SQLite format 3\0 and no more")
    with pytest.raises(StoreError, match="cannot be read"):
        harvest_of(tmp_path / "cut.db")
    open_database(f"sqlite:///{tmp_path}/online.db").close()
    with pytest.raises(TaskError, match="no conversation could be read"):
        harvest_of(tmp_path / "online.db")


def test_who_refused_in_a_session_of_the_agent_service_is_left_out(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "metadata": {"thumb": "up"}}]
    with sqlite3.connect(tmp_path / "service.db") as connection:
        connection.execute("CREATE TABLE sessions (id, user_id, payload)")
        connection.execute("CREATE TABLE messages (session_id, msg_id, created_at, payload)")
        for name, about in (("a", {"privacy": {"training": False}}), ("b", {})):
            connection.execute("INSERT INTO sessions VALUES (?, 'ana', ?)", (name, json.dumps(about)))
            rows = [(name, str(number), number, json.dumps(message)) for number, message in enumerate(messages)]
            connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", rows)
    connection.close()
    found = harvest_of(tmp_path / "service.db")
    assert [made.lineage["trace"]["conversation"] for made in found.kept] == ["b"]
    assert [one.reason for one in found.dropped] == ["no consent"]


def attributes(**said: Any) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", float: "doubleValue", bool: "boolValue"}
    return [{"key": f"gen_ai.{key}", "value": {kinds[type(value)]: value}} for key, value in said.items()]


def words(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def span(number: int, asked: str, said: str, *, events: Any = (), **more: Any) -> dict[str, Any]:
    about = {"conversation.id": "c", "operation.name": "chat", "response.id": f"r{number}", **more}
    told = {"input.messages": words("user", asked), "output.messages": words("assistant", said)}
    found = {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "endTimeUnixNano": str(number)}
    return {**found, "attributes": attributes(**about, **told), "events": [*events]}


def event(name: str, **said: Any) -> dict[str, Any]:
    return {"name": EVALUATION, "attributes": attributes(**{"evaluation.name": name}, **said)}


def written(path: Path, *spans: dict[str, Any], logs: Any = ()) -> Path:
    """As a body of a request is: one object, over several lines."""
    rows = {
        "resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [*spans]}]}],
        "resourceLogs": [{"scopeLogs": [{"logRecords": [*logs]}]}],
    }
    path.write_text(json.dumps(rows, indent=1))
    return path


def test_a_question_that_was_asked_again_makes_a_pair(tmp_path: Path) -> None:
    asked = "Name a colour of the rainbow"
    liked = event("thumbs", **{"evaluation.score.label": "thumbs_up"})
    found = harvest_of(written(tmp_path / "a.json", span(2, asked, "red", events=[liked]), span(1, asked, "brown")))
    (pair,) = found.pairs
    assert (pair["chosen"]["content"], pair["rejected"]["content"]) == ("red", "brown")
    assert pair["lineage"]["rejected"]["signs"] == ["what followed is a sign: retry"]
    assert [made.answer for made in found.kept] == ["red"]


def test_evaluations_count_by_name_and_are_found_by_the_answers_id(tmp_path: Path) -> None:
    score = {"evaluation.score.value": 4.0, "response.id": "r1"}
    record = {"eventName": EVALUATION, "attributes": attributes(**{"evaluation.name": "CSAT"}, **score)}
    lost = {"eventName": EVALUATION, "attributes": attributes(**{"evaluation.name": "CSAT", "response.id": "r9"})}
    file = written(tmp_path / "a.json", span(1, "Name a colour", "red"), logs=[record, lost])
    rules = ReadingRules((1.0, 5.0), None, frozenset({"CSAT"}))
    found = harvest_of(file, rules)
    assert [made.lineage["reward"] for made in found.kept] == [0.75]
    assert [(one.reason, one.detail) for one in found.dropped] == [("evaluation", "of no span that is here")]
    assert [one.reason for one in harvest_of(file).dropped] == ["evaluation", "evaluation", "no sign"]
    unscaled = harvest_of(file, ReadingRules(None, None, frozenset({"CSAT"})))
    assert "expected a number from 0 to 1" in unscaled.dropped[0].detail


def test_spans_without_words_or_of_those_who_refused_are_counted(tmp_path: Path) -> None:
    refused = span(2, "My secret", "ok", **{"conversation.id": "d", "user.consent": False})
    lone = {**span(3, "Name a number", "7"), "traceId": None}
    silent = {"traceId": "9", "spanId": "9", "attributes": attributes(**{"operation.name": "chat"})}
    found = harvest_of(written(tmp_path / "a.json", span(1, "Name a colour", "red"), silent, refused, lone))
    details = {one.reason: one.detail for one in found.dropped}
    assert set(details) == {"unread", "no sign", "no consent"} and "not recorded" in details["unread"]
    assert "secret" not in json.dumps([one.row() for one in found.dropped]) and found.exchanges == 3
