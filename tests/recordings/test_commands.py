"""`astune replay`, `astune rescore` and `astune diff` on the files of a run."""

from dataclasses import replace
from datetime import datetime

import pytest

from astune.cli import main
from astune.config.clock import at_clock
from astune.config.render import save_config
from astune.config.schema import Config, ModelConfig
from astune.context_tracker.model_dir import load_chat_format
from astune.monitor import EpisodeLog, RunDir, read_episodes
from astune.plugins import load_plugin
from astune.rollout.verdict import strip_verdict
from astune.testing import write_test_model_dir
from astune.types import EpisodeError, StopReason, Task
from tests.recordings.habits import HabitPolicy
from tests.recordings.played import kept, play

JUDGES = """\
import asyncio

from astune import Verdict
from tests.passing_time import pass_time

async def longer(task, episode):
    if task.task_id == "t3":
        raise RuntimeError("the service is down")
    if task.task_id == "t2":
        pass_time(61)
        await asyncio.sleep(60)
    return 1.0 if episode.output.answer else 0.0


class Places:
    # the place of each attempt in its group, by name

    def __init__(self, config): ...

    async def judge(self, task, episode):
        raise RuntimeError("alone")

    async def judge_group(self, task, episodes):
        ids = sorted(episode.episode_id for episode in episodes)
        return [Verdict(1.0 + ids.index(episode.episode_id)) for episode in episodes]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(
        "from astune import WorkflowOutput\n"
        "from astune.context_tracker.calls import ChatRequest\n\n\n"
        "async def turns(task, tuner):\n"
        "    messages = [{'role': 'user', 'content': task.query}]\n"
        "    messages += [(await tuner.chat(ChatRequest(messages))).message, {'role': 'user', 'content': 'Why?'}]\n"
        "    answer = await tuner.chat(ChatRequest(messages))\n"
        "    return WorkflowOutput(answer=answer.message['content'], reward=0.5)\n"
    )
    (tmp_path / "judges.py").write_text(JUDGES)
    return tmp_path


@pytest.fixture
def config(folder, model_dir):
    rollout = {"agentscope_learn_protocol": f"{folder / 'work.py'}:turns", "max_tokens": 512}
    values = {"runs_dir": str(folder / "runs"), "model": {"path": str(model_dir)}, "rollout": rollout}
    return Config.model_validate({"astune": values})


def played(folder, chat_format, number):
    workflow = load_plugin(f"{folder / 'work.py'}:turns", kind="workflow")
    return play(
        workflow, (), chat_format, task=Task(f"t{number}", f"What is {number}?"), policy=HabitPolicy(chat_format)
    )


@pytest.fixture
def run(folder, config, chat_format):
    """The folder of a run with three episodes in its log."""
    run_dir = RunDir.open(config, resume=False)
    with EpisodeLog(run_dir) as log:
        for number in (1, 2, 3):
            log.write(played(folder, chat_format, number), step=number, phase="train")
    return run_dir.path


def test_the_episodes_of_a_run_replay_and_the_exit_code_says_so(run, capsys):
    assert main(["replay", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["equal", f"train/t{number}/0"] for number in (1, 2, 3)]
    assert lines[3] == "3 replayed: 3 equal, 0 different"


def test_a_filter_chooses_what_is_replayed(run, capsys):
    assert main(["replay", str(run), "--filter", "step>=2, task=t2"]) == 0
    assert "1 replayed: 1 equal" in capsys.readouterr().out
    assert main(["replay", str(run), "--filter", "step>3"]) == 2
    assert "of 3 recorded none passes 'step>3'" in capsys.readouterr().err


def test_a_workflow_that_was_changed_is_told_where_and_ends_with_1(run, folder, capsys):
    work = folder / "changed.py"
    work.write_text((folder / "work.py").read_text().replace("'Why?'", "'Really?'"))
    assert main(["replay", str(run), f"astune.rollout.agentscope_learn_protocol={work}:turns"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERS  train/t1/0  model call 2 of 'agent' has parted from the recording" in out
    assert "recorded 'Why?', now 'Really?'" in out and "3 replayed: 0 equal, 3 different" in out


def test_a_recording_replays_with_the_configuration_in_it(folder, config, chat_format, capsys):
    path = kept(folder / "demo-debug", config, played(folder, chat_format, 1))
    assert main(["replay", str(path)]) == 0
    assert main(["replay", str(folder / "demo-debug"), "astune.rollout.max_turns=1"]) == 1
    assert "after 1 turns: recorded a call of agent, now no more model calls" in capsys.readouterr().out


@pytest.mark.parametrize("known", [True, False], ids=["kept", "of an older ASTune"])
def test_a_replay_is_told_the_time_of_the_recording_or_names_the_difference(known, folder, config, tmp_path, capsys):
    model_dir = write_test_model_dir(tmp_path / "dated", context_length=8192)
    template = model_dir / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}\n" + template.read_text())
    model = ModelConfig(path=str(model_dir), clock=datetime(2001, 2, 3))
    without = Config(astune=config.astune.model_copy(update={"model": ModelConfig(path=str(model_dir))}))
    settings = Config(astune=at_clock(without.astune, model.clock)) if known else without
    path = kept(folder / "dated-debug", settings, played(folder, load_chat_format(model, model_dir), 1))
    save_config(without, folder / "other.yaml")
    for arguments in ([], ["--conf", str(folder / "other.yaml")]):
        assert main(["replay", str(path), *arguments]) == (0 if known else 1)
    capsys.readouterr()
    assert main(["replay", str(path), "astune.model.clock=2002-02-03"]) == 1
    then = "was 2001-02-03T00:00:00 when it was recorded" if known else "was not kept with the recording"
    assert f"it {then}, and is 2002-02-03T00:00:00 now (astune.model.clock)" in capsys.readouterr().out


def test_nobody_needs_the_keys_of_models_that_are_not_called(run, capsys):
    models = "{critic: {base_url: 'http://127.0.0.1:9/v1', model: m, api_key_env: NO_SUCH_VARIABLE}}"
    assert main(["replay", str(run), f"astune.rollout.auxiliary_models={models}"]) == 0


def test_a_log_without_a_configuration_needs_one(run, config, capsys):
    (run / "config.yaml").rename(run.parent / "kept.yaml")
    assert main(["replay", str(run)]) == 2
    assert "no configuration was kept with it" in capsys.readouterr().err
    assert main(["replay", str(run), "--conf", str(run.parent / "kept.yaml")]) == 0


def test_a_broken_configuration_in_a_recording_names_the_recording(folder, config, chat_format, capsys):
    path = kept(folder / "one", config, played(folder, chat_format, 1))
    assert main(["replay", str(path), "astune.rollout.max_turns=none"]) == 2
    assert "command line: astune.rollout.max_turns" in capsys.readouterr().err
    RunDir(folder / "one").save_config(Config())
    assert main(["replay", str(path)]) == 2
    assert "debug.jsonl#0, config, line" in capsys.readouterr().err


def test_a_judge_that_fails_gives_no_verdict_and_never_0(run, folder, capsys):
    out = folder / "new.jsonl"
    arguments = ["rescore", str(run), "--judge", "judges.py:longer", "--out", str(out), "astune.task_judge.timeout=60"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "train/t1/0  0.5 -> 1" in printed
    assert "train/t2/0  0.5 -> none" in printed and "train/t3/0  0.5 -> none" in printed
    assert "the service is down" in printed
    assert "3 episodes: 0 same, 1 up, 0 down, 2 could not judge" in printed
    assert "mean reward 0.5000 of 3 -> 1.0000 of 1" in printed
    written = list(read_episodes(out))
    assert [(one.step, one.phase) for one in written] == [(1, "train"), (2, "train"), (3, "train")]
    assert [one.episode.reward for one in written] == [1.0, None, None]
    assert [one.episode.error and one.episode.error.stage for one in written] == [None, "judge", "judge"]
    assert [len(one.episode.turns) for one in written] == [2, 2, 2]


def test_nothing_is_written_over(run, folder, capsys):
    (folder / "new.jsonl").write_text("mine")
    assert main(["rescore", str(run), "--judge", "judges.py:longer", "--out", "new.jsonl"]) == 2
    assert (folder / "new.jsonl").read_text() == "mine"


def test_all_judged_ends_with_0(run, capsys):
    assert main(["rescore", str(run), "--judge", "judges.py:longer", "--filter", "task=t1"]) == 0
    assert "1 episodes: 0 same, 1 up, 0 down" in capsys.readouterr().out


def test_a_judge_that_is_not_there_is_bad_input(run, capsys):
    assert main(["rescore", str(run), "--judge", "judges.py:long"]) == 2
    assert "Did you mean 'longer'" in capsys.readouterr().err


def test_episodes_that_no_judge_sees_are_left_out_and_those_whose_judge_failed_are_judged(folder, config, chat_format):
    good = played(folder, chat_format, 1)
    crashed = replace(good, stop_reason=StopReason.ERROR, verdict=None, error=EpisodeError("workflow", "KeyError", "x"))
    assert strip_verdict(crashed) is None
    assert strip_verdict(replace(good, stop_reason=StopReason.TIMEOUT)) is None
    again = strip_verdict(replace(crashed, error=EpisodeError("judge", "JudgeError", "down")))
    assert (again.stop_reason, again.error, again.verdict) == (StopReason.COMPLETED, None, None)
    limited = replace(good, stop_reason=StopReason.MAX_TURNS, error=EpisodeError("workflow", "TooManyTurns", "x"))
    assert strip_verdict(limited) == replace(limited, verdict=None)


def test_diff_shows_where_two_episodes_part(run, capsys):
    log = run / "episodes" / "train.jsonl"
    assert main(["diff", f"{log}#0", f"{log}#train/t2/0"]) == 1
    printed = capsys.readouterr().out
    assert "they part at task.task_id\n  A  't1'\n  B  't2'" in printed
    assert "from there on\n  A  2 turns, " in printed
    assert main(["diff", f"{log}#0", f"{log}#0"]) == 0
    assert "equal: task, tokens, timelines, output and verdict" in capsys.readouterr().out


def test_diff_shows_tokens_as_text(folder, config, chat_format, capsys):
    one = played(folder, chat_format, 1)
    output = tuple(one.turns[1].output_ids)
    ids = [*output[:1], *chat_format.encode("!"), *output[2:]]
    two = replace(one, turns=(one.turns[0], replace(one.turns[1], output_ids=ids)), timelines=())
    paths = [str(kept(folder / name, config, episode)) for name, episode in (("one", one), ("two", two))]
    assert main(["diff", *paths]) == 1
    printed = capsys.readouterr().out
    assert "they part at turn 2 of agent, answer, token 1 after" in printed and "!" in printed
    assert "A  1 turn, " in printed


@pytest.mark.parametrize("command", [["replay", "nowhere.json"], ["diff", "nowhere.json", "x.json"]])
def test_a_file_that_is_not_there_is_bad_input(folder, command, capsys):
    assert main(command) == 2
    assert "there is no such file or folder" in capsys.readouterr().err


def test_stepping_wants_one_file(run, capsys):
    assert main(["replay", str(run), str(run), "--step"]) == 2
    assert "--step plays one file or folder, got 2" in capsys.readouterr().err


def test_stepping_is_the_debuggers(run, folder, capsys):
    commands = folder / "commands.txt"
    commands.write_text("quit\n")
    main(["replay", str(run), "--filter", "task=t2", "--commands", str(commands)])
    assert "t2" in capsys.readouterr().out


def test_a_judge_that_compares_attempts_gets_the_groups_of_the_run(run, folder, config, chat_format, capsys):
    """Three attempts at t1 in one step, ended in any order, one of them out of time; another step of the same task."""
    first = played(folder, chat_format, 1)
    with EpisodeLog(RunDir(run)) as log:
        for attempt in (2, 1):
            log.write(replace(first, episode_id=f"train/t1/{attempt}"), step=1, phase="train")
        log.write(replace(first, stop_reason=StopReason.TIMEOUT, verdict=None), step=1, phase="train")
        log.write(first, step=9, phase="train")
    assert main(["rescore", str(run), "--judge", "judges.py:Places", "--out", str(folder / "new.jsonl")]) == 1
    rewards = [(row.step, row.episode.episode_id, row.episode.reward) for row in read_episodes(folder / "new.jsonl")]
    assert rewards == [
        (1, "train/t1/0", 1.0),
        (2, "train/t2/0", None),  # alone in its group: the judge cannot tell
        (3, "train/t3/0", None),
        (1, "train/t1/2", 3.0),
        (1, "train/t1/1", 2.0),
        (1, "train/t1/0", None),
        (9, "train/t1/0", None),
    ]
    out = capsys.readouterr().out
    assert "RuntimeError: alone" in out and "1 left out" in out


def test_a_replay_does_not_ask_a_judge_that_compares_attempts(folder, config, chat_format, capsys):
    judge = config.astune.task_judge.model_copy(update={"judge_protocol": f"{folder / 'judges.py'}:Places"})
    with_judge = config.model_copy(update={"astune": config.astune.model_copy(update={"task_judge": judge})})
    path = kept(folder / "judged", with_judge, played(folder, chat_format, 1))
    assert main(["replay", str(path)]) == 0
    assert "1 equal" in capsys.readouterr().out
