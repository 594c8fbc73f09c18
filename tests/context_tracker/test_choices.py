"""Several answers, repeated requests, stop texts, forced answers, raw prompts and limits."""

import asyncio

import pytest

from astune.context_tracker.forks import BEST_OF_N, BRANCH, HISTORY_EDITED, RETRY
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.errors import ContextOverflow, PolicyError, TooManyTokens, TooManyTurns, WorkflowError
from astune.testing import ScriptedPolicy
from astune.types import Sampling
from tests.rows import each_row

USER = {"role": "user", "content": "What is 6 times 7?"}
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
MORE = {"role": "user", "content": "Sure?"}


class SideBySide(ScriptedPolicy):
    """Answers only when `together` calls are waiting; the answer "fail" raises."""

    def __init__(self, answers, chat_format, together):
        super().__init__(answers, chat_format)
        self._together = together

    async def generate(self, prompt_ids, sampling):
        number = len(self.calls)
        generation = await super().generate(prompt_ids, sampling)
        while len(self.calls) < self._together:
            await asyncio.sleep(0)
        if self._answers[number] == "fail":
            raise PolicyError("broken")
        return generation


def tracker_over(policy, chat_format, **options):
    return ContextTracker(policy, chat_format, Sampling(max_tokens=50), **{"max_turns": 20, "seed": 0, **options})


def contents(answers):
    return [answer.message["content"] for answer in answers]


@pytest.mark.parametrize("seed", [None, 5])
def test_choices_are_sampled_side_by_side_from_one_prompt_with_seeds_of_their_own(chat_format, run, seed):
    policy = SideBySide(["one", "two", "three"], chat_format, together=3)
    tracker = tracker_over(policy, chat_format)
    answers = run(tracker.choices("a", ChatRequest([USER], seed=seed), 3))
    assert contents(answers) == ["one", "two", "three"]
    assert [answer.turn for answer in answers] == list(tracker.turns)
    assert len({prompt for prompt, _ in policy.calls}) == 1
    assert len({sampling.seed for _, sampling in policy.calls}) == 3
    assert len({answer.answer_id for answer in answers}) == 3
    assert [line.fork for line in tracker.timelines()] == [None, BEST_OF_N, BEST_OF_N]
    assert [line.trained_tokens for line in tracker.timelines()] == [len(turn.output_ids) for turn in tracker.turns]


EDIT = {"messages": [{"role": "user", "content": "Other?"}, {"role": "assistant", "content": "0"}, MORE]}
"""A history that holds the first answer, 0, after another question."""
GOES_ON = {"messages": [USER, {"role": "assistant", "content": "0"}, MORE]}


@each_row(
    ("calls", "forks", "lost"),
    [
        ([{}, EDIT, EDIT], [None, HISTORY_EDITED, BRANCH], []),
        ([{}, EDIT, EDIT | {"retry": True}], [None, HISTORY_EDITED, RETRY], [1]),
        ([{}, EDIT, EDIT | {"n": 2}], [None, HISTORY_EDITED, BRANCH, BEST_OF_N], []),
        ([{}, EDIT | {"n": 2}], [None, HISTORY_EDITED, BEST_OF_N], []),
        ([{}, {"retry": True}], [None, RETRY], [0]),
        ([{}, {}, {"retry": True}], [None, BRANCH, RETRY], [1]),
        ([{"n": 2}, {"n": 2, "retry": True}], [None, BEST_OF_N, RETRY, BEST_OF_N], [0, 1]),
        ([{}, GOES_ON, {"retry": True}], [None, RETRY], []),
        ([{}, GOES_ON, {"agent": "b", "retry": True}], [None, RETRY], []),
    ],
)
def test_what_is_asked_again_is_named_and_an_answer_that_was_lost_is_not_trained(
    make_tracker, chat_format, run, calls, forks, lost
):
    """An answer that arrived after all is trained, whoever asks again."""

    async def episode():
        for call in calls:
            request = ChatRequest(call.get("messages", [USER]), retry=call.get("retry", False))
            await tracker.choices(call.get("agent", "a"), request, call.get("n", 1))

    tracker, _ = make_tracker([str(number) for number in range(6)], chat_format)
    run(episode())
    assert [line.fork for line in tracker.timelines()] == forks
    assert [number for number, turn in enumerate(tracker.turns) if turn.excluded == "retried"] == lost
    trained = sum(len(turn.output_ids) for number, turn in enumerate(tracker.turns) if number not in lost)
    assert sum(line.trained_tokens for line in tracker.timelines()) == trained


def test_a_stop_text_is_missing_once_and_then_it_is_a_branch(make_tracker, chat_format, run):
    async def episode():
        answer = await tracker.chat("a", ChatRequest([USER], stop=("END",)))
        for _ in range(2):
            await tracker.chat("a", ChatRequest([USER, answer.message, MORE]))

    tracker, _ = make_tracker(["oneEND", "two", "three"], chat_format)
    run(episode())
    assert [line.fork for line in tracker.timelines()] == [None, "stop_text_removed", BRANCH]


def test_one_choice_with_a_seed_is_drawn_as_a_single_answer_with_that_seed(make_tracker, chat_format, run):
    async def episode():
        await tracker.choices("a", ChatRequest([USER], seed=5), 2)
        await tracker.chat("a", ChatRequest([USER], seed=5))

    tracker, policy = make_tracker(["x"] * 3, chat_format)
    run(episode())
    seeds = [sampling.seed for _, sampling in policy.calls]
    assert seeds[0] == seeds[2] != seeds[1]


def test_the_chosen_answer_goes_on_in_its_own_row(make_tracker, chat_format, run):
    async def episode():
        answers = await tracker.choices("a", ChatRequest([USER]), 3)
        await tracker.chat("a", ChatRequest([USER, answers[1].message, MORE]))

    tracker, _ = make_tracker(["one", "two", "three", "yes"], chat_format)
    run(episode())
    assert [[span.turn for span in line.spans] for line in tracker.timelines()] == [[0], [1, 3], [2]]


def test_if_one_choice_fails_none_is_recorded_and_all_are_lost(chat_format, run):
    tracker = tracker_over(SideBySide(["one", "fail", "three"], chat_format, together=3), chat_format)
    with pytest.raises(PolicyError, match="broken"):
        run(tracker.choices("a", ChatRequest([USER]), 3))
    assert (tracker.turns, tracker.lost_calls) == ((), 3)


def test_cancelled_choices_are_lost(chat_format, run):
    async def episode():
        call = asyncio.create_task(tracker.choices("a", ChatRequest([USER]), 2))
        while len(policy.calls) < 2:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    policy = SideBySide(["one", "two", "never"], chat_format, together=3)
    tracker = tracker_over(policy, chat_format)
    run(episode())
    assert (tracker.turns, tracker.lost_calls) == ((), 2)


def test_a_stop_text_is_sampled_and_trained_but_no_part_of_the_message(make_tracker, chat_format, run):
    tracker, _ = make_tracker(["Thought.\nObservation: made up"], chat_format)
    answer = run(tracker.chat("a", ChatRequest([USER], stop=("Observation:",))))
    (turn,) = tracker.turns
    assert answer.message["content"] == "Thought.\n"
    assert (answer.finish_reason, turn.finish_reason) == ("stop", "stop")
    assert chat_format.decode(turn.output_ids).startswith("Thought.\nObservation:")
    assert "made" not in chat_format.decode(turn.output_ids)
    assert tracker.timelines()[0].trained_tokens == len(turn.output_ids)


def test_the_earliest_of_several_stop_texts_ends_the_message(make_tracker, chat_format, run):
    tracker, policy = make_tracker(["one, two; three"], chat_format)
    answer = run(tracker.chat("a", ChatRequest([USER], stop=(";", "two; t", ","))))
    assert answer.message["content"] == "one"
    assert policy.calls[0][1].stop == (";", "two; t", ",")


def test_of_stop_texts_that_end_together_the_one_that_begins_first_ends_the_message(make_tracker, chat_format, run):
    tracker, _ = make_tracker(["one, two"], chat_format)
    assert run(tracker.chat("a", ChatRequest([USER], stop=("e,", "ne,")))).message["content"] == "o"


def test_a_stop_text_in_the_forced_start_does_not_empty_the_answer(make_tracker, chat_format, run):
    tracker, _ = make_tracker(['"x": 1}'], chat_format)
    answer = run(tracker.chat("a", ChatRequest([USER], force="json_object", stop=("{",))))
    assert answer.message["content"].endswith('{"x": 1}')


@pytest.mark.parametrize(
    ("force", "tool", "sampled", "arguments"),
    [
        ("tool_call", "calc", ' {"x": 1}}\n</tool_call>', '{"x": 1}'),
        ("tool_call", None, 'calc", "arguments": {"x": 1}}\n</tool_call>', '{"x": 1}'),
        ("json_object", None, '"x": 1}', None),
    ],
)
def test_a_forced_start_is_context_and_the_message_holds_the_whole(
    make_tracker, chat_format, run, force, tool, sampled, arguments
):
    async def episode():
        tools = TOOLS if arguments else []
        answer = await tracker.chat("a", ChatRequest([USER], tools, force=force, force_tool=tool))
        result = {"role": "tool", "tool_call_id": "c00000000", "content": "1"} if arguments else MORE
        await tracker.chat("a", ChatRequest([USER, answer.message, result], tools))
        return answer

    tracker, _ = make_tracker([sampled, "done"], chat_format)
    answer = run(episode())
    if arguments is None:
        assert answer.message["content"] == '{"x": 1}'
    else:
        (call,) = answer.message["tool_calls"]
        assert (call["function"], answer.finish_reason) == ({"name": "calc", "arguments": arguments}, "tool_calls")
    first, _ = tracker.turns
    start = chat_format.write_forced_start(force, tool)
    assert chat_format.decode(first.prompt_ids).endswith(start)
    assert list(first.output_ids) == [*chat_format.encode(sampled), chat_format.stop_token_ids[0]]
    (line,) = tracker.timelines()
    assert line.trained_tokens == sum(len(turn.output_ids) for turn in tracker.turns)


def test_a_raw_prompt_is_sent_as_it_is_and_goes_on_from_the_sampled_ids(make_tracker, chat_format, run):
    async def episode():
        first = await tracker.chat("a", ChatRequest((), prompt="Once upon"))
        await tracker.chat("a", ChatRequest((), prompt=f"Once upon{first.message['content']} And"))

    tracker, policy = make_tracker([" a time.", " then."], chat_format)
    run(episode())
    first, second = tracker.turns
    assert list(first.prompt_ids) == chat_format.encode("Once upon") == list(policy.calls[0][0])
    assert (first.response["content"], second.response["content"]) == (" a time.", " then.")
    stop = first.output_ids[-1]
    assert stop in chat_format.stop_token_ids and stop not in second.prompt_ids
    sampled = [*first.prompt_ids, *first.output_ids[:-1]]
    assert list(second.prompt_ids) == [*sampled, *chat_format.encode(" And")]


def test_token_ids_are_a_prompt_too(make_tracker, chat_format, run):
    tracker, policy = make_tracker(["x"], chat_format)
    run(tracker.chat("a", ChatRequest((), prompt=(3, 1, 2))))
    assert policy.calls[0][0] == tuple(tracker.turns[0].prompt_ids) == (3, 1, 2)


@pytest.mark.parametrize("prompt", ["", ()])
def test_an_empty_prompt_is_refused(make_tracker, chat_format, run, prompt):
    tracker, policy = make_tracker(["x"], chat_format)
    with pytest.raises(WorkflowError, match="prompt of model call 1 is empty"):
        run(tracker.chat("a", ChatRequest((), prompt=prompt)))
    assert (policy.calls, tracker.turns) == ([], ())


def test_choices_count_as_so_many_calls(make_tracker, chat_format, run):
    async def episode():
        await tracker.chat("a", ChatRequest([USER]))
        with pytest.raises(TooManyTurns, match=r"model call 4; .*max_turns is 3"):
            await tracker.choices("a", ChatRequest([USER]), 3)
        await tracker.choices("a", ChatRequest([USER]), 2)

    tracker, _ = make_tracker(["x"] * 4, chat_format, max_turns=3)
    run(episode())
    assert len(tracker.turns) == 3


def test_an_episode_that_has_sampled_enough_may_not_go_on(chat_format, run):
    async def episode():
        await tracker.chat("a", ChatRequest([USER]))
        await tracker.chat("b", ChatRequest([USER]))
        with pytest.raises(TooManyTokens, match=r"sampled 10 tokens .* astune.rollout.max_episode_tokens is 10"):
            await tracker.chat("a", ChatRequest([USER]))

    policy = ScriptedPolicy(["x" * 200] * 3, chat_format)
    tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=6), max_turns=9, max_tokens=10, seed=0)
    run(episode())
    assert [len(turn.output_ids) for turn in tracker.turns] == [6, 4]
    assert [turn.finish_reason for turn in tracker.turns] == ["length", "length"]


def test_a_conversation_that_outgrows_the_context_is_refused_and_leaves_no_turn(chat_format, run):
    async def episode():
        answer = await tracker.chat("a", ChatRequest([USER]))
        long = {"role": "user", "content": "word " * 100}
        with pytest.raises(ContextOverflow, match="the prompt of model call 2 has"):
            await tracker.chat("a", ChatRequest([USER, answer.message, long]))

    policy = ScriptedPolicy(["42"], chat_format, context_length=80)
    tracker = tracker_over(policy, chat_format)
    run(episode())
    assert (len(tracker.turns), len(policy.calls), tracker.lost_calls) == (1, 1, 0)


def test_the_turns_alone_give_the_same_timelines(make_tracker, chat_format, run):
    async def episode():
        answers = await tracker.choices("a", ChatRequest([USER]), 2)
        await tracker.chat("a", ChatRequest([USER, answers[0].message, MORE]))
        await tracker.chat("a", ChatRequest([USER, answers[0].message, MORE], retry=True))

    tracker, _ = make_tracker(["one", "two", "three", "four"], chat_format)
    run(episode())
    assert TurnForest(tracker.turns).timelines() == tracker.timelines()


def test_ids_of_calls_have_nine_characters_and_are_unique(make_tracker, chat_format, run):
    """Mistral's templates refuse any other length."""
    block = '<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call>\n'
    tracker, _ = make_tracker([block * 12] * 2, chat_format)

    async def episode():
        return [await tracker.chat("a", ChatRequest([USER], TOOLS)) for _ in range(2)]

    ids = [call["id"] for answer in run(episode()) for call in answer.message["tool_calls"]]
    assert len(set(ids)) == len(ids) == 24
    assert {len(call_id) for call_id in ids} == {9} and all(call_id.isalnum() for call_id in ids)


def test_a_forced_call_closes_the_reasoning_that_its_own_prompt_opened(make_tracker, write_dir, run):
    """What the template writes last may depend on the conversation, so the start is made for this prompt."""
    template = (
        "{{ tools | tojson }}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
        "{% if messages[0].content == 'think' %}{{ '<think>' }}{% endif %}{% endif %}"
        "{# <tool_call> arguments #}"
    )
    chat_format = ChatFormat.load(write_dir(template), tool_call_format="hermes")
    tracker, _ = make_tracker(["{}}\n</tool_call>"] * 2, chat_format)

    async def episode():
        for content in ("think", "plain"):
            request = ChatRequest([{"role": "user", "content": content}], TOOLS, force="tool_call", force_tool="calc")
            await tracker.chat(content, request)

    run(episode())
    thinking, plain = (chat_format.decode(turn.prompt_ids) for turn in tracker.turns)
    start = '<tool_call>\n{"name": "calc", "arguments":'
    assert thinking.endswith("<think>\n</think>\n\n" + start)
    assert plain.endswith("assistant\n" + start)


def test_a_call_that_was_not_to_be_made_is_text_and_the_timeline_goes_on(make_tracker, chat_format, run):
    call = '<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call>'
    tracker, _ = make_tracker(["Hello", call, "Bye"], chat_format)

    async def episode():
        first = await tracker.chat("a", ChatRequest([USER], TOOLS))
        messages = [USER, first.message, MORE]
        second = await tracker.chat("a", ChatRequest(messages, TOOLS, may_call=False))
        await tracker.chat("a", ChatRequest([*messages, second.message, MORE], TOOLS))
        return second

    second = run(episode())
    assert (second.message, second.finish_reason) == ({"role": "assistant", "content": call}, "stop")
    assert len(tracker.timelines()) == 1


def test_an_answer_cut_at_a_stop_text_keeps_its_tokens_in_the_next_prompt(make_tracker, chat_format, run):
    """A text agent in the manner of ReAct: what it is shown ends before the stop text, what is trained does not."""
    answers = ["Thought: hm.\nAction: look\nObservation: I make it up", "Final answer: 4"]
    tracker, _ = make_tracker(answers, chat_format)
    observation = {"role": "user", "content": "Observation: 4"}

    async def episode():
        first = await tracker.chat("a", ChatRequest([USER], stop=("\nObservation:",)))
        await tracker.chat("a", ChatRequest([USER, first.message, observation], stop=("\nObservation:",)))
        return first

    first = run(episode())
    assert first.message["content"] == "Thought: hm.\nAction: look"
    before, after = tracker.turns
    assert chat_format.decode(before.output_ids) == "Thought: hm.\nAction: look\nObservation:"
    shown = before.prompt_ids + chat_format.encode("Thought: hm.\nAction: look")
    assert after.prompt_ids[: len(shown)] == tuple(shown)
    assert after.prompt_ids.before.before is before.prompt_ids, "shared, so a trainer of trees computes it once"
    assert chat_format.decode(after.prompt_ids).startswith(chat_format.decode(shown) + "<|im_end|>\n<|im_start|>user")
    lines = tracker.timelines()
    assert [(line.fork, line.trained_tokens) for line in lines] == [
        (None, len(before.output_ids)),
        ("stop_text_removed", len(after.output_ids)),
    ]


def test_a_stop_text_that_begins_within_a_token_is_cut_all_the_same(make_tracker, chat_format, run):
    """The message ends inside of a sampled token, so the next prompt cannot hold that token: it is rendered anew."""
    pieces = chat_format.pieces(chat_format.encode("The answer is 42."))
    word = next(piece for piece in pieces if len(piece) > 2)
    tracker, _ = make_tracker(["The answer is 42.", "Yes."], chat_format)

    async def episode():
        first = await tracker.chat("a", ChatRequest([USER], stop=(word[1:],)))
        await tracker.chat("a", ChatRequest([USER, first.message, MORE]))
        return first

    first = run(episode())
    assert first.message["content"] == "The answer is 42.".partition(word[1:])[0]
    expected = chat_format.render([USER, first.message, MORE])
    assert chat_format.decode(tracker.turns[1].prompt_ids) == expected
    assert len(tracker.timelines()) == 2
