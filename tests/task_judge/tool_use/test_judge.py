import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge import make_judge
from astune.task_judge.tool_use.calls import CheckedCall, says_error, tool_calls
from astune.task_judge.tool_use.judge import Expected, serve
from astune.types import Episode, StopReason, Task, Turn, WorkflowOutput
from tests.rows import each_row


def tool(name, *required):
    parameters = {"type": "object", "properties": {key: {} for key in required}, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (tool("search", "query"), tool("book", "flight"), tool("time"))
ENDS = object()


def episode(task, *steps, answer="done", agent="agent", excluded=None, stop=StopReason.COMPLETED):
    """Each step is a list of calls of one model call: (name, arguments, result). A last step without calls follows,
    which sees all results, unless the last step is ENDS."""
    turns, messages = [], [{"role": "user", "content": task.query}]
    for number, step in enumerate([*steps, []]):
        if step is ENDS:
            break
        calls = [
            {
                "id": f"c{number}-{place}",
                "type": "function",
                "function": {"name": name, "arguments": values if isinstance(values, str) else json.dumps(values)},
            }
            for place, (name, values, _) in enumerate(step)
        ]
        response = {"role": "assistant", "content": "" if calls else answer, "tool_calls": calls}
        turn = Turn(agent, (1,), (2,), (0.0,), 0, "stop", messages=tuple(messages), tools=TOOLS, response=response)
        turns.append(turn if excluded is None else Turn(**{**vars(turn), "excluded": excluded}))
        messages += [response] + [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, (_, _, result) in zip(calls, step, strict=True)
        ]
    output = WorkflowOutput(answer=answer) if stop is StopReason.COMPLETED else None
    return Episode("e", task, tuple(turns), (), stop, output)


def task(*expected, answer=None, **metadata):
    return Task("t1", "Fly me to Bern.", answer=answer, metadata={"expected_tools": list(expected), **metadata})


async def judged(one, *steps, config=None, **options):
    judge = make_judge(TaskJudgeConfig(judge_protocol="ToolUseJudge", **(config or {})))
    return await judge.judge(one, episode(one, *steps, **options))


BOOK = {"name": "book", "arguments": {"flight": "LX 18"}}
GOOD = [[("search", {"query": "Bern"}, "LX 18")], [("book", {"flight": "LX 18"}, "booked")]]


async def test_everything_right_earns_the_sum_of_the_weights():
    verdict = await judged(task("search", BOOK, answer="42"), *GOOD, answer=r"\boxed{42}")
    assert verdict.reward == pytest.approx(1.0 + 0.5 + 1.0 + 3.0 + 0.5) and verdict.passed
    assert verdict.metrics == {
        "correct_tool": 1.0,
        "correct_args": 1.0,
        "tool_success": 1.0,
        "invalid_tool": 0.0,
        "correctness": 1.0,
        "format_bonus": 1.0,
        "steps_penalty": 0.0,
        "recall": 1.0,
    }


@each_row(
    ("steps", "reward", "passed"),
    [
        (GOOD, 2.5, True),
        ([[*GOOD[0], *GOOD[1]]], 2.5, True),
        ([], 0.0, False),
        (GOOD[:1], 0.5 + 0.25 + 1.0, False),
        ([GOOD[0], [("book", {"flight": "LX 19"}, "booked")]], 1.0 + 0.25 + 1.0, False),
        ([GOOD[0], [("book", {"flight": "LX 18"}, "Error: full")]], 1.0 + 0.5 + 0.5, True),
        ([*GOOD, [("time", {}, "noon")]], 2.5 - 0.1, True),
        ([*GOOD, [("time", {}, "Error: no clock")]], 1.0 + 0.5 + 2 / 3 - 0.1, True),
        ([[*GOOD[0], *GOOD[1], ("fly", {}, "ToolNotFoundError: no 'fly'")]], 1.0 + 0.5 + 2 / 3 - 2 / 3, False),
        ([[("fly", {}, "?")]], -2.0, False),
    ],
)
async def test_parts_are_worth_their_shares(steps, reward, passed):
    verdict = await judged(task("search", BOOK), *steps)
    assert verdict.reward == pytest.approx(reward), verdict
    assert verdict.passed is passed


@each_row(
    "arguments", ['{"query": "Be', "[1]", "{}", '{"q": "Bern"}', "null"], ids=["cut", "list", "none", "other", "null"]
)
async def test_arguments_that_the_tool_cannot_take_make_a_call_invalid(arguments):
    verdict = await judged(task("search"), [("search", arguments, "LX 18")])
    assert verdict.metrics["invalid_tool"] == 1.0 and verdict.metrics["correct_tool"] == 0.0 and not verdict.passed


async def test_no_arguments_may_be_written_as_nothing():
    assert (await judged(task("time"), [("time", "", "noon")])).passed


@each_row(
    ("given_", "right"),
    [
        ({"flight": " LX 18 ", "seats": 3.0, "window": True, "extra": {"a": [1, None]}}, True),
        ({"flight": "LX 18", "seats": 3, "window": 1, "extra": {"a": [1, None]}}, False),
        ({"flight": "lx 18", "seats": 3, "window": True, "extra": {"a": [1, None]}}, False),
        ({"flight": "LX 18", "seats": "3", "window": True, "extra": {"a": [1, None]}}, False),
        ({"flight": "LX 18", "seats": 3, "window": True, "extra": {"a": [None, 1]}}, False),
        ({"flight": "LX 18", "seats": 3, "window": True}, False),
        ({"flight": "LX 18", "seats": 3, "window": True, "extra": {"a": [1, None]}, "more": 1}, False),
    ],
)
async def test_arguments_are_compared_as_json_values(given_, right):
    arguments = {"flight": "LX 18", "seats": 3, "window": True, "extra": {"a": [1, None]}}
    verdict = await judged(task({"name": "book", "arguments": arguments}), [("book", given_, "booked")])
    assert (verdict.metrics["correct_args"], verdict.passed) == (float(right), right)


@pytest.mark.parametrize("ordered", [True, False])
async def test_order_matters_where_the_task_says_so(ordered):
    one = task("search", BOOK, expected_tools_ordered=ordered)
    assert (await judged(one, *GOOD)).passed
    turned_round = await judged(one, *GOOD[::-1])
    assert turned_round.passed is not ordered
    assert turned_round.metrics["correct_tool"] == (0.5 if ordered else 1.0)
    assert turned_round.metrics["recall"] == 1.0
    again = await judged(one, GOOD[1], *GOOD)
    assert again.passed and again.metrics["steps_penalty"] == 1.0


@each_row(
    ("metadata", "steps", "penalty"),
    [
        ({}, [], 0.0),
        ({}, GOOD, 2.0),  # a task that says nothing takes one call, that of the answer
        ({"expected_steps": 3}, GOOD, 0.0),
        ({"expected_steps": 2}, GOOD, 1.0),
        ({"expected_tools": ["search", BOOK], "expected_steps": 2}, GOOD, 1.0),
        ({"expected_tools": []}, GOOD, 2.0),
    ],
)
async def test_model_calls_beyond_what_a_task_takes_cost(metadata, steps, penalty):
    one = Task("t1", "Fly me to Bern.", answer="42", metadata=metadata)
    verdict = await judged(one, *steps, answer=r"\boxed{42}")
    assert verdict.metrics["steps_penalty"] == penalty
    free = await judged(one, *steps, answer=r"\boxed{42}", config={"tool_use": {"steps_penalty": 0.0}})
    assert verdict.reward == pytest.approx(free.reward - 0.1 * penalty)
    assert ("recall" in verdict.metrics) is bool(metadata.get("expected_tools"))


async def test_recall_counts_the_expected_calls_that_were_made():
    verdict = await judged(task("search", BOOK, "time"), GOOD[0], [("book", {"flight": "LX 19"}, "Error: full")])
    assert verdict.metrics["recall"] == pytest.approx(2 / 3)
    assert verdict.metrics["correct_args"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("steps", [0, True, "3", 2.5])
async def test_expected_steps_that_are_no_number_of_calls_are_the_tasks_fault(steps):
    with pytest.raises(JudgeError, match="expected_steps must be a whole number from 1 on"):
        await judged(task("search", expected_steps=steps))


@pytest.mark.parametrize("ordered", [True, False])
async def test_of_calls_that_serve_as_well_the_one_that_succeeded_counts(ordered):
    calls = [("search", {"query": "Bern"}, "Error: busy"), ("search", {"query": "Bern, CH"}, "LX 18")]
    for step in (calls, calls[::-1]):
        verdict = await judged(task("search", expected_tools_ordered=ordered), step)
        assert verdict.metrics["tool_success"] == 0.5


async def test_where_no_tool_is_expected_none_is_right():
    assert (await judged(task())).reward == 2.5
    called = await judged(task(), [("time", {}, "noon")])
    assert (called.reward, called.passed) == (pytest.approx(-0.1), False)


async def test_a_task_with_an_answer_alone_is_judged_by_the_answer_and_invalid_calls():
    one = Task("t1", "6 * 7?", answer="42")
    assert (await judged(one, *GOOD, answer="42")).reward == 3.0 - 0.2  # right, not marked, and two calls to get there
    assert (await judged(one, answer="#### 42")).reward == 3.5
    wrong = await judged(one, [("fly", {}, "?"), ("time", {}, "noon")], answer="#### 41")
    assert (wrong.reward, wrong.passed) == (0.5 - 2.0 - 0.1, False)


async def test_the_answer_must_be_right_to_pass_and_in_the_configured_format_for_the_bonus():
    one, config = task("search", BOOK, answer="42"), {"answer_format": "answer_tag"}
    right = await judged(one, *GOOD, answer="<answer>42</answer>", config=config)
    boxed = await judged(one, *GOOD, answer=r"\boxed{42}", config=config)
    assert (right.passed, right.reward) == (True, 6.0)
    assert (boxed.passed, boxed.reward) == (False, 2.5)


async def test_an_agent_that_ran_out_of_turns_gets_what_its_calls_earn():
    verdict = await judged(task("search", BOOK, answer="42"), *GOOD[:1], ENDS, stop=StopReason.MAX_TURNS)
    assert verdict.reward == pytest.approx(0.5 + 0.25 + 1.0) and not verdict.passed


async def test_a_call_that_ends_the_episode_did_not_fail():
    verdict = await judged(task("search", BOOK), *GOOD, ENDS)
    assert verdict.metrics["tool_success"] == 1.0 and verdict.passed


@pytest.mark.parametrize("excluded", ["retried", "frozen"])
async def test_answers_that_were_dropped_and_simulated_users_do_not_count(excluded):
    verdict = await judged(task("search"), [("fly", {}, "?")], *GOOD, excluded=excluded)
    assert verdict.reward == 0.0


def test_results_are_those_of_the_agents_own_calls():
    one = task("time")
    parts = [episode(one, [("time", {}, text)], agent=name).turns for name, text in (("a", "Error: x"), ("b", "noon"))]
    assert [call.failed for call in tool_calls(itertools.chain(*parts))] == [True, False]


@each_row(
    ("content", "failed"),
    [
        ("Error: no such city: Atlantis", True),
        ("Error occurred when calling MCP tool: gone", True),
        ("Error during async execution: x", True),
        ("FunctionNotFoundError: Cannot find the function named fly", True),
        ("ToolGroupInactiveError: The tool 'fly' in group 'air' is currently inactive.", True),
        ("Arguments Validation Error: 1 validation error", True),
        ("Input validation failed for tool 'fly': 'to' is a required property (at $)", True),
        ("<system-reminder>The tool call has been interrupted by the user.</system-reminder>", True),
        ("Traceback (most recent call last):\n ...", True),
        ("ValueError: x", True),
        ("error: x", True),
        ('{"error": "x"}', True),
        ('{"is_error": true}', True),
        ('{"success": false}', True),
        ('{"state": "error"}', True),
        ('{"status": "FAILED"}', True),
        ('{"error": null, "success": true, "state": "success"}', False),
        ('["error"]', False),
        ("Errors: 0", False),
        ("no error: all is well", False),
        ("", False),
    ],
)
def test_results_that_say_that_they_are_errors(content, failed):
    assert says_error(content) is failed


@pytest.mark.fault("Judges", "arguments of a tool call are nested without end", "a call that no tool could take")
async def test_arguments_nested_without_end_are_an_invalid_call():
    verdict = await judged(task(BOOK), [("book", "[" * 100_000, "no such flight")])
    assert verdict.metrics["invalid_tool"] == 1.0 and not verdict.passed


def test_a_result_in_parts_is_read_as_one_text():
    parts = [{"type": "text", "text": "Err"}, {"type": "text", "text": "or: x"}, {"type": "image_url", "image_url": {}}]
    assert [call.failed for call in tool_calls(episode(task(), [("time", {}, parts)]).turns)] == [True]


@each_row(
    ("metadata", "said"),
    [
        ({}, "neither expected_tools nor a reference answer"),
        ({"expected_tools": "search"}, "expected_tools must be a list"),
        ({"expected_tools": [3]}, r"expected_tools\[0\] must be a name"),
        (
            {"expected_tools": ["a", {"name": "b", "argument": {}}]},
            r"\[1\] has an unknown key.*Did you mean 'arguments'",
        ),
        ({"expected_tools": [{"arguments": {}}]}, r"\[0\]\.name must be the name"),
        ({"expected_tools": [{"name": "a", "arguments": "{}"}]}, r"\[0\]\.arguments must be an object"),
        ({"expected_tools": ["a"], "expected_tools_ordered": 1}, "expected_tools_ordered must be true or false"),
    ],
)
async def test_a_task_that_cannot_be_judged_by_is_an_error(metadata, said):
    with pytest.raises(JudgeError, match=rf"task 't1'.*{said}"):
        await judged(Task("t1", "q", metadata=metadata))


NAMES = st.sampled_from(["search", "book", "time", "fly"])
ARGUMENTS = st.fixed_dictionaries({}, optional={"query": st.integers(0, 2), "flight": st.integers(0, 2)})
CALLS = st.tuples(NAMES, ARGUMENTS, st.sampled_from(["fine", "Error: no"]))
STEPS = st.lists(st.lists(CALLS, min_size=1, max_size=3), max_size=4)
EXPECTED = st.lists(
    st.tuples(NAMES, st.none() | ARGUMENTS),
    max_size=4,
    unique_by=lambda pair: (pair[0], json.dumps(pair[1], sort_keys=True)),
).map(lambda pairs: [name if values is None else {"name": name, "arguments": values} for name, values in pairs])


@settings(deadline=None)
@given(EXPECTED, STEPS.filter(bool), st.data())
async def test_saying_a_call_again_never_earns_more(expected, steps, data):
    again = data.draw(st.sampled_from([call for step in steps for call in step]))
    in_one_step = [*steps[:-1], [*steps[-1], again]]
    before = (await judged(task(*expected), *steps)).reward
    assert (await judged(task(*expected), *in_one_step)).reward <= before + 1e-9
    assert (await judged(task(*expected), *steps, [again])).reward <= before + 1e-9


@settings(deadline=None)
@given(EXPECTED, STEPS, st.booleans(), st.sampled_from([None, "42"]), st.sampled_from(["42", r"\boxed{42}", "", "41"]))
async def test_rewards_have_bounds_and_shares_are_shares(expected, steps, ordered, reference, answer):
    one = task(*expected, answer=reference, expected_tools_ordered=ordered)
    verdict = await judged(one, *steps, answer=answer)
    more = verdict.metrics["steps_penalty"]
    assert all(0 <= share <= 1 for name, share in verdict.metrics.items() if name != "steps_penalty")
    assert -2.0 - 0.1 * more <= verdict.reward + 1e-9 and verdict.reward <= 2.5 + (3.5 if reference else 0) + 1e-9
    assert 0 <= more <= len(steps)
    if verdict.passed:
        assert verdict.metrics["correct_args"] == 1.0 and verdict.metrics["invalid_tool"] == 0.0


FEW = st.sampled_from(["search", "book"]), st.sampled_from([{}, {"query": 0}, {"query": 1}])


@settings(max_examples=300)
@given(
    st.lists(st.builds(Expected, FEW[0], st.none() | FEW[1]), max_size=4),
    st.lists(st.builds(CheckedCall, *FEW, st.just(True), st.just(False)), max_size=5, unique_by=str),
)
def test_as_many_expectations_are_served_and_right_as_can_be(expected, calls):
    """Against all assignments there are, of calls that do not repeat each other."""

    def best(pairs):
        right = sum(expected[one].is_right(calls[call]) for one, call in pairs.items())
        return len(pairs), right

    found = serve(expected, calls, ordered=False)
    assert len({*found.values()}) == len(found) and all(expected[one].is_tool(calls[found[one]]) for one in found)
    places = [*range(len(calls)), *[None] * len(expected)]
    every = []
    for chosen in set(itertools.permutations(places, len(expected))):
        pairs = {
            one: call for one, call in enumerate(chosen) if call is not None and expected[one].is_tool(calls[call])
        }
        every.append(pairs)
    assert best(found) == (max(len(pairs) for pairs in every), max(best(pairs)[1] for pairs in every))
    in_order = [pairs for pairs in every if [*pairs.values()] == sorted(pairs.values())]
    assert best(serve(expected, calls, ordered=True)) == max(map(best, in_order))
