"""`astune.online.redact` in the running service: what it fails on or takes away is in no file of the store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.online.store.requests import load_conversation
from astune.store import tables
from tests.online.service.conftest import user

PLUG_INS = """
import re

def without_numbers(value):
    if isinstance(value, str):
        return re.sub(r"[0-9]", "#", value)
    if isinstance(value, dict):
        return {key: without_numbers(each) for key, each in value.items()}
    return [without_numbers(each) for each in value] if isinstance(value, list) else value

def fails(message):
    raise ValueError(f"cannot read {message['content']}")

def empties(message):
    return {**message, "content": ""}

def fails_on_corrections(message):
    if message["role"] == "assistant":
        raise ValueError(message["content"])
    return message
"""
SECRET = "4711"
RECORD = {
    "conversation_id": "talk",
    "messages": [user(f"card {SECRET}"), {"role": "assistant", "content": f"Yes, {SECRET}."}],
    "thoughts": [{"step": 1, "content": f"card {SECRET}"}],
    "feedback": {"thumb": "up", "comment": f"it is {SECRET}", "correction": f"No, {SECRET}."},
}


@pytest.fixture
def redacting(tmp_path: Path, make_service):
    """`async with redacting("fails") as client`."""
    (tmp_path / "plug_ins.py").write_text(PLUG_INS)

    def make(name: str, **more):
        online = {"redact": f"{tmp_path}/plug_ins.py:{name}"}
        return make_service(f"sqlite:///{tmp_path}/store.db", lambda prompt: f"It is {SECRET}.", online=online, **more)

    return make


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("store.db*"))


def figure(metrics: str, name: str) -> float:
    return float(re.search(rf"^{name} (.*)$", metrics, re.MULTILINE)[1])


@pytest.mark.fault(
    "Online training",
    "the redaction plug-in raises",
    "the request is answered, nothing but the roles is written, and it is counted",
)
@pytest.mark.parametrize("name", ["fails", "without_numbers"])
async def test_what_may_not_be_written_is_in_no_file(name, redacting, tmp_path):
    async with redacting(name) as client:
        first = await client.chat([user(f"My card is {SECRET}")])
        said = first["choices"][0]["message"]["content"]
        assert said == f"It is {SECRET}."
        more = [user(f"My card is {SECRET}"), {"role": "assistant", "content": said}, user("Thanks")]
        second = await client.chat(more)
        assert second["conversation"] == first["conversation"]
        body = {"msg_ids": [first["id"]], "thumb": "up", "comment": f"I said {SECRET}", "correction": f"No: {SECRET}"}
        taken = await client.post("/feedback", json=body)
        assert (taken.status_code, taken.headers["x-accepted"]) == (200, "counts")
        assert (await client.post("/v1/astune/records", json=RECORD)).status_code == 200
        assert SECRET.encode() not in written(tmp_path)
        with client.service.database.reading() as connection:
            requests = load_conversation(connection, first["conversation"])
        assert [request.redacted for request in requests] == [True, True]
        turns = [each.turn for request in requests for each in request.turns]
        assert not any(turn.trainable or len(turn.prompt_ids) or len(turn.output_ids) for turn in turns)
        assert [message["role"] for message in turns[-1].messages] == ["user", "assistant", "user"]
        metrics = (await client.get("/metrics")).text
        assert figure(metrics, "astune_redaction_failures") == (0 if name == "without_numbers" else 2 + 4 + 2 + 2 + 2)
        assert figure(metrics, "astune_redactions") == (2 + 3 + 2 + 2 + 2 if name == "without_numbers" else 12)


@pytest.mark.parametrize("name", ["empties", "fails_on_corrections"])
async def test_a_correction_of_which_nothing_is_left_is_kept_counted_and_never_trained(name, redacting, tmp_path):
    async with redacting(name) as client:
        answer = await client.chat([user("My card")])
        body = {"msg_ids": [answer["id"]], "correction": f"No: {SECRET}"}
        for _ in range(2):
            taken = await client.post("/feedback", json=body)
            assert (taken.status_code, taken.headers["x-accepted"]) == (200, "left_out")
            assert taken.json()["message"] == "left_out: astune.online.redact left nothing of the correction"
        with client.service.database.reading() as connection:
            rows = connection.execute(sa.select(tables.feedback.c.kind, tables.feedback.c.correction)).all()
        assert rows == [("correction", None)]
        assert 'astune_feedback{kind="correction",state="left_out"} 1' in (await client.get("/metrics")).text
        assert SECRET.encode() not in written(tmp_path)


async def test_what_was_redacted_cannot_be_gone_on_from_by_its_id(redacting):
    async with redacting("without_numbers") as client:
        first = (await client.post("/v1/responses", json={"input": f"card {SECRET}"})).json()
        refused = await client.post("/v1/responses", json={"input": "and?", "previous_response_id": first["id"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
