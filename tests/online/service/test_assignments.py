"""Who is answered by which version: conversations keep theirs, units their arm; who got what is written down."""

import pytest
import sqlalchemy as sa

from astune.online.store.aliases import CHAMPION, move, promote
from astune.online.store.assignments import LastAnswer, TrafficPlan, assign, decide, load_plan
from astune.online.store.overview import COUNTS, traffic_by_version
from astune.online.store.releases import Release
from astune.online.store.versions import ModelVersion, add
from astune.store import tables
from astune.testing import ScriptedPolicy
from tests.online.service.conftest import user
from tests.rows import each_row

SALT = "5e1f"
ARMS = ("champion", "challenger")


def make(database, number, parent=0, champion=False):
    with database.writing() as connection:
        add(connection, ModelVersion(number, parent=parent))
        if champion:
            promote(connection, number, role="command", why="test", now=1.0)


def open_release(database, *, share, stage=0, champion=0, challenger=1, state="testing"):
    row = {"champion": champion, "challenger": challenger, "salt": SALT, "state": state, "stage": stage}
    row |= {"share": share, "began": 1.0, "stage_began": 1.0, "settings": {}, "figures": {}, "open": 1}
    with database.writing() as connection:
        connection.execute(tables.releases.delete())
        connection.execute(tables.releases.insert().values(id=1, **row))


def under_test(champion, challenger, share):
    return Release(1, champion, challenger, SALT, "testing", 0, share, 0.0, 0.0, None, None, {}, {})


def roll_back(database, to, before):
    with database.writing() as connection:
        move(connection, CHAMPION, to=to, expected=before, role="command", why="test", now=1.0)


def load(database):
    with database.reading() as connection:
        return load_plan(connection)


def assigned(database):
    with database.reading() as connection:
        rows = connection.execute(tables.assignments.select().order_by("unit", "stage"))
        return [(row.unit, row.stage, row.arm) for row in rows]


def test_shares_that_widen_take_nobody_back_and_are_kept():
    units = [f"user:shop:{number}" for number in range(4000)]
    arms = []
    for share in (0.05, 0.25, 1.0):
        release = under_test(0, 1, share)
        arms.append({unit for unit in units if assign(release, unit) == "challenger"})
        assert abs(len(arms[-1]) / len(units) - share) < 0.02
    assert arms[0] < arms[1] < arms[2] == set(units)


PLAIN, TESTED = TrafficPlan(7, (7, 5, 0)), TrafficPlan(7, (7, 5, 0), frozenset({3}), under_test(7, 8, 1.0))


@each_row(
    ("rule", "plan", "last", "version", "decided"),
    [
        ("a new conversation gets the champion", PLAIN, None, 7, False),
        ("or its arm", TESTED, None, 8, True),
        ("it keeps what the champion was made from", TESTED, LastAnswer(5, 90.0), 5, False),
        ("until it has rested", TESTED, LastAnswer(5, 10.0), 8, True),
        ("it leaves what was rolled back", PLAIN, LastAnswer(8, 90.0), 7, False),
        ("it keeps a challenger that is tested", TESTED, LastAnswer(8, 90.0), 8, False),
        ("and what has an alias of people's own", TESTED, LastAnswer(3, 90.0), 3, False),
    ],
)
def test_which_version_answers(rule, plan, last, version, decided):
    found = decide(plan, "user:shop:ana", last, 100.0, pin_seconds=60.0)
    assert (found.version, found.assignment is not None) == (version, decided)


async def test_a_conversation_keeps_its_version_until_it_rests_or_that_is_rolled_back(store, make_service):
    now = [1000.0]
    async with make_service(store, clock=lambda: now[0], pin_seconds=60.0) as client:
        database, versions = client.service.database, client.service.versions

        async def version(conversation="c"):
            said = await client.chat([user("Hi")], headers={"X-ASTune-Conversation": conversation})
            return (await client.get(f"/v1/astune/requests/{said['id']}")).json()["version"]

        assert await version() == 0
        make(database, 1, champion=True)
        assert await versions.poll()
        assert [await version(), await version("new")] == [0, 1]
        async with make_service(store, clock=lambda: now[0], pin_seconds=60.0) as other:  # from the store alone
            said = await other.chat([user("Hi")], headers={"X-ASTune-Conversation": "c"})
            assert (await other.get(f"/v1/astune/requests/{said['id']}")).json()["version"] == 0
        now[0] += 61.0
        assert await version() == 1
        roll_back(database, to=0, before=1)
        assert await versions.poll() and await version() == 0
        assert versions.held == [0], "what was rolled back leaves memory at the next look"


async def test_a_release_answers_its_share_and_writes_who_got_what(store, make_service):
    async with make_service(store) as client:
        database, versions = client.service.database, client.service.versions
        make(database, 1)
        open_release(database, share=0.5)
        await versions.poll()
        assert versions.held == [0, 1]
        plan = load(database)
        names = [f"user-{number}" for number in range(20)]
        arms = {name: assign(plan.release, f"user::{name}") for name in names}
        for name in [*names, *names]:
            said = await client.chat([user("Hi")], user=name)
            version = (await client.get(f"/v1/astune/requests/{said['id']}")).json()["version"]
            assert version == {"champion": 0, "challenger": 1}[arms[name]]
        assert assigned(database) == sorted((f"user::{name}", 0, arm) for name, arm in arms.items())
        assert set(arms.values()) == {"champion", "challenger"}
        await client.chat([user("Hi")])  # nobody is named: the conversation is the unit
        assert sum(unit.startswith("conversation:c-") for unit, _, _ in assigned(database)) == 1
        for state in ("gate", "held"):
            open_release(database, share=1.0, state=state)
            await versions.poll()
            said = await client.chat([user("Hello")], user="another")
            assert (await client.get(f"/v1/astune/requests/{said['id']}")).json()["version"] == 0


async def test_a_challenger_that_cannot_be_loaded_has_no_exposure(store, make_service, caplog):
    async with make_service(store) as client:
        database, versions = client.service.database, client.service.versions
        make(database, 1)
        open_release(database, share=1.0)
        versions._load = None
        await versions.poll()
        assert (await client.chat([user("Hi")], user="ana"))["choices"] and assigned(database) == []
        assert "version 1 is not served, version 0 answers" in caplog.text


@pytest.mark.fault(
    "Online training",
    "a prompt fits into the context of one of the versions that answer, and not into the other's",
    "400 that says so for whom the shorter one answers, which counts as no error of it and assigns nobody",
)
async def test_a_prompt_that_fits_one_version_only_is_answered_by_that(store, make_service, chat_format):
    async with make_service(store) as client:
        database, versions = client.service.database, client.service.versions
        versions._load = lambda version: ScriptedPolicy(["4"], chat_format, context_length=99, policy_version=1)
        make(database, 1)
        open_release(database, share=0.5)
        await versions.poll()
        names = {
            arm: next(n for n in "abcdefgh" if assign(load(database).release, f"user::{n}") == arm) for arm in ARMS
        }
        body = {"messages": [user("Hi " * 200)]}
        said = {arm: await client.post("/v1/chat/completions", json=body | {"user": names[arm]}) for arm in ARMS}
        assert said["champion"].status_code == 200
        error = said["challenger"].json()["error"]
        assert (said["challenger"].status_code, error["code"]) == (400, "context_length_exceeded")
        assert "Version 1 answers here; another one has a context of 4096 tokens." in error["message"]
        assert assigned(database) == [(f"user::{names['champion']}", 0, "champion")]
        await client.service.poll()
        with database.reading() as connection:
            assert not any(counts["errors"] for counts in traffic_by_version(connection, since=0.0).values())


async def test_an_operator_chooses_a_version_and_counts_in_no_figure(store, make_service, monkeypatch):
    monkeypatch.setenv("SHOP", "s" * 16)
    monkeypatch.setenv("ANA", "a" * 16)
    async with make_service(store, tokens={"shop": "SHOP"}, operators={"ana": "ANA"}) as client:
        database, versions = client.service.database, client.service.versions
        make(database, 1)
        open_release(database, share=0.5)
        await versions.poll()
        body = {"messages": [user("Hi")], "user": "ana"}

        async def ask(token, version):
            headers = {"Authorization": f"Bearer {token * 16}", "X-ASTune-Pin-Version": version}
            return await client.post("/v1/chat/completions", json=body, headers=headers)

        assert [(await ask("a", name)).headers["x-astune-version"] for name in ("v1", "champion")] == ["1", "0"]
        refused = [await ask("s", "v1"), await ask("a", "v7")]
        assert [(each.status_code, each.json()["error"]["code"]) for each in refused] == [
            (403, "not_an_operator"),
            (400, "unknown_version"),
        ]
        await client.service.poll()
        with database.reading() as connection:
            assert set(connection.scalars(sa.select(tables.turns.c.excluded))) == {"operator"}
            assert traffic_by_version(connection, since=0.0) == {}
        assert assigned(database) == []


async def test_requests_are_counted_by_version_with_those_that_fail(store, make_service):
    now, policies = [600.0], []
    answers = iter(["4", "", '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>', "It failed."])

    def answer(prompt):
        now[0] += 40.0
        return next(answers)

    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    async with make_service(store, answer, policies, clock=lambda: now[0], slow_seconds=30.0) as client:
        await client.chat([user("Hi")])
        await client.chat([user("Say nothing")])
        called = await client.chat([user("2+2")], tools=[tool])
        message = called["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Error: no such tool"}
        await client.chat([user("2+2"), message, result], tools=[tool])
        assert (await client.post("/v1/chat/completions", json={"messages": []})).status_code == 400

        async def fail(prompt_ids, sampling):
            raise RuntimeError("CUDA error")

        policies[0].generate = fail
        assert (await client.post("/v1/chat/completions", json={"messages": [user("x")]})).status_code == 500
        for _ in range(2):  # what was written is not written again
            await client.service.poll()
        with client.service.database.reading() as connection:
            found = traffic_by_version(connection, since=600.0)[0]
            assert connection.scalar(sa.select(sa.func.count(sa.distinct(tables.traffic.c.minute)))) > 1
        assert [found[name] for name in COUNTS[:6]] == [5, 1, 1, 4, 1, 1]
        assert found["seconds"] == 160.0 and found["tokens"] > 40
