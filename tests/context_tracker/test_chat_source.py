"""Turns of chat APIs: exact where the engine gives its tokens, else for display."""

import itertools
import threading

import pytest

from astune.clients.chat import ChatClient
from astune.config.chat_models import AuxiliaryModelConfig
from astune.context_tracker.forks import BRANCH, RETOKENIZED
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.errors import PolicyError, WorkflowError
from astune.testing import ScriptedChatServer, ScriptedPolicy
from astune.testing.chat_server import chat_completion
from astune.types import Sampling

USER = {"role": "user", "content": "What is 6 times 7?"}
MORE = {"role": "user", "content": "Sure?"}
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
CALL = [{"id": "x1", "type": "function", "function": {"name": "calc", "arguments": '{"x": 1}'}}]


@pytest.fixture
def make(chat_format):
    """`make(answers of the API, **config)` gives a tracker with the auxiliary model "gpt", and the API."""
    servers = []

    def make(answers, *, policy=(), allow_inexact=False, context_length=4096, **config):
        server = ScriptedChatServer(answers)
        servers.append(server.__enter__())
        settings = AuxiliaryModelConfig(base_url=server.base_url, model="m", max_retries=0, **config)
        tracker = ContextTracker(
            ScriptedPolicy(policy, chat_format, context_length=context_length),
            chat_format,
            Sampling(max_tokens=64, temperature=0.7, top_p=0.9),
            max_turns=9,
            seed=1,
            auxiliary_models={"gpt": ChatClient("gpt", settings, key="astune.rollout.auxiliary_models.gpt")},
            allow_inexact=allow_inexact,
        )
        return tracker, server

    yield make
    for server in servers:
        server.__exit__()


def with_logprobs(texts):
    entries = [{"token": text, "logprob": -0.25, "bytes": None, "top_logprobs": []} for text in texts]
    return {"logprobs": {"content": entries, "refusal": None}}


@pytest.fixture
def engine(chat_format):
    """What an engine says that gives token ids: it renders and tokenizes every request anew."""

    def make(answers, *, logprobs=True, spoil=lambda ids: ids):
        said = itertools.chain(answers)

        def answer(body):
            prompt_ids = spoil(chat_format.encode(chat_format.render(body["messages"], body.get("tools", ()))))
            text = next(said)
            ids = [*chat_format.encode(text), chat_format.stop_token_ids[0]]
            parts = with_logprobs([chat_format.decode([token]) for token in ids]) if logprobs else {}
            return chat_completion({"content": text}, choice={**parts, "token_ids": ids}, prompt_token_ids=prompt_ids)

        return answer

    return make


async def two_turns(tracker, **options):
    answer = await tracker.chat("critic", ChatRequest([USER]), source="gpt", **options)
    await tracker.chat("critic", ChatRequest([USER, answer.message, MORE]), source="gpt", **options)


async def test_a_turn_of_another_model_reads_as_our_template_writes_it_and_is_not_trained(make, chat_format):
    tracker, _ = make(["42", "Yes."])
    await two_turns(tracker)
    first, second = tracker.turns
    assert [(turn.exact, turn.excluded, turn.agent) for turn in tracker.turns] == [(False, "frozen", "critic")] * 2
    assert chat_format.decode(first.prompt_ids) == chat_format.render([USER])
    assert chat_format.decode(first.output_ids) == "42" + chat_format.close_token
    said = {"role": "assistant", "content": "42"}
    assert chat_format.decode(second.prompt_ids) == chat_format.render([USER, said, MORE])
    assert set(first.logprobs) == {0.0}
    (line,) = tracker.timelines()
    assert (line.trained_tokens, [span.turn for span in line.spans]) == (0, [0, 1])
    assert not tracker.inexact_turns, "nobody expects its turns to be trained"


async def test_a_message_that_the_servers_template_drops_is_an_error_by_name(make, chat_format):
    def answer(body):
        ids = chat_format.encode(chat_format.render([m for m in body["messages"] if m["role"] != "system"]))
        sampled = [*chat_format.encode("42"), chat_format.stop_token_ids[0]]
        return chat_completion({"content": "42"}, choice={"token_ids": sampled}, prompt_token_ids=ids)

    tracker, _ = make(answer, trainable=True)
    with pytest.raises(WorkflowError, match=r"drops messages\[0\] \(system\): 'be brief'"):
        await tracker.chat("a", ChatRequest([{"role": "system", "content": "be brief"}, USER]), source="gpt")


async def test_tool_calls_keep_the_ids_of_the_api_and_are_shown_as_the_template_writes_calls(make, chat_format):
    tracker, _ = make([chat_completion({"content": None, "tool_calls": CALL}, finish_reason="tool_calls"), "Done."])
    answer = await tracker.chat("critic", ChatRequest([USER], TOOLS), source="gpt")
    assert answer.message["tool_calls"] == CALL
    assert answer.finish_reason == "tool_calls"
    written = chat_format.render([USER, answer.message], TOOLS, add_generation_prompt=False)
    turn = answer.turn
    assert written.startswith(chat_format.decode([*turn.prompt_ids, *turn.output_ids]))
    assert '"name": "calc"' in chat_format.decode(turn.output_ids)
    result = {"role": "tool", "tool_call_id": "x1", "content": "1"}
    await tracker.chat("critic", ChatRequest([USER, answer.message, result], TOOLS), source="gpt")
    assert len(tracker.timelines()) == 1


async def test_another_model_is_asked_for_what_the_agent_asks_for_and_no_more(make):
    tracker, server = make(["x"] * 4, limit_field="max_completion_tokens")
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    request = ChatRequest([USER], max_tokens=5000, temperature=0.2, stop=("x",), seed=3, force="json_object")
    await tracker.chat("a", request, source="gpt")
    await tracker.chat("a", ChatRequest([USER], TOOLS, force="tool_call"), source="gpt")
    await tracker.chat("a", ChatRequest([USER], TOOLS, force="tool_call", force_tool="calc"), source="gpt")
    plain, asked, any_tool, one_tool = server.requests
    assert plain == {"messages": [USER], "model": "m"}
    assert (asked["max_completion_tokens"], asked["temperature"], asked["stop"]) == (5000, 0.2, ["x"])
    assert asked["response_format"] == {"type": "json_object"}
    assert 0 <= asked["seed"] < 2**31 and "top_p" not in asked and "return_token_ids" not in asked
    assert (any_tool["tool_choice"], any_tool["tools"]) == ("required", TOOLS)
    assert one_tool["tool_choice"] == {"type": "function", "function": {"name": "calc"}}


async def test_choices_of_an_api_are_calls_side_by_side_with_seeds_of_their_own(make):
    tracker, server = make(lambda body: "x")
    await tracker.choices("a", ChatRequest([USER], seed=3), 3, source="gpt")
    assert len({body["seed"] for body in server.requests}) == len(tracker.turns) == 3


async def test_the_context_of_the_policy_is_no_limit_for_another_model(make):
    tracker, _ = make(["x"], context_length=2)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert len(tracker.turns) == 1


async def test_a_conversation_that_our_template_refuses_is_still_answered(make, write_dir, monkeypatch, chat_format):
    def refuse(*arguments, **options):
        raise WorkflowError("no")

    monkeypatch.setattr(chat_format, "render", refuse)
    tracker, server = make(["42"])
    answer = await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (answer.message["content"], server.requests[0]["messages"]) == ("42", [USER])
    assert "What is 6 times 7?" in chat_format.decode(answer.turn.prompt_ids)
    assert (answer.turn.messages, answer.turn.exact) == ((USER,), False)


async def test_inexact_and_exact_turns_of_one_agent_are_rows_of_their_own(make):
    tracker, _ = make(["42", "Yes."], policy=["42", "Yes."])
    for source in ("gpt", None):
        answer = await tracker.chat("a", ChatRequest([USER]), source=source)
    for source in ("gpt", None):
        await tracker.chat("a", ChatRequest([USER, answer.message, MORE]), source=source)
    api, own, *_ = tracker.turns
    assert api.prompt_ids == own.prompt_ids and api.output_ids == own.output_ids, "only their origin tells them apart"
    assert [turn.exact for turn in tracker.turns] == [False, True, False, True]
    assert [[span.turn for span in line.spans] for line in tracker.timelines()] == [[0, 2], [1, 3]]


async def test_what_the_policy_sampled_is_not_put_into_the_prompts_of_another_model(make, chat_format):
    sampled = '<tool_call>\n{"name": "calc",   "arguments": {"x":1}}\n</tool_call>'
    tracker, _ = make(["Done."], policy=[sampled, "Done."])
    answer = await tracker.chat("a", ChatRequest([USER], TOOLS))
    messages = [USER, answer.message, {"role": "tool", "tool_call_id": "c00000000", "content": "1"}]
    for source in ("gpt", None):
        await tracker.chat("a", ChatRequest(messages, TOOLS), source=source)
    _, theirs, ours = tracker.turns
    assert chat_format.decode(theirs.prompt_ids) == chat_format.render(messages, TOOLS)
    assert sampled in chat_format.decode(ours.prompt_ids)


async def test_an_engine_that_gives_ids_and_logprobs_makes_exact_turns_that_are_trained(make, engine, chat_format):
    tracker, server = make(engine(["42", "Yes."]), trainable=True)
    await two_turns(tracker)
    assert [(turn.exact, turn.excluded, turn.policy_version) for turn in tracker.turns] == [(True, None, 0)] * 2
    assert set(tracker.turns[0].logprobs) == {-0.25}
    (line,) = tracker.timelines()
    assert line.trained_tokens == sum(len(turn.output_ids) for turn in tracker.turns)
    sent = server.requests[0]
    assert (sent["return_token_ids"], sent["logprobs"], sent["top_k"]) == (True, True, -1)
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.7, 0.9, 64)
    assert server.requests[0]["seed"] != server.requests[1]["seed"]
    assert not tracker.inexact_turns


async def test_the_engines_own_prompt_counts_and_a_rewritten_one_forks(make, engine, chat_format):
    def spoil(ids):
        return ids if len(ids) < 40 else [ids[0], ids[0], *ids[1:]]

    tracker, _ = make(engine(["42", "Yes."], spoil=spoil), trainable=True)
    await two_turns(tracker)
    first, second = tracker.turns
    ours = chat_format.encode(chat_format.render([USER, first.response, MORE]))
    assert len(first.prompt_ids) < 40 <= len(ours)
    assert list(second.prompt_ids) == spoil(ours)
    assert [line.fork for line in tracker.timelines()] == [None, RETOKENIZED]


async def test_an_engine_with_a_prompt_of_its_own_goes_on_in_one_row_and_branches_as_such(make, engine):
    tracker, _ = make(engine(["42", "Yes.", "Tea."], spoil=lambda ids: [5, *ids]), trainable=True)
    await two_turns(tracker)
    first, _ = tracker.turns
    assert first.prompt_ids[0] == 5
    assert [line.fork for line in tracker.timelines()] == [None]
    other = {"role": "user", "content": "Tea or coffee?"}
    await tracker.chat("critic", ChatRequest([USER, first.response, other]), source="gpt")
    assert [line.fork for line in tracker.timelines()] == [None, BRANCH]


async def test_exact_ids_without_logprobs_are_not_trained(make, engine):
    tracker, _ = make(engine(["42"], logprobs=False), trainable=True)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (tracker.turns[0].exact, tracker.turns[0].excluded) == (True, "no_logprobs")


async def test_ids_of_a_model_that_is_not_the_policy_are_not_looked_at(make, engine):
    tracker, _ = make(engine(["42"]), trainable=False)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (tracker.turns[0].exact, tracker.turns[0].excluded) == (False, "frozen")


async def test_ids_of_another_vocabulary_count_as_none(make):
    body = chat_completion(
        {"content": "Hello"}, choice={"token_ids": [1, 2], **with_logprobs("ab")}, prompt_token_ids=[1]
    )
    tracker, _ = make([body], trainable=True)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (tracker.turns[0].exact, tracker.turns[0].excluded) == (False, "inexact")
    assert tracker.inexact_turns == {"gpt": 1}


@pytest.mark.fault(
    "Foreign servers",
    "a server of the policy reports token ids outside the vocabulary",
    "the turn counts as inexact and is not trained",
)
@pytest.mark.parametrize("foreign", [10**6, -1])
async def test_ids_that_the_model_does_not_know_count_as_none(make, engine, foreign):
    tracker, _ = make(engine(["42"], spoil=lambda ids: [*ids, foreign]), trainable=True)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (tracker.turns[0].exact, tracker.turns[0].excluded) == (False, "inexact")


@pytest.mark.fault(
    "Foreign servers",
    "a server of the policy reports log-probabilities that are no finite numbers",
    "the turn counts as one without log-probabilities and is not trained",
)
@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), None])
async def test_logprobs_that_are_no_numbers_count_as_none(make, engine, wrong):
    honest = engine(["42"])

    def answer(body):
        reply = honest(body)
        reply["choices"][0]["logprobs"]["content"][0]["logprob"] = wrong
        return reply

    tracker, _ = make(answer, trainable=True)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (tracker.turns[0].exact, tracker.turns[0].excluded) == (True, "no_logprobs")


@pytest.mark.parametrize(
    ("trainable", "allow", "fits", "excluded"),
    [
        (True, False, True, "inexact"),
        (True, True, True, None),
        (True, True, False, "no_logprobs"),
        (False, True, True, "frozen"),
    ],
)
async def test_ids_made_from_text_are_trained_only_if_allowed_and_with_logprobs_that_fit(
    make, chat_format, trainable, allow, fits, excluded
):
    texts = [chat_format.decode([token]) for token in chat_format.encode("Hello there" + chat_format.close_token)]
    body = chat_completion({"content": "Hello there"}, choice=with_logprobs(texts if fits else texts[:-1]))
    tracker, _ = make([body], trainable=trainable, allow_inexact=allow)
    await tracker.chat("a", ChatRequest([USER]), source="gpt")
    (turn,) = tracker.turns
    assert (turn.exact, turn.excluded) == (False, excluded)
    assert set(turn.logprobs) == ({-0.25} if fits else {0.0})


async def test_an_agent_that_is_not_trained_stays_so_and_greedy_turns_too(make, engine):
    tracker, _ = make(engine(["42", "43"]), trainable=True)
    await tracker.chat("a", ChatRequest([USER]), source="gpt", trainable=False)
    await tracker.chat("a", ChatRequest([USER], temperature=0.0), source="gpt")
    assert [turn.excluded for turn in tracker.turns] == ["frozen", "greedy"]


@pytest.mark.parametrize("allow", [False, True])
async def test_a_frozen_agent_on_a_model_without_token_ids_is_frozen_and_nobody_is_warned(make, allow):
    tracker, _ = make(["42"], trainable=True, allow_inexact=allow)
    await tracker.chat("user", ChatRequest([USER]), source="gpt", trainable=False)
    assert [(turn.exact, turn.excluded) for turn in tracker.turns] == [(False, "frozen")]
    assert not tracker.inexact_turns


async def test_an_unknown_source_names_the_nearest(make):
    tracker, _ = make([])
    with pytest.raises(WorkflowError, match=r"no such auxiliary model\. Did you mean 'gpt'\? .* has: gpt"):
        await tracker.chat("a", ChatRequest([USER]), source="gtp")


async def test_a_raw_prompt_is_for_the_policy_only(make):
    tracker, server = make(["x"])
    with pytest.raises(WorkflowError, match="raw prompt was sent to 'gpt', which has a chat API only"):
        await tracker.chat("a", ChatRequest((), prompt="Once"), source="gpt")
    assert server.requests == []


async def test_a_call_that_the_api_fails_is_lost(make):
    tracker, _ = make([500])
    with pytest.raises(PolicyError):
        await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert (tracker.turns, tracker.lost_calls) == ((), 1)


async def test_a_cut_answer_has_no_closing_token(make, chat_format):
    tracker, _ = make([chat_completion({"content": "4"}, finish_reason="length")])
    answer = await tracker.chat("a", ChatRequest([USER]), source="gpt")
    assert chat_format.decode(answer.turn.output_ids) == "4"
    assert answer.finish_reason == answer.turn.finish_reason == "length"


async def test_an_answer_that_the_engine_was_made_to_give_is_not_trained(make, engine):
    """A guided engine samples from other odds than the policy's."""
    tracker, _ = make(engine(["{}", "Yes."]), trainable=True)
    await tracker.chat("a", ChatRequest([USER], force="json_object"), source="gpt")
    await tracker.chat("b", ChatRequest([USER]), source="gpt")
    assert [(turn.exact, turn.excluded) for turn in tracker.turns] == [(True, "forced"), (True, None)]


def test_a_long_answer_is_tokenized_in_a_thread(make, run, chat_format, monkeypatch):
    tracker, _ = make(["word " * 20_000])
    here, seen, encode = threading.get_ident(), [], chat_format.encode

    def watched(text):
        seen.append((len(text) > 2**16, threading.get_ident() == here))
        return encode(text)

    monkeypatch.setattr(chat_format, "encode", watched)
    run(tracker.chat("a", ChatRequest([USER]), source="gpt"))
    assert [in_the_loop for is_long, in_the_loop in seen if is_long] == [False]
