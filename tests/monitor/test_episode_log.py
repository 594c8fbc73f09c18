import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.merge import TurnForest
from astune.errors import AstuneError
from astune.monitor import EpisodeLog, EpisodeRecord, RunDir, read_episodes
from astune.monitor.episodes import episode_from_row, episode_to_row
from astune.sampling import ContextCut
from astune.types import (
    Episode,
    EpisodeError,
    Span,
    StopReason,
    Task,
    Timeline,
    Turn,
    Verdict,
    WorkflowOutput,
)

GOLDEN = Path(__file__).parent / "episode.golden.jsonl"
BEFORE = Path(__file__).parent / "episode.before.jsonl"
"""The same episodes as they were written at first, messages again in every turn that has them."""
ASK = {"role": "user", "content": "What is 6 * 7? <b>ü</b>"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "calc", "arguments": '{"x": "6*7"}'}}]}
RESULT = {"role": "tool", "content": "42"}
TOOLS = ({"type": "function", "function": {"name": "calc"}},)


def two_turn_episode() -> Episode:
    first = Turn("solver", (1, 2), (3, 4), (-0.5, -0.25), 3, "stop", 1.0, None, True, None, None, (ASK,), TOOLS, CALL)
    history = (ASK, CALL, RESULT)
    second = Turn(
        "solver", (1, 2, 3, 4, 5), (6,), (-0.125,), 3, "length", 1.0, None, True, None, 0, history, TOOLS, {"a": 1}
    )
    spans = (Span(0, 2, 4, 3, 1.0, True, (-0.5, -0.25)), Span(1, 5, 6, 3, 1.0, True, (-0.125,)))
    row = Timeline("solver", (1, 2, 3, 4, 5, 6), spans)
    return Episode(
        "t1/0",
        Task("t1", "What is 6 * 7?", answer="42", metadata={"kind": "product"}),
        (first, second),
        (row,),
        StopReason.COMPLETED,
        WorkflowOutput("42", metrics={"steps": 2.0}),
        Verdict(1.0, True, "equal to the reference", {"exact": 1.0}, "MathAnswerAsJudge"),
        metrics={"seconds": 1.5},
        unique_tokens=6,
        agent_rewards={"solver": 0.5},
        turn_rewards={1: 0.25},
    )


def failed_episode() -> Episode:
    inexact = Turn("solver", (), (), (), 0, "stop", excluded="inexact", exact=False, messages=(ASK,))
    error = EpisodeError("workflow", "ZeroDivisionError", "division by zero", "Traceback ...\n")
    return Episode("t1/1", Task("t1", "?"), (inexact,), (), StopReason.ERROR, error=error)


def test_the_file_format_is_the_golden_one(tmp_path):
    run_dir = RunDir(tmp_path)
    with EpisodeLog(run_dir) as log:
        log.write(two_turn_episode(), step=3, phase="train")
        log.write(failed_episode(), step=3, phase="train")
    assert (run_dir.episodes_dir / "train.jsonl").read_text("utf-8") == GOLDEN.read_text("utf-8")


@pytest.mark.parametrize("path", [GOLDEN, BEFORE], ids=["now", "before"])
def test_the_golden_file_reads_back_as_the_episodes_it_was_written_from(path):
    assert list(read_episodes(path)) == [
        EpisodeRecord(3, "train", two_turn_episode()),
        EpisodeRecord(3, "train", failed_episode()),
    ]


def test_a_message_and_a_list_of_tools_are_written_once_whoever_has_them():
    system, question = {"role": "system", "content": "Rules."}, {"role": "user", "content": "?"}
    said = [{"role": "assistant", "content": f"answer {number}"} for number in range(4)]
    more = {"role": "user", "content": "More."}
    histories = [
        ("a", (system, question), TOOLS),
        ("b", (question,), ()),  # what another agent was told
        ("a", (system, question, said[0], more), ()),  # goes on, without tools
        ("a", (system, said[0], more, said[2], ASK), TOOLS),  # has forgotten the question
    ]
    turns = tuple(
        Turn(agent, (), (), (), 0, "stop", messages=messages, tools=tools, response=said[number])
        for number, (agent, messages, tools) in enumerate(histories)
    )
    record = EpisodeRecord(0, "train", Episode("e", Task("t", "q"), turns, (), StopReason.COMPLETED))
    row = episode_to_row(record)
    assert [turn["messages"] for turn in row["turns"]] == [
        [system, question],
        [[0, 1, 2]],
        [[0, 0, 3], more],
        [[2, 0, 1], [0, 2, 3], [2, 3, 5], ASK],
    ]
    assert [turn.get("tools") for turn in row["turns"]] == [list(TOOLS), None, [], 0]
    assert episode_from_row(json.loads(json.dumps(row))) == record


def test_phases_go_to_files_of_their_own(tmp_path):
    run_dir = RunDir(tmp_path)
    with EpisodeLog(run_dir) as log:
        for phase in ("train", "eval/sampled", "eval/greedy"):
            log.write(two_turn_episode(), step=0, phase=phase)
    names = sorted(path.name for path in run_dir.episodes_dir.iterdir())
    assert names == ["eval_greedy.jsonl", "eval_sampled.jsonl", "train.jsonl"]


@pytest.mark.fault(
    "Records and checkpoints",
    "a run was killed after episodes were written and before their step was saved",
    "they are dropped when the run goes on, so no attempt stands there twice",
)
def test_episodes_after_the_resumed_step_are_dropped(tmp_path):
    run_dir = RunDir(tmp_path)
    with EpisodeLog(run_dir) as log:
        for step in (1, 2, 3):
            log.write(two_turn_episode(), step=step, phase="train")
        log.truncate_after(2)
        log.write(failed_episode(), step=3, phase="train")
    records = list(read_episodes(run_dir.episodes_dir / "train.jsonl"))
    assert [(record.step, record.episode.episode_id) for record in records] == [(1, "t1/0"), (2, "t1/0"), (3, "t1/1")]


@pytest.mark.fault("Records and checkpoints", "an answer is an object that JSON does not know", "it is kept as text")
def test_answers_and_rows_that_are_not_json_are_kept_as_text(tmp_path):
    run_dir = RunDir(tmp_path)
    episode = Episode(
        "e",
        Task("t", "q", metadata={"when": Path("a"), "score": math.nan}),
        (),
        (),
        StopReason.COMPLETED,
        WorkflowOutput(answer=Path("x/y")),
    )
    with EpisodeLog(run_dir) as log:
        log.write(episode, step=0, phase="train")
    (record,) = read_episodes(run_dir.episodes_dir / "train.jsonl")
    assert record.episode.task.metadata == {"when": "a", "score": None}
    assert record.episode.output == WorkflowOutput(answer="x/y")


@pytest.mark.fault("Records and checkpoints", "a line of the episodes is broken", "an error that names file and line")
def test_a_line_that_is_no_episode_is_named(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(GOLDEN.read_text("utf-8") + '{"step": 1}\n', "utf-8")
    with pytest.raises(AstuneError, match=r"line 3: not an episode \(KeyError"):
        list(read_episodes(path))


texts = st.text(max_size=8)
numbers = st.floats(-20, 0).map(lambda x: round(x, 5))


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Any episode: several agents, histories that are rewritten, turns with and without a timeline."""
    turns, timelines = [], []
    for index in range(draw(st.integers(0, 4))):
        agent = draw(st.sampled_from("ab"))
        prompt = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
        output = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
        logprobs = tuple(draw(st.lists(numbers, min_size=len(output), max_size=len(output))))
        trainable = draw(st.booleans())
        messages = tuple({"role": "user", "content": text} for text in draw(st.lists(texts, max_size=3)))
        tools = tuple({"name": name} for name in draw(st.lists(st.sampled_from("xy"), max_size=2)))
        excluded = None if trainable else "frozen"
        fork = draw(st.none() | texts)
        shown = (messages, tools, {})
        cut = draw(st.none() | st.builds(ContextCut, st.just("discard"), st.integers(), st.integers(), st.none()))
        turns.append(Turn(agent, prompt, output, logprobs, 0, "stop", 1.0, excluded, True, fork, None, *shown, cut=cut))
        if draw(st.booleans()):
            span = Span(index, len(prompt), len(prompt) + len(output), 0, 1.0, trainable, logprobs, draw(st.booleans()))
            timelines.append(Timeline(agent, prompt + output, (span,), fork))
    verdict = draw(st.none() | st.builds(Verdict, st.floats(-1, 1), st.none() | st.booleans(), texts))
    events = st.just(()) | st.lists(st.fixed_dictionaries({"text": texts}, optional={"who": texts}), min_size=1)
    answers = st.none() | texts | st.lists(st.integers())
    output = draw(st.none() | st.builds(WorkflowOutput, answer=answers, events=events))
    return Episode("e", Task("t", draw(texts)), tuple(turns), tuple(timelines), StopReason.COMPLETED, output, verdict)


@given(episodes())
def test_any_episode_reads_back_as_it_was_written(episode):
    record = EpisodeRecord(1, "eval/greedy", episode)
    row = episode_to_row(record)
    text = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    assert episode_from_row(json.loads(text)) == record


def test_a_history_that_forks_is_written_once():
    """Two hundred branches of a conversation take little more than one."""
    context = tuple(range(1000))
    branches = []
    turns = []
    for number in range(200):
        turns.append(Turn("a", context, (number,), (-1.0,), 0, "stop"))
        span = Span(number, 1000, 1001, 0, 1.0, True, (-1.0,))
        branches.append(Timeline("a", (*context, number), (span,), "branch" if number else None))
    episode = Episode("e", Task("t", "q"), tuple(turns), tuple(branches), StopReason.COMPLETED)
    row = episode_to_row(EpisodeRecord(0, "train", episode))
    assert sum(len(timeline["token_ids"]) for timeline in row["timelines"]) == 1200
    assert episode_from_row(json.loads(json.dumps(row))).episode == episode


def test_a_turn_that_branches_share_is_the_first_ones_own():
    said = [((1,), (2,)), ((1, 2, 3), (4,)), ((1, 2, 5), (6,))]
    turns = tuple(Turn("a", prompt, output, (-1.0,), 0, "stop") for prompt, output in said)
    episode = Episode("e", Task("t", "q"), turns, TurnForest(turns).timelines(), StopReason.COMPLETED)
    row = episode_to_row(EpisodeRecord(0, "train", episode))
    assert row["timelines"][1]["spans_kept"] == 1
    read = episode_from_row(json.loads(json.dumps(row))).episode
    assert [[span.shared for span in line.spans] for line in read.timelines] == [[False, False], [True, False]]
    assert read == episode
