"""Another engine, as it comes. Run by `sampler.py`, with the Python of an environment that has it: a line of JSON says
which and what to load, each line after it what to sample.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

Prompts: TypeAlias = list[list[int]]
Answered: TypeAlias = Callable[[Prompts, int], int]
"""Tokens in answers to prompts, of so many new ones each."""


@contextmanager
def vllm(given: dict[str, Any]) -> Iterator[tuple[Answered, Callable[[], object]]]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        given["model"],
        dtype=given["dtype"],
        max_model_len=given["length"],
        max_num_seqs=given["slots"],
        skip_tokenizer_init=True,
        enable_prefix_caching=given["shared"],
    )

    def answered(prompts: Prompts, new: int) -> int:
        sampling = SamplingParams(
            max_tokens=new, min_tokens=new, ignore_eos=True, temperature=1.0, logprobs=0, detokenize=False
        )
        found = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in found)

    yield answered, engine.reset_prefix_cache


@contextmanager
def continuous(given: dict[str, Any]) -> Iterator[tuple[Answered, Callable[[], object]]]:
    """transformers' continuous batching."""
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=given["dtype"]).eval()
    sampling = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, eos_token_id=-1, pad_token_id=0)
    config = ContinuousBatchingConfig(allow_block_sharing=given["shared"])
    with model.continuous_batching_context_manager(
        generation_config=sampling, continuous_batching_config=config
    ) as engine:

        def answered(prompts: Prompts, new: int) -> int:
            engine.add_requests(inputs=prompts, max_new_tokens=new)
            tokens, left = 0, len(prompts)
            while left:
                found = engine.get_result(timeout=600)
                assert found is not None and found.error is None, found
                if found.is_finished():
                    tokens, left = tokens + len(found.generated_tokens), left - 1
            return tokens

        yield answered, lambda: None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM tells much
    given = json.loads(sys.stdin.readline())
    with {"vllm": vllm, "continuous": continuous}[given["engine"]](given) as (answered, forget):
        answers.write("{}\n")
        answers.flush()
        for line in sys.stdin:
            asked = json.loads(line)
            started = time.perf_counter()
            tokens = answered(asked["prompts"], asked["new"])
            seconds = time.perf_counter() - started
            forget()  # as a sampler does when the weights have changed
            answers.write(json.dumps({"seconds": seconds, "tokens": tokens}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
