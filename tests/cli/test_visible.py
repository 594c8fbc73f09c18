"""Whatever a command prints of tasks, models, judges and files is shown, not obeyed."""

import contextlib
import json
import unicodedata
from pathlib import Path

import pytest

from astune.cli import main

EVIL = "\x1b[2J\r\x07\x9b31m\u202ex\u2066 [red]y[/] [link=http://a]z[/] [/]"
SHOWN = "\\u001b[2J\\r\\u0007\\u009b31m\\u202ex\\u2066 [red]y[/]"
FILE = "tasks\x1b[31m\u202e.jsonl"

CODE = f"""
import logging

from astune import Verdict, WorkflowOutput

EVIL = {EVIL!r}

async def workflow(task, tuner):
    logging.getLogger("mine").warning(EVIL)
    client = tuner.openai_client("agent" + EVIL.split()[0])
    reply = await client.chat.completions.create(model="m", messages=[{{"role": "user", "content": task.query}}])
    return WorkflowOutput(answer=reply.choices[0].message.content)

def judge(task, episode):
    return Verdict(1.0, reason=EVIL)

def other(task, episode):
    raise ValueError(EVIL)

def speak(request):
    return EVIL
"""

CONF = f"""\
astune:
  task_reader: {{jsonl: {{training: {{file_path: {json.dumps(FILE)}}}}}}}
  rollout: {{agentscope_learn_protocol: code.py:workflow, max_tokens: 64}}
  task_judge: {{judge_protocol: code.py:judge}}
  debug: {{model: 'scripted:code.py:speak', num_tasks: 1, num_repeat: 1}}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """`run("doctor")` is everything that the command prints."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"t{n}{EVIL}", "query": EVIL, "answer": EVIL, "note": EVIL} for n in range(2)]
    Path(FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("code.py").write_text(CODE)
    Path("x.yaml").write_text(CONF)

    def run(*arguments: str) -> str:
        with contextlib.suppress(SystemExit):
            main(arguments)
        said = capfd.readouterr()
        return said.out + said.err

    return run


def obeyed(said: str) -> set[str]:
    return {char for char in said if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


@pytest.mark.fault(
    "What people see", "task, judge, log record or file name with escape sequences", "every command shows them as text"
)
def test_every_command_shows_it(run) -> None:
    for arguments in (
        ["check-tasks", "--conf", "x.yaml"],
        ["check-tasks", "--conf", "x.yaml", "--json"],
        ["tasks", "preview", "--conf", "x.yaml"],
        ["tasks", "preview", "--conf", "x.yaml", "--json"],
        ["doctor", "--conf", "x.yaml", "--offline", "--backbone=debug"],
        ["run", "--conf", "no\x1b[2J\u202e.yaml"],
        ["run", "--conf", "x.yaml", "--no\x1b[2J\u202e"],
        ["run", "--conf", "x.yaml", "astune.rollout.max_\x1b[2J\u202e=1"],
    ):
        said = run(*arguments)
        assert obeyed(said) == set()
        assert "\\u001b" in said or "\\x1b" in said, arguments


def test_an_episode_is_shown_and_its_record_too(run) -> None:
    said = run("run", "--conf", "x.yaml", "--backbone=debug")
    assert obeyed(said) == set()
    assert SHOWN in said
    (record,) = Path("runs").rglob("debug.jsonl")
    for arguments, expected in (
        (["rescore", str(record), "--judge", "code.py:other"], SHOWN),
        (["replay", str(record)], "\\u001b"),
        (["diff", str(record), str(record)], "equal"),
        (["replay", "no\x1b[2J.json"], "no\\u001b[2J.json"),
    ):
        said = run(*arguments)
        assert obeyed(said) == set()
        assert expected in said
