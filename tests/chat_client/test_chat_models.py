import asyncio
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.clients.chat import TokenUsage
from astune.clients.chat_models import Budget, BudgetSpent, ChatModels, Usage
from astune.clients.limited_model import RateLimit
from astune.clients.usage import usage_of_call
from astune.config.chat_models import JudgeModelConfig
from astune.config.judges import LlmJudgeConfig
from astune.errors import ConfigError, JudgeError, PolicyError
from astune.testing import ScriptedChatServer
from astune.testing.chat_server import chat_completion
from tests.chat_client.asking import GOOD, QUESTION, Score, chat_models
from tests.passing_time import pass_time

PRICES = {"prompt_price": 2_000_000, "completion_price": 1_000_000}


class Busy:
    """Answers after a moment, the first ones once so many are there, and counts the most requests at once."""

    def __init__(self, seconds=0.05, together=1):
        self.seconds, self.now, self.most, self.together = seconds, 0, 0, together
        self.changed = threading.Condition()

    def __call__(self, body):
        with self.changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.most >= self.together, 60)
        time.sleep(self.seconds)
        with self.changed:
            self.now -= 1
        return GOOD


async def ask(models, question=QUESTION, schema=Score, **options):
    return await models.ask(question, schema, **options)


async def ask_many(models, count):
    return await asyncio.gather(*(ask(models, vote=vote) for vote in range(count)), return_exceptions=True)


async def test_the_reply_is_an_instance_of_the_schema_and_says_who_gave_it_and_what_it_cost():
    with ScriptedChatServer([GOOD], usage=True) as server:
        models = chat_models(server, model=PRICES, temperature=0.5, max_tokens=99)
        answer = await ask(models)
    assert (answer.value, answer.model) == (Score(score=3), "a")
    assert answer.usage == models.usage == Usage(1, 0, prompt_tokens=4, completion_tokens=4, cost=12.0)
    assert server.requests == [{"model": "a", "messages": QUESTION, "temperature": 0.5, "max_tokens": 99}]


async def test_json_is_asked_for_as_the_model_can_and_the_limit_by_its_name():
    each = [
        {"response_format": "json_object"},
        {"response_format": "json_schema", "limit_field": "max_completion_tokens"},
    ]
    with ScriptedChatServer([GOOD]) as one, ScriptedChatServer([GOOD]) as two:
        models = chat_models(one, two, models=each)
        await ask(models, model="a")
        await ask(models, model="b")
    assert one.requests[0]["response_format"] == {"type": "json_object"}
    assert two.requests[0]["response_format"]["json_schema"]["name"] == "Score"
    assert two.requests[0]["max_completion_tokens"] == 2048 and "max_tokens" not in two.requests[0]


def test_models_that_share_a_name_are_told_apart():
    entry = {"base_url": "http://127.0.0.1:1", "model": "m"}
    config = LlmJudgeConfig(models=[entry, entry, {**entry, "model": "m#2"}, entry], cache=None)
    assert ChatModels(config).names == ("m", "m#2", "m#2#2", "m#3")


def test_no_models_is_an_error_that_names_the_key():
    with pytest.raises(ConfigError, match=r"^judge\.llm\.models is empty"):
        chat_models()


# failover


@pytest.mark.fault(
    "Foreign servers", "the API of a judge fails", "the next model of the list is asked, and the first rests"
)
async def test_a_model_that_fails_is_left_for_the_next_and_rests():
    with ScriptedChatServer([500, GOOD, GOOD]) as broken, ScriptedChatServer([GOOD] * 2) as good:
        models = chat_models(broken, good)
        assert [(await ask(models)).model, (await ask(models)).model] == ["b", "b"]
        assert (len(broken.requests), len(good.requests)) == (1, 2)
        assert (await ask(models, model="a")).model == "a"  # by name it is asked all the same
        assert (await ask(models)).model == "a"  # and its answer ends its rest
        assert models.usage.calls == 4


@pytest.mark.parametrize("status", [401, 404, 400])
async def test_a_refused_key_an_unknown_model_and_a_refused_request_go_to_the_next(status):
    with ScriptedChatServer([status]) as broken, ScriptedChatServer([GOOD]) as good:
        assert (await ask(chat_models(broken, good))).model == "b"


async def test_a_request_that_is_refused_is_no_reason_to_rest():
    with ScriptedChatServer([400, GOOD]) as picky, ScriptedChatServer([GOOD]) as good:
        models = chat_models(picky, good)
        assert [(await ask(models)).model, (await ask(models)).model] == ["b", "a"]


async def test_where_all_rest_the_first_is_asked_alone():
    with ScriptedChatServer([500, 500, GOOD]) as one, ScriptedChatServer([500, GOOD]) as two:
        models = chat_models(one, two)
        for _ in range(2):
            with pytest.raises(
                PolicyError, match=r"^no model answers: judge\.llm\.models\.0: .*; .*judge\.llm\.models\.1: "
            ):
                await ask(models)
        assert (await ask(models)).model == "a"
        assert len(two.requests) == 1


async def test_models_that_rest_are_named_last():
    with ScriptedChatServer([500]) as broken, ScriptedChatServer([GOOD] * 2) as good:
        models = chat_models(broken, good, good)
        assert models.in_order() == models.names == ("a", "b", "c")
        await ask(models)
        assert (models.in_order(), models.names) == (("b", "c", "a"), ("a", "b", "c"))


async def test_an_error_says_why_the_models_rest_that_were_not_asked():
    with ScriptedChatServer([503]) as one, ScriptedChatServer([GOOD, 500]) as two:
        models = chat_models(one, two)
        await ask(models)
        with pytest.raises(
            PolicyError, match=r"a rests after: judge\.llm\.models\.0: .*503.*; judge\.llm\.models\.1: .*500"
        ):
            await ask(models)
    assert len(one.requests) == 1


async def test_a_pinned_model_has_no_substitute():
    with (
        ScriptedChatServer([]) as broken,
        ScriptedChatServer([GOOD]) as good,
        pytest.raises(PolicyError, match=r"models\.0: .* failed \(1 attempt\)"),
    ):
        await ask(chat_models(broken, good), model="a")
    assert good.requests == []


async def test_an_unknown_name_is_an_error_that_lists_the_models():
    with (
        ScriptedChatServer([]) as server,
        pytest.raises(ValueError, match=r"judge\.llm\.models has no 'z', only a, b"),
    ):
        await ask(chat_models(server, server), model="z")


async def test_a_request_that_no_model_accepts_is_the_judges_error():
    with (
        ScriptedChatServer([400]) as one,
        ScriptedChatServer([422]) as two,
        pytest.raises(JudgeError, match=r"no model accepts the request: .*\(400: .*\(422: "),
    ):
        await ask(chat_models(one, two))


async def test_where_one_refuses_and_one_fails_no_model_answers():
    with (
        ScriptedChatServer([400]) as one,
        ScriptedChatServer([500]) as two,
        pytest.raises(PolicyError, match=r"no model answers: .*\(400: .*500"),
    ):
        await ask(chat_models(one, two))


async def test_a_reply_that_came_while_another_model_failed_is_not_paid_again(tmp_path):
    arrived, answered = threading.Event(), threading.Event()

    def fail_late(body):
        arrived.set()
        answered.wait(60)
        return 500

    with ScriptedChatServer(fail_late) as broken, ScriptedChatServer([GOOD]) as good:
        models = chat_models(broken, good, cache=tmp_path / "replies.sqlite")
        waiting = asyncio.create_task(ask(models))
        await asyncio.to_thread(arrived.wait, 60)
        await ask(models, model="b")
        answered.set()
        answer = await waiting
    assert (answer.model, answer.usage, len(good.requests)) == ("b", Usage(cached=1), 1)


# replies that cannot be used


@pytest.mark.fault(
    "Foreign servers", "a model's reply is no valid JSON", "asked for once more with what was wrong, then an error"
)
async def test_an_invalid_reply_is_asked_for_once_more_with_what_was_wrong():
    with ScriptedChatServer(['{"points": 3}', GOOD], usage=True) as server:
        models = chat_models(server, model=PRICES)
        answer = await ask(models)
    assert answer.value.score == 3
    said, told = server.requests[1]["messages"][1:]
    assert server.requests[1]["messages"][:1] == QUESTION
    assert said == {"role": "assistant", "content": '{"points": 3}'}
    assert told["role"] == "user" and "score: Field required" in told["content"] and '"properties"' in told["content"]
    words = sum(len(m["content"].split()) for m in [*QUESTION, *server.requests[1]["messages"]])
    assert answer.usage == models.usage == Usage(2, 0, words, 6, cost=2.0 * words + 6)


async def test_a_check_that_fails_twice_is_an_error_with_the_reply_and_both_calls_count():
    def none_is_3(reply):
        if reply.score == 3:
            raise ValueError("3 is not allowed")

    with ScriptedChatServer([GOOD, GOOD]) as server:
        models = chat_models(server)
        with pytest.raises(JudgeError, match=r"^a: the reply cannot be used: 3 is not allowed\. It was: 'Well done\. "):
            await ask(models, check=none_is_3)
    assert (len(server.requests), models.usage.calls) == (2, 2)
    assert "3 is not allowed" in server.requests[1]["messages"][2]["content"]


async def test_an_empty_reply_is_an_invalid_one():
    with ScriptedChatServer([chat_completion({"content": None}), GOOD]) as server:
        assert (await ask(chat_models(server))).value.score == 3


async def test_half_a_surrogate_pair_in_an_answer_or_a_reply_does_no_harm(tmp_path):
    question = [{"role": "user", "content": [{"type": "text", "text": "What of \ud83d?"}]}]
    with ScriptedChatServer(["\ud83d", "\ud83d " + GOOD]) as server:
        models = chat_models(server, cache=tmp_path / "replies.sqlite")
        for calls in (2, 0):
            answer = await ask(models, question)
            assert (answer.value.score, answer.usage.calls) == (3, calls)
    assert server.requests[0]["messages"][0]["content"] == [{"type": "text", "text": "What of ??"}]


async def test_a_reply_that_was_cut_off_names_the_setting_and_is_not_taken():
    with ScriptedChatServer([chat_completion({"content": GOOD}, finish_reason="length")]) as server:
        models = chat_models(server, max_tokens=10)
        with pytest.raises(JudgeError, match=r"cut off after 10 tokens; raise judge\.llm\.max_tokens"):
            await ask(models)
    assert models.usage.calls == 1


# accounting


@given(
    st.lists(
        st.builds(Usage, *[st.integers(0, 9)] * 4, cost=st.none() | st.integers(0, 99).map(float)),
        min_size=2,
        max_size=5,
    )
)
def test_usage_adds_up_and_an_unknown_cost_stays_unknown(parts):
    total = sum(parts, Usage())
    for name in ("calls", "cached", "prompt_tokens", "completion_tokens"):
        assert getattr(total, name) == sum(getattr(part, name) for part in parts)
    assert total.cost == (None if any(p.cost is None for p in parts) else sum(p.cost for p in parts))


@pytest.mark.parametrize("prices", [{}, {"prompt_price": 1.0}, {"completion_price": 1.0}])
async def test_without_both_prices_tokens_count_and_the_cost_is_unknown(prices):
    with ScriptedChatServer([GOOD], usage=True) as server:
        usage = (await ask(chat_models(server, model=prices))).usage
    assert usage == Usage(1, 0, 4, 4, cost=None)


async def test_an_api_that_does_not_report_tokens_is_warned_about_once(caplog):
    with ScriptedChatServer([GOOD, chat_completion({"content": GOOD}, usage={"prompt_tokens": 4})]) as server:
        models = chat_models(server, model=PRICES)
        await ask_many(models, 2)
    assert models.usage == Usage(2, 0, 0, 0, cost=None)
    assert [line for line in caplog.messages if "does not report tokens" in line] == [
        "a does not report tokens: they count as 0, and the cost is unknown"
    ]


def test_tokens_that_the_api_had_cached_are_priced_as_all():
    config = JudgeModelConfig(base_url="http://x", model="m", prompt_price=3.0, completion_price=5.0)
    assert usage_of_call(TokenUsage(1_000_000, 2_000_000, 900_000), config).cost == 13.0


# budget


@pytest.mark.fault("Foreign servers", "a budget of calls is spent", "not one call more is sent")
async def test_not_one_call_is_sent_beyond_the_budget():
    with ScriptedChatServer(Busy(0.01)) as server:
        models = chat_models(server, max_concurrent=8)
        models.budget = Budget(max_calls=5)
        results = await ask_many(models, 20)
    spent = [result for result in results if isinstance(result, BudgetSpent)]
    assert (len(server.requests), models.usage.calls, len(spent)) == (5, 5, 15)
    assert "all 5 model calls" in str(spent[0])


async def test_the_second_call_for_a_reply_needs_the_budget_too():
    with ScriptedChatServer(["no", GOOD]) as server:
        models = chat_models(server)
        models.budget = Budget(max_calls=1)
        with pytest.raises(BudgetSpent):
            await ask(models)
    assert len(server.requests) == 1


async def test_a_call_that_failed_is_not_counted_against_the_budget():
    with ScriptedChatServer([500, GOOD]) as server:
        models = chat_models(server)
        models.budget = Budget(max_calls=1)
        with pytest.raises(PolicyError):
            await ask(models)
        assert (await ask(models)).value.score == 3


async def test_no_call_is_sent_once_the_money_is_spent(tmp_path):
    with ScriptedChatServer([GOOD] * 5, usage=True) as server:
        models = chat_models(server, model=PRICES, cache=tmp_path / "replies.sqlite")
        models.budget = Budget(max_cost=24.0)  # a call costs 12
        for vote in range(2):
            await ask(models, vote=vote)
        with pytest.raises(BudgetSpent, match="the budget of 24 is spent: 2 calls cost 24"):
            await ask(models, vote=2)
        assert (await ask(models, vote=1)).usage == Usage(cached=1)  # what is cached is still free
        models.budget = None
        await ask(models, vote=2)
    assert len(server.requests) == 3


def test_a_limit_on_the_cost_needs_all_prices():
    with ScriptedChatServer([]) as server:
        models = chat_models(server, server, models=[PRICES, {"prompt_price": 1.0}])
    with pytest.raises(ConfigError, match=r"^judge\.llm\.models\.1\.completion_price is not set"):
        models.budget = Budget(max_cost=1.0)
    assert models.budget is None


async def test_a_cost_that_cannot_be_known_ends_a_budget_of_money():
    with ScriptedChatServer([GOOD]) as server:
        models = chat_models(server, model=PRICES)
        models.budget = Budget(max_cost=1e9)
        await ask(models)
        with pytest.raises(BudgetSpent, match="the cost is unknown"):
            await ask(models, vote=1)


# many at once


async def test_no_more_calls_are_under_way_than_allowed_over_all_models():
    busy = Busy(together=3)
    with ScriptedChatServer(busy) as one, ScriptedChatServer(busy) as two:
        models = chat_models(one, two, max_concurrent=3)
        await asyncio.gather(*(ask(models, vote=at, model="ab"[at % 2]) for at in range(10)))
    assert busy.most == 3
    assert (len(one.requests), len(two.requests)) == (5, 5)


async def test_equal_requests_under_way_are_sent_once():
    with ScriptedChatServer(Busy(), usage=True) as server:
        models = chat_models(server, model=PRICES)
        answers = await asyncio.gather(*(ask(models) for _ in range(6)), ask(models, vote=1))
    assert len(server.requests) == 2
    assert {answer.value.score for answer in answers} == {3}
    assert sum((answer.usage for answer in answers), Usage()) == models.usage == Usage(2, 5, 8, 8, cost=24.0)


async def test_others_get_their_answer_when_the_first_who_asked_is_cancelled():
    arrived, release = threading.Event(), threading.Event()

    def answer(body):
        arrived.set()
        release.wait(60)
        return GOOD

    with ScriptedChatServer(answer) as server:
        models = chat_models(server)
        first, second = asyncio.create_task(ask(models)), asyncio.create_task(ask(models))
        await asyncio.to_thread(arrived.wait, 60)
        first.cancel()
        release.set()
        assert (await second).value.score == 3
        assert first.cancelled()
    assert (len(server.requests), models.usage.calls) == (1, 1)


async def test_a_call_that_nobody_waits_for_is_given_up_and_can_be_asked_anew():
    arrived, release = threading.Event(), threading.Event()

    def answer(body):
        arrived.set()
        release.wait(60)
        return GOOD

    with ScriptedChatServer(answer) as server:
        models = chat_models(server)
        models.budget = Budget(max_calls=1)
        first = asyncio.create_task(ask(models))
        await asyncio.to_thread(arrived.wait, 60)
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.create_task(ask(models, vote=1))
        release.set()
        assert (await again).value.score == 3
    assert models.usage.calls == 1


async def test_requests_keep_to_the_rate_in_the_order_in_which_they_came():
    class Recorded(RateLimit):
        def take(self, now):
            taken.append(now)
            super().take(now)

    taken = []
    with ScriptedChatServer(lambda body: GOOD) as server:
        models = chat_models(server, model={"requests_per_minute": 1, "timeout": 600})
        models._models["a"].limit = limit = Recorded(1)
        questions = [[{"role": "user", "content": str(number)}] for number in range(5)]
        for answer in [asyncio.create_task(ask(models, question)) for question in questions]:
            await answer
            assert len(server.requests) == len(taken)
            pass_time(60)
    assert [request["messages"] for request in server.requests] == questions
    assert len(taken) == 5
    assert all(later - sooner > limit.interval - 0.001 for sooner, later in pairwise(taken))


def test_one_event_loop_after_another_may_ask():
    with ScriptedChatServer(Busy(0.01)) as server:
        models = chat_models(server, max_concurrent=2, model={"requests_per_minute": 60000})
        for _ in range(3):
            assert {answer.value.score for answer in asyncio.run(ask_many(models, 5))} == {3}
        assert len(models._loops) == 1
