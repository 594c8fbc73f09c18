"""`astune online held` on a store of a service."""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.cli.online.held import add_actions
from astune.config.online import FeedbackConfig
from astune.errors import ConfigError, StoreError
from astune.online.store.audit import lines
from astune.online.store.feedback.judgements import judgements
from astune.online.store.feedback.states import settle
from astune.store.database import open_database
from tests.store.feedback_cases import record, rows, say

RULES = FeedbackConfig(per_user_per_hour=1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/online.db"
    with closing(open_database(url)) as database, database.writing() as connection:
        record(connection, "c", ["m", "n", "o"], exchanges=["m", "n", "o"])
        say(connection, 0.5, about=["m"], at=1e9, rules=RULES)
        say(connection, 0.25, about=["n"], at=1e9 + 1, rules=RULES, comment="a\x1b[31mb")
        say(connection, 0.75, about=["o"], at=1e9 + 2, rules=RULES)
    return url


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_actions(parser.add_subparsers(dest="action"))
    known = parser.parse_args(words)
    return int(known.execute(known))


def look(url: str, what: Callable[[sa.Connection], object]) -> object:
    with closing(open_database(url)) as database, database.reading() as connection:
        return what(connection)


def test_what_is_held_is_listed_with_its_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("held", "--store", url) == 0
    shown = capsys.readouterr().out
    assert "2  2001-09-09 01:46:41 UTC  number 0.25 by ana on n, held: more than 1 by this user in an hour" in shown
    assert "3  2001-09-09 01:46:42 UTC  number 0.75 by ana on o, held" in shown
    assert "a\\u001b[31mb" in shown


def test_what_is_accepted_counts_and_what_is_refused_never_does(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("held", "accept", "2", "--store", url) == 0
    assert run("held", "refuse", "3", "--store", url, "--json") == 0
    assert "counts: accepted by hand" in capsys.readouterr().out
    assert look(url, lambda connection: [row.state for row in rows(connection)]) == ["counts", "counts", "refused"]
    assert look(url, lambda connection: [one.reward for one in judgements(connection, RULES)]) == [0.5, 0.25]
    by_hand = [
        line.what
        for line in look(url, lambda connection: list(lines(connection)))  # type: ignore[attr-defined]
        if line.role == "command"
    ]
    assert by_hand == ["feedback_accepted", "feedback_counts", "feedback_refused"]
    with closing(open_database(url)) as database, database.writing() as connection:
        assert say(connection, 0.75, about=["o"], at=2e9, rules=RULES).state == "refused"


def test_all_of_an_author_at_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("held", "refuse", "--author", "ana", "--store", url, "--json") == 0
    assert [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()] == ["refused", "refused"]
    assert run("held", "--store", url) == 0
    assert capsys.readouterr().out == "no feedback is held\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("accept", "1"), "no feedback 1 is held"),
        (("accept", "--author", "ben"), "no feedback of 'ben' is held"),
        (("accept",), "say which"),
        (("accept", "2", "--author", "ana"), "say which"),
        (("accept", "two"), "'two': expected numbers"),
        (("drop", "2"), "'drop': expected accept, refuse"),
    ],
)
def test_what_cannot_be_done_is_said(url: str, words: tuple[str, ...], said: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=said):
        run("held", *words, "--store", url)


def test_what_is_accepted_goes_by_the_rules_of_the_service(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of its answers is not known, and the service waits a second for it, not the hours of the default."""
    rules = RULES.model_copy(update={"wait_seconds": 1.0})
    now = time.time()
    with closing(open_database(url)) as database, database.writing() as connection:
        record(connection, "d", ["p", "q"], exchanges=["p", "q"])
        say(connection, 0.5, about=["p"], at=now - 60, rules=rules)
        say(connection, 0.5, about=["q", "unknown"], at=now - 50, rules=rules)
        settle(connection, rules, now - 40)
    conf = tmp_path / "service.yaml"
    conf.write_text(f"astune:\n  online:\n    store: {url}\n    feedback: {{wait_seconds: 1}}\n")
    assert run("held", "accept", "5", "--conf", str(conf)) == 0
    assert "counts: without 1 answers that nobody knows" in capsys.readouterr().out
