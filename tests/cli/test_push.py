"""`astune export --push`, to a hub on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from astune.config.render import save_config
from astune.config.schema import Config
from astune.monitor import MetricsLog, RunDir
from astune.support.resources import tiny_model_dir
from tests.cli.fake_hub import TOKEN, FakeHub, run_hub


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with run_hub() as hub:
        yield hub


def make_run(folder: Path, base: str = "tiny") -> Path:
    """A run whose checkpoint of step 4 is evaluated, and which went on to step 5."""
    run = RunDir(folder / "runs" / "p" / "n")
    run.path.mkdir(parents=True)
    astune = {
        "model": {"path": base},
        "rollout": {"agentscope_learn_protocol": "/home/me/secret/agent.py:Cashier"},
        "task_reader": {"jsonl": {"training": {"file_path": "/home/me/secret/tasks.jsonl"}}},
        "task_judge": {"judge_protocol": "MathAnswerAsJudge"},
    }
    save_config(Config.model_validate({"astune": astune}), run.config_path)
    log = MetricsLog(run)
    for step, success in ((0, 0.25), (4, 0.75), (5, 0.875)):
        named = {"success": success, "success_low": success - 0.125, "success_high": success + 0.125}
        log.log(step, {f"eval/greedy/{name}": value for name, value in {**named, "success_tasks": 16.0}.items()})
    log.close()
    with run.save_checkpoint(4) as checkpoint:
        shutil.copytree(tiny_model_dir(), checkpoint, dirs_exist_ok=True)
        (checkpoint / "trainer_state.pt").write_text("not for others")
    return run.path


def push(
    tmp_path: Path, url: str, run: Path, *more: str, token: str | None = TOKEN
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_COLOR": "1"}
    env |= {} if token is None else {"HF_TOKEN": token}
    command = [sys.executable, "-m", "astune", "export", "--run", str(run), "--push", "me/my-agent", *more]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_push_that_was_cut_goes_on_and_the_card_says_what_it_is(tmp_path: Path, hub: FakeHub) -> None:
    run = make_run(tmp_path)
    hub.fail_commits = 1
    failed = push(tmp_path, hub.url, run)
    assert failed.returncode == 2 and "--push me/my-agent: " in failed.stderr and "403" in failed.stderr
    assert "The same command goes on: files that the hub has are not sent again" in failed.stderr
    assert (hub.files, hub.uploads) == ({}, 1)
    done = push(tmp_path, hub.url, run)
    assert done.returncode == 0, done.stderr
    assert (hub.uploads, hub.private) == (1, {"me/my-agent": True})
    assert hub.files["model.safetensors"] == (tiny_model_dir() / "model.safetensors").read_bytes()
    assert {"README.md", "config.json", "tokenizer.json"} <= hub.files.keys() and "trainer_state.pt" not in hub.files
    card = hub.files["README.md"].decode()
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["license"], head["library_name"], "base_model" in head) == ("apache-2.0", "transformers", False)
    assert "| greedy, success | 0 | 25.0 % | 12.5 to 37.5 % | 16 |" in card
    assert "| greedy, success | 4 | 75.0 % | 62.5 to 87.5 % | 16 |" in card
    assert "87.5 % |" in card and "| 5 |" not in card, "a later step than that of the checkpoint"
    assert (
        "| Judge | `MathAnswerAsJudge` |" in card
        and "`tasks.jsonl`" in card
        and 'from_pretrained("me/my-agent")' in card
    )
    assert "/home/me" not in card and TOKEN not in card
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert kept == [] and list((run / "checkpoints").iterdir()) == [run / "checkpoints" / "step_000004"]


def test_a_dry_run_sends_nothing_needs_no_token_and_has_the_licence_of_the_bases_card(
    tmp_path: Path, hub: FakeHub
) -> None:
    run, hub.licenses = make_run(tmp_path, "Qwen/Qwen3-0.6B"), {"Qwen/Qwen3-0.6B": "apache-2.0"}
    out = tmp_path / "out"
    done = push(tmp_path, hub.url, run, "--dry-run", "--out", str(out), token=None)
    assert done.returncode == 0, done.stderr
    assert (
        "model.safetensors\n" in done.stdout
        and f"nothing was sent: --dry-run; the card is {out / 'README.md'}" in done.stdout
    )
    head = yaml.safe_load((out / "README.md").read_text().split("---\n")[1])
    assert (head["license"], head["base_model"], hub.private) == ("apache-2.0", "Qwen/Qwen3-0.6B", {})


def test_a_public_push_asks_for_a_public_repository(tmp_path: Path, hub: FakeHub) -> None:
    hub.fail_commits = 1
    push(tmp_path, hub.url, make_run(tmp_path), "--public")
    assert hub.private == {"me/my-agent": False}


@pytest.mark.parametrize(
    ("base", "more", "token", "expected"),
    [
        ("owner/none", (), TOKEN, "--push: the licence of the base owner/none is not known"),
        ("tiny", (), None, "--push: no token; set HF_TOKEN, or run `hf auth login`"),
        ("tiny", ("--dry-run",), TOKEN, "--out: not given; name a new folder"),
        ("tiny", ("--push", "my agent"), TOKEN, "--push my agent: expected ORG/NAME"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, hub: FakeHub, base: str, more: tuple[str, ...], token: str | None, expected: str
) -> None:
    done = push(tmp_path, hub.url, make_run(tmp_path, base), *more, token=token)
    assert (done.returncode, hub.files) == (2, {})
    assert expected in done.stderr
