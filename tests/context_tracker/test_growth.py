"""A conversation twice as long takes twice the memory and twice the room on disk, in every form that it has."""

import asyncio
import gc
import json
import tracemalloc
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.training.rollout_workers.messages import pack_episode, unpack_episode
from astune.types import Episode, Sampling, StopReason, Task
from tests.rows import each_row

TEMPLATES = Path(__file__).parent / "templates"
TURNS = 20
TEXT = " ".join(f"the agent reads price {number}" for number in range(40))


@cache
def format_of(name: str) -> ChatFormat:
    with TemporaryDirectory() as folder:
        path = write_test_model_dir(Path(folder))
        if name != "shipped":
            text = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
            (path / "chat_template.jinja").write_text(text, encoding="utf-8")
        return ChatFormat.load(path)


def played(chat_format, turns, *, n=1, asked_anew=False):
    """The tracker of an agent whose every request has all that was said. `n` answers are asked for each time, and it
    goes on from the last; `asked_anew`: there are two conversations, in turns."""

    async def play():
        policy = ScriptedPolicy(lambda prompt: f"Answer {len(prompt)}", chat_format, context_length=10**6)
        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=64), max_turns=10**6, seed=1)
        histories = [[], []] if asked_anew else [[]]
        for number in range(turns):
            messages = histories[number % len(histories)]
            messages.append({"role": "user", "content": f"{number % len(histories)}.{number}: {TEXT}"})
            request = ChatRequest(json.loads(json.dumps(messages)))  # an agent's requests are made anew
            messages.append(dict((await tracker.choices("solver", request, n))[-1].message))
        return tracker

    return asyncio.run(play())


def episode_of(tracker):
    return Episode("e", Task("t", "?"), tracker.turns, tracker.timelines(), StopReason.COMPLETED)


def kept(make):
    """Bytes of memory that what `make` gives takes."""
    gc.collect()
    tracemalloc.start()
    value = make()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del value
    return size


@each_row(
    ("template", "habit"),
    [("shipped", {}), ("shipped", {"n": 2}), ("shipped", {"asked_anew": True}), ("qwen2_5", {}), ("qwen3_6", {})],
)
def test_twice_the_turns_take_twice_the_room(template, habit):
    chat_format = format_of(template)
    played(chat_format, 3, **habit)  # what is kept for every episode is kept now
    trackers: list[ContextTracker] = []
    sizes = [
        kept(lambda turns=turns: trackers.append(played(chat_format, turns, **habit))) for turns in (TURNS, 2 * TURNS)
    ]
    short, long = map(episode_of, trackers)
    lines = [json.dumps(episode_to_row(EpisodeRecord(1, "train", episode))) for episode in (short, long)]
    packed = [pack_episode(episode) for episode in (short, long)]
    rooms = {
        "tracker": sizes,
        "line": [len(line) for line in lines],
        "sent by a worker": [len(data) for data in packed],
        "read from its line": [kept(lambda line=line: episode_from_row(json.loads(line))) for line in lines],
        "read from a worker": [kept(lambda data=data: unpack_episode(data)) for data in packed],
    }
    assert {name: big / small for name, (small, big) in rooms.items() if big / small >= 2.2} == {}
    assert unpack_episode(packed[1]) == long
    assert len(repr(long)) < 4 * len(lines[1])  # asyncio looks at it when a task has ended


@each_row("template", ["shipped", "qwen2_5", "qwen3_6", "gemma4", "mistral_v13"])
def test_each_message_is_held_once_however_many_turns_there_were(template):
    tracker = played(format_of(template), 10)
    held = {id(link): len(own) for turn in tracker.turns for link, own in turn.messages.links()}
    assert sum(held.values()) == len(tracker.turns[-1].messages) == 19
