"""The first point where two episodes part, for a seeded difference of each kind."""

from dataclasses import replace

from astune.recordings.diff import first_difference, turns_differ
from astune.types import Episode, EpisodeError, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput
from tests.rows import each_row

TOOL = {"type": "function", "function": {"name": "weather"}}
ASKED = ({"role": "user", "content": "Where is it warm?"},)
RESULT = (*ASKED, {"role": "assistant", "content": "?"}, {"role": "tool", "content": "21 degrees in Bern"})


def decode(ids):
    return "".join(chr(token) for token in ids)


def tokens(text):
    return [ord(letter) for letter in text]


def turn(prompt, output, messages, **fields):
    said = {"response": {"role": "assistant", "content": output}, "tools": (TOOL,), **fields}
    return Turn("guide", tokens(prompt), tokens(output), [-0.5] * len(output), 3, "stop", messages=messages, **said)


ONE = turn("Where?", "Let me look.", ASKED)
TWO = turn("Where?Let me look.21", "In Bern.", RESULT, call=1)


def timelines(*turns):
    last = turns[-1]
    ids = [*last.prompt_ids, *last.output_ids]
    span = Span(len(turns) - 1, len(last.prompt_ids), len(ids), 3, 1.0, True, last.logprobs)
    return (Timeline("guide", ids, (span,)),)


EPISODE = Episode(
    "train/t1/0",
    Task("t1", "Where?", metadata={"level": 1}),
    (ONE, TWO),
    timelines(ONE, TWO),
    StopReason.COMPLETED,
    WorkflowOutput("Bern", metrics={"steps": 2.0}),
    Verdict(1.0, passed=True, reason="it is warm there"),
    metrics={"seconds": 1.0, "turns": 2.0},
    unique_tokens=28,
    agent_rewards={"guide": 0.5},
)


def with_turn(number, **fields):
    turns = list(EPISODE.turns)
    turns[number] = replace(turns[number], **fields)
    return replace(EPISODE, turns=tuple(turns))


OTHER_RESULT = (*RESULT[:2], {"role": "tool", "content": "12 degrees in Bern"})
OTHER_LOGPROBS = [-0.5, -0.5, -0.75, *[-0.5] * 5]
ERROR = EpisodeError("workflow", "KeyError", "x")
ERROR_SHOWN = '{"stage": "workflow", "kind": "KeyError", "message": "x", "traceback": ""}'
TOOL_SHOWN = '{"type": "function", "function": {"name": "weather"}}'


@each_row(
    ("other", "place", "first", "second"),
    [
        (replace(EPISODE, task=Task("t1", "Who?", metadata={"level": 1})), "task.query", "'Where?'", "'Who?'"),
        (replace(EPISODE, task=replace(EPISODE.task, metadata={"level": 2})), "task.metadata.level", "1", "2"),
        (with_turn(0, agent="scout"), "turn 1 of guide, agent", "'guide'", "'scout'"),
        (
            with_turn(0, messages=({"role": "user", "content": "Where is it cold?"},)),
            "turn 1 of guide, prompt, message 0 (user).content",
            "'Where is it warm?'",
            "'Where is it cold?'",
        ),
        (
            with_turn(1, messages=OTHER_RESULT),
            "turn 2 of guide, prompt, tool result.content",
            "'21 degrees in Bern'",
            "'12 degrees in Bern'",
        ),
        (
            with_turn(1, messages=RESULT[:2]),
            "turn 2 of guide, prompt, tool result",
            '{"role": "tool", "content": "21 degrees in Bern"}',
            "(nothing)",
        ),
        (with_turn(0, tools=()), "turn 1 of guide, tools[0]", TOOL_SHOWN, "(nothing)"),
        (
            with_turn(1, prompt_ids=tokens("Where?Let me look.12")),
            "turn 2 of guide, prompt, token 18 after 'Let me look.'",
            "50 '21'",
            "49 '12'",
        ),
        (
            with_turn(1, output_ids=tokens("In Rome.")),
            "turn 2 of guide, answer, token 3 after 'In '",
            "66 'Bern.'",
            "82 'Rome.'",
        ),
        (with_turn(1, finish_reason="length"), "turn 2 of guide, answer, finish reason", "'stop'", "'length'"),
        (with_turn(1, logprobs=OTHER_LOGPROBS), "turn 2 of guide, answer, logprob of token 2 ' '", "-0.5", "-0.75"),
        (
            with_turn(0, response={"role": "assistant", "content": "Let me go."}),
            "turn 1 of guide, answer.content",
            "'Let me look.'",
            "'Let me go.'",
        ),
        (with_turn(0, temperature=0.5), "turn 1 of guide, temperature", "1.0", "0.5"),
        (with_turn(0, excluded="retried"), "turn 1 of guide, excluded", "(nothing)", "'retried'"),
        (replace(EPISODE, turns=(ONE,)), "after 1 turns", "a call of guide", "no more model calls"),
        (replace(EPISODE, output=WorkflowOutput("Rome")), "answer", "'Bern'", "'Rome'"),
        (replace(EPISODE, output=WorkflowOutput("Bern", metrics={"steps": 3.0})), "output.metrics.steps", "2.0", "3.0"),
        (replace(EPISODE, stop_reason=StopReason.MAX_TURNS), "stop reason", "'completed'", "'max_turns'"),
        (replace(EPISODE, error=ERROR), "error", "(nothing)", ERROR_SHOWN),
        (replace(EPISODE, agent_rewards={"guide": 1.0}), "agent rewards.guide", "0.5", "1.0"),
        (replace(EPISODE, verdict=Verdict(0.0, True, "it is warm there")), "reward", "1.0", "0.0"),
        (
            replace(EPISODE, verdict=Verdict(1.0, True, "it is there")),
            "verdict.reason",
            "'it is warm there'",
            "'it is there'",
        ),
        (with_turn(0, policy_version=4), "turns[0].policy_version", "3", "4"),
        (with_turn(1, call=2), "turns[1].call", "1", "2"),
        (replace(EPISODE, timelines=()), "timelines[0]", None, "(nothing)"),
        (replace(EPISODE, metrics={"seconds": 1.0, "turns": 3.0}), "metrics.turns", "2.0", "3.0"),
        (replace(EPISODE, unique_tokens=29), "unique_tokens", "28", "29"),
    ],
)
def test_a_difference_is_found_where_it_is(other, place, first, second):
    found = first_difference(EPISODE, other, decode)
    assert (found.place, found.second) == (place, second)
    assert first is None or found.first == first
    back = first_difference(other, EPISODE, decode)
    assert back.first == second


def test_equal_episodes_do_not_differ_whatever_time_they_took_and_whatever_they_are_called():
    later = replace(EPISODE, episode_id="x", metrics={"seconds": 9.0, "turns": 2.0}, error=ERROR)
    former = replace(EPISODE, error=replace(ERROR, traceback="File ..."))
    assert first_difference(former, later, decode) is None
    assert first_difference(EPISODE, EPISODE) is None


def test_what_comes_first_is_told_first():
    other = replace(with_turn(1, messages=OTHER_RESULT), output=WorkflowOutput("Rome"), verdict=None)
    assert first_difference(EPISODE, other).turn == 1
    assert first_difference(EPISODE, replace(other, turns=EPISODE.turns)).place == "answer"


def test_tokens_are_shown_by_number_where_there_is_no_tokenizer():
    found = first_difference(EPISODE, with_turn(1, output_ids=tokens("In Rome.")))
    assert (found.place, found.first, found.second) == ("turn 2 of guide, answer, token 3", "66", "82")


def test_an_answer_that_goes_on_differs_at_the_end_of_the_shorter():
    longer = with_turn(1, output_ids=tokens("In Bern.!"), logprobs=[-0.5] * 9)
    found = first_difference(EPISODE, longer, decode)
    assert (found.first, found.second) == ("(end)", "33 '!'")


def test_long_texts_are_shown_around_the_first_letter_that_differs():
    one, two = (replace(EPISODE, output=WorkflowOutput("a" * 500 + letter + "b" * 500)) for letter in "xy")
    found = first_difference(one, two)
    assert found.first == repr("…" + "a" * 60 + "x" + "b" * 59 + "…")


def test_turns_alone_may_be_compared():
    assert turns_differ(EPISODE, replace(EPISODE, output=None, verdict=None)) is None
    assert str(turns_differ(EPISODE, with_turn(0, agent="scout"))) == "turn 1 of guide, agent: 'guide' / 'scout'"
