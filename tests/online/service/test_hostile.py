"""Bodies and addresses of people who mean no good: each gets OpenAI's error, none a 5xx, nothing is half written."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from astune.store.tables import commits, conversations, feedback
from tests.online.service.conftest import user
from tests.rows import each_row

RECORD = {"conversation_id": "c", "messages": [user("a"), {"role": "assistant", "content": "b"}]}
CHAT, RESPONSES, RECORDS = "/v1/chat/completions", "/v1/responses", "/v1/astune/records"
GOOD = {CHAT: {"messages": [user("Hi")]}, RESPONSES: {"input": "Hi"}, RECORDS: RECORD}
GOOD |= {"/feedback": {"msg_ids": ["m"], "reward": 1.0}, "/commit": {"task_id": "t"}}
NUL, HUGE = "a\x00b", "x" * 100_000


def bodies(path: str) -> list[bytes]:
    """The good body of that path, made no JSON that may be."""
    good = json.dumps(GOOD[path])
    (first, *_) = GOOD[path]
    return [
        good[:-1].encode(),
        b"\xff" + good.encode(),
        (good[:-1] + f', "{first}": 1}}').encode(),
        good.replace(":", ': NaN, "x":', 1).encode(),
        good.replace(":", ': 1e999, "x":', 1).encode(),
        b"[" * 100_000,
        (good[:-1] + ', "user": ' + "[" * 101 + "]" * 101 + "}").encode(),
        (good[:-1] + ', "user": "\\ud800"}').encode(),
        (good[:-1] + ', "user": 1' + "0" * 5000 + "}").encode(),
        json.dumps([GOOD[path]]).encode(),
        b"7",
    ]


def rows(client) -> list[int]:
    with client.service.database.reading() as connection:
        tables = (conversations, feedback, commits)
        return [connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0 for table in tables]


def assert_refused(answer, *statuses: int) -> None:
    assert answer.status_code in statuses, answer.text[:300]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str)
    assert len(answer.content) < 5_000


@pytest.mark.parametrize("path", [path for path in GOOD if path not in (CHAT, RESPONSES)])
async def test_what_is_no_body_is_refused_and_writes_nothing(path, store, make_service):
    async with make_service(store) as client:
        for body in bodies(path):
            assert_refused(await client.post(path, content=body), 400)
        assert rows(client) == [0, 0, 0]
        assert (await client.post(path, json=GOOD[path])).status_code == 200


@pytest.mark.fault(
    "Online training", "an id or a name has a NUL, or is longer than any", "400 or 404, on every database"
)
@pytest.mark.parametrize("text", [NUL, HUGE, ""])
async def test_names_that_no_database_takes_are_refused(text, store, make_service):
    wrong = [
        (CHAT, {"user": text}),
        (RESPONSES, {"user": text}),
        (RESPONSES, {"previous_response_id": text or NUL}),
        ("/feedback", {"msg_ids": [text]}),
        ("/feedback", {"user": text}),
        ("/feedback", {"task_id": text}),
        ("/feedback", {"reward": None, "rewards": {text: 1.0}}),
        ("/feedback", {"comment": text or NUL}) if text != HUGE else ("/feedback", {"comment": text * 2}),
        ("/commit", {"task_id": text}),
        ("/commit", {"run_id": text}),
        *((RECORDS, {name: text}) for name in ("conversation_id", "user", "model", "task_id", "run_id")),
    ]
    async with make_service(store) as client:
        for path, change in wrong:
            assert_refused(await client.post(path, json=GOOD[path] | change), 400)
        assert rows(client) == [0, 0, 0]
        for path in ("requests", "conversations"):
            address = f"/v1/astune/{path}/{text[:5_000]}".replace(chr(0), "%00")
            assert_refused(await client.get(address), 404)


async def test_an_error_is_short_however_much_is_wrong(tmp_path, make_service):
    async with make_service(f"sqlite:///{tmp_path}/s.db") as client:
        many = {f"{number}{'x' * 50}": 1 for number in range(5_000)}
        refused = await client.post("/feedback", json=GOOD["/feedback"] | many)
        assert_refused(refused, 400)
        assert refused.json()["error"]["message"].endswith("; and 4990 more")


@each_row("reward", [10**400, -(10**400), 1e308, -1, "1", True, [1], {"x": 1}])
async def test_a_reward_is_a_number_within_bounds(reward, tmp_path, make_service):
    async with make_service(f"sqlite:///{tmp_path}/s.db") as client:
        answer = await client.chat([user("Hi")])
        refused = await client.post("/feedback", json={"msg_ids": [answer["id"]], "reward": reward})
        assert_refused(refused, 400)
        assert rows(client)[1] == 0


@pytest.mark.fault(
    "Online training",
    "a body has rewards to which the configuration gives no weight, or a hundred of them",
    "it is refused with the nearest name that has one, counted and told in the log; nothing of it is written",
)
async def test_rewards_without_a_weight_are_refused_and_counted(store, make_service, caplog):
    async with make_service(store, online={"feedback": {"rewards": {"efficiency": 1.0}}}) as client:
        for rewards in ({"efficiency": 1.0, "efficency": 1.0}, {f"r{number}": 1.0 for number in range(100)}):
            refused = await client.post("/feedback", json={"msg_ids": ["m"], "rewards": rewards})
            assert_refused(refused, 400)
            assert refused.json()["error"]["code"] == "unknown_reward"
        assert rows(client) == [0, 0, 0]
        assert 'astune_errors_total{code="unknown_reward"} 2.0' in (await client.get("/metrics")).text
    (line,) = [record.getMessage() for record in caplog.records if "rewards are refused" in record.getMessage()]
    assert "'rewards.efficency'" in line and "Did you mean 'efficiency'?" in line
