"""What an operator starts and sees of releases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from astune.cli import main
from astune.cli.endings import BAD_INPUT
from astune.online.service.metrics import ROLES, state_metrics
from astune.online.store.releases import LEASE
from astune.store.database import Database
from astune.support.http.metrics import write_metrics
from tests.online.release.world import World
from tests.store.databases import sqlite as sqlite

ROOT = Path(__file__).resolve().parents[3]
OF_THE_PROCESS = ("astune_version_not_served", "astune_feedback")
"""Figures of other parts of the service."""


def read_metrics(world: World) -> dict[str, float]:
    with world.database.reading() as connection:
        text = write_metrics(state_metrics(connection, world.now)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_say_where_a_release_stands_and_who_is_alive(sqlite: Database) -> None:
    world = World(sqlite)
    idle = read_metrics(world)
    assert (idle["astune_release_open"], idle['astune_role_alive{role="release"}']) == (0, 0)
    number, releaser = world.make(right=0.9), world.releaser()
    world.tick(releaser)
    found = read_metrics(world)
    assert found['astune_version{is="challenger"}'] == found['astune_version{is="newest"}'] == number
    assert (found['astune_version{is="champion"}'], found['astune_role_alive{role="release"}']) == (0, 1)
    assert (found["astune_release_stage"], found["astune_release_share"], found["astune_release_alarms"]) == (1, 0.4, 0)
    world.meet(20, rate=False, errors={number: 30})
    world.tick(releaser)
    assert read_metrics(world)['astune_releases_ended_total{state="rolled_back"}'] == 1


def test_alert_rules_name_figures_that_there_are(sqlite: Database) -> None:
    rules = yaml.safe_load((ROOT / "docs" / "alerts.yaml").read_text())["groups"][0]["rules"]
    world = World(sqlite)
    world.make(right=0.9)
    world.tick()
    known = {re.split(r"[{]", name)[0] for name in read_metrics(world)} | {*OF_THE_PROCESS}
    known.add("astune_last_commit_age_seconds")
    used = {name for rule in rules for name in re.findall(r"astune_\w+", rule["expr"])}
    assert used <= known
    assert all(rule["alert"].startswith("ASTune") and rule["annotations"]["summary"] for rule in rules)
    assert LEASE in ROLES


def test_the_status_says_what_a_release_waits_for(sqlite: Database, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(sqlite)
    world.make(right=0.9)
    releaser = world.releaser()
    world.tick(releaser)
    world.tick(releaser)
    releaser.leave()
    assert main(["online", "status", "--store", sqlite.address]) == 0
    said = capsys.readouterr().out
    assert "release   1: v1 against v0, testing at 40% (stage 1 of 3): 0 of 10 users have met v1 in this stage" in said
    assert "nobody watches it" in said


def test_a_release_that_has_nothing_to_do_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "online.yaml"
    conf.write_text("astune: {online: {folder: here}}\n")
    assert main(["online", "release", "--conf", str(conf)]) == BAD_INPUT
    assert "strategy: got 'at_once'" in capsys.readouterr().err
