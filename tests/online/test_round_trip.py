"""Each export of the store, and the episodes of a run, are read by each method that they are for, as they were said."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from astune.cli import main
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import TaskError
from astune.examples.example import TrainingExample
from astune.examples.read import read_examples
from astune.monitor import read_episodes
from astune.online.store.feedback.states import FeedbackPart
from astune.store.database import open_database
from astune.support.resources import tiny_model_dir
from astune.task_reader.task_sets import read_task_sets
from astune.testing import script_engine
from astune.training.start import run_training
from astune.types import Episode, Timeline
from tests.online.test_export import record_all, say

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
CASES = {
    "text": ("plain", "4.", "5"),
    "a call without tools": ("plain", CALL, "5"),
    "text and a call without tools": ("plain", f"Hm. {CALL}", "5"),
    "calls": ("tools", CALL, f"Let me see.\n{CALL}"),
    "two calls": ("tools", f"{CALL}\n{CALL}", "5"),
    "a broken call": ("tools", '<tool_call>\n{"name": "add", "argu', "5"),
    "a call of no tool": ("tools", CALL.replace("add", "sub"), "5"),
    "a call that may not be": ("none", CALL, "5"),
    "reasoning": ("plain", "<think>\nHm.\n</think>\n\n4", "<think>\nHm.\n</think>\n\n"),
    "nothing": ("plain", "", "5"),
}
"""What the agent asks by, and two answers; the first is always longer or better known."""
AGENT = """
from astune import WorkflowOutput

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "number"}, "b": {"type": "number"}}}}}

async def agent(task, tuner):
    client, messages = tuner.openai_client(), [{"role": "system", "content": "Be brief."}]
    messages.append({"role": "user", "content": task.query})
    asked = {"plain": {}, "tools": {"tools": [TOOL]}, "none": {"tools": [TOOL], "tool_choice": "none"}}
    options = asked[task.metadata["by"]]
    reply = (await client.chat.completions.create(model="m", messages=messages, **options)).choices[0].message
    if reply.tool_calls:
        messages.append(reply.model_dump())
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in reply.tool_calls]
    else:
        messages += [reply.model_dump(), {"role": "user", "content": "Sure?"}]
    last = await client.chat.completions.create(model="m", messages=messages, **options)
    return WorkflowOutput(last.choices[0].message.content)

def judge(task, episode):
    return len(episode.turns[0].output_ids) / 100
"""


@pytest.fixture(scope="module")
def chat_format() -> ChatFormat:
    return ChatFormat.load(tiny_model_dir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two attempts at each case, and a store with the same, all of it rated, compared and corrected."""
    folder = tmp_path_factory.mktemp("round")
    (folder / "agent.py").write_text(AGENT)
    tasks = [{"query": name, "id": name, "by": by} for name, (by, *_) in CASES.items()]
    (folder / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    config = {
        "project_name": "test",
        "experiment_name": "job",
        "runs_dir": str(folder / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "task_judge": {"judge_protocol": "agent.py:judge"},
        "rollout": {"agentscope_learn_protocol": "agent.py:agent", "num_repeat": 2, "max_tokens": 200},
        "trainer": {"total_steps": 1, "tasks_per_step": len(CASES)},
        "monitor": {"progress": "off", "trackers": []},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    asked = Counter[str]()

    def answer(prompt: str) -> str:
        name = next((name for name in CASES if prompt.endswith(f"\n{name}<|im_end|>\n<|im_start|>assistant\n")), None)
        if name is None:
            return "It is 7."
        asked[name] += 1
        return CASES[name][asked[name]]

    run_training(load_config(folder / "job.yaml"), script_engine(answer))
    with closing(open_database(f"sqlite:///{folder}/store.db")) as database, database.writing() as connection:
        episodes = [record.episode for record in read_episodes(folder / "runs/test/job/episodes/train.jsonl")]
        calls = next(episode for episode in episodes if episode.task.task_id == "calls")
        without = replace(calls, turns=tuple(replace(turn, tools=()) for turn in calls.turns))
        record_all(connection, [*episodes, without])
        other = {"better": f"msg-{episodes.index(calls)}-0", "worse": f"msg-{len(episodes)}-0"}
        say(connection, received=98.0, parts=(FeedbackPart("preference"),), **other)
        for place, episode in enumerate(episodes):
            score = FeedbackPart("number", value=episode.reward)
            say(connection, received=float(place), parts=(score,), msg_ids=(f"msg-{place}-0",))
            right = FeedbackPart("correction", correction="It is 7.")
            say(connection, received=50.0 + place, parts=(right,), msg_ids=(f"msg-{place}-1",))
        for better in range(0, len(episodes), 2):
            said = (FeedbackPart("preference"),)
            say(connection, received=100.0 + better, parts=said, better=f"msg-{better}-0", worse=f"msg-{better + 1}-0")
    store = f"sqlite:///{folder}/store.db"
    for name, words in EXPORTS.items():
        assert main(["online", "export", "--store", store, "--out", str(folder / f"{name}.jsonl"), *words]) == 0
    (folder / "run.jsonl").write_bytes((folder / "runs/test/job/episodes/train.jsonl").read_bytes())
    return folder


EXPORTS = {
    "episodes": [],
    "rated": ["--rated"],
    "preferences": ["--as", "preferences"],
    "corrections": ["--as", "corrections"],
}
READ = {
    "run": {"sft": 22, "dpo": 10, "kto": 20},
    "episodes": {"sft": 41, "dpo": 10, "kto": 20},
    "rated": {"sft": 40, "dpo": 10, "kto": 20},
    "preferences": {"dpo": 10},
    "corrections": {"sft": 20},
}
"""Examples by export and method; with others a file says what it is. Where later history drops reasoning, a
conversation is two; answers that users judged apart are episodes of their own."""


def examples(file: Path, method: str, chat_format: ChatFormat) -> list[TrainingExample]:
    config = AstuneConfig.model_validate({"algorithm": {"method": method}, "trainer": {"examples": str(file)}})
    return read_examples(config, chat_format)


@pytest.mark.parametrize("export", READ)
def test_each_export_is_read_by_each_method_that_it_is_for(
    folder: Path, chat_format: ChatFormat, export: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = folder / f"{export}.jsonl"
    for method in ("sft", "dpo", "kto"):
        if method in READ[export]:
            assert len(examples(file, method, chat_format)) == READ[export][method], method
        else:
            with pytest.raises(TaskError, match="and this is "):
                examples(file, method, chat_format)
    assert not caplog.records  # nothing is left out
    reader = {"jsonl": {"training": {"file_path": str(file)}}}
    with pytest.raises(TaskError, match="and this is "):
        read_task_sets(AstuneConfig.model_validate({"task_reader": reader}).task_reader)


def said(row: Timeline) -> list[int]:
    return [token for token, trained in zip(row.token_ids, row.loss_mask, strict=True) if trained]


def test_what_users_compared_is_learned_token_for_token_after_its_prompt_with_tools_and_calls(
    folder: Path, chat_format: ChatFormat
) -> None:
    episodes: list[Episode] = [each.episode for each in read_episodes(folder / "run.jsonl")]
    pairs = examples(folder / "preferences.jsonl", "dpo", chat_format)
    rows = [row for pair in pairs for row in pair.rows]
    for row, episode in zip(rows, episodes, strict=True):
        turn = episode.turns[0]
        assert said(row) == list(turn.output_ids)
        assert list(row.token_ids) == [*turn.prompt_ids, *turn.output_ids]
    exported = [json.loads(line) for line in (folder / "preferences.jsonl").read_text().splitlines()]
    by_case = {row["messages"][-1]["content"]: row for row in exported}
    assert [len(by_case[name]["tools"]) for name in CASES] == [int(by != "plain") for by, *_ in CASES.values()]
    assert [len(by_case[name]["chosen"].get("tool_calls", ())) for name in ("calls", "two calls")] == [1, 2]


def test_answers_that_were_offered_other_tools_are_no_pair(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = f"sqlite:///{folder}/store.db", str(tmp_path / "pairs.jsonl")
    assert main(["online", "export", "--store", store, "--out", out, "--as", "preferences"]) == 0
    assert "left out 1: answers that were compared were offered other tools" in capsys.readouterr().out
