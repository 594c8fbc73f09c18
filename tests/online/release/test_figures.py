"""Figures of a release from a store: who counts, for what, and what is said where too little is known."""

import json
import math
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from astune.cli import main
from astune.config.online import FeedbackConfig, GuardrailConfig, ReleaseConfig
from astune.errors import ConfigError, StoreError
from astune.online.release.figures import ReleaseFigures, figures_of, load_release
from astune.online.release.plan import plan_release
from astune.online.store.aliases import version_of as find_alias
from astune.rl import ABTestFramework
from astune.store.database import Database, open_database
from astune.store.tables import (
    aliases,
    assignments,
    conversations,
    feedback,
    feedback_messages,
    releases,
    requests,
    traffic,
    versions,
)
from tests.rows import each_row
from tests.store.databases import sqlite as sqlite
from tests.store.rows import add

BEGAN = 1_000_000.0
RULES = {"stages": [0.25, 0.5], "effect": 0.1}


def only(**margins: float) -> dict[str, float | None]:
    return dict.fromkeys(GuardrailConfig.model_fields) | margins


class Release:
    """A test of v7 and v9. Rows are collected, and written together."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.database = database
        self.rows: dict[sa.Table, list[dict[str, Any]]] = {}
        with database.writing() as connection:
            for number in (7, 9):
                add(connection, versions, version=number)
            add(connection, aliases, name="champion", version=7)
            self.id = add(
                connection,
                releases,
                champion=7,
                challenger=9,
                state="testing",
                began=BEGAN,
                settings=ReleaseConfig.model_validate(RULES | settings).model_dump(mode="json"),
                open=1,
            )

    def insert(self, table: sa.Table, **values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def assign(self, user: str, challenger: bool, stage: int = 0, first: float = BEGAN + 1) -> None:
        arm = "challenger" if challenger else "champion"
        self.insert(assignments, release_id=self.id, unit=f"user:shop:{user}", stage=stage, arm=arm, first=first)

    def answer(self, msg_id: str, user: str, challenger: bool, answered: float = BEGAN + 10) -> str:
        ids = {"msg_id": msg_id, "exchange": msg_id, "conversation_id": f"c-{msg_id}", "client": "shop", "user": user}
        named = {name: ids[name] for name in ("conversation_id", "client", "user")}
        self.insert(conversations, **named, began=0.0, last=answered)
        rest = {
            "number": 0,
            "seen": 0,
            "agent": "a",
            "model": "m",
            "messages_kept": 0,
            "messages": [],
            "asked": answered,
        }
        self.insert(requests, **ids, **rest, answered=answered, version=9 if challenger else 7)
        return msg_id

    def rate(self, value: float, *msg_ids: str, author: str = "ana", **more: Any) -> None:
        number = 1 + len(self.rows.get(feedback, []))
        said = {"kind": "number", "name": "reward", "state": "counts", "received": BEGAN + 20} | more
        texts = {"client": "shop", "body": "b", "fingerprint": "f", "target": "t"}
        self.insert(feedback, id=number, author=author, value=value, **said, **texts)
        for msg_id in msg_ids:
            self.insert(feedback_messages, feedback_id=number, msg_id=msg_id, place="about")

    def count(self, minute: int, challenger: bool, **counts: float) -> None:
        none = dict.fromkeys(("errors", "empty", "slow", "tool_calls", "tool_failures", "tokens", "seconds"), 0)
        key = {"minute": int(BEGAN) // 60 + minute, "server": "s", "version": 9 if challenger else 7}
        self.insert(traffic, **key, **(none | {"requests": 10} | counts))

    def play(
        self,
        users: int,
        rates: tuple[float, float],
        *,
        answers: int = 5,
        challengers: float = 0.25,
        answered: float = BEGAN + 10,
    ) -> None:
        """Users who rate each answer with 0 or 1."""
        draw = np.random.default_rng(0)
        for number in range(users):
            arm, user = bool(draw.random() < challengers), f"u{number}"
            self.assign(user, arm, first=answered)
            for each in range(answers):
                rating = float(draw.random() < rates[arm])
                self.rate(rating, self.answer(f"{user}-{each}", user, arm, answered), author=user)

    def write(self) -> None:
        with self.database.writing() as connection:
            for table, rows in self.rows.items():
                connection.execute(table.insert(), rows)
        self.rows = {}

    def figures(self, **rules: Any) -> ReleaseFigures:
        self.write()
        with self.database.reading() as connection:
            return figures_of(connection, self.id, FeedbackConfig(**rules))


def test_a_release_is_compared_over_the_users_who_were_assigned(sqlite: Database) -> None:
    release = Release(sqlite, secondary=["thumbs", "tone"], guardrails=only(metric=0.05, errors=0.02, rated=0.1))
    release.play(400, (0.5, 0.8))
    for number in range(60):
        release.count(number, number % 4 == 0)
    # What a tester pinned, of nobody who was assigned; of one who was, to the version of the other arm.
    release.rate(0.0, release.answer("pin", "tester", True))
    release.rate(0.0, *(release.answer(f"pin-{each}", "u0", True) for each in range(2)))
    found = release.figures()
    primary = found.primary.found
    assert primary is not None and found.primary.p == primary.p
    assert sum(found.units) == sum(primary.units) == 400
    assert primary.champion == pytest.approx(0.5, abs=0.03) and primary.challenger == pytest.approx(0.8, abs=0.04)
    assert primary.low > 0.1 and primary.p < 1e-4
    assert [each.found for each in found.metrics[1:]] == [None, None]
    assert [(each.name, each.breached, each.is_known) for each in found.guardrails] == [
        ("errors", False, True),
        ("rated", False, False),  # everybody rates everything: no spread
        ("metric", False, True),
    ]
    assert [note.partition(":")[0] for note in found.notes] == ["thumbs", "tone", "rated"]
    (stage,) = found.stages
    assert stage.ratio is not None and not stage.ratio.is_alarm and found.alarms == ()


def test_late_feedback_counts_to_the_stage_and_arm_of_its_answer(sqlite: Database) -> None:
    release = Release(sqlite)
    release.assign("ana", False)
    release.assign("ana", True, stage=1, first=BEGAN + 100)
    old = release.answer("old", "ana", False, BEGAN + 50)
    pinned = release.answer("pinned", "ana", False, BEGAN + 150)  # a conversation keeps its version
    new = release.answer("new", "ana", True, BEGAN + 200)
    early = release.answer("early", "ana", False, BEGAN + 0.5)
    for msg_id, value in ((old, 0.1), (new, 0.9), (pinned, 0.2), (early, 0.0)):
        release.rate(value, msg_id, received=BEGAN + 10_000)
    release.rate(0.7, old, new, author="bob")
    release.rate(0.3, new, author="eve", state="held")
    release.rate(0.4, new, author="judge:math", state="replaced")
    release.rate(0.5, new, author="bob", state="replaced", name="tone")
    release.write()
    with sqlite.reading() as connection:
        from astune.online.release.observed import observe

        seen = observe(connection, load_release(connection, 9, 7))
    said = sorted((each.place.stage, each.place.challenger, each.values["reward"]) for each in seen.opinions)
    assert said == [(0, False, 0.1), (0, False, 0.2), (1, True, 0.4), (1, True, 0.7), (1, True, 0.9)]
    assert seen.in_arms == (1, 1) and sum(seen.exchanges.values()) == 3
    totals = {name: seen.sum_metric(name, FeedbackConfig()).total.sum() for name in ("reward", "judged", "thumbs")}
    assert totals == {"reward": pytest.approx(1.9), "judged": 0.4, "thumbs": 0.0}
    assert seen.sum_rated().total.sum() == 3 and seen.sum_rated(by_judges=True).total.sum() == 1


@each_row(
    ("name", "counts", "breached"),
    [
        ("errors", {"errors": 3}, True),
        ("errors", {"errors": 0}, False),
        ("empty", {"empty": 5}, True),
        ("tool_failures", {"tool_calls": 10, "tool_failures": 8}, True),
        ("tool_failures", {}, False),
        ("slow", {"slow": 4}, True),
        ("tokens", {"tokens": 3000}, True),
        ("tokens", {"tokens": 1100}, False),
        ("seconds", {"seconds": 30.0}, True),
    ],
)
def test_a_guardrail_is_breached_by_what_is_surely_worse(
    name: str, counts: dict[str, float], breached: bool, tmp_path: Path
) -> None:
    with closing(open_database(f"sqlite:///{tmp_path / name}-{len(counts)}-{sum(counts.values())}.db")) as database:
        release = Release(database, guardrails=only(**{name: 0.1}))
        release.assign("ana", False)
        draw = np.random.default_rng(1)
        for minute in range(30):
            noise = {"tokens": int(draw.integers(900, 1100)), "seconds": float(draw.uniform(9, 11))}
            release.count(minute, False, **({"tool_calls": 10} | noise))
            release.count(minute, True, **(noise | counts))
        (guard,) = release.figures().guardrails
        assert guard.breached is breached, guard
        assert guard.is_known is (name != "tool_failures" or bool(counts))


def test_a_wrong_ratio_and_another_judge_are_alarms(sqlite: Database) -> None:
    release = Release(sqlite, metric="judged")
    for number in range(400):
        release.assign(f"u{number}", number % 20 == 0)
        msg_id = release.answer(f"m{number}", f"u{number}", number % 20 == 0)
        release.rate(float(number % 3 == 0), msg_id, author="judge:old" if number < 200 else "judge:new")
    found = release.figures()
    assert found.primary.found is not None
    first, second = found.alarms
    assert first.startswith("sample ratio: the challenger has 5.0% of 400 users of stage 1 and should have 25.0%")
    assert second == "stage 1 was judged by new, old: with another judge a stage begins anew"


def test_nothing_known_is_said_and_is_not_0(sqlite: Database) -> None:
    found = Release(sqlite).figures()
    assert (found.primary.found, found.primary.p, found.units, found.stages) == (None, None, (0, 0), ())
    assert not found.breaches and len(found.notes) == 1 + len(found.guardrails)
    with sqlite.reading() as connection:
        with pytest.raises(StoreError, match=r"v1 and v2 were never tested .* Tested were v7 and v9"):
            load_release(connection, 1, 2)
        with pytest.raises(StoreError, match="0 users gave 'reward' in the last 28 days"):
            plan_release(connection, ReleaseConfig(), FeedbackConfig(), BEGAN)


def test_the_command_shows_figures_and_a_plan(
    sqlite: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = Release(sqlite, guardrails=only(errors=0.02))
    release.play(200, (0.5, 0.9))
    for minute in range(5):
        release.count(minute, False)
        release.count(minute, True, errors=8)
    release.write()
    now = time.time()
    with sqlite.writing() as connection:
        connection.execute(requests.update().values(answered=now - 86400 * 2))
        connection.execute(releases.update().values(began=0.0))
        connection.execute(assignments.update().values(first=1.0))
    store = ["--store", f"sqlite:///{tmp_path}/store.db"]
    assert main(["online", "compare", "champion", "v9", *store]) == 0
    said = capsys.readouterr().out
    assert "v7 champion, v9 challenger: testing, stage 1" in said and "BREACHED" in said
    assert main(["online", "compare", "v7", "v9", "--json", *store]) == 0
    assert json.loads(capsys.readouterr().out)["guardrails"][0]["breached"] is True
    assert main(["online", "compare", "v7", "v9", "--plan", "--share", "0.1", *store]) == 0
    said = capsys.readouterr().out
    assert "200 users gave 'reward'" in said and "10%" in said
    assert main(["online", "compare", "v7", "challenger", *store]) == 1
    assert "there is no version 'challenger'" in capsys.readouterr().err


def test_the_article_s_framework_tests_two_versions_and_ends_the_test(sqlite: Database, tmp_path: Path) -> None:
    conf = tmp_path / "service.yaml"
    conf.write_text(f"astune: {{online: {{store: sqlite:///{tmp_path}/store.db}}}}\n")
    made = Release(sqlite)
    with sqlite.writing() as connection:
        connection.execute(releases.delete())
    metrics = ("user_satisfaction", "latency")
    ab = ABTestFramework("champion", "v9", {"a": 0.75, "b": 0.25}, metrics, conf=str(conf))
    empty = ab.run(test_duration_days=0.0)
    assert all(math.isnan(value) for arm in empty.values() for value in arm.values())
    with sqlite.reading() as connection:
        made.id, share = connection.execute(sa.select(releases.c.id, releases.c.share)).one()
    made.play(300, (0.5, 0.8), answered=time.time() + 1.0)
    made.write()
    results = ab.run(test_duration_days=0.0)
    assert share == 0.25 and results["b"]["user_satisfaction"] > results["a"]["user_satisfaction"] + 0.1
    ab.switch_traffic("b", 1.0)
    with sqlite.reading() as connection:
        assert find_alias(connection, "champion") == 9
        assert connection.scalar(sa.select(releases.c.state)) == "promoted"
    with pytest.raises(ConfigError, match=r"astune\.online\.release\.stages"):
        ab.switch_traffic("a", 0.5)
