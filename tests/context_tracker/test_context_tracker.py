import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.forks import BRANCH
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import make_logprob
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.errors import ContextOverflow, PolicyError, TooManyTurns, WorkflowError
from astune.testing import ScriptedPolicy
from astune.types import Sampling

USER = {"role": "user", "content": "What is 6 times 7?"}
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "calc", "arguments": {"x": 1}}\n</tool_call>'
WORDS = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1).map(
    lambda text: text.strip() or "x"
)


def test_an_answer_is_an_openai_message_and_its_turn_is_recorded(make_tracker, chat_format, run):
    tracker, policy = make_tracker([f"<think>\nHm.\n</think>\n\nLook.\n{CALL}"], chat_format, temperature=0.7)
    answer = run(tracker.chat("solver", ChatRequest([USER], TOOLS)))
    assert answer.message == {
        "role": "assistant",
        "content": "Look.",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "c00000000", "type": "function", "function": {"name": "calc", "arguments": '{"x": 1}'}}],
    }
    assert answer.finish_reason == "tool_calls"
    (turn,) = tracker.turns
    prompt_ids, sampling = policy.calls[0]
    assert turn is answer.turn
    assert turn.prompt_ids == prompt_ids == tuple(chat_format.encode(chat_format.render([USER], TOOLS)))
    assert turn.logprobs == tuple(make_logprob(i, token) for i, token in enumerate(turn.output_ids))
    assert (turn.agent, turn.temperature, turn.trainable) == ("solver", 0.7, True)
    assert (turn.messages, turn.tools, turn.response) == ((USER,), tuple(TOOLS), answer.message)
    assert (answer.prompt_tokens, answer.completion_tokens) == (len(turn.prompt_ids), len(turn.output_ids))
    assert sampling.stop_token_ids == chat_format.stop_token_ids


def test_a_tool_call_that_nobody_offered_is_content(make_tracker, chat_format, run):
    tracker, _ = make_tracker([CALL], chat_format)
    answer = run(tracker.chat("a", ChatRequest([USER])))
    assert (answer.message, answer.finish_reason) == ({"role": "assistant", "content": CALL}, "stop")


def test_what_the_agent_does_to_its_lists_does_not_reach_the_record(make_tracker, chat_format, run):
    async def episode():
        messages = [dict(USER)]
        answer = await tracker.chat("a", ChatRequest(messages))
        messages[0]["content"] = "edited"
        answer.message["content"] = "edited"
        return await tracker.chat("a", ChatRequest([USER, {"role": "assistant", "content": "42"}, USER]))

    tracker, _ = make_tracker(["42", "43"], chat_format)
    run(episode())
    assert tracker.turns[0].messages == (USER,)
    assert tracker.turns[0].response["content"] == "42"
    assert len(tracker.timelines()) == 1


def test_the_request_overrides_the_defaults_but_never_raises_the_token_limit(make_tracker, chat_format, run):
    async def episode():
        await tracker.chat("a", ChatRequest([USER]))
        await tracker.chat("a", ChatRequest([USER], max_tokens=5, temperature=0.5, top_p=0.9))
        await tracker.chat("a", ChatRequest([USER], max_tokens=500))

    tracker, policy = make_tracker(["x"] * 3, chat_format, max_tokens=50, temperature=0.8, top_p=0.95, top_k=20)
    run(episode())
    drawn = [(each.max_tokens, each.temperature, each.top_p, each.top_k) for _, each in policy.calls]
    assert drawn == [(50, 0.8, 0.95, 20), (5, 0.5, 0.9, 20), (50, 0.8, 0.95, 20)]


@pytest.mark.fault(
    "Agents and the engine",
    "an agent asks for a temperature or top_p that vanishes in float32 (1e-300, 1e-50)",
    "the draw is greedy, recorded as temperature 0 and not trained (greedy)",
)
@pytest.mark.parametrize(
    "asked", [{"temperature": 1e-300}, {"temperature": 1e-40}, {"temperature": 1e-6}, {"top_p": 1e-50}]
)
def test_a_draw_without_chance_is_greedy_and_not_trained(make_tracker, chat_format, run, asked):
    tracker, policy = make_tracker(["x"], chat_format)
    turn = run(tracker.chat("a", ChatRequest([USER], **asked))).turn
    assert (turn.temperature, turn.excluded) == (0.0, "greedy")
    assert (policy.calls[0][1].temperature, policy.calls[0][1].top_p) == (0.0, 1.0)


def test_a_run_whose_top_k_is_1_is_greedy_too(make_tracker, chat_format, run):
    tracker, _ = make_tracker(["x"], chat_format, top_k=1)
    assert run(tracker.chat("a", ChatRequest([USER]))).turn.excluded == "greedy"


@pytest.mark.parametrize(
    "asked", [{"temperature": float("nan")}, {"temperature": -1}, {"top_p": 0}, {"max_tokens": 1.5}]
)
def test_sampling_that_means_nothing_is_the_requests_own_error(make_tracker, chat_format, run, asked):
    tracker, policy = make_tracker(["x"], chat_format)
    with pytest.raises(WorkflowError, match=f"model call 1: {next(iter(asked))} is"):
        run(tracker.chat("a", ChatRequest([USER], **asked)))
    assert policy.calls == []
    run(tracker.chat("a", ChatRequest([USER])))


def test_a_raw_prompt_with_ids_outside_the_vocabulary_is_refused_before_the_engine(make_tracker, chat_format, run):
    known = max(chat_format.encode("what is this <|im_end|>"))
    tracker, policy = make_tracker(["x"] * 2, chat_format)
    for wrong in (10**6, 2**31 - 1, -1):
        with pytest.raises(WorkflowError, match=f"token id {wrong}, which is not in the model's vocabulary"):
            run(tracker.chat("a", ChatRequest([], prompt=(1, wrong, 2))))
    assert policy.calls == []
    run(tracker.chat("a", ChatRequest([], prompt=(1, known))))


def test_an_answer_gets_the_room_that_is_left(make_tracker, chat_format, run):
    prompt = len(chat_format.encode(chat_format.render([USER])))
    tracker, policy = make_tracker(["a long answer"], chat_format, context_length=prompt + 3)
    answer = run(tracker.chat("a", ChatRequest([USER])))
    assert policy.calls[0][1].max_tokens == 3
    assert answer.finish_reason == "length"
    assert answer.completion_tokens == 3


def test_no_room_is_an_overflow_that_names_the_numbers(make_tracker, chat_format, run):
    prompt = len(chat_format.encode(chat_format.render([USER])))
    tracker, _ = make_tracker(["x"], chat_format, context_length=prompt)
    with pytest.raises(ContextOverflow, match=rf"call 1 has {prompt} tokens and the model's context {prompt}:"):
        run(tracker.chat("a", ChatRequest([USER])))
    assert tracker.turns == ()


def test_one_call_more_than_allowed_is_refused(make_tracker, chat_format, run):
    async def episode():
        for _ in range(3):
            await tracker.chat("a", ChatRequest([USER]))

    tracker, _ = make_tracker(["x"] * 3, chat_format, max_turns=2)
    with pytest.raises(TooManyTurns, match=r"model call 3; astune\.rollout\.max_turns is 2"):
        run(episode())
    assert len(tracker.turns) == 2


@pytest.mark.parametrize(
    ("template", "form", "problem"),
    [
        ("{{ m.content }}", "auto", "the chat template drops the tools.*use a model that was made for tools"),
        (
            "{{ tools if loop.first }}{{ m.content }}",
            "auto",
            "writes no calls.*set astune.model.tool_call_format to the way",
        ),
        (
            "{{ tools if loop.first }}{{ m.content }}<call {{ m.tool_calls }}>",
            "auto",
            "writes a call as .*call .*made for tools",
        ),
        (
            "{{ tools if loop.first }}{{ m.content }}{{ m.tool_calls }}",
            "hermes",
            "is not read back, with .* = 'hermes'",
        ),
        ("{{ tools if loop.first }}{{ m.content if m.role != 'tool' }}", "hermes", "drops the results of tools"),
    ],
)
def test_tools_need_a_template_that_writes_them_and_calls_that_are_read(
    write_dir, make_tracker, run, template, form, problem
):
    whole = "{% for m in messages %}" + template + "<|im_end|>{% endfor %}"
    tracker, _ = make_tracker(["x"], ChatFormat.load(write_dir(whole), tool_call_format=form))
    with pytest.raises(WorkflowError, match=problem):
        run(tracker.chat("a", ChatRequest([USER], TOOLS)))
    assert not tracker.turns


def test_greedy_turns_and_untrained_agents_carry_no_loss(make_tracker, chat_format, run):
    async def episode():
        await tracker.chat("a", ChatRequest([USER], temperature=0.0))
        await tracker.chat("b", ChatRequest([USER]), trainable=False)
        await tracker.chat("c", ChatRequest([USER]))

    tracker, _ = make_tracker(["x"] * 3, chat_format)
    run(episode())
    assert [turn.trainable for turn in tracker.turns] == [False, False, True]
    assert [timeline.trained_tokens for timeline in tracker.timelines()] == [0, 0, len(tracker.turns[2].output_ids)]


def seeds(make_tracker, chat_format, run, seed, requests):
    async def episode():
        for request in requests:
            await tracker.chat("a", request)

    tracker, policy = make_tracker(["x"] * len(requests), chat_format, seed=seed)
    run(episode())
    return [sampling.seed for _, sampling in policy.calls]


def test_every_call_has_its_own_seed_and_equal_episodes_have_equal_seeds(make_tracker, chat_format, run):
    first = seeds(make_tracker, chat_format, run, 1, [ChatRequest([USER])] * 3)
    assert first == seeds(make_tracker, chat_format, run, 1, [ChatRequest([USER])] * 3)
    other = seeds(make_tracker, chat_format, run, 2, [ChatRequest([USER])] * 3)
    assert len({*first, *other}) == 6
    assert all(0 <= seed < 2**63 for seed in first)


def test_an_agents_own_seed_repeats_within_an_episode_and_differs_between_attempts(make_tracker, chat_format, run):
    requests = [ChatRequest([USER], seed=5), ChatRequest([USER], seed=5), ChatRequest([USER], seed=6)]
    one, again, six = seeds(make_tracker, chat_format, run, 1, requests)
    assert one == again != six
    assert one not in seeds(make_tracker, chat_format, run, 2, requests)


class GatedPolicy(ScriptedPolicy):
    """Answers only once the gate of its prompt is open."""

    def __init__(self, answers, chat_format):
        super().__init__(answers, chat_format)
        self.gates = {}

    async def generate(self, prompt_ids, sampling):
        gate = self.gates.setdefault(len(self.calls), asyncio.Event())
        generation = await super().generate(prompt_ids, sampling)
        await gate.wait()
        return generation


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def test_calls_side_by_side_are_recorded_in_the_order_in_which_they_end(chat_format, run):
    async def episode():
        calls = [asyncio.create_task(tracker.chat("a", ChatRequest([USER]))) for _ in range(3)]
        await until(lambda: len(policy.calls) == 3)
        for number in (2, 0, 1):
            policy.gates[number].set()
            await calls[number]
        answer = calls[1].result()
        await tracker.chat("a", ChatRequest([USER, answer.message, USER]))

    policy = GatedPolicy(["zero", "one", "two", "three"], chat_format)
    policy.gates[3] = asyncio.Event()
    policy.gates[3].set()
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=50), max_turns=9, seed=0)
    run(episode())
    assert [turn.response["content"] for turn in tracker.turns] == ["two", "zero", "one", "three"]
    assert [[span.turn for span in timeline.spans] for timeline in tracker.timelines()] == [[0], [1], [2, 3]]
    assert [timeline.fork for timeline in tracker.timelines()] == [None, BRANCH, BRANCH]


def test_a_cancelled_call_records_no_turn_and_later_calls_go_on(chat_format, run):
    async def episode():
        call = asyncio.create_task(tracker.chat("a", ChatRequest([USER])))
        await until(lambda: policy.calls)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert tracker.turns == ()
        policy.gates[1] = asyncio.Event()
        policy.gates[1].set()
        await tracker.chat("a", ChatRequest([USER]))

    policy = GatedPolicy(["lost", "kept"], chat_format)
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=50), max_turns=9, seed=0)
    run(episode())
    assert [turn.response["content"] for turn in tracker.turns] == ["kept"]
    assert [span.turn for timeline in tracker.timelines() for span in timeline.spans] == [0]


def test_a_call_that_fails_records_no_turn(make_tracker, chat_format, run):
    tracker, _ = make_tracker([], chat_format)
    with pytest.raises(PolicyError, match="0 answers"):
        run(tracker.chat("a", ChatRequest([USER])))
    assert tracker.turns == ()
    assert tracker.timelines() == ()


@st.composite
def conversations(draw):
    """Answers, and what the agent appends after each: tool results after a call, else a user message."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        content, calls = draw(WORDS), draw(st.booleans())
        steps.append((content, calls, draw(WORDS)))
    return steps


async def play(tracker, steps, *, reasoning=lambda number: None, drop=False):
    """Run an agent that only appends; returns its messages with every answer whole."""
    messages, whole = [USER], [USER]
    for number, (_, calls, new) in enumerate(steps):
        answer = await tracker.chat("a", ChatRequest(list(messages), TOOLS))
        kept = {key: value for key, value in answer.message.items() if not (drop and key == "reasoning_content")}
        added = (
            {"role": "tool", "tool_call_id": f"c{number:05d}000", "content": new}
            if calls
            else {"role": "user", "content": new}
        )
        messages += [kept, added]
        whole += [answer.message, added]
    return whole


@pytest.mark.parametrize("fixture", ["chat_format", "qwen3"])
@given(steps=conversations())
@settings(max_examples=40, deadline=None)
def test_an_append_only_agent_gives_one_timeline_that_reads_as_the_template_writes(request, fixture, steps):
    chat_format = request.getfixturevalue(fixture)
    answers = [content + (f"\n{CALL}" if calls else "") for content, calls, _ in steps]
    policy = ScriptedPolicy(answers, chat_format, context_length=100_000)
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=10_000), max_turns=100, seed=0)
    whole = asyncio.run(play(tracker, steps))
    before = ()
    for number, turn in enumerate(tracker.turns):
        assert turn.prompt_ids[: len(before)] == before
        assert chat_format.decode(turn.prompt_ids) == chat_format.render(whole[: 2 * number + 1], TOOLS)
        assert list(turn.prompt_ids) == chat_format.encode(chat_format.render(whole[: 2 * number + 1], TOOLS))
        before = turn.prompt_ids + turn.output_ids
    (timeline,) = tracker.timelines()
    assert timeline.trained_tokens == sum(len(turn.output_ids) for turn in tracker.turns)


@pytest.mark.parametrize("fixture", ["chat_format", "qwen3"])
@given(steps=conversations(), drop=st.booleans())
@settings(max_examples=40, deadline=None)
def test_reasoning_stays_in_the_context_exactly_as_long_as_the_template_keeps_it(request, fixture, steps, drop):
    chat_format = request.getfixturevalue(fixture)
    answers = [
        f"<think>\nreason {number}\n</think>\n\n{content}" + (f"\n{CALL}" if calls else "")
        for number, (content, calls, _) in enumerate(steps)
    ]
    policy = ScriptedPolicy(answers, chat_format, context_length=100_000)
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=10_000), max_turns=100, seed=0)
    whole = asyncio.run(play(tracker, steps, drop=drop))
    for number, turn in enumerate(tracker.turns):
        assert chat_format.decode(turn.prompt_ids) == chat_format.render(whole[: 2 * number + 1], TOOLS)
    timelines = tracker.timelines()
    new_questions = sum(not calls for _, calls, _ in steps[:-1])
    assert len(timelines) == 1 + new_questions
    assert {timeline.fork for timeline in timelines[1:]} <= {"reasoning_stripped"}
    assert sum(each.trained_tokens for each in timelines) == sum(len(turn.output_ids) for turn in tracker.turns)


def test_nothing_is_tokenized_twice_on_the_append_only_path(model_dir, chat_format, run):
    counting, encoded = ChatFormat.load(model_dir), []
    encode = counting.encode
    counting.encode = lambda text: encoded.append(text) or encode(text)
    steps = [("Look.", True, "a result")] * 30
    policy = ScriptedPolicy([f"Look.\n{CALL}"] * 30, chat_format, context_length=100_000)
    tracker = ContextTracker(policy, counting, Sampling(max_tokens=100), max_turns=30, seed=0)
    run(play(tracker, steps))
    prompt = chat_format.decode(tracker.turns[-1].prompt_ids)
    sampled = sum(len(chat_format.decode(turn.output_ids)) for turn in tracker.turns[:-1])
    assert sum(map(len, encoded)) == len(prompt) - sampled


def test_a_turn_says_which_answer_it_follows_also_through_a_rewritten_history(make_tracker, chat_format, run):
    tracker, _ = make_tracker(["<think>\nHm.\n</think>\n\nOne", "Two", "Else"], chat_format)

    async def episode():
        first = await tracker.chat("a", ChatRequest([USER]))
        again = [USER, first.message, {"role": "user", "content": "Again?"}]
        await tracker.chat("a", ChatRequest(again))
        await tracker.chat("b", ChatRequest(again))

    run(episode())
    assert [(turn.agent, turn.fork, turn.follows) for turn in tracker.turns] == [
        ("a", None, None),
        ("a", "reasoning_stripped", 0),
        ("b", None, None),
    ]
