"""Raters compare two answers, on the page in a browser and over the API; what they prefer is learned."""

import itertools
import json
import time
from contextlib import closing

import httpx
import pytest
import sqlalchemy as sa

from astune.config.schema import Config
from astune.online.comparing.service import is_turned
from astune.online.service.serving import OnlineService
from astune.online.store import comparisons, versions
from astune.online.store.retention import DeletionScope, delete
from astune.online.store.versions import ModelVersion
from astune.rl import HumanPreferenceCollector
from astune.store.tables import comparison_votes, feedback, requests, samples
from tests.online.service.conftest import calling, configured, over_network, scripted, user
from tests.online.service.conftest import chat_format as chat_format
from tests.online.service.conftest import store as store
from tests.online.training.world import World
from tests.viewer.chromium import PROGRAM, Chromium

PATH = "/v1/astune/comparisons"
DONE = "document.querySelector('#progress').innerText"
TOKEN = "shop-0123456789abc"


def counted():
    """A script that says something else each time."""
    numbers = itertools.count(1)
    return lambda prompt: f"It is {next(numbers)}."


@pytest.fixture
def made(tmp_path, chat_format):
    """`made(**serve)` is a service over a SQLite file."""

    def make(answers=None, store=None, **serve):
        judged = serve.pop("task_judge", None)
        config = configured(store or f"sqlite:///{tmp_path}/online.db", **serve)
        if judged is not None:
            astune = config.astune.model_dump() | {"task_judge": judged}
            config = Config.model_validate({"astune": astune})
        return closing(OnlineService(config, scripted(chat_format, answers or counted())))

    return make


def ask(client, text="2 + 2?", **more):
    return client.post("/v1/chat/completions", json={"messages": [user(text)], **more}).raise_for_status().json()


def look(client, rater="ana", **more):
    return client.get(PATH, params={"rater": rater, **more}).raise_for_status().json()


def vote(client, number, choice, rater="ana", **more):
    return client.post(PATH, json={"id": number, "rater": rater, "choice": choice, **more})


def rows(service, table):
    with service.database.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(table.select())]


def test_answers_of_one_request_are_a_pair_and_who_prefers_one_gives_feedback(made, store):
    with made(store=store) as service, calling(service) as client:
        ask(client, n=2)
        ask(client)
        shown = look(client)
        pair = shown["comparison"]
        assert shown["progress"] == {"done": 0, "open": 1} and shown["agreement"] == []
        assert [each["content"] for each in pair["messages"]] == ["2 + 2?"]
        said = [each["content"] for each in pair["answers"]]
        assert sorted(said) == ["It is 1.", "It is 2."] and look(client)["comparison"] == pair
        assert not {"msg_id", "version", "model"} & set(json.dumps(pair).replace('"', " ").split())
        assert vote(client, pair["id"], "1", comment="short").json() == {
            "status": "success",
            "message": "counts",
            "judge": None,
        }
        (row,) = rows(service, feedback)
        assert (row["author"], row["kind"], row["comment"]) == ("rater:ana", "preference", "short")
        exported = {each["msg_id"]: each for each in rows(service, requests)}
        ((better,),) = rows_of(service, "SELECT msg_id FROM feedback_messages WHERE place = 'better'")
        assert exported[better]["run_id"].startswith("compared:")
        answer = client.get(f"/v1/astune/requests/{better}").json()["answers"][0]["message"]["content"]
        assert answer == said[0]
        assert vote(client, pair["id"], "1").status_code == 200
        assert vote(client, pair["id"], "2").json()["error"]["code"] == "voted_already"
        assert look(client)["comparison"] is None and look(client, "bo")["comparison"]["id"] == pair["id"]
        assert len(rows(service, feedback)) == 1


def rows_of(service, statement):
    with service.database.reading() as connection:
        return connection.execute(sa.text(statement)).all()


def test_attempts_at_a_task_are_paired_where_the_same_was_asked_and_rewards_label_before(made):
    with made() as service, calling(service) as client:
        ids = []
        for text in ("2 + 2?", "2 + 2?", "3 + 3?"):
            body = {"messages": [user(text)]}
            headers = {"X-ASTune-Task": "t1", "X-ASTune-Run": str(len(ids))}
            ids.append(client.post("/v1/chat/completions", json=body, headers=headers).json()["id"])
        for msg_id, reward in zip(ids, (0.0, 1.0, 1.0), strict=True):
            client.post("/feedback", json={"msg_ids": [msg_id], "reward": reward}).raise_for_status()
        assert look(client, task="t2")["comparison"] is None
        pair = look(client, task="t1")["comparison"]
        with service.database.reading() as connection:
            (made_pair,) = comparisons.every_comparison(connection)
        assert (made_pair.source, made_pair.first, made_pair.second, made_pair.judged) == ("group", *ids[:2], "second")
        better = {name: "1" if is_turned(pair["id"], name) else "2" for name in ("ana", "bo")}
        assert vote(client, pair["id"], "tie").json()["judge"] == better["ana"]
        assert vote(client, pair["id"], better["bo"], "bo").json()["judge"] == better["bo"]
        agreement = {tuple(each["raters"]): each for each in look(client, "cy")["agreement"]}
        assert {names: (each["n"], each["share"]) for names, each in agreement.items()} == {
            ("ana", "bo"): (1, 0.0),
            ("ana", "the judge"): (1, 0.0),
            ("bo", "the judge"): (1, 1.0),
        }
        (row,) = [each for each in rows(service, feedback) if each["kind"] == "preference"]
        assert (row["author"], row["state"]) == ("rater:bo", "counts")
        assert [each["choice"] for each in rows(service, comparison_votes)] == ["tie", "second"]


def test_two_versions_answer_a_request_of_the_past_and_each_answer_is_recorded(made, chat_format):
    with made() as service, calling(service) as client:
        ask(client, user="ana")
        with service.database.writing() as connection:
            versions.add(connection, ModelVersion(1, parent=0, made=1.0))
        shown = look(client, versions="v0,v1")
        assert len(shown["comparison"]["answers"]) == 2
        made_for = [each for each in rows(service, requests) if each["run_id"] is not None]
        assert sorted(each["version"] for each in made_for) == [0, 1] and {each["user"] for each in made_for} == {"ana"}
        assert vote(client, shown["comparison"]["id"], "1").json()["message"] == "counts"
        assert look(client, versions="v1,v0")["comparison"] is None  # no further request
        for wrong, told in (("v0", "expected two"), ("v0,v0", "both are v0"), ("v0,v7", "there is no version 'v7'")):
            refused = client.get(PATH, params={"rater": "ana", "versions": wrong})
            assert (refused.status_code, told in refused.json()["error"]["message"]) == (400, True)
        delete(service.database, DeletionScope(user="ana"), role="command", now=2e9)
        assert rows(service, requests) == [] and rows(service, comparison_votes) == []


def test_a_judge_chooses_beforehand_and_raters_see_it_after_their_vote(made, tmp_path, monkeypatch):
    judge = "def judge(task, episode):\n    return float(episode.output.answer == 'It is 2.')\n"
    (tmp_path / "judges.py").write_text(judge)
    told = {"feedback": {"judge_comparisons": True}}
    config = {"online": told, "task_judge": {"judge_protocol": f"{tmp_path}/judges.py:judge"}}
    with made(**config) as service, calling(service) as client:
        ask(client, n=2)
        pair = look(client)["comparison"]
        while rows(service, comparisons.comparisons)[0]["judged"] is None:
            look(client)
        better = str(1 + [each["content"] for each in pair["answers"]].index("It is 2."))
        assert vote(client, pair["id"], "skip").json()["judge"] == better
        assert look(client)["agreement"] == []


def test_a_client_sees_its_own_pairs_and_a_page_of_others_sees_none(made, monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    monkeypatch.setenv("DESK_TOKEN", TOKEN[::-1])
    shop, desk = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, TOKEN[::-1]))
    with made(tokens={"shop": "SHOP_TOKEN", "desk": "DESK_TOKEN"}) as service, calling(service) as client:
        assert client.get(PATH, params={"rater": "ana"}).status_code == 401
        client.post("/v1/chat/completions", json={"messages": [user("Hi")], "n": 2}, headers=shop).raise_for_status()
        pair = client.get(PATH, params={"rater": "ana"}, headers=shop).json()["comparison"]
        assert client.get(PATH, params={"rater": "ana"}, headers=desk).json()["comparison"] is None
        body = {"id": pair["id"], "rater": "ana", "choice": "1"}
        assert client.post(PATH, json=body, headers=desk).status_code == 404
        host = client.base_url.netloc.decode()
        for origin, status in (("http://evil.example", 403), ("null", 403), (f"http://{host}", 200)):
            assert client.post(PATH, json=body, headers={**shop, "Origin": origin}).status_code == status
        own = {**shop, "Origin": f"http://{host}"}
        assert client.post("/feedback", json={"msg_ids": ["x"], "reward": 1}, headers=own).status_code == 403
        for wrong in ({"choice": "left"}, {"rater": ""}, {"coment": "x"}):
            refused = client.post(PATH, json=body | wrong, headers=shop)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
        named = {"msg_ids": ["x"], "thumb": "up", "user": "rater:ana"}
        assert "is the name of a rater" in client.post("/feedback", json=named, headers=shop).json()["message"]


def test_what_a_rater_prefers_makes_a_version_by_dpo(made, tmp_path):
    with made() as service, calling(service) as client:
        ask(client, n=2)
        number = look(client)["comparison"]["id"]
        assert vote(client, number, "1").json()["message"] == "counts"
        world = World(service.database, tmp_path / "online")
        world.now = time.time() + 10
        assert world.commit().state == "made"
        assert {each["method"] for each in rows(service, samples)} == {"dpo"}
        assert [each["state"] for each in rows(service, feedback)] == ["trained"]
        assert vote(client, number, "2", "bo").json()["message"].startswith("late")


def test_the_collector_of_the_article_asks_about_what_the_service_recorded(made):
    with made() as service, calling(service) as client:
        ask(client, n=2)
        shown = []
        collector = HumanPreferenceCollector(
            lambda text: shown.append(text) or "a", endpoint=str(client.base_url), rater="ana"
        )
        pair = collector.collect_next()
        assert shown[0].startswith("2 + 2?\n\na: It is ") and pair["messages"][0]["content"] == "2 + 2?"
        assert pair["chosen"]["content"] != pair["rejected"]["content"] and collector.collect_next() is None
        (row,) = rows(service, feedback)
        assert (row["kind"], row["author"]) == ("preference", "rater:ana")


@pytest.mark.skipif(PROGRAM is None, reason="needs the program chromium (Debian: apt install chromium)")
def test_the_keyboard_alone_compares_on_the_page(made, monkeypatch, tmp_path):
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    hostile = itertools.cycle(["<img src=x onerror=alert(1)>", "**4**"])
    with made(lambda prompt: next(hostile), tokens={"shop": "SHOP_TOKEN"}) as service, over_network(service) as address:
        url = "http://{}:{}".format(*address)
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False) as client:
            for n in range(5):
                ask(client, f"{n} + 2?", n=2)
            with Chromium() as page:
                page.open(f"{url}/compare")
                page.write("ana")
                page.press("Enter")
                page.wait("document.activeElement.id === 'token' && !document.querySelector('#notice').hidden")
                page.write(TOKEN)
                page.press("Enter")
                page.errors.clear()  # the 401 that was asked for
                for n, key in enumerate("1t2bs"):
                    page.wait(f"!document.querySelector('#pair').hidden && {DONE}.startsWith('{n} vote')")
                    assert page.eval("document.querySelectorAll('#answers img').length") == 0
                    if key == "1":
                        page.press("c")
                        page.write("it is right")
                        page.press("Escape")
                    page.wait("!document.querySelector('.choice').disabled")
                    page.press(key)
                page.wait("document.querySelector('#told').innerText.startsWith('There is nothing')")
                assert page.errors == [] and all(each.startswith(url) for each in page.requests)
        kinds = [each["choice"] for each in rows(service, comparison_votes)]
        assert sorted({"first", "second"} & {*kinds}) and sorted(kinds)[:1] == ["both_bad"]
        assert kinds.count("tie") == kinds.count("skip") == kinds.count("both_bad") == 1
        preferred = [each for each in rows(service, feedback) if each["kind"] == "preference"]
        assert [each["comment"] for each in preferred] == ["it is right", None]
