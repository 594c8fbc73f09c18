"""A text that is tokenized in pieces has the ids of the whole."""

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from astune.context_tracker.prompt.encoding import TextEncoder
from astune.errors import WorkflowError
from tests.rows import each_row

CUT = "<|im_start|>"
WORDS = (
    CUT,
    "<|im_start",
    "|>",
    "<",
    "<|im_end|>",
    "<|im_start|>x",
    "user\n",
    " the",
    "the ",
    "  ",
    "\n\n",
    "Thé",
    "e\u0301",
)
TEXTS = st.lists(st.sampled_from((*WORDS, CUT, "é", "you", "42")), max_size=12).map("".join)
NORMALIZERS = {
    "none": None,
    "nfc": normalizers.NFC(),
    "lower": normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    "strip": normalizers.Strip(),
    "prepend": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
}
SPLITS = {
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes after a space": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "first": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "always": pre_tokenizers.Metaspace(prepend_scheme="always"),
    "never": pre_tokenizers.Metaspace(prepend_scheme="never"),
}
FLAGS = {
    "plain": {},
    "lstrip": {"lstrip": True},
    "rstrip": {"rstrip": True},
    "single word": {"single_word": True},
    "normalized": {"normalized": True},
}


@cache
def made(normalizer: str, split: str, flags: str, others: tuple[str, ...] = ("<|im_end|>",)) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = SPLITS[split]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["the user you 42 thé <|im_start|> user\n the  the\n\n"] * 9, trainer)
    tokenizer.normalizer = NORMALIZERS[normalizer]
    tokenizer.add_tokens([AddedToken(CUT, **({"normalized": False} | FLAGS[flags]))])
    tokenizer.add_special_tokens([AddedToken(other, rstrip=flags == "rstrip") for other in others])
    return tokenizer


@each_row(("normalizer", "split"), list(product(NORMALIZERS, SPLITS)))
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), flags=st.sampled_from(list(FLAGS)))
@settings(max_examples=40)
def test_the_ids_of_the_pieces_are_those_of_the_text(normalizer, split, flags, texts):
    tokenizer = made(normalizer, split, flags)
    encoder = TextEncoder(tokenizer, f"{CUT}assistant\n")
    for text in (*texts, *texts):
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("other", ["a<", "<|im_start|>x", "say <|im_start|>", "<|im_start|><|im_start|>"])
@given(texts=st.lists(TEXTS, max_size=4))
@settings(max_examples=40)
def test_another_token_that_may_hold_the_one_that_opens_prompts_is_found_all_the_same(other, texts):
    tokenizer = made("none", "bytes", "plain", (other,))
    encoder = TextEncoder(tokenizer, f"{CUT}assistant\n")
    for text in (f"a{CUT}x", f"say {CUT}{CUT}", *texts):
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_a_piece_that_was_tokenized_is_not_tokenized_again(monkeypatch):
    class Counted:
        asked: list[str] = []  # noqa: RUF012

        def __init__(self, tokenizer):
            self.get_added_tokens_decoder, self._encode = tokenizer.get_added_tokens_decoder, tokenizer.encode

        def encode(self, text, **options):
            self.asked.append(text)
            return self._encode(text, **options)

    encoder = TextEncoder(Counted(made("none", "bytes", "plain")), f"{CUT}assistant\n")
    for question in ("you", "42"):
        encoder.encode(f"{CUT}the the{CUT}user\n{question}{CUT}assistant\n")
    assert Counted.asked == [f"{CUT}the the", f"{CUT}user\nyou", f"{CUT}assistant\n", f"{CUT}user\n42"]


def test_ids_that_were_given_may_be_changed():
    encoder = TextEncoder(made("none", "bytes", "plain"), CUT)
    encoder.encode("the you").append(0)
    assert encoder.encode("the you") == made("none", "bytes", "plain").encode("the you").ids


@pytest.mark.parametrize("text", ["\ud83d", f"{CUT}a{CUT}\ud83d", "\ud83d" * 2**17])
def test_half_of_a_surrogate_pair_is_an_error(text):
    with pytest.raises(WorkflowError, match="surrogate"):
        TextEncoder(made("none", "bytes", "plain"), CUT).encode(text)
