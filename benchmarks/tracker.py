"""What the context tracker costs: adding turns, merging them, and whole calls, beside what others do.

    .venv/bin/python benchmarks/tracker.py

Five tables. "Reading" is packing the new token ids of a turn, 4 bytes each, which nobody who keeps them can do
without; "adding" is all that the prefix forest does beyond it. Prompts come as the tracker makes them (each extends
the object of an earlier one: "by identity") or as flat sequences from elsewhere, of which every token has to be
looked at once: one pass over the prompt is the limit there. Memory is what tracemalloc counts: turns, ids, logprobs
and forest together; half of the tokens are sampled, and so have a logprob of 8 bytes.

The last two tables have something beside them, in the same process and in turns:

- the merge that AgentJet describes: every call is a timeline of messages, deep-copied when it is recorded; newest
  first, each takes up the older ones whose messages' texts are its own first ones;
- a rollout that renders and tokenizes the whole conversation at every call, as TRL's does in message mode.

The vocabulary is Qwen's where the package `dashscope` is installed (AgentScope asks for it), the test model's if not.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench_table import table_of
from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.testing import write_test_model_dir
from astune.token_ids import TokenIds
from astune.types import Generation, Sampling, Turn

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = 150_000
LAST = 8
"""Calls whose median is told."""
TURNS = (8, 32, 128)
Call = tuple[Sequence[int], list[int]]
"""Prompt and sampled ids."""


def draw(chance: Random, count: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(count)]


# Conversations as token ids


def appending(turns: int, step: int, context: int = 0) -> Iterator[Call]:
    """Each prompt is all before it and `step` / 2 new tokens; the answers are as long. `context` tokens to begin."""
    chance = Random(0)
    ids = TokenIds(draw(chance, context))
    for _ in range(turns):
        prompt, output = ids + draw(chance, step // 2), draw(chance, step // 2)
        yield prompt, output
        ids = prompt + output


def stripping(turns: int, step: int) -> Iterator[Call]:
    """Every prompt is rendered anew, since the template drops half of the last answer: all of them fork."""
    chance = Random(0)
    history: list[int] = []
    for _ in range(turns):
        prompt, output = history + draw(chance, step // 2), draw(chance, step)
        yield TokenIds(prompt), output
        history = prompt + output[step // 2 :]


def answering(turns: int, context: int) -> Iterator[Call]:
    """Many answers to one prompt."""
    chance = Random(0)
    prompt = TokenIds(draw(chance, context))
    for _ in range(turns):
        yield prompt, draw(chance, 64)


def turn_of(prompt: Sequence[int], output: Sequence[int]) -> Turn:
    return Turn("a", prompt, output, [-0.5] * len(output), 0, "stop")


SHAPES: dict[str, Callable[[TokenIds], Sequence[int]]] = {
    "by identity": lambda ids: ids,
    "flat array": lambda ids: array("i", ids.pack()),
    "flat tuple": tuple,
}


@dataclass
class Seconds:
    reading: float
    adding: list[float]
    merging: float
    forest: TurnForest


def grow(calls: Sequence[Call]) -> Seconds:
    started = time.perf_counter()
    turns = [turn_of(*call) for call in calls]
    reading = time.perf_counter() - started
    forest = TurnForest()
    adding = []
    for turn in turns:
        started = time.perf_counter()
        forest.add(turn)
        adding.append(time.perf_counter() - started)
    started = time.perf_counter()
    forest.timelines()
    return Seconds(reading, adding, time.perf_counter() - started, forest)


def shaped(calls: Iterator[Call], shape: str) -> list[Call]:
    return [(SHAPES[shape](TokenIds.of(prompt)), output) for prompt, output in calls]


# Tables 1 to 3: the forest alone


def adding_to_a_long_episode() -> Table:
    rows = []
    for shape in SHAPES:
        turns = 100 if shape == "by identity" else 12
        calls = shaped(appending(turns, 512, context=131_072), shape)
        new = draw(Random(0), 256) if shape == "by identity" else calls[-1][0]
        started = time.perf_counter()
        TokenIds(new)
        reading = time.perf_counter() - started
        adding = grow(calls).adding[1:]  # the first is the context itself
        middle, most = statistics.median(adding), max(adding)
        rows.append([shape, f"{1e3 * reading:.3f}", f"{1e3 * middle:.3f}", f"{1e3 * most:.3f}"])
    columns = ("prompt", "reading ms", "adding ms, median", "most")
    return table_of("1. A turn of 256 + 256 tokens is added to an episode of 131,072", columns, rows)


def two_hundred_turns() -> Table:
    agents: dict[str, Callable[[], Iterator[Call]]] = {
        "appends": lambda: appending(200, 160),
        "drops reasoning at every call": lambda: stripping(200, 160),
        "200 answers to 32,000 tokens": lambda: answering(200, 32_000),
    }
    rows = []
    for agent, calls in agents.items():
        for shape in SHAPES:
            taken = [grow(shaped(calls(), shape)) for _ in range(3)]
            parts = ([each.reading for each in taken], [sum(each.adding) for each in taken])
            timings = [f"{1e3 * statistics.median(part):.1f}" for part in parts]
            merging = statistics.median(each.merging for each in taken)
            rows.append([agent, shape, *timings, f"{1e3 * merging:.1f}", f"{len(taken[0].forest.timelines())}"])
    columns = ("agent", "prompts", "reading ms", "adding ms", "timelines ms", "timelines")
    return table_of("2. An episode of 200 turns up to 32,000 tokens, in total", columns, rows)


def bytes_per_token(calls: Iterator[Call]) -> float:
    gc.collect()
    tracemalloc.start()
    forest = TurnForest()
    for prompt, output in calls:
        forest.add(turn_of(prompt, output))
        del prompt, output
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / forest.unique_tokens


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of the line through the logarithms: 1 is linear, 2 is quadratic."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values]).slope


def growing() -> Table:
    rows, sizes, seconds, memory = [], [], [], []
    for power in range(10, 21):
        size, turns = 2**power, 2**power // 512
        taken = [grow(list(appending(turns, 512))) for _ in range(3)]
        sizes.append(size)
        seconds.append(min(sum(each.adding) + each.merging for each in taken))
        memory.append(bytes_per_token(appending(turns, 512)))
        each = 1e6 * seconds[-1] / turns
        rows.append([f"{size:,}", f"{turns:,}", f"{1e3 * seconds[-1]:.2f}", f"{each:.1f}", f"{memory[-1]:.1f}"])
    total = [size * used for size, used in zip(sizes, memory, strict=True)]
    rows.append(["slope", "", f"{slope(sizes, seconds):.2f}", "", f"{slope(sizes, total):.2f}"])
    for step in (64, 128, 256, 1024):
        used = bytes_per_token(appending(131_072 // step, step))
        rows.append([f"131,072 in turns of {step}", f"{131_072 // step:,}", "", "", f"{used:.1f}"])
    used = bytes_per_token(stripping(200, 160))
    rows.append(["200 forks up to 32,000", "200", "", "", f"{used:.1f}"])
    columns = ("tokens", "turns", "adding and timelines ms", "µs per turn", "bytes per token")
    return table_of("3. Turns of 512 tokens: time and memory over the length of the episode", columns, rows)


# Table 4: the merge of texts


@dataclass
class TextMessage:
    """A message with what was sampled for it."""

    author: str
    text: str
    token_arr: list[int]
    token_logprob_arr: list[float]


def merge_texts(timelines: list[list[TextMessage]]) -> list[list[TextMessage]]:
    """Newest first, each takes up every older one whose messages have the texts of its own first ones."""
    newest_first = timelines[::-1]
    taken_up: set[int] = set()
    for number, source in enumerate(newest_first):
        if number in taken_up:
            continue
        for other in range(number + 1, len(newest_first)):
            target = newest_first[other]
            if other in taken_up or len(source) < len(target):
                continue
            if all(mine.text == its.text for mine, its in zip(source, target, strict=False)):
                for mine, its in zip(source, target, strict=False):
                    if its.author == "llm" and mine.author != "llm":
                        mine.author = its.author
                        mine.token_arr = its.token_arr
                        mine.token_logprob_arr = its.token_logprob_arr
                taken_up.add(other)
    return [timeline for number, timeline in enumerate(newest_first) if number not in taken_up]


def fresh(message: TextMessage) -> TextMessage:
    """With a text of its own, as every request brings one."""
    text = message.text
    return TextMessage(message.author, text[:1] + text[1:], message.token_arr, message.token_logprob_arr)


def conversation(turns: int, forks: bool) -> tuple[list[list[TextMessage]], list[Call]]:
    """The same calls as messages and as token ids. `forks`: the history has only half of each answer."""
    history: list[TextMessage] = []
    lists = []
    calls = list(stripping(turns, 512) if forks else appending(turns, 512))
    for prompt, output in calls:
        history.append(message("user", list(prompt[-256:])))
        lists.append([*map(fresh, history), message("llm", output)])
        history.append(message("user", output[256:] if forks else output))
    return lists, calls


def message(author: str, ids: list[int]) -> TextMessage:
    return TextMessage(author, " ".join(map(str, ids)), ids, [0.0] * len(ids))


def merging() -> Table:
    rows = []
    for forks in (False, True):
        for turns in TURNS:
            copies, merges, ours = [], [], []
            for _ in range(3):
                lists, calls = conversation(turns, forks)
                started = time.perf_counter()
                recorded = [copy.deepcopy(messages) for messages in lists]
                copies.append(time.perf_counter() - started)
                started = time.perf_counter()
                merge_texts(recorded)
                merges.append(time.perf_counter() - started)
                seconds = grow(calls)
                ours.append(seconds.reading + sum(seconds.adding) + seconds.merging)
            values = [statistics.median(each) for each in (copies, merges, ours)]
            factor = (values[0] + values[1]) / values[2]
            alone = values[1] / values[2]
            name = "every call forks" if forks else "appends"
            rows.append(
                [name, f"{turns}", *(f"{1e3 * value:.2f}" for value in values), f"{factor:.0f}", f"{alone:.2f}"]
            )
    columns = ("agent", "turns", "copies ms", "text merge ms", "turns, forest, timelines ms", "times", "without copies")
    return table_of("4. The merge of texts that AgentJet describes, and the forest; turns of 512 tokens", columns, rows)


# Table 5: whole calls


def qwen_tokenizer(path: Path) -> Tokenizer:
    """Qwen's byte-level BPE from its list of tokens in the order of their merges."""
    lines = path.read_text(encoding="ascii").splitlines()
    ranks = {b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    letters = dict(zip(sorted(range(256), key=_plain_first), _byte_letters(), strict=True))
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        parts = [(token[:place], token[place:]) for place in range(1, len(token))]
        known = [pair for pair in parts if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    spell = {token: "".join(letters[byte] for byte in token) for token in ranks}
    tokenizer = Tokenizer(
        models.BPE(
            {spell[token]: rank for token, rank in ranks.items()},
            [(spell[left], spell[right]) for left, right in merges],
        )
    )
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    return tokenizer


def _plain_first(byte: int) -> tuple[bool, int]:
    return not (33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255), byte


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte: the printable ones stand for themselves."""
    plain = [chr(byte) for byte in range(256) if not _plain_first(byte)[0]]
    return plain + [chr(256 + number) for number in range(256 - len(plain))]


def load_format() -> tuple[str, ChatFormat, Tokenizer]:
    """A vocabulary's name, ASTune's format with it, and the bare tokenizer."""
    found = importlib.util.find_spec("dashscope")
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_test_model_dir(Path(folder))
        if found is None or found.origin is None:
            name = "the test model's vocabulary"
        else:
            name = "Qwen's vocabulary"
            qwen_tokenizer(Path(found.origin).parent / "resources" / "qwen.tiktoken").save(
                str(model_dir / "tokenizer.json")
            )
        return name, ChatFormat.load(model_dir), Tokenizer.from_file(str(model_dir / "tokenizer.json"))


class ReadyPolicy:
    """Gives answers that are tokens already."""

    context_length = 10_000_000

    def __init__(self, answers: Sequence[tuple[int, ...]]) -> None:
        self._answers = iter(answers)
        self.prompts: list[Sequence[int]] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.prompts.append(prompt_ids)
        ids = next(self._answers)
        return Generation(ids, (-0.5,) * len(ids), 0, "stop")


def said_to(agent: int, result: str) -> dict[str, Any]:
    """A question, then what the agent's tool answers."""
    return {"role": "tool", "tool_call_id": "call", "content": result} if agent else {"role": "user", "content": result}


async def with_tracker(
    chat_format: ChatFormat, results: Sequence[str], answers: Sequence[tuple[int, ...]]
) -> list[float]:
    """Seconds of each call."""
    tracker = ContextTracker(ReadyPolicy(answers), chat_format, Sampling(4096), max_turns=len(answers), seed=0)
    messages: list[dict[str, Any]] = []
    took = []
    for number, result in enumerate(results):
        messages.append(said_to(number, result))
        request = ChatRequest([dict(message) for message in messages])  # an agent's requests are made anew
        started = time.perf_counter()
        messages.append(dict((await tracker.chat("a", request)).message))
        took.append(time.perf_counter() - started)
    assert len(tracker.timelines()) == 1, "every prompt goes on from the one before"
    return took


async def retokenizing(
    chat_format: ChatFormat, tokenizer: Tokenizer, results: Sequence[str], answers: Sequence[tuple[int, ...]]
) -> tuple[list[float], int]:
    """Seconds of each call, and the tokens of the last prompt."""
    policy = ReadyPolicy(answers)
    messages: list[dict[str, Any]] = []
    took = []
    for number, result in enumerate(results):
        messages.append(said_to(number, result))
        started = time.perf_counter()
        prompt = tokenizer.encode(chat_format.render(messages), add_special_tokens=False).ids
        output = (await policy.generate(prompt, Sampling(4096))).output_ids
        read = chat_format.parse_text(chat_format.decode(output[:-1]))
        messages.append({"role": "assistant", "content": read.content})
        took.append(time.perf_counter() - started)
    return took, len(policy.prompts[-1])


def whole_calls() -> Table:
    name, chat_format, tokenizer = load_format()
    pages = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    rows = []
    for turns in TURNS:
        pieces = [text[place % (len(text) - 1000) :][:1000] for place in range(0, 1250 * turns, 1250)]
        results, said = [piece[:800] for piece in pieces], [piece[800:].strip() for piece in pieces]
        answers = [(*chat_format.encode(piece), chat_format.stop_token_ids[0]) for piece in said]
        ours: list[float] = []
        theirs: list[float] = []
        tokens = 0
        for number in range(4):
            calls = asyncio.run(with_tracker(chat_format, results, answers))
            others, tokens = asyncio.run(retokenizing(chat_format, tokenizer, results, answers))
            if number:  # the first is warm-up
                ours += calls[-LAST:]
                theirs += others[-LAST:]
        each = [1e3 * statistics.median(values) for values in (theirs, ours)]
        rows.append([f"{turns}", f"{tokens:,}", *(f"{value:.2f}" for value in each), f"{each[0] / each[1]:.1f}"])
    columns = ("calls", "tokens of the last prompt", "tokenized anew, ms", "tracker, ms", "times")
    title = (
        f"5. The last {LAST} calls of an agent with a tool, {name}: the conversation tokenized anew, and the tracker"
    )
    return table_of(title, columns, rows)


TABLES = (adding_to_a_long_episode, two_hundred_turns, growing, merging, whole_calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=int, help="numbers of the tables; all if none is named")
    options = parser.parse_args()
    console = Console(width=140)
    console.print(f"Python {sys.version.split()[0]}, load average {os.getloadavg()[0]:.1f}")
    for number, table in enumerate(TABLES, 1):
        if not options.tables or number in options.tables:
            console.print(table())


if __name__ == "__main__":
    main()
