"""Runs that start their environment service: the debugger, a replay of what it recorded, and training."""

import io
from pathlib import Path

import pytest

from astune.backbone.debug import DebugBackbone
from astune.backbone.debug.sources.debug_model import DebugModel
from astune.cli import main
from astune.config.load import load_config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.monitor import read_episodes
from astune.support.resources import tiny_model_dir
from astune.support.terminal import Console
from astune.types import StopReason

CORRIDOR = Path(__file__).parents[1] / "environment" / "corridor.py"
AGENT = """
import json
from astune import WorkflowOutput


async def walk(task, tuner):
    env = tuner.environment
    client = tuner.openai_client("walker")
    messages = list(task.messages)
    while not env.done:
        reply = await client.chat.completions.create(model="m", messages=messages, tools=list(env.tools))
        message = reply.choices[0].message.model_dump(exclude_none=True)
        messages += [message, *(await env.step(message)).messages]
    return WorkflowOutput(answer=messages[-1]["content"])


async def one_answer(task, tuner):
    client = tuner.openai_client("walker")
    reply = await client.chat.completions.create(model="m", messages=list(task.messages), max_tokens=4)
    await tuner.environment.step(reply.choices[0].message.content or "nothing")
    await tuner.environment.step("die" if task.task_id == "b" else "right")
    return WorkflowOutput(answer="done")
"""
RIGHT = '<tool_call>\n{"name": "move", "arguments": {"direction": "right"}}\n</tool_call>'


@pytest.fixture
def conf(tmp_path):
    (tmp_path / "corridor.py").write_text(CORRIDOR.read_text())
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "walk.yaml").write_text(
        "astune:\n"
        f"  runs_dir: {tmp_path / 'runs'}\n"
        "  rollout: {agentscope_learn_protocol: agent.py:walk, max_tokens: 100}\n"
        "  task_reader: {type: env_service, env_service: {serve: corridor.py:Corridor, options: {length: 2}}}\n"
        "  task_judge: {judge_protocol: EnvServiceJudge}\n"
    )
    return tmp_path / "walk.yaml"


def debug(conf, answers, *overrides):
    chat_format = ChatFormat.load(tiny_model_dir())
    model = DebugModel("scripted", ScriptedPolicy(answers, chat_format), chat_format)
    screen = Console(file=io.StringIO(), width=110)
    report = DebugBackbone(screen, model=model).run(load_config(conf, overrides, backbone="debug"))
    return report, screen.file.getvalue()


def test_what_the_debugger_recorded_replays_against_a_new_instance(conf, capsys):
    report, text = debug(conf, [RIGHT, f"Hm.\n{RIGHT}"])
    (record,) = read_episodes(report.run_dir / "episodes" / "debug.jsonl")
    assert (record.episode.reward, record.episode.task.query, len(record.episode.turns)) == (1.0, "Go right.", 2)
    assert "Go right." in text and "place 2" in text
    assert main(["replay", str(report.run_dir)]) == 0
    assert "1 replayed: 1 equal" in capsys.readouterr().out


def test_an_environment_that_cannot_be_made_is_shown_as_the_episodes_error(conf):
    (conf.parent / "corridor.py").write_text(CORRIDOR.read_text().replace('["a", "b"]', '["broken"]'))
    report, text = debug(conf, [])
    assert "environment: EnvServiceError" in text and "the walls fell in" in text
    (record,) = read_episodes(report.run_dir / "episodes" / "debug.jsonl")
    assert record.episode.stop_reason is StopReason.ERROR


@pytest.mark.fault(
    "Tools and environments",
    "the environment service that a run started dies",
    "the run goes on, says so with the service's last lines, and its episodes are errors",
)
@pytest.mark.parametrize("workers", [0, 2])
def test_training_starts_the_service_and_goes_on_when_it_dies(conf, caplog, workers):
    from astune.backbone.local.engine import LocalBackbone

    overrides = [
        f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:one_answer",
        "astune.rollout.num_repeat=4",
        f"astune.rollout.workers={workers}",
        "astune.task_reader.shuffle=false",
        "astune.trainer.tasks_per_step=1",
        "astune.trainer.total_steps=2",
    ]
    report = LocalBackbone().run(load_config(conf, overrides, backbone="local"))
    episodes = [record.episode for record in read_episodes(report.run_dir / "episodes" / "train.jsonl")]
    assert (report.status, [episode.task.task_id for episode in episodes]) == ("learned_nothing", ["a"] * 4 + ["b"] * 4)
    assert [episode.reward for episode in episodes] == [0.5] * 4 + [None] * 4
    assert {episode.error.stage for episode in episodes[4:]} == {"environment"}
    assert "that this run started has ended (exit code -9)" in caplog.text


def test_what_the_service_says_has_a_file_beside_the_runs_log(conf, monkeypatch):
    monkeypatch.chdir(conf.parent)
    call = RIGHT.replace('"right"', '"raise"')
    Path("answers.py").write_text(f"def speak(request):\n    return {call!r}\n")
    main(["--conf", str(conf), "--backbone=debug", "--model", "scripted:answers.py:speak", "--limit", "1"])
    (log,) = Path("runs").rglob("environment.log")
    assert "an environment raised" in log.read_text() and "the floor is missing" in log.read_text()
    assert "Traceback" not in (log.parents[1] / "run.log").read_text()
