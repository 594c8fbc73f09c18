"""The debugger on a real pseudo-terminal: a person types, Ctrl-C at any point keeps the episode so far."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from astune.monitor import read_episodes
from astune.types import Episode, StopReason

CTRL_C = "\x03"
SECONDS = 60
PAUSE = 0.5
AGENT = """
import asyncio

from astune import WorkflowOutput

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}]


async def ask(task, tuner):
    client = tuner.openai_client("solver")
    messages = [{"role": "user", "content": task.query}]
    while True:
        reply = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        if not message.tool_calls:
            return WorkflowOutput(answer=message.content)
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in message.tool_calls]


async def waits(task, tuner):
    await ask(task, tuner)
    print("now it waits", flush=True)
    await asyncio.sleep(1000)
"""


def take_the_terminal() -> None:
    """In the child. Tests that run in the background of a shell inherit that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def type_into(folder: Path, script: list[tuple[str, str]], *arguments: str) -> tuple[int, str, list[Episode]]:
    """Runs the debugger in `folder`; types the second of each pair once the first is on the screen. Exit code, screen,
    and the episodes that were kept."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text('{"task_id": "a", "query": "40 + 2?", "answer": "42"}\n')
    (folder / "conf.yaml").write_text(
        "astune:\n  rollout: {agentscope_learn_protocol: agent.py:ask}\n"
        "  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}\n"
        "  task_judge: {judge_protocol: MathAnswerAsJudge}\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "astune", "--conf", "conf.yaml", "--backbone=debug", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
        preexec_fn=take_the_terminal,
    )
    os.close(theirs)
    screen, place = "", 0
    for wanted, typed in [*script, ("", "")]:
        end = time.monotonic() + SECONDS
        while (found := screen.find(wanted, place)) < 0 or not wanted:
            assert time.monotonic() < end, f"{wanted!r} did not appear in\n{screen}"
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    screen += os.read(ours, 65536).decode(errors="replace")
                except OSError:  # the other end is closed: the program has ended
                    break
        place = found + len(wanted)
        if typed:
            if typed == CTRL_C:  # a signal between the prompt and the reading of it would wait for the next key
                time.sleep(PAUSE)
            os.write(ours, typed.encode())
    episodes = [
        record.episode for path in folder.glob("runs/*/*/episodes/debug.jsonl") for record in read_episodes(path)
    ]
    return process.wait(timeout=SECONDS), screen, episodes


def test_a_person_is_the_model(tmp_path):
    script = [
        ("answer> ", '/call ad {"x": 2}\n'),
        ("Did you mean 'add'?", ""),
        ("answer> ", '/call add {"x": 2}\n'),
        ("> ", "\n"),
        ("answer> ", "The answer is 42.\n"),
    ]
    code, screen, episodes = type_into(tmp_path, script, "--model", "human")
    assert code == 0 and "reward 1, passed" in screen
    assert [turn.response["tool_calls"][0]["function"]["name"] for turn in episodes[0].turns[:1]] == ["add"]


@pytest.mark.parametrize(
    ("script", "arguments", "turns"),
    [
        ([("(astune) ", "n\n"), ("(astune) ", CTRL_C)], ["--step", "--model", "scripted:answers.txt"], 0),
        ([("answer> ", '/call add {"x": 2}\n'), ("> ", "\n"), ("answer> ", CTRL_C)], ["--model", "human"], 1),
        (
            [("now it waits", CTRL_C)],
            ["--model", "scripted:answers.txt", "astune.rollout.agentscope_learn_protocol=agent.py:waits"],
            1,
        ),
    ],
    ids=["at a stop", "where a person answers", "in the workflow"],
)
def test_ctrl_c_keeps_the_episode_so_far(tmp_path, script, arguments, turns):
    (tmp_path / "answers.txt").write_text("42")
    code, screen, (episode,) = type_into(tmp_path, script, *arguments)
    assert code == 130 and "interrupted" in screen and "--resume" not in screen
    assert episode.stop_reason is StopReason.CANCELLED and len(episode.turns) == turns
    assert len(list(tmp_path.glob("runs/*/*/recordings/*.json"))) == 1
