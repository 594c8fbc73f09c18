"""A model that is loaded here, in the place of a chat API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astune.cli import main
from astune.clients.chat_models import ChatModels
from astune.config.model import ModelConfig
from astune.config.tasks import AugmentConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_model_dir
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.data.local_writer import LocalChat, stand_in
from astune.data.prompts import Solution, solve_messages
from astune.training.candidates import Candidate
from tests.data.planted import draw_tasks
from tests.data.runs import write_tasks


async def test_it_is_asked_as_an_api_is_counted_and_costs_nothing(tmp_path: Path) -> None:
    chat_format = load_chat_format(ModelConfig(), resolve_model_dir("tiny", weights=False))
    policy = ScriptedPolicy(['I think {"answer": "42"}', "no JSON", "nor this"], chat_format)
    config = AugmentConfig(models=(stand_in(Candidate("tiny", mark="abc")),), cache=str(tmp_path / "replies.sqlite"))
    models = ChatModels(config, key="astune.task_reader.augment")
    models.put_in(models.names[0], LocalChat(policy, chat_format))
    reply = await models.ask(solve_messages("6 * 7?", None), Solution)
    assert (reply.value.answer, reply.model, reply.usage.cost, reply.usage.calls) == ("42", "tiny abc", 0.0, 1)
    assert (await models.ask(solve_messages("6 * 7?", None), Solution)).usage.cached == 1
    assert "6 * 7?" in chat_format.decode(policy.calls[0][0]) and reply.usage.prompt_tokens == len(policy.calls[0][0])
    with pytest.raises(Exception, match="the reply cannot be used"):
        await models.ask(solve_messages("6 * 8?", None), Solution)
    assert policy.calls[1][1].seed != policy.calls[2][1].seed


def test_without_any_model_both_places_for_one_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = write_tasks(tmp_path / "seeds.jsonl", draw_tasks(2, 0))
    assert main(["data", "expand", "--seeds", str(seeds), "--target", "2"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "augment.models is empty" in said and "astune.task_reader.augment.writer" in said


@pytest.mark.release
def test_a_model_that_is_loaded_here_and_writes_junk_makes_no_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = write_tasks(tmp_path / "seeds.jsonl", draw_tasks(2, 0))
    options = ("writer=none", "max_tokens=8", "checks=[agree]", f"cache={tmp_path}/replies.sqlite")
    command = ["data", "expand", "--seeds", str(seeds), "--target", "2", "--out", str(tmp_path / "made.jsonl")]
    keys = [f"astune.task_reader.augment.{option}" for option in options]
    assert main([*command, "astune.model.path=tiny", *keys]) == 1
    report = json.loads((tmp_path / "made.report.json").read_text())
    assert report["ended"] == "no reply of the models could be used" and report["kept"] == 0
    assert report["this_run"]["calls"] > 0 and report["this_run"]["cost"] == 0.0
    capsys.readouterr()
    assert main([*command, "astune.task_reader.augment.writer=http://127.0.0.1:9/v1#m", *keys[1:]]) == 2
    assert "is an API: name it in models" in " ".join(capsys.readouterr().err.split())
