"""What crosses the border between the engine's process and its workers."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ContextOverflow, PolicyError
from astune.support.resources import tiny_model_dir
from astune.token_ids import TokenIds
from astune.training.rollout_workers.messages import (
    EngineFailure,
    FrameReader,
    Printed,
    frame,
    pack_episode,
    unpack_episode,
)
from astune.types import Episode, StopReason, Task, Turn


def episode_of(turns: int, new_tokens: int) -> Episode:
    """An agent that appends to its history, turn after turn."""
    forest, prompt = TurnForest(), TokenIds(range(new_tokens))
    for number in range(turns):
        forest.add(Turn("agent", prompt, [number, 7], [-0.5, -0.25], 3, "stop", call=number))
        prompt = TokenIds([number, 7, *range(new_tokens)], before=prompt)
    return Episode("e", Task("t", "?"), tuple(forest.turns), forest.timelines(), StopReason.COMPLETED)


@given(st.integers(0, 8), st.integers(1, 5))
def test_an_episode_comes_back_as_it_went(turns: int, new_tokens: int) -> None:
    episode = episode_of(turns, new_tokens)
    assert unpack_episode(pack_episode(episode)) == episode


def test_long_episodes_take_room_for_their_last_prompt_only() -> None:
    episode = episode_of(turns=3000, new_tokens=20)
    data = pack_episode(episode)
    assert len(pickle.dumps(episode.turns[-1])) > 4 * 20 * 3000
    assert len(data) < 3 * 4 * 22 * 3000 + 3000 * 400
    assert unpack_episode(data).turns[-1] == episode.turns[-1]


@given(st.lists(st.text(max_size=50), max_size=5), st.integers(1, 30))
def test_messages_come_whole_from_any_pieces(lines: list[str], size: int) -> None:
    messages = [Printed(line, to_stderr=False) for line in lines]
    data = b"".join(map(frame, messages))
    found: list[Printed] = []
    reader = FrameReader(found.append)
    for at in range(0, len(data), size):
        reader.data_received(data[at : at + size])
    assert found == messages


def test_errors_keep_the_class_that_decides_how_an_episode_ends() -> None:
    overflow = EngineFailure.of(ContextOverflow("no room")).make_error()
    assert (type(overflow), str(overflow)) == (ContextOverflow, "no room")
    other = EngineFailure.of(KeyError("x")).make_error()
    assert (type(other), str(other)) == (PolicyError, "KeyError: 'x'")


def test_a_chat_format_can_be_pickled() -> None:
    options = {"enable_thinking": False}
    chat_format = ChatFormat.load(tiny_model_dir(), tool_call_format="hermes", template_kwargs=options)
    copy = pickle.loads(pickle.dumps(chat_format))
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    assert copy.encode(copy.render(messages)) == chat_format.encode(chat_format.render(messages))
    assert copy.stop_token_ids == chat_format.stop_token_ids
    assert (copy.tool_call_format, copy.context_length) == ("hermes", chat_format.context_length)
