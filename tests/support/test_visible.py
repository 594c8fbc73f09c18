"""What models, tasks and tools write must not steer a terminal, nor look like anything else than it is."""

import io
import json
import re
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table

from astune.support.terminal import Console, Text
from astune.support.visible import visible

EVIL = "\x1b[2J\r\b\x07\x9b31m\u202ebidi\u2066\x7f\ud800\u200b [red]x[/] [link=http://a]y[/link] :smile: [/]"
SHOWN = (
    "\\u001b[2J\\r\\b\\u0007\\u009b31m\\u202ebidi\\u2066\\u007f\\ud800\\u200b [red]x[/] [link=http://a]y[/link] "
    ":smile: [/]"
)


def obeyed(text: str) -> set[str]:
    """Characters that a terminal would act on or hide."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("two\n\tlines") == "two\n\tlines"
    assert visible("a name\nstep 2/60", keep="") == "a name\\nstep 2/60"


def test_words_of_all_languages_stay_as_they_are() -> None:
    for words in ("Zoë 日本語 עברית", "\u0645\u06cc\u200c\u062e\u0648", "👩\u200d👩\u200d👧 👍🏽", "x² ≤ 3\u00a0km"):
        assert visible(words) == words


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_stays_equal_json(value: object) -> None:
    text = visible(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(text) == value
    assert obeyed(text) <= {"\u200c", "\u200d"}


@pytest.mark.fault(
    "What people see",
    "a model, task or tool writes escape sequences, bidi marks or rich's markup",
    "every screen and table shows them as text",
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_console_shows_it_wherever_it_stands(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=400, force_terminal=is_terminal, color_system=None)
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    table.add_row(Text(EVIL))
    for what in (
        EVIL,
        Text(EVIL),
        Text.assemble(EVIL),
        Text.assemble((EVIL, "bold")),
        table,
        Panel(EVIL, title=Text(EVIL)),
    ):
        console.print(what)
    console.out(EVIL)
    console.rule(Text(EVIL))
    screen = console.file.getvalue()
    if is_terminal:  # rich's own bold
        screen = screen.replace("\x1b[1m", "").replace("\x1b[3m", "").replace("\x1b[0m", "")
    assert obeyed(screen) == set()
    assert screen.count(SHOWN) == 12


@pytest.mark.parametrize("made_for", ["make_logs_visible", "log_as_server"])
def test_warnings_and_log_records_are_shown_likewise(made_for: str) -> None:
    code = (
        "import logging, warnings, sys\nfrom astune.support import visible\nvisible.make_logs_visible()\n"
        f"visible.{made_for}()\nevil = '\\x1b[2J\\u202e'\n"
        "logging.getLogger('other.library').warning('%s', evil)\nwarnings.warn(evil)\n"
        "try:\n    raise ValueError(evil)\nexcept ValueError as error:\n"
        "    logging.getLogger('other').exception('raised')\n"
    )
    assert obeyed(said := logged_by(code)) == set()
    assert said.count("\\u001b[2J\\u202e") >= 3


def test_a_server_puts_time_level_and_place_before_a_record_and_shows_its_own_infos() -> None:
    code = (
        "import logging\nfrom astune.support.visible import log_as_server, make_logs_visible\n"
        "for set_up in (make_logs_visible, log_as_server):\n    set_up()\n"
        "    logging.getLogger('astune.x').info('closed')\n    logging.getLogger('other').info('chatter')\n"
        "    logging.getLogger('astune.x').warning('late')\n"
    )
    late, *server = logged_by(code).splitlines()
    assert late == "late"
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    info, warning = (rf"{time} \| {level} \| astune.x:<module>:" for level in ("INFO    ", "WARNING "))
    assert len(server) == 2
    assert re.fullmatch(rf"{info}5 - closed", server[0]) and re.fullmatch(rf"{warning}7 - late", server[1])


def logged_by(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
