"""The debug backbone with a scripted model: everything else is what training uses."""

import io
from pathlib import Path

import pytest

from astune.backbone.base import check_keys
from astune.backbone.debug import DebugBackbone
from astune.backbone.debug.sources.debug_model import DebugModel
from astune.backbone.debug.terminal import Terminal
from astune.backbone.debug.views.screen import user_traceback
from astune.config.load import load_config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.errors import InvariantError, TaskError
from astune.monitor import read_episodes
from astune.support.resources import tiny_model_dir
from astune.support.terminal import Console
from astune.types import RunReport, StopReason
from astune.viewer import write_report

AGENT = """
import json
from astune import WorkflowOutput

TOOL = {"type": "function", "function": {"name": "double", "parameters": {"type": "object", "properties": {}}}}


async def ask(task, tuner):
    client = tuner.openai_client("solver")
    messages = [{"role": "user", "content": task.query}]
    while True:
        reply = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        message = reply.choices[0].message
        if not message.tool_calls:
            return WorkflowOutput(answer=message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            x = json.loads(call.function.arguments)["x"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"[bold]{2 * x}[/bold]"})


async def breaks(task, tuner):
    await ask(task, tuner)
    return helper()


def helper():
    return {}["price"]


async def deal(task, tuner):
    for name in ("seller", "buyer", "seller"):
        client = tuner.openai_client(name)
        messages = [{"role": "user", "content": f"You are the {name}. " + 20 * "Much to read. " + "The end."}]
        await client.chat.completions.create(model="m", messages=messages)
    number = int(tuner.episode_id[-1])
    tuner.reward("seller", 1.5 - number)
    tuner.reward_turn("buyer", 2.0 * number)
    return WorkflowOutput(answer="42", reward=0.25)


async def slow(task, tuner):
    import asyncio
    await asyncio.sleep(0.3)
    return await ask(task, tuner)


async def interrupted(task, tuner):
    if task.task_id == "b":
        import signal
        signal.raise_signal(signal.SIGINT)
        import asyncio
        await asyncio.sleep(5)
    return await ask(task, tuner)


"""
TASKS = (
    '{"task_id": "a", "query": "Double 21.", "answer": "42"}\n{"task_id": "b", "query": "Double 4.", "answer": "8"}\n'
)
CALL = '<tool_call>\n{"name": "double", "arguments": {"x": 21}}\n</tool_call>'


def scripted(*answers: str) -> DebugModel:
    """A model that gives the answers in turn."""
    chat_format = ChatFormat.load(tiny_model_dir())
    return DebugModel("scripted", ScriptedPolicy(list(answers), chat_format), chat_format)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    (tmp_path / "demo.yaml").write_text(
        "astune:\n"
        f"  runs_dir: {tmp_path / 'runs'}\n"
        "  rollout: {agentscope_learn_protocol: agent.py:ask, max_tokens: 100}\n"
        "  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}\n"
        "  task_judge: {judge_protocol: MathAnswerAsJudge}\n"
    )
    return tmp_path / "demo.yaml"


def debug(conf: Path, answers: list[str], *overrides: str) -> tuple[RunReport, str]:
    screen = Console(file=io.StringIO(), width=110)
    report = DebugBackbone(screen, model=scripted(*answers)).run(load_config(conf, overrides, backbone="debug"))
    assert isinstance(screen.file, io.StringIO)
    return report, screen.file.getvalue()


def test_every_call_tool_result_answer_and_verdict_is_shown_in_order(conf):
    report, text = debug(conf, [CALL, "The answer is 42."])
    expected = [
        "debug/a/0",
        "Double 21.",
        "call 1  solver reads",
        "<|im_start|>user",
        "call 1  solver writes",
        '"arguments": {"x": 21}',
        'the agent gets the call double({"x": 21})',
        "tool  double",
        "[bold]42[/bold]",
        "call 2  solver reads",
        "tokens shown above, then",
        "call 2  solver writes",
        "The answer is 42.",
        "end  completed",
        "reward 1, passed",
        "solver",
    ]
    place = 0
    for part in expected:
        place = text.find(part, place)
        assert place >= 0, part
    assert report.status == "completed"


def test_tools_and_prompt_are_shown_once(conf):
    _, text = debug(conf, [CALL, "The answer is 42.", "42"], "astune.debug.num_repeat=2")
    assert text.count('"name": "double", "parameters"') == 1
    assert "then 0 new" in text


def test_tasks_run_one_after_another_and_the_summary_has_them_all(conf):
    _, text = debug(conf, ["42", "43", "8", "8"], "astune.debug.num_tasks=2", "astune.debug.num_repeat=2")
    summary = text.rpartition("──")[2]
    assert [line.split()[:2] for line in summary.strip().splitlines()[1:]] == [
        ["debug/a/0", "1"],
        ["debug/a/1", "0"],
        ["debug/b/0", "1"],
        ["debug/b/1", "1"],
    ]


def test_attempts_at_one_task_are_compared_as_training_would(conf):
    answers = [CALL, "The answer is 42.", "The answer is 43."]
    _, text = debug(conf, answers, "astune.debug.num_repeat=2", "astune.algorithm.loss_aggregation=episode_mean")
    table = text.partition("what a training step of these attempts alone would do")[2].partition("──")[0]
    good, bad = [line.split() for line in table.strip().splitlines()[1:3]]
    assert good[:5] == ["0", "1", "+1.000", "50.0", "%"]
    assert bad[:5] == ["1", "0", "-1.000", "50.0", "%"]
    assert good[5] == good[6] and good[7] == "-"
    alone = debug(conf, answers[:2])[1]
    assert "what a training step" not in alone


def test_rewards_of_agents_and_turns_stand_where_their_advantages_do(conf):
    protocol = f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:deal"
    _, text = debug(conf, ["a", "b", "c"] * 2, protocol, "astune.debug.num_repeat=2")
    first, _, second = text.partition("debug/a/1 ")
    assert "rewards    seller +1.5, turn 2 (buyer) +0" in first
    assert "rewards    seller +0.5, turn 2 (buyer) +2" in second
    table = text.partition("what a training step of these attempts alone would do")[2]
    assert "attempt 1: seller +0.5, turn 2 (buyer) +2" in table
    turns = [line.split() for line in table.partition("weight/token")[2].splitlines()[1:7]]
    assert turns[0][:2] == ["0", "1"] and "1.5 (agent)" in " ".join(turns[0]) and "+1.000" in turns[0]
    assert turns[4][:2] == ["1", "2"] and "0.25 +2 (turn)" in " ".join(turns[4]) and "+1.000" in turns[4]


def test_at_the_end_the_messages_of_every_agent_are_shown_whole(conf):
    protocol = f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:deal"
    screen = Console(file=io.StringIO(), width=80)
    terminal = Terminal(screen, ["next", "show messages", "judge", "show messages", "next", "show verdict", "next"])
    settings = load_config(conf, [protocol, "astune.debug.step=true"], backbone="debug")
    DebugBackbone(screen, terminal, scripted("first", "second", "third")).run(settings)
    before, _, after = screen.file.getvalue().partition("(astune) judge\n")
    whole = "Much to read. " * 20 + "The end."
    at_call = " ".join(before.partition("show messages")[2].split())
    assert "seller in debug/a/0, call 1" in at_call and whole in at_call and "assistant first" in at_call
    shown = " ".join(after.partition("show messages")[2].partition("(astune)")[0].split())
    assert shown.count(whole) == 3
    for agent, answer in (("seller", "first"), ("buyer", "second"), ("seller", "third")):
        assert f"You are the {agent}. {whole} 2 assistant {answer}" in shown and f"{agent} in debug/a/0" in shown
    assert "rewards of single agents and turns: seller +1.5" in after


def test_the_reason_why_nothing_would_be_trained_is_named(conf):
    _, text = debug(conf, ["42", "42"], "astune.debug.num_repeat=2")
    assert "no_signal" in text.partition("what a training step")[2]
    overrides = [f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:breaks", "astune.debug.num_repeat=2"]
    _, text = debug(conf, ["42", "42"], *overrides)
    assert "unjudged" in text.partition("what a training step")[2]


def test_every_episode_is_checked_against_the_rules_of_the_tracker(conf, monkeypatch):
    monkeypatch.setattr("astune.context_tracker.merge.TurnForest.timelines", lambda forest: ())
    with pytest.raises(InvariantError, match="turn 0 has 0 spans of its own"):
        debug(conf, ["42"])


def test_an_error_shows_the_users_lines_and_not_those_of_astune(conf):
    report, text = debug(conf, ["42"], f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:breaks")
    assert "workflow: KeyError: 'price'" in text
    words = " ".join(text.split())  # a long path pushes the name of a function to the next line
    assert "in helper" in words and "in breaks" in words and 'return {}["price"]' in words
    assert "rollout/episode.py" not in text
    first = words.index("in your code:")
    assert first < words.index("Traceback") and 'at `return {}["price"]`' in words[first : words.index("Traceback")]
    assert "none: the episode was not judged" in text
    assert report.status == "failed"  # no episode could be judged


def test_the_episodes_are_kept_in_a_folder_of_their_own_and_make_a_report(conf):
    report, _ = debug(conf, [CALL, "The answer is 42."])
    assert report.run_dir.name == "demo-debug"
    (record,) = read_episodes(report.run_dir / "episodes" / "debug.jsonl")
    assert (record.phase, record.episode.stop_reason, record.episode.reward) == ("debug", StopReason.COMPLETED, 1.0)
    page = write_report(report.run_dir).read_text("utf-8")
    assert "Debug run: 1 episodes, mean score 1; nothing was trained." in page and "1 of the 1 episodes" in page


def test_ctrl_c_keeps_the_episodes_that_are_done(conf):
    overrides = [f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:interrupted"]
    report, text = debug(conf, ["42"], "astune.debug.num_tasks=2", *overrides)
    assert report.status == "interrupted"
    kept = [record.episode for record in read_episodes(report.run_dir / "episodes" / "debug.jsonl")]
    assert [(episode.task.task_id, episode.stop_reason.value) for episode in kept] == [
        ("a", "completed"),
        ("b", "cancelled"),
    ]
    assert "debug/a/0" in text.rpartition("──")[2]


def test_the_time_limits_of_training_do_not_count(conf):
    protocol = f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:slow"
    _, text = debug(conf, ["42"], protocol, "astune.rollout.episode_timeout=0.1")
    assert "reward 1, passed" in text


def test_what_only_training_uses_is_accepted_and_named(conf):
    loaded = load_config(conf, ["astune.trainer.total_steps=7", "astune.rollout.num_repeat=3"], backbone="debug")
    assert check_keys(DebugBackbone(), loaded) == ["astune.rollout.num_repeat", "astune.trainer"]
    with_update = load_config(conf, ["astune.trainer.total_steps=7", "astune.debug.with_update=true"], backbone="debug")
    assert check_keys(DebugBackbone(), with_update) == []


def test_a_data_set_without_tasks_leaves_no_run_folder(conf):
    (conf.parent / "tasks.jsonl").write_text("")
    with pytest.raises(TaskError, match="task"):
        debug(conf, [])
    assert not (conf.parent / "runs").exists()


def test_an_answer_that_was_cut_off_is_marked(conf):
    _, text = debug(conf, ["one two three four five six"], "astune.rollout.max_tokens=3")
    assert "cut off" in text


def test_an_answer_with_call_marks_and_no_call_is_marked(conf):
    _, text = debug(conf, ['<tool_call>{"name": "double"'])
    assert "call marks and no call" in text


def test_frames_of_astune_are_cut_out_of_a_traceback():
    import astune.rollout.episode as module

    trace = (
        "Traceback (most recent call last):\n"
        f'  File "{module.__file__}", line 1, in run\n    return await execute()\n           ^^^^^^^\n'
        '  File "/home/me/agent.py", line 2, in mine\n    1 / 0\n    ~~^~~\n'
        "ZeroDivisionError: division by zero"
    )
    assert user_traceback(trace).splitlines() == [
        "in your code: /home/me/agent.py:2 at `1 / 0`",
        "Traceback (most recent call last):",
        '  File "/home/me/agent.py", line 2, in mine',
        "    1 / 0",
        "    ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


LONGEST = """
from astune import Verdict


class Longest:
    def __init__(self, config): ...

    async def judge(self, task, episode):
        return Verdict(-1.0)

    async def judge_group(self, task, episodes):
        longest = max(len(episode.output.answer) for episode in episodes)
        return [Verdict(float(len(episode.output.answer) == longest)) for episode in episodes]
"""


def test_a_judge_that_compares_attempts_is_asked_after_the_last(conf):
    (conf.parent / "longest.py").write_text(LONGEST)
    judge = f"astune.task_judge.judge_protocol={conf.parent}/longest.py:Longest"
    report, text = debug(conf, ["42", "The answer is 42."], "astune.debug.num_repeat=2", judge)
    table = text.partition("what a training step")[2]
    assert [line.split()[:3] for line in table.splitlines()[2:4]] == [["0", "0", "-1.000"], ["1", "1", "+1.000"]]
    assert [record.episode.reward for record in read_episodes(report.run_dir / "episodes" / "debug.jsonl")] == [
        0.0,
        1.0,
    ]
    assert "reward -1" in debug(conf, ["42"], judge)[1], "a lone attempt is judged alone"
