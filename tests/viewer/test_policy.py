"""The pages let a browser run and load nothing but what they came with."""

import asyncio
import base64
import hashlib
import html
import re
import socket
from pathlib import Path

import httpx
import pytest

from astune.judging.figures import Label, judge_figures
from astune.judging.report import JudgeReport
from astune.types import Verdict
from astune.viewer import write_report, write_view
from astune.viewer.judge_page import write_judge_page
from astune.viewer.serve import view_app
from tests.viewer.chromium import PROGRAM, Chromium

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


def policy_of(page: str) -> dict[str, list[str]]:
    (found,) = POLICY.findall(page)
    assert page.index("Content-Security-Policy") < min(page.index("<style"), page.index("<title"))
    return {name: values for name, *values in (part.split() for part in html.unescape(found).split(";"))}


def hashes(page: str, tag: str) -> set[str]:
    """Of inline scripts, or styles, as a browser counts them."""
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}


def judge_page(folder: Path) -> Path:
    outcomes = [Verdict(1.0, True), Verdict(0.0, False)] * 2
    labels = tuple(Label(f"t{n}", float(right), right, 10) for n, right in enumerate((True, False, False, True)))
    figures = judge_figures("J", labels, outcomes, graded=False, seconds=1.0, pass_reward=0.5)
    report = JudgeReport("x.jsonl", labels, False, None, 0.5, (figures,), (tuple(outcomes),))
    write_judge_page(report, folder / "judges.html")
    return folder / "judges.html"


@pytest.mark.fault(
    "What people see",
    "text of an agent gets into a page as markup",
    "the page's policy lets no script run but its own, and nothing be fetched",
)
def test_every_page_allows_its_own_scripts_and_styles_and_nothing_else(make_run, tmp_path):
    run = make_run(steps=2, held_out=4)
    pages = (write_report(run.path), write_view(run.path, tmp_path / "view.html"), judge_page(tmp_path))
    for path, scripts in zip(pages, (1, 1, 0), strict=True):
        page = path.read_text("utf-8")
        policy = policy_of(page)
        assert len(hashes(page, "script")) == scripts and hashes(page, "style")
        assert set(policy.pop("script-src")) == (hashes(page, "script") or {"'none'"})
        assert set(policy.pop("style-src")) >= hashes(page, "style")
        assert policy == {
            "default-src": ["'none'"],
            "style-src-attr": ["'unsafe-inline'"],
            "img-src": ["data:"],
            "base-uri": ["'none'"],
            "form-action": ["'none'"],
        }


def test_a_served_page_has_the_policy_as_a_header_too(make_run, tmp_path):
    app = view_app(make_run(steps=1, held_out=2).path, tmp_path)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.get("/")

    answer = asyncio.run(ask())
    header = answer.headers["content-security-policy"]
    (in_page,) = POLICY.findall(answer.text)
    assert header == f"{html.unescape(in_page)}; frame-ancestors 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"


LOADED = "document.readyState === 'complete'"
PLANTED = (
    '<script>document.title = "ran"</script><img src="x" onerror="document.title = \'ran\'">'
    '<img src="http://127.0.0.1:PORT/x"><style>@import "http://127.0.0.1:PORT/y.css"; h1 { display: none }</style>'
)


@pytest.mark.skipif(PROGRAM is None, reason="needs the program chromium (Debian: apt install chromium)")
def test_a_browser_shows_the_pages_whole_and_runs_nothing_that_was_planted_in_them(make_run, tmp_path):
    report, judges = write_report(make_run(steps=2, held_out=4).path), judge_page(tmp_path)
    with Chromium() as page, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        page.open(report.as_uri())
        assert (
            page.eval("getComputedStyle(document.querySelector('.stack .part0')).backgroundColor") == "rgb(8, 117, 83)"
        )
        assert page.eval("[...document.querySelectorAll('.stack .part0')].every(e => Number(e.style.flexGrow) > 0)")
        page.open(judges.as_uri(), until=LOADED)
        assert "Side by side" in page.text("main")
        assert page.eval("getComputedStyle(document.querySelector('svg .grid')).stroke") == "rgb(234, 238, 242)"
        assert page.errors == [] and page.requests == []
        planted = PLANTED.replace("PORT", str(listener.getsockname()[1]))
        report.write_text(report.read_text("utf-8").replace("<h1>", f"{planted}<h1>", 1), "utf-8")
        page.open(report.as_uri(), until=LOADED)
        assert page.eval("document.title") != "ran" and page.text("h1")
        assert len([error for error in page.errors if "Content Security Policy" in error]) >= 4
        with pytest.raises(BlockingIOError):  # nobody came
            listener.accept()
