"""Chat APIs that reflect, and one that plays: failover, junk, money, and a reply that is paid once."""

import json
from pathlib import Path
from typing import Any

import pytest

from astune.errors import ConfigError
from astune.task_judge.llm.fence import read_fences
from astune.testing import ScriptedChatServer
from tests.prompts import world
from tests.prompts.test_search import rows, search

PRICES = {"prompt_price": 1000.0, "completion_price": 1000.0}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reply(body: dict[str, Any]) -> str:
    """Adds a rule that the text lacks, after a first reply that is no JSON."""
    said = body["messages"][1]["content"]
    text = read_fences(said)[0][1]
    if len(body["messages"]) == 2 and text == world.FIRST:
        return "Let me think."
    missing = [rule for rule in world.RULES.values() if rule not in text]
    return json.dumps({"lessons": "Rules.", "text": " ".join([text, *missing[:1]])})


def models(*servers: ScriptedChatServer, **more: Any) -> dict[str, Any]:
    entries = [{"base_url": server.base_url, "model": "writer", "max_retries": 0, **PRICES} for server in servers]
    return {"reflector": None, "reflection": {"models": entries, "cache": None}, **more}


def test_models_reflect_with_failover_and_what_they_cost_is_told() -> None:
    with ScriptedChatServer(lambda body: 500) as broken, ScriptedChatServer(reply, usage=True) as server:
        found = search(**models(broken, server, rounds=2))
        assert found.gained and found.reflecting.calls == len(server.requests) == 3 and found.junk == 0
        tokens = found.reflecting.prompt_tokens + found.reflecting.completion_tokens
        assert found.reflecting.cost == pytest.approx(tokens / 1000)
        shown = server.requests[0]["messages"][1]["content"]
        assert "[user]\n  Say " in dict(read_fences(shown))["attempt"] and "reward: 0.33" in shown
        assert len(broken.requests) == 1  # then it rests
        assert search(**models(broken, server, rounds=2, resume=True)) == found and len(server.requests) == 3


def test_replies_that_are_junk_again_and_again_are_counted_and_the_search_ends_with_that() -> None:
    with ScriptedChatServer(lambda body: "Let me think.", usage=True) as server:
        found = search(**models(server, rounds=2))
    assert (found.gained, found.candidates, found.junk, found.reflecting.calls) == (False, 1, 6, 12)
    assert "the reply cannot be used" in rows(found, "reflections.jsonl")[0]["wrong"]


def test_money_ends_a_search_and_models_without_a_price_are_refused_where_it_is_limited() -> None:
    with ScriptedChatServer(reply, usage=True) as server:
        found = search(**models(server, max_cost=0.1))
        assert found.ended.startswith("astune.prompts.max_cost: ") and found.ended.endswith(" of 0.1 are spent")
        keys = models(server, max_cost=0.1)
        del keys["reflection"]["models"][0]["prompt_price"]
        with pytest.raises(ConfigError, match=r"reflection\.models\.0: astune\.prompts\.max_cost needs"):
            search(**keys)


def test_models_that_are_away_end_a_search_with_that() -> None:
    with ScriptedChatServer(lambda body: 401) as server:
        found = search(**models(server))
    assert found.ended.startswith("no model reflects: ") and not found.gained


def test_an_api_plays_in_the_place_of_the_policy_and_its_calls_are_paid() -> None:
    def play(body: dict[str, Any]) -> str:
        return world.answer(" ".join(message["content"] for message in body["messages"]))

    with ScriptedChatServer(play, usage=True) as server:
        api = {"parrot": {"base_url": server.base_url, "model": "parrot", **PRICES}}
        found = search(checkpoint="parrot", **{"rollout.auxiliary_models": api}, rounds=2)
        assert found.gained and found.searching.calls == 96 and len(server.requests) == 96 + 32
        assert found.searching.cost == pytest.approx(
            (found.searching.prompt_tokens + found.searching.completion_tokens) / 1000
        )
        with pytest.raises(ConfigError, match=r"auxiliary_models\.parrot: astune\.prompts\.max_cost needs"):
            api["parrot"].pop("prompt_price")
            search(checkpoint="parrot", **{"rollout.auxiliary_models": api}, max_cost=1.0)
