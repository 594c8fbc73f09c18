"""What a vocabulary tells without tokenizing: a bound on the number of tokens that always holds, and their bytes."""

import threading
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.encoding import LONG_TEXT, Vocabulary
from astune.support.resources import tiny_model_dir
from tests.rows import each_row

TEMPLATE = {"default": "{% for message in messages %}{{ message.content }}{% endfor %}"}


def byte_level(*longer):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces = [*sorted(alphabet), *(piece[: end + 1] for piece in longer for end in range(1, len(piece)))]
    merges = [(piece[:end], piece[end]) for piece in longer for end in range(1, len(piece))]
    made = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def with_normalizer(normalizer, *longer):
    made = byte_level(*longer)
    made.normalizer = normalizer
    return made


def sentence_piece():
    """As Llama 2 and Gemma have them: a mark for a space, and bytes for what is not known."""
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581", "ab")]
    model = models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, byte_fallback=True)
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


BOUNDED = {
    "byte-level": byte_level("abc"),
    "composed": with_normalizer(normalizers.NFC(), "abc"),
    "sentence piece": sentence_piece(),
    "the shipped model": Tokenizer.from_file(str(tiny_model_dir() / "tokenizer.json")),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_text_has_fewer_tokens_than_its_bytes_allow(name):
    tokenizer = BOUNDED[name]
    most = Vocabulary(tokenizer).most_bytes()
    pieces = st.sampled_from(["abc", " ", "a", "\u1fbe\u0308\u0301", "\u212a", "e\u0301", "\u1112\u1161\u11ab", "🌍"])

    @settings(max_examples=100)
    @given(st.text(max_size=50) | st.lists(pieces, max_size=50).map("".join))
    def holds(text):
        assert len(text.encode()) <= most * len(tokenizer.encode(text, add_special_tokens=False).ids)

    holds()
    if name == "composed":
        assert most >= 7 / 2


def without_a_byte():
    made = byte_level()
    vocabulary = {piece: number for number, piece in enumerate(sorted(made.get_vocab())[1:])}
    made.model = models.BPE(vocab=vocabulary, merges=[])
    return made


def with_part(name, part):
    made = byte_level()
    setattr(made, name, part)
    return made


def stripping():
    made = byte_level()
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return made


UNBOUNDED = {
    "unknown words are one token": Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
    "unknown characters are dropped": Tokenizer(models.BPE({"a": 0}, [])),
    "a byte is not known": without_a_byte(),
    "white space is dropped": with_part("pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
    "a separator is dropped": with_part("pre_tokenizer", pre_tokenizers.Split("x", "removed")),
    "text is stripped": with_part("normalizer", normalizers.Strip()),
    "runs become one": with_part("normalizer", normalizers.Replace(Regex(" +"), " ")),
    "a special token takes white space with it": stripping(),
}


@each_row("name", UNBOUNDED)
def test_a_vocabulary_without_a_bound_has_none(name):
    assert Vocabulary(UNBOUNDED[name]).most_bytes() is None
    assert ChatFormat(UNBOUNDED[name], TEMPLATE, special_tokens={}).least_tokens("a" * 1000) == 0


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=100)
@given(text=st.text(max_size=30))
def test_the_bytes_of_tokens_are_those_of_the_text(name, text):
    tokenizer = BOUNDED[name]
    chat_format = ChatFormat(tokenizer, TEMPLATE, special_tokens={})
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    written = b"".join(chat_format.token_bytes(ids))
    assert written in (chat_format.decode(ids).encode(), b" " + chat_format.decode(ids).encode())


def test_the_bytes_of_a_special_token_behind_half_of_a_character_are_its_own():
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|end|>"])
    chat_format = ChatFormat(tokenizer, TEMPLATE, special_tokens={})
    ids = [*chat_format.encode("🌍")[:2], tokenizer.token_to_id("<|end|>")]
    assert chat_format.token_bytes(ids) == [b"\xf0", b"\x9f", b"<|end|>"]


def test_long_texts_have_the_same_tokens():
    chat_format = ChatFormat(BOUNDED["the shipped model"], TEMPLATE, special_tokens={})
    chance = Random(0)
    words = [chance.choice(["word", " 12", "\n", "é", "🌍", "<|im_end|>", "  "]) for _ in range(40_000)]
    text = "".join(words)
    assert len(text) > LONG_TEXT
    assert chat_format.encode(text) == chat_format._tokenizer.encode(text, add_special_tokens=False).ids


def test_other_threads_run_while_a_long_text_is_tokenized():
    chat_format = ChatFormat(BOUNDED["the shipped model"], TEMPLATE, special_tokens={})
    done, looks = threading.Event(), []

    def look():
        while not done.is_set():
            looks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    began = time.perf_counter()
    chat_format.encode("word " * 200_000)
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(began < at < ended for at in looks) > 5
