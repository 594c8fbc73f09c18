"""What users did, read from chat logs: each sign, and what cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, TaskError
from astune.testing import ScriptedChatServer
from astune.traces.convert import TraceHarvest
from astune.traces.record import ReadingRules
from astune.traces.run import TraceJob, make_from_traces
from tests.rows import each_row

ASK = {"role": "user", "content": "How high is K2?"}
ANSWER = {"role": "assistant", "content": "8,611 m"}
OTHER = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "thumb": "up"}]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def harvest_of(folder: Path, *lines: Any, **options: Any) -> TraceHarvest:
    file = folder / "chats.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    config = AstuneConfig.model_validate({"online": {"feedback": {"follow": options.pop("follow", {})}}})
    return make_from_traces(TraceJob(str(file), folder / "out.jsonl", **options), config)


def said(answer: dict[str, Any], *after: dict[str, Any], **around: Any) -> dict[str, Any]:
    return {"messages": [ASK, answer, *after], **around}


SIGNS: dict[str, tuple[Any, Any]] = {
    "liked": (said(ANSWER | {"thumb": "up"}), ("8,611 m", 1.0, True)),
    "four stars": (said(ANSWER, rating=4), ("8,611 m", 0.75, True)),
    "three stars": (said(ANSWER, rating=3), ("", 0.5, False)),
    "a number that is a thumb": (said(ANSWER, feedback=-1), ("", 0.0, False)),
    "thanks": (said(ANSWER, user("Thanks!")), ("", 1.0, True)),
    "thumb over thanks": (said(ANSWER | {"thumb": False}, user("Thanks!")), ("", 0.0, False)),
    "a complaint": (said(ANSWER, user("That is wrong.")), ("", 0.0, False)),
    "asked again": (said(ANSWER, ASK), ("", 0.0, False)),
    "corrected": (said(ANSWER | {"feedback": [{"correction": "8,614 m"}]}), ("8,614 m", 0.0, True)),
    "left": ({"messages": [ASK]}, ("", None, False)),
    "stopped": (said(ANSWER | {"finished_reason": "interrupted"}), ("", None, False)),
    "no sign": (said(ANSWER), "no sign"),
    "for and against": (said(ANSWER | {"feedback": ["up", "down"]}), "contradiction"),
    "liked and corrected": (said(ANSWER | {"thumb": "up", "correction": "8,614 m"}), "contradiction"),
    "refused": (said(ANSWER, rating=5, consent=False), "no consent"),
    "refused in metadata": (said(ANSWER, rating=5, metadata={"do_not_train": True}), "no consent"),
    "refused in another spelling": (said(ANSWER, rating=5, metadata={"trainingOptOut": "yes"}), "no consent"),
    "refused in a section": (said(ANSWER, rating=5, consent={"training": False, "cookies": True}), "no consent"),
    "refused by a tag": (said(ANSWER, rating=5, tags=["beta", "do-not-train"]), "no consent"),
    "refused as a pair": (said(ANSWER, rating=5, flags=[{"key": "consent", "value": False}]), "no consent"),
    "refused as a purpose": (said(ANSWER, rating=5, privacy={"model_improvement": "no"}), "no consent"),
    "agreed to something else": (said(ANSWER, rating=5, privacy={"consent": ["analytics"]}), "no consent"),
    "agreed in a section": (
        said(ANSWER, rating=5, consent={"given": True, "date": "2026-01-01"}, marketing_consent=False),
        ("8,611 m", 1.0, True),
    ),
    "refused in a message": (said(ANSWER | {"metadata": {"user.consent": "no"}}, rating=5), "no consent"),
    "as ShareGPT has it": (
        {
            "system": "You know mountains.",
            "conversations": [
                {"from": "human", "value": ASK["content"]},
                {"from": "gpt", "value": "8,611 m", "thumb": "up"},
            ],
            "tools": "[]",
        },
        ("8,611 m", 1.0, False),
    ),
    "nobody says who speaks": ({"messages": [{"content": "How high is K2?"}, {"content": "8,611 m"}]}, "unread"),
    "no such rating": (said(ANSWER, rating=9), "unread"),
    "no such thumb": (said(ANSWER | {"thumb": "maybe"}), "unread"),
    "no JSON": ('{"messages": [', "unread"),
    "no conversation": ({"text": "How high is K2?"}, "unread"),
    "nobody asks": ({"messages": [ANSWER]}, "unread"),
    "a picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unread"),
    "a text for a part": ({"messages": [{"role": "user", "content": ["K2"]}]}, "unread"),
    "half a sign": (
        said({"role": "assistant", "content": "8,611 \ud83d"} | {"thumb": "up"}),
        ("8,611 \ud83d", 1.0, True),
    ),
    "a number for a message": ({"messages": [ASK, 7]}, "unread"),
}
"""A line, and of its exchange the reference, the reward and whether it is imitated; or why it is dropped."""


@each_row(("line", "expected"), SIGNS.values(), ids=list(SIGNS))
def test_signs(line: Any, expected: Any, tmp_path: Path) -> None:
    found = harvest_of(tmp_path, OTHER, line)
    if isinstance(expected, str):
        assert [one.reason for one in found.dropped] == [expected]
        return
    found.save()
    made = next(one for one in found.kept if one.query == ASK["content"])
    imitated = any(row["messages"][0] == ASK for row in found.examples)
    assert (made.answer, made.lineage["reward"], imitated) == expected


@each_row(
    ("next_message", "is_a_task"),
    [
        ("Thanks! And what is 5+5?", True),
        ("Great, now write it in feet.", True),
        ("谢谢。那珠穆朗玛峰有多高?", True),
        ("That is wrong. Anyway, how high is the Eiger?", True),
        ("That is wrong. Can you look it up again?", False),
        ("Thanks a lot, that helps. You are kind.", False),
        ("不对,你错了。", False),
    ],
)
def test_what_a_user_says_next_may_be_a_question_too(next_message: str, is_a_task: bool, tmp_path: Path) -> None:
    found = harvest_of(tmp_path, said(ANSWER, user(next_message), {"role": "assistant", "content": "x", "thumb": "up"}))
    assert next_message in [one["messages"][-2]["content"] for one in found.examples]
    assert [made.answer for made in found.kept if made.query == next_message] == ["x"] * is_a_task
    assert next(made.lineage["reward"] for made in found.kept if made.query == ASK["content"]) is not None


def test_packed_files_are_read_and_a_broken_one_is_told(tmp_path: Path) -> None:
    line = json.dumps(said({"role": "assistant", "content": "8,611\u2028m"}, rating=5), ensure_ascii=False)
    lines = f"\ufeff{line}\r\n{{}}\r\n"  # a sign that some take for the end of a line
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    job = TraceJob(str(tmp_path / "logs"), tmp_path / "out.jsonl")
    assert [made.answer for made in make_from_traces(job, AstuneConfig()).kept] == ["8,611\u2028m"]
    (tmp_path / "logs/b.json.gz").write_bytes(gzip.compress(lines.encode())[:40])
    with pytest.raises(TaskError, match=r"b\.json\.gz: cannot be read"):
        make_from_traces(job, AstuneConfig())


def test_questions_that_nobody_judged_are_tasks_where_wanted(tmp_path: Path) -> None:
    assert [made.answer for made in harvest_of(tmp_path, said(ANSWER), unrated=True).kept] == [""]


def test_consent_by_a_flag_of_a_name_is_needed_where_it_is_asked_for(tmp_path: Path) -> None:
    asked = ReadingRules(consent="agreed")
    lines = [said(ANSWER, rating=5, agreed="yes"), said(ANSWER, rating=5, consent=True), said(ANSWER, agreed=0)]
    found = harvest_of(tmp_path, *lines, rules=asked)
    assert len(found.kept) == 1 and [one.reason for one in found.dropped] == ["no consent"] * 2
    assert ASK["content"] not in json.dumps([one.row() for one in found.dropped])


def test_silence_counts_where_the_configuration_says_so(tmp_path: Path) -> None:
    found = harvest_of(tmp_path, said(ANSWER), follow={"signs": {"silence": 1}})
    assert [made.lineage["reward"] for made in found.kept] == [1.0]


def test_a_dry_run_asks_no_model_and_says_how_often_a_run_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps(said(ANSWER, user("Thanks!"), OTHER["messages"][1])) + "\n")
    with ScriptedChatServer(['{"reason": "thanks", "vote": 1}'] * 6) as server:
        follow = "astune.online.feedback.follow"
        models = f"{follow}.llm.models=[{{base_url: '{server.base_url}', model: m}}]"
        judged = [f"{follow}.judge=model", f"{follow}.llm.votes=3", f"{follow}.llm.agreeing=2", models]
        command = ["data", "from-traces", str(file), "--out", str(tmp_path / "out.jsonl"), f"{follow}.llm.cache=null"]
        assert main([*command, *judged, "--dry-run"]) == 0
        assert server.requests == [] and [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]
        assert "up to 6 model calls" in " ".join(capsys.readouterr().out.split())
        assert main([*command, *judged]) == 0
        assert len(server.requests) == 6


def test_answers_to_one_question_are_compared(tmp_path: Path) -> None:
    worse = said({"role": "assistant", "content": "9 km"}, rating=2)
    found = harvest_of(tmp_path, said(ANSWER, rating=5), worse)
    assert [(pair["chosen"]["content"], pair["rejected"]["content"]) for pair in found.pairs] == [("8,611 m", "9 km")]
    assert [one.reason for one in found.dropped] == ["copy"] and len(found.rewards) == 2
    found = harvest_of(tmp_path, said(ANSWER, rating=5), worse, said(ANSWER, rating=1))
    assert (len(found.pairs), len(found.examples), len(found.rewards)) == (1, 0, 1)  # users disagree: it is 0.5


def test_corrections_that_contradict_each_other_teach_nothing(tmp_path: Path) -> None:
    found = harvest_of(tmp_path, *[said(ANSWER | {"correction": text}) for text in ("8,614 m", "8,600 m")])
    assert found.kept == found.pairs == found.examples == []
    assert [one.reason for one in found.dropped] == ["contradiction"] * 2


def test_no_held_out_question_comes_through_in_any_file(tmp_path: Path) -> None:
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"query": "How high is K2, in metres?", "answer": "x"}) + "\n")
    later = said(ANSWER, user("And how deep is the sea there?"), ANSWER | {"thumb": "down", "correction": "3 m"})
    found = harvest_of(tmp_path, OTHER, said(ANSWER, rating=5), later, held_out=tmp_path / "held_out.jsonl")
    found.save()
    files = [file for file in tmp_path.glob("out*.jsonl") if "dropped" not in file.name]
    assert len(files) == 4 and "K2" not in "".join(file.read_text() for file in files)
    assert sorted(one.reason for one in found.dropped) == ["leak", "leak", "no sign"]


def test_each_file_of_held_out_tasks_counts(tmp_path: Path) -> None:
    held_out = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, question in zip(held_out, ("How high is K2, in metres?", "Who wrote Faust?"), strict=True):
        file.write_text(json.dumps({"query": question, "answer": "x"}) + "\n")
    (tmp_path / "chats.jsonl").write_text(json.dumps(said(ANSWER, rating=5)) + "\n" + json.dumps(OTHER) + "\n")
    options = [part for file in [held_out[0], *held_out] for part in ("--held-out", str(file))]
    assert (
        main(["data", "from-traces", str(tmp_path / "chats.jsonl"), "--out", str(tmp_path / "out.jsonl"), *options])
        == 0
    )
    assert "K2" not in (tmp_path / "out.jsonl").read_text()


def test_sources_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    def fails(source: Path | str, match: str, out: str = "out.jsonl") -> None:
        with pytest.raises((TaskError, ConfigError), match=match):
            make_from_traces(TraceJob(str(source), tmp_path / out), AstuneConfig())

    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n{\n')
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    fails(tmp_path / "nowhere", "there is no such file or folder")
    fails(tmp_path / "empty.jsonl", "no conversation could be read")
    fails(tmp_path / "broken.jsonl", r"(?s)no conversation.*broken\.jsonl:1: neither.*broken\.jsonl:2: not JSON")
    fails(tmp_path / "binary.jsonl", "cannot be read: 'utf-8' codec")
    fails(tmp_path / "folder", "no files of traces")
    fails(f"sqlite:///{tmp_path}/none.db", "there is no such database")
    fails(tmp_path / "empty.jsonl", "choose another file", out="empty.jsonl")
