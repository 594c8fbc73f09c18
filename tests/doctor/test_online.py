"""What the doctor says of a file of `astune online`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
import yaml

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.doctor import CheckedConfig, Finding, run_checks
from astune.doctor.checks import packages
from astune.online.store.aliases import promote
from astune.online.store.versions import ModelVersion, add
from astune.online.training.checkpoint import seal
from astune.store.database import check_usable, open_database
from astune.support.http.serving import bound_socket, server_config, url_of
from astune.testing import ScriptedOnlineService, ScriptedVllm, write_test_model_dir
from tests.doctor.sound_config import BACKBONES, problems, the_problem
from tests.store.databases import url as url

Doctor = Callable[..., list[Finding]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """What the doctor finds in a service's file with these keys of `astune.online`, and of other sections."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def see(online: Mapping[str, Any] | None = None, *, offline: bool = False, **sections: Any) -> list[Finding]:
        serve = {"port": 0, **(online or {}).get("serve", {})}
        values = {"online": {**(online or {}), "serve": serve}, "runs_dir": "runs", **sections}
        Path("service.yaml").write_text(yaml.safe_dump({"astune": values}))
        return run_checks(CheckedConfig(Path("service.yaml"), backbones=BACKBONES, offline=offline))

    return see


def said(findings: list[Finding], check: str = "online") -> str:
    return "; ".join(each.what for each in findings if each.check == check)


def test_a_service_needs_no_tasks_and_no_workflow(look: Doctor, tmp_path: Path) -> None:
    found = look()
    assert problems(found) == []
    skipped = {each.check for each in found if each.level == "skip"}
    episodes = {"tasks", "tools", "workspace", "workflow", "judge", "dry run", "context"}
    assert skipped == episodes | {"training", "run folder"}
    assert "online.db will be made" in said(found) and "127.0.0.1:0 is free; no tokens" in said(found)
    assert not list(tmp_path.rglob("*.db*")) and not (tmp_path / "runs").exists()


def test_a_file_of_a_run_says_nothing_of_the_service(run_doctor: Doctor) -> None:
    assert said(run_doctor()) == ""


def test_a_run_that_names_the_service_too_is_looked_at_as_both(run_doctor: Doctor) -> None:
    found = run_doctor({"backbone": "local", "online": {"serve": {"port": 0}}})
    assert said(found) and not [each for each in found if each.check == "tasks" and each.level == "skip"]


@pytest.mark.parametrize(
    ("online", "sections", "what", "where"),
    [
        ({}, {"trainer": {"lr_schedule": "linear", "total_steps": 5}}, "expected 'constant'", "lr_schedule"),
        ({"commit": {"min_episodes": 9, "max_episodes": 8}}, {}, "at most max_episodes, 8", "min_episodes"),
        ({"serve": {"host": "0.0.0.0"}}, {}, "which other machines reach", "tokens"),
        ({"serve": {"tokens": {"shop": "NO_SUCH_TOKEN"}}}, {}, "NO_SUCH_TOKEN must hold a token", "tokens"),
        ({"serve": {"feedback_without_token": True}}, {}, "nothing needs one", "feedback_without_token"),
        ({"redact": "nowhere.py:function"}, {}, "nowhere.py", "redact"),
        ({"feedback": {"judge_share": 0.5}}, {}, "there is no judge", "judge_share"),
        (
            {"feedback": {"judge_share": 0.5}},
            {"task_judge": {"judge_protocol": "no.py:judge"}},
            "no.py",
            "judge_protocol",
        ),
        ({"folder": "service.yaml"}, {}, "is a file", "folder"),
        ({"store": "mysql://a/b"}, {}, "got 'mysql'", "store"),
        ({"store": "postgresql://a@127.0.0.1:1/b"}, {}, "cannot be used", "store"),
    ],
)
def test_what_would_break_it_is_named(
    look: Doctor, online: dict[str, Any], sections: dict[str, Any], what: str, where: str
) -> None:
    problem = the_problem(look(online, **sections))
    assert problem.check == "online" and what in problem.what and where in problem.where and problem.fix
    assert problem.where.startswith("service.yaml")


def test_a_store_that_is_there_is_looked_at_and_not_written_to(look: Doctor, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "service"
    checkpoint = folder / "versions" / "v000001-5e1f"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("1")
    with closing(open_database(url)) as database:
        assert "the model as configured answers" in said(look({"store": url, "folder": str(folder)}))
        version = ModelVersion(1, 0, None, checkpoint.name, seal(checkpoint), 1.0)
        with database.writing() as connection:
            add(connection, version)
            promote(connection, 1, role="train", why="made", now=1.0)
        assert "champion is version 1, and its checkpoint is whole" in said(look({"store": url, "folder": str(folder)}))
        (folder / "keep_versions").touch()
        assert "no old version is deleted" in the_problem(look({"store": url, "folder": str(folder)})).what
        (folder / "keep_versions").unlink()
        (checkpoint / "weights").write_text("2")
        problem = the_problem(look({"store": url, "folder": str(folder)}))
        assert "champion is version 1, and the checkpoint" in problem.what and problem.where.endswith("folder")
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        assert "upgraded by a newer ASTune" in the_problem(look({"store": url, "folder": str(folder)})).what
    if not url.startswith("sqlite"):
        assert "this is --offline" in said(look({"store": url}, offline=True))


def test_tables_that_are_not_as_they_were_made_are_named(look: Doctor, url: str) -> None:
    with closing(open_database(url)) as database, database.writing() as connection:
        for statement in (
            "DROP INDEX ix_turns_history",
            "ALTER TABLE audit DROP COLUMN role",
            "ALTER TABLE audit ADD COLUMN more INTEGER",
            "DROP TABLE exposures",
            "CREATE TABLE of_somebody_else (id INTEGER)",
            "CREATE INDEX ix_of_ours ON audit (subject)",
        ):
            connection.execute(sa.text(statement))
    problem = the_problem(look({"store": url}))
    wrong = "audit.more is unknown; audit.role is missing; ix_turns_history of turns is missing; the table exposures is"
    assert (
        problem.level == "fail" and wrong in problem.what and "ours" not in problem.what and "else" not in problem.what
    )


def test_an_empty_database_gets_no_tables(look: Doctor, url: str) -> None:
    assert "will be made" in said(look({"store": url}))
    assert check_usable(url) is None


def test_a_port_that_is_taken(look: Doctor) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        problem = the_problem(look({"serve": {"port": port}}))
    assert problem.level == "fail" and f"cannot serve at 127.0.0.1:{port}" in problem.what


def test_a_service_that_runs_already_is_no_mistake(look: Doctor) -> None:
    with ScriptedOnlineService(["Hi"]) as service:
        port = int(service.url.rpartition(":")[2])
        problem = the_problem(look({"serve": {"port": port}}))
    assert (problem.level, problem.what) == ("warn", f"a service answers at 127.0.0.1:{port} already")


@contextmanager
def served(app: Any) -> Iterator[str]:
    listener = bound_socket("127.0.0.1", 0)
    server = uvicorn.Server(server_config(app))
    listener.listen()
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield f"{url_of('127.0.0.1', listener)}/v1"
    finally:
        server.should_exit = True
        thread.join()


def test_an_engine_is_asked_for_a_token(look: Doctor, tmp_path: Path) -> None:
    vllm = ScriptedVllm(lambda prompt: "Hello", ChatFormat.load(write_test_model_dir(tmp_path / "model")))
    with served(vllm.app) as base_url:
        engine = {"base_url": base_url, "model": "base"}
        assert "gives token ids with log-probabilities" in said(look({"serve": {"engine": engine}}))
        assert "this is --offline" in said(look({"serve": {"engine": engine}}, offline=True))
        problem = the_problem(look({"serve": {"engine": engine | {"model": "bass"}}}))
        assert "there is no 'bass'; it has base" in problem.what
    gone = the_problem(look({"serve": {"engine": engine}}))
    assert "nothing answers" in gone.what and "engine" in gone.where


def test_packages_of_the_service(look: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    there = packages.version_of
    monkeypatch.setattr(packages, "version_of", lambda name: None if name in ("alembic", "psycopg") else there(name))
    found = [each for each in problems(look({"store": "postgresql://a/b"}, offline=True)) if each.check == "packages"]
    assert [(each.what, each.fix) for each in found] == [
        ("alembic is not installed", 'pip install "astune[online]"'),
        ("psycopg is not installed", 'pip install "astune[postgresql]"'),
    ]
