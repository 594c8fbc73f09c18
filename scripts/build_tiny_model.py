"""Make the model that ships with ASTune: `python -m scripts.build_tiny_model` (some fifteen minutes on one core).

From random weights: a tokenizer is trained on the texts of the demo's problems, then a causal language model of
Qwen3's architecture is trained on conversations of a sloppy solver (`tiny_model/demonstrations.py`). Equal seeds
give equal weights with the same machine, library versions and number of threads.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM
from transformers.cache_utils import DynamicCache

from scripts.tiny_model.demonstrations import Habits, demonstrations
from scripts.tiny_model.tokenizer import save_tokenizer, train_tokenizer
from tutorial.math_agent.make_tasks import problems

ROOT = Path(__file__).resolve().parents[1]
CONTEXT_LENGTH = 2048
OTHER_TOKENS = 0.1
"""Weight in the loss of tokens that the assistant did not write; the assistant's count 1."""


@dataclass(frozen=True)
class Row:
    """One conversation as tokens: the system message and the rest; `weights[i]` is what predicting `ids[i]` counts."""

    system: tuple[int, ...]
    ids: list[int]
    weights: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "astune" / "assets" / "tiny_model")
    parser.add_argument("--conversations", type=int, default=40_000)
    parser.add_argument("--batch", type=int, default=32, help="conversations in one optimizer step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="the shipped weights were made with 1")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    texts = [problem.query for problem in islice(problems("warmup", args.seed), 20_000)]
    save_tokenizer(train_tokenizer(texts), args.out, CONTEXT_LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    model = new_model(tokenizer, args.hidden, args.layers)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")

    talks = islice(demonstrations(args.seed, Habits()), args.conversations)
    rows = [encode(talk.messages, talk.tools, tokenizer) for talk in talks]
    print(f"{len(rows):,} conversations")
    warm_up(model, rows, args.batch, args.learning_rate, random.Random(args.seed))
    model.save_pretrained(args.out)


def new_model(tokenizer: PreTrainedTokenizerBase, hidden: int, layers: int) -> Qwen3ForCausalLM:
    """Random weights in the shape of a very small Qwen3."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        intermediate_size=3 * hidden,
        max_position_embeddings=CONTEXT_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=[config.eos_token_id, config.pad_token_id], pad_token_id=config.pad_token_id
    )
    return model


def encode(messages: tuple[dict, ...], tools: tuple[dict, ...], tokenizer: PreTrainedTokenizerBase) -> Row:
    """Render a conversation and find the tokens that the assistant wrote, `<|im_end|>` included."""
    text = tokenizer.apply_chat_template(list(messages), tools=list(tools), tokenize=False)
    ids = tokenizer(text)["input_ids"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    start = ids.index(end) + 2  # the line break after it included
    system, ids = tuple(ids[:start]), ids[start:]
    header = tokenizer("<|im_start|>assistant\n")["input_ids"]
    weights, writing = [], False
    for i, token in enumerate(ids):
        writing = writing or ids[i - len(header) : i] == header
        weights.append(1.0 if writing else OTHER_TOKENS)
        writing = writing and token != end
    return Row(system, ids, weights)


def batches(rows: list[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Every row once; rows of one batch have the same system message and like lengths."""
    shuffled = rng.sample(rows, len(rows))
    span = 32 * size
    for chunk in (shuffled[i : i + span] for i in range(0, len(rows), span)):
        chunk.sort(key=lambda row: (row.system, len(row.ids)))
        alike = [list(group) for _, group in groupby(chunk, key=lambda row: row.system)]
        slices = [group[i : i + size] for group in alike for i in range(0, len(group), size)]
        yield from rng.sample(slices, len(slices))


def warm_up(model: Qwen3ForCausalLM, rows: list[Row], size: int, learning_rate: float, rng: random.Random) -> None:
    """Supervised training, one pass over the rows: AdamW, linear rise, cosine fall."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    plan = list(batches(rows, size, rng))
    total = len(plan)
    began = time.monotonic()
    for step, batch in enumerate(plan):
        rate = min(1.0, (step + 1) / 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * step / total)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        loss, written = batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step + 1 == total:
            took = time.monotonic() - began
            print(f"step {step + 1}/{total}  loss per written token {written:.4f}  {took:.0f} s", flush=True)


def batch_loss(model: Qwen3ForCausalLM, batch: list[Row]) -> tuple[torch.Tensor, float]:
    """Weighted cross-entropy, and the plain one of the assistant's tokens alone. The system message that the rows
    share is computed once."""
    width = max(len(row.ids) for row in batch)
    pad = model.config.pad_token_id
    ids = torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row in batch])
    weights = torch.tensor([row.weights + [0.0] * (width - len(row.ids)) for row in batch])[:, 1:]
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([batch[0].system]), past_key_values=cache, logits_to_keep=1)
    cache.batch_repeat_interleave(len(batch))
    logits = model(input_ids=ids[:, :-1], past_key_values=cache).logits
    losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    written = weights == 1.0
    return (losses * weights).sum() / weights.sum(), losses[written].mean().item()


if __name__ == "__main__":
    main()
