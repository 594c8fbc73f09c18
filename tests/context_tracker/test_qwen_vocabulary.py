"""The real Qwen vocabulary, which AgentScope's dashscope dependency carries: no sampled token changes later."""

import base64
import copy
import importlib.resources
import importlib.util
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from unicodedata import normalize

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from astune.context_tracker.prompt.builder import PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.token_ids import TokenIds
from tests.context_tracker.parsing import parse

pytestmark = pytest.mark.skipif(importlib.util.find_spec("dashscope") is None, reason="dashscope is not installed")

TEMPLATES = Path(__file__).parent / "templates"
CONVERSATIONS = 500
"""With each of two templates."""
NEWLINE = "\n"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TOOLS = [{"type": "function", "function": {"name": "查找", "parameters": {"type": "object", "properties": {}}}}]
PIECES = (
    *("the answer is", " 42", "\n", "\n\n", "  ", "\t", " \n \n", "\r\n", "答案是四十二。", "これはテストです", "안녕"),
    *(
        "🎉",
        "👩‍👩‍👧",
        "é",
        "e\u0301",
        "\u00a0",
        "def f(x):\n    return x**2\n",
        "```python\n",
        "<b>",
        "&amp;",
        "{",
        "}",
    ),
    *(
        '{"x":1}',
        "<tool_call",
        "im_end|>",
        "\\n",
        "\\u00fc",
        "'s",
        "'LL",
        "0.1e-7",
        "ñandú",
        "Ω≈ç",
        "\u200b",
        "…",
        "。\n",
    ),
)
LAYOUTS = (
    '{"q":"ü","n":1e2}',
    '{"q": "ü", "n": 100.0}',
    '{ "n" : 100 , "q" : "\\u00fc" }',
    '{\n  "q": "ü",\n  "n": 1E2\n}',
)
"""One object, as models may write it."""


def byte_alphabet():
    """GPT-2's printable character for each byte."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + number) for number, byte in enumerate(others)}


@pytest.fixture(scope="module")
def ranks():
    """The tokens' bytes and ids."""
    text = importlib.resources.files("dashscope").joinpath("resources/qwen.tiktoken").read_bytes()
    lines = (line.split() for line in text.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def merge_of(token, ranks):
    """The two tokens that byte-pair merging makes `token` of: merging stops when one step is left."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        first = min(range(len(pairs)), key=pairs.__getitem__)
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


@pytest.fixture(scope="module")
def tokenizer(ranks):
    alphabet = byte_alphabet()

    def spelled(token):
        return "".join(alphabet[byte] for byte in token)

    merges = [tuple(map(spelled, merge_of(token, ranks))) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    made = Tokenizer(models.BPE(vocab={spelled(token): rank for token, rank in ranks.items()}, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    made.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    return made


def test_the_vocabulary_is_the_models_own(tokenizer):
    assert tokenizer.encode("Hello world").ids == [9707, 1879]
    assert tokenizer.encode("<|im_start|>").ids == [151644]


@pytest.fixture(scope="module", params=["qwen3", "qwen2_5"])
def chat_format(request, tokenizer):
    template = (TEMPLATES / f"{request.param}.jinja").read_text(encoding="utf-8")
    return ChatFormat(tokenizer, {"default": template}, special_tokens={"eos_token": "<|im_end|>"})


class Conversation:
    """A random agent and a random model: what they say, and how each of them writes it, is drawn."""

    def __init__(self, chat_format, ranks, seed):
        self.random = Random(seed)
        self.format = chat_format
        self.ranks = ranks
        self.builder = PromptBuilder(chat_format)
        self.messages = [{"role": "user", "content": self.text()}]
        self.calls = 0

    def text(self):
        return "".join(self.random.choices(PIECES, k=self.random.randint(1, 8)))

    def sampled(self):
        """An answer's tokens."""
        text = f"<think>\n{self.text()}\n</think>\n\n" if self.random.random() < 0.3 else ""
        text += self.text() if self.random.random() < 0.8 else ""
        for _ in range(self.random.choice([0, 0, 1, 2])):
            call = f'{{"name": "查找", "arguments": {self.random.choice(LAYOUTS)}}}'
            text += f"{self.random.choice(['', NEWLINE])}<tool_call>{NEWLINE}{call}{NEWLINE}</tool_call>"
        return [*self.cut(text), *self.format.encode("<|im_end|>")]

    def cut(self, text):
        """Tokens of the text with borders where no tokenizer would put them, inside characters too."""
        ids = []
        for part in re.split(f"({'|'.join(MARKUP)})", text):
            data = b"" if part in MARKUP else part.encode()
            ids += self.format.encode(part) if part in MARKUP else []
            while data:
                size = self.random.choice([size for size in range(1, 7) if data[:size] in self.ranks])
                ids.append(self.ranks[data[:size]])
                data = data[size:]
        return ids

    def answer_message(self, ids):
        parsed = parse(self.format, ids, TOOLS)
        message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.tool_calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{self.calls}_{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(parsed.tool_calls)
            ]
        return message

    def as_sent_back(self, message):
        """The answer as some framework puts it into the next request."""
        sent = copy.deepcopy(message) | self.random.choice([{}, {"name": "me"}, {"refusal": None, "annotations": []}])
        if self.random.random() < 0.5:
            sent.pop("reasoning_content", None)
        if sent["content"] is not None and self.random.random() < 0.5:
            sent["content"] = [{"type": "text", "text": sent["content"]}]
        for call in sent.get("tool_calls", ()):
            call["id"] = self.random.choice(["", "new_"]) + call["id"]
            arguments = json.loads(call["function"]["arguments"])
            ascii_only, sort = self.random.random() < 0.5, self.random.random() < 0.5
            call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=ascii_only, sort_keys=sort)
        return sent

    def turn(self):
        """Ask, answer, and go on; returns the prompt, the sampled ids, the answer and the messages sent."""
        sent_before = list(self.messages)
        prompt = self.builder.build("a", self.messages, TOOLS)
        ids = self.sampled()
        message = self.answer_message(ids)
        self.builder.record("a", prompt, ids, message)
        self.calls += 1
        sent = self.as_sent_back(message)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": self.text()} for call in sent.get("tool_calls", ())
        ]
        self.messages = [*self.messages, sent, *(results or [{"role": "user", "content": self.text()}])]
        return prompt, ids, message, sent_before


def holds(ids, part):
    packed, wanted = ids.pack(), TokenIds(part).pack()
    return any(packed.startswith(wanted, place) for place in range(0, len(packed), 4))


def assert_reads_as(chat_format, prompt, messages):
    """Message for message the text of a fresh rendering, or an answer that says the same."""
    read = chat_format.decode(list(prompt.ids)).split("<|im_start|>")
    written = chat_format.render(messages, TOOLS).split("<|im_start|>")
    assert len(read) == len(written)
    for mine, fresh in zip(read, written, strict=True):
        if normalize("NFC", mine) != normalize("NFC", fresh):
            assert mine.startswith("assistant\n")
            said, meant = (
                chat_format.parse_text(text.removeprefix("assistant\n").rstrip().removesuffix("<|im_end|>"), TOOLS)
                for text in (mine, fresh)
            )
            assert (said.content or "").strip() == (meant.content or "").strip()
            assert (said.reasoning or "").strip() == (meant.reasoning or "").strip()
            assert [(c.name, json.loads(c.arguments)) for c in said.tool_calls] == [
                (c.name, json.loads(c.arguments)) for c in meant.tool_calls
            ]


def test_no_sampled_token_changes_unless_a_fork_says_so(chat_format, ranks):
    forks = Counter()
    for seed in range(CONVERSATIONS):
        conversation = Conversation(chat_format, ranks, seed)
        before, answers = TokenIds(), []
        for _ in range(4):
            prompt, ids, message, sent = conversation.turn()
            given = iter([message for _, message in answers])
            forks[prompt.fork] += 1
            if prompt.fork is None:
                assert prompt.ids.pack().startswith(before.pack())
            else:
                assert prompt.fork == "reasoning_stripped"
                kept = [sampled for sampled, _ in answers if "<think>" not in chat_format.decode(sampled)]
                assert all(holds(prompt.ids, sampled) for sampled in kept)
            assert_reads_as(chat_format, prompt, [next(given) if is_answer(each) else each for each in sent])
            before = prompt.ids + ids
            answers.append((ids, message))
    assert forks[None] > CONVERSATIONS
    assert forks["reasoning_stripped"] > CONVERSATIONS // 10


def is_answer(message):
    return message["role"] == "assistant"
