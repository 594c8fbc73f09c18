from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
from collections.abc import Callable

import pytest
from rich.live import Live

from astune.monitor.printed import episode_output
from astune.support.current_episode import in_episode
from astune.support.terminal import Console


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


@pytest.mark.fault(
    "What a run says",
    "Workflows print, in tasks and in threads, many at once",
    "Each line stands whole, after the name of its episode",
)
def test_lines_of_episodes_side_by_side_stand_whole_after_their_names(shown: Callable[[], str]) -> None:
    async def episode(name: str) -> None:
        with in_episode(name):
            for part in ("a ", "b ", "c\n"):
                print(part, end="")
                await asyncio.sleep(0)
            await asyncio.to_thread(print, "from a thread")

    async def main() -> None:
        await asyncio.gather(*(episode(f"train/1/t/{number}") for number in range(3)))

    with episode_output():
        asyncio.run(main())
    expected = [f"[train/1/t/{n}] {text}" for n in range(3) for text in ("a b c", "from a thread")]
    assert sorted(shown().splitlines()) == expected


@pytest.mark.fault(
    "What people see",
    "A workflow prints escape sequences and bidi marks of a model's reply, or its task's id has some",
    "They are written out, not obeyed",
)
def test_control_characters_of_a_name_and_of_what_is_printed_are_written_out(shown: Callable[[], str]) -> None:
    with episode_output() as output:
        with in_episode("train/1/id\x1b[31m\u202e/0"):
            print("\x1b]0;title\x07a\tb\r\n\u202edone")
            print("> \x1b[2J", end="", flush=True)
            sys.stdout.writelines(["cut ", "\x9b"])
        output.end("train/1/id\x1b[31m\u202e/0")
    name = r"[train/1/id\u001b[31m\u202e/0]"
    assert shown() == (f"{name} \\u001b]0;title\\u0007a\tb\\r\n{name} \\u202edone\n{name} > \\u001b[2Jcut \\u009b\n")


def test_what_belongs_to_no_episode_is_passed_through_as_it_is(shown: Callable[[], str]) -> None:
    with episode_output(), in_episode("train/1/t/0"):
        thread = threading.Thread(target=print, args=("a thread of its own",))
        thread.start()
        thread.join()
    with episode_output():
        print("step 1", end="")
        print(" of 2")
    assert shown() == "a thread of its own\nstep 1 of 2\n"


def test_what_is_flushed_shows_at_once_and_others_begin_a_new_line(shown: Callable[[], str]) -> None:
    with episode_output(), in_episode("train/1/t/0"):
        print("(Pdb) ", end="", flush=True)
        print("n ", end="", flush=True)
        assert shown() == "[train/1/t/0] (Pdb) n "
        with in_episode("train/1/t/1"):
            print("other")
    assert shown() == "\n[train/1/t/1] other\n"


def test_a_line_without_an_end_is_shown_when_its_episode_is_over(shown: Callable[[], str]) -> None:
    with episode_output() as output:
        with in_episode("train/1/t/0"):
            print("half", end="")
        assert shown() == ""
        output.end("train/1/t/0")
    assert shown() == "[train/1/t/0] half\n"


def test_loggers_that_were_set_up_before_write_after_the_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("library")
    handler = logging.StreamHandler(sys.stderr)
    logging.Logger.manager.loggerDict["library"] = logger
    logger.addHandler(handler)
    try:
        with episode_output(), in_episode("train/1/t/0"):
            logger.warning("slow")
        assert capsys.readouterr().err == "[train/1/t/0] slow\n"
        logger.warning("after the run")
        assert capsys.readouterr().err == "after the run\n"
    finally:
        del logging.Logger.manager.loggerDict["library"]


def test_a_warning_that_begins_with_the_episodes_name_bears_it_once(shown: Callable[[], str]) -> None:
    with episode_output(), in_episode("train/1/t/0"):
        print("train/1/t/0 has no score")
    assert shown() == "train/1/t/0 has no score\n"


def test_lines_stand_above_the_bars_of_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60)
    before = sys.stdout
    with Live("bars", console=console, auto_refresh=False), episode_output(), in_episode("train/1/t/0"):
        print("[red]words")
    assert "[train/1/t/0] [red]words" in file.getvalue() and sys.stdout is before
