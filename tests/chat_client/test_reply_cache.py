import json
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from astune.clients.chat_models import Usage
from astune.clients.reply_cache import CachedReply, ReplyCache, cache_key
from astune.errors import ConfigError, JudgeError, PolicyError
from astune.testing import ScriptedChatServer
from tests.chat_client.asking import GOOD, QUESTION, Score, chat_models

ROOT = Path(__file__).parents[2]
REPLY = CachedReply("text", "m", Usage(2, 0, 3, 4, cost=None))


class Other(BaseModel):
    score: int
    reason: str = ""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "runs" / "replies.sqlite"


async def test_a_reply_is_paid_once_whoever_asks(file):
    with ScriptedChatServer([GOOD], usage=True) as server:
        models = chat_models(server, cache=file)
        first, second = await models.ask(QUESTION, Score), await models.ask(QUESTION, Score)
        other = chat_models(server, cache=file)
        third = await other.ask(QUESTION, Score)
    assert first.value == second.value == third.value == Score(score=3)
    assert [a.usage.calls for a in (first, second, third)] == [1, 0, 0]
    assert first.usage == first.paid == second.paid == third.paid == Usage(1, 0, 4, 4, cost=None)
    assert (models.usage.cached, other.usage, len(server.requests)) == (1, Usage(cached=1), 1)


async def test_a_reply_of_a_later_model_is_not_paid_again_when_the_first_is_back(file):
    with ScriptedChatServer([500, GOOD]) as one, ScriptedChatServer([GOOD]) as two:
        await chat_models(one, two, cache=file).ask(QUESTION, Score)
        answer = await chat_models(one, two, cache=file).ask(QUESTION, Score)
    assert (answer.model, answer.usage, len(one.requests)) == ("b", Usage(cached=1), 1)


async def test_a_reply_that_was_fixed_is_kept_as_the_reply(file):
    prices = {"prompt_price": 0.0, "completion_price": 1_000_000}
    with ScriptedChatServer(["no", GOOD], usage=True) as server:
        for calls in (2, 0):
            answer = await chat_models(server, cache=file, model=prices).ask(QUESTION, Score)
            assert (answer.usage.calls, answer.paid.calls, answer.paid.cost) == (calls, 2, 5.0)


CHANGES = {
    "model": {"model": {"model": "other"}},
    "temperature": {"temperature": 0.7},
    "max_tokens": {"max_tokens": 7},
    "response_format": {"model": {"response_format": "json_object"}},
    "messages": {"question": [{"role": "user", "content": "How good is it!"}]},
    "role": {"question": [{"role": "system", "content": "How good is it?"}]},
    "schema": {"schema": Other},
    "vote": {"vote": 1},
}


async def asked(server, file, *, question=QUESTION, schema=Score, vote=0, **options):
    return await chat_models(server, cache=file, **options).ask(question, schema, vote=vote)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_all_that_a_reply_depends_on_makes_it_another(file, change):
    with ScriptedChatServer([GOOD] * 2) as server:
        await asked(server, file)
        assert (await asked(server, file, **change)).usage.calls == 1
        for again in ({}, change):
            assert (await asked(server, file, **again)).usage.calls == 0


async def test_the_same_model_elsewhere_is_another(file):
    with ScriptedChatServer([GOOD]) as one, ScriptedChatServer([GOOD]) as two:
        await asked(one, file)
        assert (await asked(two, file)).usage.calls == 1


@pytest.mark.parametrize(
    "change", [{"model": {"timeout": 9.0, "prompt_price": 1.0}}, {"max_concurrent": 1}, {"votes": 3}], ids=str
)
async def test_what_a_reply_does_not_depend_on_does_not(file, change):
    with ScriptedChatServer([GOOD]) as server:
        await asked(server, file)
        assert (await asked(server, file, **change)).usage.calls == 0


async def test_errors_and_invalid_replies_are_not_kept(file):
    with ScriptedChatServer([500, "no", "no", 400, GOOD]) as server:
        for error in (PolicyError, JudgeError, JudgeError):
            with pytest.raises(error):
                await asked(server, file)
        assert (await asked(server, file)).usage.calls == 1


async def test_a_kept_reply_that_a_new_check_refuses_is_asked_for_anew(file):
    def above_3(reply):
        if reply.score <= 3:
            raise ValueError("too low")

    with ScriptedChatServer([GOOD, '{"score": 4}']) as server:
        await asked(server, file)
        answer = await chat_models(server, cache=file).ask(QUESTION, Score, check=above_3)
    assert (answer.value.score, answer.usage.calls) == (4, 1)


@pytest.mark.fault("Records and checkpoints", "the file of kept replies is damaged", "an error that says what to do")
async def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    file = tmp_path / "replies.sqlite"
    file.write_bytes(b"no database" * 200)
    with (
        ScriptedChatServer([GOOD]) as server,
        pytest.raises(ConfigError, match=r"^judge\.llm\.cache: .*replies\.sqlite is no cache .*delete it"),
    ):
        await asked(server, file)
    assert server.requests == []


async def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        ScriptedChatServer([GOOD]) as server,
        pytest.raises(ConfigError, match=r"judge\.llm\.cache: .*replies\.sqlite cannot be used as a cache"),
    ):
        await asked(server, tmp_path / "file" / "replies.sqlite")


def test_many_threads_may_write_and_read_at_once(file):
    def write_and_read(number):
        cache = ReplyCache(file, setting="cache")
        together.wait()
        for at in range(20):
            cache.put(f"{at}", REPLY)
            cache.put(f"{number}-{at}", REPLY)
            found.append(cache.get(f"{at}"))

    found = []
    together = threading.Barrier(4)
    threads = [threading.Thread(target=write_and_read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [REPLY] * 80
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM astune_replies").fetchone() == (100,)
    database.close()


def test_a_file_that_many_open_first_at_once_is_made_once(tmp_path):
    def put(file, number):
        together.wait()
        ReplyCache(file, setting="cache").put(f"{number}", REPLY)
        written.append(number)

    for attempt in range(10):
        written = []
        together = threading.Barrier(16)
        file = tmp_path / f"{attempt}.sqlite"
        threads = [threading.Thread(target=put, args=(file, number)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(written) == list(range(16))


MAPPINGS = st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.text(), max_size=2), max_size=4)


@given(one=MAPPINGS, two=MAPPINGS)
def test_keys_are_equal_exactly_for_equal_requests(one, two):
    assert (cache_key(one) == cache_key(two)) == (json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True))
    assert cache_key(one) == cache_key(dict(reversed(one.items())))
