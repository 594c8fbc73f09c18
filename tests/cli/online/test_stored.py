"""`astune online trace` and `delete` on a store of a service."""

import argparse
import json
from pathlib import Path

import pytest

from astune.cli.online.stored import add_actions
from astune.errors import ConfigError, StoreError
from astune.store.database import open_database
from tests.store.rows import add_feedback, add_request, add_version, cells


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/online.db"
    database = open_database(url)
    with database.writing() as connection:
        turn = add_request(connection, "chatcmpl-1", "conv", "what is 2+2?", user="ana", answered=1e9)
        add_feedback(connection, "ana", ["chatcmpl-1"], value=1.0, comment="\x1b[31mright", received=1e9)
        add_version(connection, 0, None, {})
        add_version(connection, 1, 0, {"commit-1/0": (turn, ["chatcmpl-1"])})
        add_version(connection, 2, 1, {})
    database.close()
    return url


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_actions(parser.add_subparsers(dest="action"))
    known = parser.parse_args(words)
    return int(known.execute(known))


def test_an_answer_is_shown_from_what_was_asked_to_the_version(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "chatcmpl-1", "--store", url) == 0
    shown = capsys.readouterr().out
    for part in (
        "chatcmpl-1, by v0 as 'astune', 2001-09-09 01:46:40 UTC",
        "what is 2+2?",
        "answer to what is 2+2?",
        "12 tokens read, 2 sampled",
        "number 1 by ana",
        "comment: \\u001b[31mright",
        "commit-1/0, reward 1, trained",
        "made v1",
        "+0.5",
    ):
        assert part in shown
    assert "\x1b" not in shown


def test_a_version_is_shown_with_the_answers_that_made_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "v1", "--store", url) == 0
    shown = capsys.readouterr().out
    assert "parents     v0" in shown and "children    v2" in shown and "chatcmpl-1" in shown and "loss" in shown


@pytest.mark.parametrize("what", ["chatcmpl-1", "v1"])
def test_json_has_everything(url: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", what, "--store", url, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    samples = found["samples"] if what == "v1" else found["episodes"][0]["samples"]
    assert samples[0]["weight"] == 0.25 and samples[0]["msg_id"] == "chatcmpl-1"


def test_a_deletion_says_which_versions_saw_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("delete", "--user", "ana", "--store", url) == 0
    shown = capsys.readouterr().out
    assert "1 conversations with 1 answers, 1 feedback" in shown
    assert "trained from it: v1; made from those: v2" in shown
    database = open_database(url)
    assert cells(database)["requests"] == []
    database.close()
    with pytest.raises(StoreError, match="no answer 'chatcmpl-1'"):
        run("trace", "chatcmpl-1", "--store", url)


def test_a_deletion_offers_the_conversations_that_may_be_theirs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    database = open_database(url)
    with database.writing() as connection:
        for number in "23":
            add_request(connection, f"chatcmpl-{number}", f"conv-{number}", "x")
            add_feedback(connection, "ana", [f"chatcmpl-{number}"])
    assert run("delete", "--user", "ana", "--store", url) == 0
    said, offer = capsys.readouterr().out.splitlines()[-2:]
    assert said.startswith("kept: 2 conversations that name no user. 2 of the deleted feedback were on them")
    assert offer == "astune online delete --conversation conv-2 --conversation conv-3 --store ..."
    assert run(*offer.split()[2:-1], url) == 0
    assert cells(database)["conversations"] == []
    database.close()
    with pytest.raises(ConfigError, match="--with-rated goes with --user"):
        run("delete", "--conversation", "conv", "--with-rated", "--store", url)


def test_what_is_old_is_deleted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("delete", "--older-than", "30d", "--store", url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 1
    with pytest.raises(ConfigError, match=r"'month': expected .* 30d"):
        run("delete", "--older-than", "month", "--store", url)


def test_the_store_is_that_of_the_configuration(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "service.yaml"
    conf.write_text(f"astune:\n  online:\n    folder: {tmp_path}\n")
    assert run("trace", "v2", "--conf", str(conf)) == 0
    assert "v2" in capsys.readouterr().out
    with pytest.raises(StoreError, match=r"no store at sqlite:.*other/online\.db"):
        run("trace", "v2", f"astune.online.folder={tmp_path}/other", "--conf", str(conf))
    with pytest.raises(ConfigError, match="say which store"):
        run("trace", "v2")
    with pytest.raises(ConfigError, match="--store reads no configuration"):
        run("trace", "v2", "astune.seed=1", "--store", url)
