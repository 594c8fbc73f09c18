"""An export is what the other commands read: episodes of a run, recorded as a service records them, come back whole."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from astune.cli import main
from astune.cli.online.export import new_file
from astune.cli.online.stored import add_actions
from astune.config.load import load_config
from astune.config.online import FeedbackConfig
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_model_dir
from astune.errors import ConfigError
from astune.examples.example import TrainingExample
from astune.examples.read import read_examples
from astune.monitor import EpisodeRecord, RunDir, read_episodes
from astune.monitor.episodes import episode_from_row, episode_to_row
from astune.online.export import ExportFilter, Kind, rows_of
from astune.online.preference_export import PairFormat, as_rows, pair_records
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, add
from astune.online.store.requests import RecordedRequest, RecordedTurn, TurnPlace, record
from astune.recordings.diff import turns_differ
from astune.store.database import Database, open_database
from astune.store.tables import feedback
from astune.testing import script_engine
from astune.training.start import run_training
from astune.types import Episode
from astune.viewer.run_index import index_run
from tests.store.databases import new_url

RULES = FeedbackConfig()
ALL = ExportFilter()
AGENT = """
from astune import Task, Tuner, WorkflowOutput

async def agent(task: Task, tuner: Tuner) -> WorkflowOutput:
    client, messages = tuner.openai_client(), [{"role": "user", "content": task.query}]
    first = await client.chat.completions.create(model="m", messages=messages)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}]
    messages += [{"role": "user", "content": "sure?"}]
    last = await client.chat.completions.create(model="m", messages=messages)
    return WorkflowOutput(answer=last.choices[0].message.content)

def judge(task, episode):
    return float(len(episode.output.answer) % 2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two tasks, three attempts at each."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "agent.py").write_text(AGENT)
    (folder / "train.jsonl").write_text("".join(json.dumps({"query": f"{n}?", "answer": "4"}) + "\n" for n in range(2)))
    config = {
        "project_name": "test",
        "runs_dir": str(folder / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "task_judge": {"judge_protocol": "agent.py:judge"},
        "rollout": {"agentscope_learn_protocol": "agent.py:agent", "num_repeat": 3, "max_tokens": 4},
        "trainer": {"total_steps": 1, "tasks_per_step": 2},
        "monitor": {"progress": "off", "trackers": []},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    replies = itertools.cycle(["4", "44", "5", "55"])
    run_training(load_config(folder / "job.yaml"), script_engine(lambda prompt: next(replies)))
    return folder


@pytest.fixture(scope="module")
def played(folder: Path) -> list[Episode]:
    return [each.episode for each in read_episodes(folder / "runs" / "test" / "job" / "episodes" / "train.jsonl")]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, folder: Path, played: list[Episode]) -> Iterator[Database]:
    database = open_database(new_url(request.param, folder))
    with database.writing() as connection:
        record_all(connection, played, first_user="bo")
        for place in range(5):
            score = FeedbackPart("number", value=float(place % 2))
            say(connection, received=float(place), parts=(score,), msg_ids=(f"msg-{place}-1",))
        say(connection, received=9.0, parts=(FeedbackPart("correction", correction="four"),), msg_ids=("msg-0-1",))
        say(connection, received=9.0, parts=(FeedbackPart("preference"),), better="msg-1-0", worse="msg-2-0")
        say(connection, received=9.5, parts=(FeedbackPart("preference"),), better="msg-1-1", worse="msg-2-1")
        connection.execute(feedback.update().where(feedback.c.received == 1.0).values(state="trained"))
        connection.execute(feedback.update().where(feedback.c.received == 4.0).values(state="refused"))
    yield database
    database.close()


def record_all(connection: sa.Connection, episodes: Sequence[Episode], first_user: str = "ana") -> None:
    """Record the calls of each episode as those of a conversation; call 2 of episode 1 is msg-1-2."""
    for place, episode in enumerate(episodes):
        before = None
        for number, turn in enumerate(episode.turns):
            name = f"msg-{place}-{number}"
            request = RecordedRequest(
                msg_id=name,
                conversation_id=f"conv-{place}",
                client="",
                user="ana" if place else first_user,
                task_id=episode.task.task_id,
                run_id=str(place),
                exchange=f"msg-{place}-0",
                follows=None if before is None else TurnPlace(f"msg-{place}-{number - 1}", 0),
                seen=number,
                agent=turn.agent,
                model="m",
                asked=float(place),
                answered=place + 0.5,
                turns=(RecordedTurn(turn, f"{name} digest"),),
            )
            record(connection, request, before)
            before = turn


def say(connection: sa.Connection, **what: Any) -> None:
    add(connection, NewFeedback(author="", client="", **what), RULES)


def export(database: Database, kind: Kind = "episodes", wanted: ExportFilter = ALL, **options: Any) -> list[Any]:
    with database.reading() as connection:
        return list(rows_of(connection, kind, wanted, RULES, **options))


def export_pairs(database: Database, format: PairFormat, **options: Any) -> list[Any]:
    with database.reading() as connection:
        records = pair_records(connection, ALL, RULES, **options)
        return [row for record in records for row in as_rows(record, format)]


@pytest.fixture
def out(database: Database, tmp_path: Path) -> Path:
    path = tmp_path / "online.jsonl"
    with new_file(path) as write:
        for row in export(database):
            write(row)
    return path


def test_what_was_recorded_comes_back_token_for_token(out: Path, played: list[Episode]) -> None:
    episodes = {each.episode.episode_id: each.episode for each in read_episodes(out)}
    assert sorted(episodes) == [f"msg-{n}-1" for n in range(6)]
    for place, former in enumerate(played):
        episode = episodes[f"msg-{place}-1"]
        assert turns_differ(former, episode) is None
        row = episode_to_row(EpisodeRecord(0, "", former))  # its log-probabilities have five digits
        kept = episode_from_row(row).episode
        assert [vars(line) for line in episode.timelines] == [vars(line) for line in kept.timelines]
        assert episode.unique_tokens == former.unique_tokens and episode.task.query == former.task.query
        assert episode.output is not None and episode.output.answer == former.output.answer  # type: ignore[union-attr]
        assert episode.reward == (float(place % 2) if place < 4 else None)
        assert episode.task.metadata["conversation_id"] == f"conv-{place}"


def test_replay_and_rescore_read_it(out: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = str(folder / "job.yaml")
    assert main(["replay", str(out), "--conf", job]) == 0, capsys.readouterr().out
    assert "6 replayed: 6 equal" in capsys.readouterr().out
    judge = f"{folder / 'agent.py'}:judge"
    assert main(["rescore", str(out), "--judge", judge, "--conf", job]) == 0
    assert "6 episodes" in capsys.readouterr().out


def test_a_folder_is_as_of_a_run_and_view_shows_it(database: Database, folder: Path, tmp_path: Path) -> None:
    store = f"astune.online.store={database.url.render_as_string(hide_password=False)}"
    words = ["online", "export", "--conf", str(folder / "job.yaml"), store, "--out", str(tmp_path / "served")]
    assert main(words) == 0
    assert main(["view", str(tmp_path / "served")]) == 0
    index = index_run(RunDir(tmp_path / "served"))
    assert len(index.entries) == 6 and index.left_out == () and (tmp_path / "served" / "view.html").is_file()
    assert main(words) == 2
    assert main([*words[:2], "--store", store.partition("=")[2], "--out", str(tmp_path / "more")]) == 2


def examples(method: str, path: Path, **trainer: Any) -> list[TrainingExample]:
    config = AstuneConfig.model_validate(
        {"algorithm": {"method": method}, "trainer": {"examples": str(path), **trainer}}
    )
    return read_examples(config, load_chat_format(config.model, resolve_model_dir("tiny", weights=False)))


def spoken(example: TrainingExample) -> list[str]:
    """The texts that carry loss."""
    chat_format = load_chat_format(AstuneConfig().model, resolve_model_dir("tiny", weights=False))
    spans = [(row.token_ids[span.start : span.stop], span) for row in example.rows for span in row.spans]
    return [chat_format.decode(list(ids)) for ids, span in spans if span.trainable and not span.shared]


def test_what_users_compared_and_corrected_are_examples(database: Database, tmp_path: Path) -> None:
    skipped: list[str] = []
    pairs = export_pairs(database, "dpo", skipped=skipped.append)
    assert [(pair["chosen"]["content"], pair["rejected"]["content"]) for pair in pairs] == [("44", "5")]
    assert skipped == ["answers that were compared were not to the same messages"]
    corrections = export(database, "corrections")
    assert [row["messages"][-1]["content"] for row in corrections] == ["four"]
    earlier = [message for message in corrections[0]["messages"][:-1] if message["role"] == "assistant"]
    assert [message["weight"] for message in earlier] == [0]
    for kind, method, rows in (("pairs", "dpo", pairs), ("right", "sft", corrections)):
        with new_file(tmp_path / f"{kind}.jsonl") as write:
            for row in rows:
                write(row)
        (example,) = examples(method, tmp_path / f"{kind}.jsonl")
        assert method != "sft" or spoken(example) == ["four<|im_end|>"], "the corrected answer alone is learned"


def ids(rows: list[Any]) -> list[str]:
    return sorted(row["episode_id"] for row in rows)


def test_what_is_wanted_is_taken(database: Database) -> None:
    assert ids(export(database, rated=True)) == [f"msg-{n}-1" for n in range(4)]
    assert ids(export(database, wanted=ExportFilter(since=1.5, until=4.0))) == ["msg-1-1", "msg-2-1", "msg-3-1"]
    assert ids(export(database, wanted=ExportFilter(user="bo"))) == ["msg-0-1"]
    assert len(export(database, wanted=ExportFilter(version=0))) == 6
    assert export(database, wanted=ExportFilter(version=3)) == []


def test_a_turn_carries_loss_in_the_first_of_its_episodes_alone(database: Database) -> None:
    with database.writing() as connection:
        say(connection, received=20.0, parts=(FeedbackPart("number", value=0.5),), msg_ids=("msg-5-0",))
        say(connection, received=21.0, parts=(FeedbackPart("number", value=0.25),), msg_ids=("msg-5-1",))
    rows = {row["episode_id"]: row for row in export(database, wanted=ExportFilter(since=5.0))}
    with database.writing() as connection:
        connection.execute(feedback.delete().where(feedback.c.received >= 20.0))
    assert list(rows) == ["msg-5-0", "msg-5-1"]  # in the order in which they were judged
    assert [turn["excluded"] for row in rows.values() for turn in row["turns"]] == [None, "trained_before", None]


def test_parquet_has_the_same_rows(database: Database, tmp_path: Path) -> None:
    rows = export(database)
    with new_file(tmp_path / "all.parquet") as write:
        for row in rows:
            write(row)
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["reward"] for row in table] == [row["reward"] for row in rows]
    for name in ("turns", "timelines", "task"):
        assert [json.loads(row[name]) for row in table] == [row[name] for row in rows]
    with new_file(tmp_path / "none.parquet"):
        pass
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(ZeroDivisionError), new_file(tmp_path / name) as write:
            write({"step": 1})
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="there already"), new_file(tmp_path / "a.jsonl"):
        pass
    with pytest.raises(ConfigError, match=r"ends with \.jsonl or \.parquet"), new_file(tmp_path / "a.csv"):
        pass


def test_the_command_writes_it(
    database: Database, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = database.url.render_as_string(hide_password=False)
    parser = argparse.ArgumentParser()
    add_actions(parser.add_subparsers(dest="action"))

    def run(*words: str) -> int:
        known = parser.parse_args(["export", "--store", store, *words])
        return int(known.execute(known))

    assert run("--out", str(tmp_path / "a.jsonl"), "--rated", "--version", "v0") == 0
    assert "4 episodes in" in capsys.readouterr().out
    assert len(list(read_episodes(tmp_path / "a.jsonl"))) == 4
    assert run("--out", str(tmp_path / "b.jsonl"), "--as", "preferences", "--since", "1970-01-01") == 0
    assert "left out 1: answers that were compared were not to the same messages" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="expected a date"):
        run("--out", str(tmp_path / "c.jsonl"), "--since", "yesterday")
    with pytest.raises(ConfigError, match="expected a version"):
        run("--out", str(tmp_path / "c.jsonl"), "--version", "new")


def test_a_pair_is_one_record_in_the_format_of_each_trainer(database: Database, tmp_path: Path) -> None:
    (record,) = export_pairs(database, "record")
    assert record["task_id"]
    prompt, chosen, rejected = record["messages"], record["chosen"], record["rejected"]
    assert {name: record[name] for name in record if name not in ("messages", "chosen", "rejected")} == {
        "id": "msg-1-0>msg-2-0",
        "task_id": record["task_id"],
        "tools": [],
        "margin": 1.0,
        "source": "human",
        "model_versions": [0, 0],
        "judge_version": None,
        "raters": [],
        "agreement": 1.0,
    }
    assert export_pairs(database, "trl") == [{"prompt": prompt, "chosen": [chosen], "rejected": [rejected]}]
    assert export_pairs(database, "trinity") == [{"messages": prompt, "chosen": [chosen], "rejected": [rejected]}]
    with new_file(tmp_path / "kto.jsonl") as write:
        for row in export_pairs(database, "kto"):
            write(row)
    assert [example.liked for example in examples("kto", tmp_path / "kto.jsonl")] == [(True,), (False,)]
    by_reward = export_pairs(database, "record", sources=("reward",))
    assert all(each["source"] == "reward" and each["margin"] > 0 for each in by_reward)


def test_trainers_of_others_load_the_files(database: Database, tmp_path: Path, tmp_path_factory: Any) -> None:
    from datasets import load_dataset

    for format in ("trl", "trinity"):
        path = tmp_path / f"{format}.jsonl"
        with new_file(path) as write:
            for row in export_pairs(database, format):
                write(row)
        (row,) = load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train")
        assert [row[name][0]["role"] for name in ("chosen", "rejected")] == ["assistant"] * 2
