"""The debugger on a real pseudo-terminal: a person types, pdb has the terminal at a `breakpoint()`, and Ctrl-C keeps
the episode so far."""

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

from astune.monitor import read_episodes
from astune.types import Episode, StopReason

CTRL_C = "\x03"
SECONDS = 60
DEBUG = [sys.executable, "-m", "astune", "--conf", "conf.yaml", "--backbone=debug"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
AGENT = """
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


async def breaks(task, tuner):
    secret = 41
    breakpoint()
    output = await ask(task, tuner)
    return output
"""


def take_the_terminal() -> None:
    """In the child. Tests that run in the background of a shell inherit that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def write_files(folder: Path) -> None:
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text('{"task_id": "a", "query": "40 + 2?", "answer": "42"}\n')
    (folder / "conf.yaml").write_text(
        "astune:\n  rollout: {agentscope_learn_protocol: agent.py:ask}\n"
        "  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}\n"
        "  task_judge: {judge_protocol: MathAnswerAsJudge}\n"
    )


def wait_until_it_sleeps(pid: int) -> None:
    """As its main thread does that waits for a key."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)


def type_into(folder: Path, script: list[tuple[str, str]], *arguments: str) -> tuple[int, str, list[Episode]]:
    """Runs the debugger in `folder`; types the second of each pair once the first is on the screen. Exit code, screen,
    and the episodes that were kept."""
    write_files(folder)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*DEBUG, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=ENVIRONMENT,
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
                wait_until_it_sleeps(process.pid)
            os.write(ours, typed.encode())
    episodes = [
        record.episode for path in folder.glob("runs/*/*/episodes/debug.jsonl") for record in read_episodes(path)
    ]
    return process.wait(timeout=SECONDS), screen, episodes


def test_a_person_is_the_model_and_ends_with_ctrl_c(tmp_path):
    script = [
        ("answer> ", '/call ad {"x": 2}\n'),
        ("Did you mean 'add'?", ""),
        ("answer> ", '/call add {"x": 2}\n'),
        ("> ", "\n"),
        ("answer> ", "The answer is 42.\n"),
        ("reward 1, passed", ""),
        ("answer> ", '/call add {"x": 2}\n'),
        ("> ", "\n"),
        ("answer> ", CTRL_C),
    ]
    code, screen, episodes = type_into(tmp_path, script, "--model", "human", "--repeat", "2")
    assert code == 130 and "interrupted" in screen and "--resume" not in screen
    done, cut = episodes
    assert [turn.response["tool_calls"][0]["function"]["name"] for turn in done.turns[:1]] == ["add"]
    assert cut.stop_reason is StopReason.CANCELLED and len(cut.turns) == 1


BREAKS = "astune.rollout.agentscope_learn_protocol=agent.py:breaks"


def test_a_breakpoint_has_the_terminal_between_the_stops(tmp_path):
    """Ctrl-C at pdb's prompt asks again, `n` goes on to the line after the model call, and Ctrl-C at a stop ends the
    run."""
    (tmp_path / "answers.txt").write_text("42")
    script = [
        ("(Pdb) ", CTRL_C),
        ("(Pdb) ", "p 'secret is', secret\n"),
        ("('secret is', 41)", ""),
        ("(Pdb) ", "n\n"),
        ("stopped before call 1", ""),
        ("(astune) ", "n\n"),
        ("stopped after call 1", ""),
        ("(astune) ", "n\n"),
        ("-> return output", ""),
        ("(Pdb) ", "p output.answer\n"),
        ("'42'", ""),
        ("(Pdb) ", "c\n"),
        ("stopped before the verdict", ""),
        ("(astune) ", CTRL_C),
    ]
    code, screen, (episode,) = type_into(tmp_path, script, "--step", "--model", "scripted:answers.txt", BREAKS)
    assert code == 130 and "interrupted" in screen
    assert episode.stop_reason is StopReason.CANCELLED and episode.output.answer == "42"


def test_a_breakpoint_and_the_stops_read_one_pipe(tmp_path):
    write_files(tmp_path)
    (tmp_path / "answers.txt").write_text("42")
    done = subprocess.run(
        [*DEBUG, "--step", "--model", "scripted:answers.txt", BREAKS],
        input="p 'secret is', secret\nc\nfinish\n",
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "('secret is', 41)" in done.stdout and "(astune) finish" in done.stdout and "reward 1" in done.stdout
