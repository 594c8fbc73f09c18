"""The operator's page: what stands in the store, for nobody but this machine; and a browser that shows it."""

import contextlib
import time

import httpx
import pytest

from astune.online.operator.pages import operator_app
from astune.online.store import releases, versions
from astune.online.store.feedback.states import FeedbackPart
from astune.online.store.versions import ModelVersion
from astune.store.tables import traffic
from astune.support.http.serving import ServerThread, bound_socket, server_config
from tests.online.training.world import World, database
from tests.viewer.chromium import PROGRAM, Chromium

OPTIONS = "--store sqlite:///online.db"
database = database
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def world(database, tmp_path):
    """A store of today with a commit, and no release."""
    world = World(database, tmp_path / "online")
    with database.writing() as connection:
        versions.register(connection, ModelVersion(0, made=1.0))
    world.rate(1.0, 2, task_id="t1")
    world.rate(0.0, 1, task_id="t1", question=HOSTILE)
    assert world.commit().state == "made"
    world.answer("m-new", user="ana")
    world.say(FeedbackPart("thumb", value=1.0), about=["m-new"])
    return world


@contextlib.contextmanager
def serving(world):
    listener = bound_socket("127.0.0.1", 0)
    server = ServerThread(server_config(operator_app(world.database, OPTIONS)), listener, "operator")
    server.start()
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        server.close(at_once=True)


def test_a_store_without_releases_is_shown_and_nothing_is_changed(world):
    with serving(world) as url, httpx.Client(base_url=url, trust_env=False) as client:
        page = client.get("/")
        assert page.status_code == 200 and "None was made" in page.text and HOSTILE not in page.text
        for told in ("v1", "champion", f"astune online versions promote v0 {OPTIONS}", "users", "feedback trained"):
            assert told in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
        assert client.get("/", headers={"Origin": "http://evil.example"}).status_code == 400
        assert client.post("/").status_code == 405
        assert "Did you mean" in (missing := client.get("/trace", params={"id": "m-nwe"})).text
        assert missing.status_code == 404
        assert "Made of" in client.get("/trace", params={"id": "v1"}).text


def begin_release(world):
    """A challenger at 5 %, with two looks, and its traffic."""
    with world.database.writing() as connection:
        versions.add(connection, ModelVersion(2, parent=1, made=2000.0))
        release = releases.open_release(connection, 2, {}, role="release", now=2000.0)
        release = releases.advance(connection, release, "testing", stage=0, share=0.05, why="the gate", now=2001.0)
        looks = [
            {"metric": {"champion": 0.5, "challenger": 0.6, "low": 0.1 - wide, "high": 0.1 + wide}, "stage": 0}
            for wide in (0.4, 0.2)
        ]
        releases.note(connection, release, {"looks": looks, "gate": {"verdict": "passed", "lines": ["8 of 8"]}}, None)
        counts = dict.fromkeys(("errors", "empty", "slow", "tool_calls", "tool_failures"), 0)
        row = {
            "minute": int(time.time() // 60),
            "server": "a",
            "version": 2,
            "requests": 7,
            "tokens": 70,
            "seconds": 1.4,
        }
        connection.execute(traffic.insert().values(row | counts))


@pytest.mark.skipif(PROGRAM is None, reason="needs the program chromium (Debian: apt install chromium)")
def test_a_browser_shows_tree_release_and_lineage(world):
    begin_release(world)
    with serving(world) as url, Chromium() as page:
        page.open(f"{url}/", until="document.querySelector('#audit tbody tr')")
        tree = page.eval("[...document.querySelectorAll('#versions tbody tr td:first-child')].map(c => c.innerText)")
        assert [row.split() for row in tree] == [["v0", "previous"], ["v1", "champion"], ["v2", "challenger"]]
        assert page.eval("document.querySelector('.release h3').innerText").endswith("testing")
        assert page.eval("document.querySelectorAll('.release svg circle.sampled').length") == 2
        assert page.text("#traffic tbody tr").split()[:2] == ["v2", "7"]
        assert f"astune online versions rollback v2 {OPTIONS}" in page.text(".release")
        page.point("#answers tbody a", click=True)
        page.wait("location.pathname === '/trace' && document.querySelector('h1')")
        assert page.text("h1") == "m-new" and "thumb" in page.text("table")
        before = page.eval("getComputedStyle(document.body).backgroundColor")
        page.point("#theme", click=True)
        assert page.eval("getComputedStyle(document.body).backgroundColor") != before
        assert page.errors == []
