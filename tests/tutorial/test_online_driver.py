"""What `make online-demo` runs its processes with, and the picture that it draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutorial.online.chart import Progress, picture, table
from tutorial.online.run import Processes, read_lines

WAITS = """
import pathlib, signal, sys, time
name = sys.argv[1]
def stop(*_):
    with open("stopped", "a") as file:
        file.write(name)
    sys.exit()
signal.signal(signal.SIGINT, stop)
pathlib.Path(name).touch()
while True:
    time.sleep(60)
"""


def test_processes_are_stopped_in_the_opposite_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Processes(tmp_path) as processes:
        for name in ("a", "b", "c"):
            processes.start(name, "-c", WAITS, name)
            processes.wait_for((tmp_path / name).exists)
        processes.stop("b")
    assert (tmp_path / "stopped").read_text() == "bca"


def test_a_process_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("agent", "-c", "import sys; sys.exit('no such model')")
        with pytest.raises(SystemExit, match=r"(?s)agent ended with exit code 1; .*agent.log says:\nno such model"):
            processes.wait_for(lambda: False)


def test_one_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutorial.online.run.STOP_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)
    deaf = WAITS.replace("signal.signal(signal.SIGINT, stop)", "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    with Processes(tmp_path) as processes:
        processes.start("deaf", "-c", deaf, "deaf")
        processes.wait_for((tmp_path / "deaf").exists)
        pid = processes.pid("deaf")
    assert not Path(f"/proc/{pid}").exists()


def test_a_line_that_is_not_whole_yet_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "users.jsonl"
    assert read_lines(log) == []
    log.write_text('{"right": true}\n{"rig', encoding="utf-8")
    assert read_lines(log) == [{"right": True}]


def a_run(*held_out: float) -> list[Progress]:
    return [Progress(n, 20.0 * n, share, 100, 150 * n, 110 * n, share - 0.1) for n, share in enumerate(held_out)]


def test_the_picture_has_every_run_and_their_mean() -> None:
    drawn = picture([a_run(0.25, 0.5, 1.0), a_run(0.75, 1.0)])
    assert drawn.count('class="raw"') == 2 and drawn.count('class="mean"') == 1
    assert "v2" in drawn and "v3" not in drawn


def test_the_table_says_where_each_run_began_and_ended() -> None:
    assert table([a_run(0.25, 0.9, 0.8)]).splitlines()[-1] == "| 1 | 25% | 80% | 90% | 2 | 220 | 0.7 |"
