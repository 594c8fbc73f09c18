"""The tree of a search for prompts on the page of its run."""

import json

import pytest

from astune.monitor import EpisodeLog
from astune.viewer import write_view
from tests.viewer.chromium import PROGRAM, Chromium
from tests.viewer.test_view import empty_run, parts, small_episode

FIRST, SECOND = "You are a cashier.", "You are a cashier. <b>Use</b> the calculator."
ROWS = [
    {"candidate": "c0", "parents": [], "step": 0, "fate": "first", "why": "", "texts": {"system": FIRST}, "mean": 0.25},
    {"candidate": "c1", "parents": ["c0"], "step": 1, "fate": "dropped", "why": "it quotes task 'a'", "mean": None},
    {"candidate": "c2", "parents": ["c0"], "step": 2, "fate": "kept", "why": "", "mean": 0.75},
    {"candidate": "c3", "parents": ["c2", "c0"], "step": 3, "fate": "tried", "why": "", "mean": 0.5},
]


@pytest.fixture
def page(tmp_path):
    """A search with an episode of each candidate that was played."""
    run = empty_run(tmp_path)
    texts = {"c0": FIRST, "c1": "6 times 7 is 42.", "c2": SECOND, "c3": SECOND + " Be right."}
    rows = [row | {"texts": {"system": texts[row["candidate"]]}, "scores": {"t": 1.0}} for row in ROWS]
    (run.path / "candidates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with EpisodeLog(run) as log:
        for step, phase in enumerate(("prompt/c0", "prompt/c2", "prompt/c3", "eval/c0", "eval/c2")):
            log.write(small_episode(1.0), step=step, phase=phase)
    return write_view(run.path, tmp_path / "view.html")


def test_the_head_has_the_candidates_as_a_tree_with_what_each_changed(page):
    head, _ = parts(page)
    shown = [(one["candidate"], one["depth"], one["fate"], one["tasks"]) for one in head["candidates"]]
    assert shown == [("c0", 0, "first", 1), ("c1", 1, "dropped", 1), ("c2", 1, "kept", 1), ("c3", 2, "tried", 1)]
    assert head["candidates"][2]["changes"] == [["system", [["=", FIRST], ["+", " <b>Use</b> the calculator."]]]]


@pytest.mark.skipif(PROGRAM is None, reason="needs the program chromium (Debian: apt install chromium)")
def test_the_page_shows_the_tree_and_a_click_leaves_the_episodes_of_one_candidate(page):
    with Chromium() as browser:
        browser.open(page.as_uri())
        items = browser.eval("[...document.querySelectorAll('.candidate')].map(item => item.innerText)")
        assert len(items) == 4 and "it quotes task 'a'" in items[1] and "of c2 and c0" in items[3]
        assert browser.eval("document.querySelector('.candidate.kept ins').innerText").strip() == (
            "<b>Use</b> the calculator."  # text of a run is never markup
        )
        browser.point(".candidate.kept button", click=True)
        assert browser.eval("document.querySelector('#count').innerText") == "2 of 5 episodes"
        browser.point(".candidate.kept button", click=True)
        assert browser.eval("document.querySelector('#count').innerText") == "5 episodes"
        assert browser.errors == [] and browser.requests == []
