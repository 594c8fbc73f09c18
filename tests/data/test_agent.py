"""The agent of the configuration plays made tasks: as a check of the answer, and as the policy that is to learn."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.environment.server import EnvServer
from astune.task_judge.llm.fence import read_fences
from astune.testing import ScriptedChatServer
from tests.data.agents import COLOURS, Doors
from tests.data.planted import PlantedTasks
from tests.data.runs import AGREE, expand, rows_of, serve

AGENTS = Path(__file__).with_name("agents.py")
PLAYED = (
    f"astune.rollout.agentscope_learn_protocol={AGENTS}:solve",
    "astune.task_judge.judge_protocol=MathAnswerAsJudge",
    "astune.task_judge.answer_format=last_number",
)


def test_what_the_policy_always_or_never_solves_is_dropped(tmp_path: Path) -> None:
    world, tries = PlantedTasks(seed=8), Counter[str]()

    def skill(question: str) -> int:
        return zlib.crc32(question.encode()) % 3

    def play(body: Mapping[str, Any]) -> str:
        question = body["messages"][0]["content"]
        tries[question] += 1
        solved = (False, tries[question] % 2 == 1, True)[skill(question)]
        return world.truth[question] if solved else "-1"

    with ScriptedChatServer(play) as server:
        played = *PLAYED, f"astune.task_reader.augment.policy={server.base_url}#policy"
        assert expand(world, tmp_path, *AGREE, *played, target=6) == 0
    kept, dropped = rows_of(tmp_path / "made.jsonl"), rows_of(tmp_path / "made.dropped.jsonl")
    assert len(kept) == 6 and {skill(row["query"]) for row in kept} == {1}
    assert {row["lineage"]["checks"]["policy"]["solved"] for row in kept} == {2}
    assert {(row["reason"], skill(row["query"])) for row in dropped} == {("too hard", 0), ("too easy", 2)}


def test_an_answer_that_the_agent_does_not_find_is_dropped_and_what_it_played_is_not_played_again(
    tmp_path: Path,
) -> None:
    world = PlantedTasks(seed=9, shares={"wrong answer": 0.4})
    agent = PlantedTasks(seed=9)
    agent.truth = world.truth
    with serve(agent) as server:
        checks = "astune.task_reader.augment.checks=[agent]", "astune.task_reader.augment.solutions=2"
        played = *PLAYED, *checks, f"astune.task_reader.augment.agent={server.base_url}#agent"
        assert expand(world, tmp_path, *played, target=6) == 0
        kept, calls = rows_of(tmp_path / "made.jsonl"), len(server.requests)
        assert expand(world, tmp_path, *played, target=6) == 0
        assert len(server.requests) == calls and rows_of(tmp_path / "made.jsonl") == kept
    assert all(world.planted[row["query"]] is None for row in kept)
    assert kept[0]["lineage"]["checks"] == {"agent": {"solved": 2, "of": 2}}
    assert {row["reason"] for row in rows_of(tmp_path / "made.dropped.jsonl")} == {"wrong answer"}
    report = json.loads((tmp_path / "made.report.json").read_text())
    assert report["calls"] == sum(world.calls.values()) + calls


def reword(body: Mapping[str, Any]) -> str:
    """As a generator: the seed in other words, at times with another door. As the agent's model: the door."""
    if len(body["messages"]) == 1:
        return next(colour for colour in COLOURS if colour in body["messages"][0]["content"])
    example = dict(read_fences(body["messages"][1]["content"]))["example"]
    colour = next(colour for colour in COLOURS if colour in example)
    other = COLOURS[(COLOURS.index(colour) + 1) % 3]
    questions = [
        f"Would you get the {colour} one of them open?",
        f"Go to the door that is {colour}, and push.",
        f"Push the door of {other} colour until it gives way.",
    ]
    return json.dumps({"tasks": [{"question": question, "answer": "?"} for question in questions]})


def test_a_task_in_a_world_is_said_in_other_words_and_the_judge_of_the_world_says_whether_it_is_still_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [{"query": f"Open the {one} door.", "env_type": "doors", "env_task_id": one} for one in COLOURS]
    (tmp_path / "doors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in seeds))
    with ScriptedChatServer(reword) as model, EnvServer([Doors()]) as service:
        command = [
            *("data", "expand", "--seeds", str(tmp_path / "doors.jsonl"), "--out", str(tmp_path / "made.jsonl")),
            *("--target", "6", f"astune.task_reader.env_service.env_url={service.url}"),
            f"astune.task_reader.augment.models=[{{base_url: '{model.base_url}', model: m}}]",
            f"astune.task_reader.augment.cache={tmp_path}/replies.sqlite",
            f"astune.rollout.agentscope_learn_protocol={AGENTS}:open_door",
            "astune.task_judge.judge_protocol=EnvServiceJudge",
        ]
        assert main(command) == 2
        assert "is checked in it: set checks: [agent]" in " ".join(capsys.readouterr().err.split())
        agent = f"astune.task_reader.augment.agent={model.base_url}#m"
        assert main([*command, "astune.task_reader.augment.checks=[agent]", agent]) == 0
    kept, dropped = rows_of(tmp_path / "made.jsonl"), rows_of(tmp_path / "made.dropped.jsonl")
    assert len(kept) == 6 and all(row["env_task_id"] in row["query"] and row["env_type"] == "doors" for row in kept)
    assert [row["reason"] for row in dropped] == ["wrong answer"] * 3
    assert all("answer" not in row and row["env_task_id"] not in row["query"] for row in dropped)
