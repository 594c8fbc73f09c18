"""vLLM, as it comes. Run by `sampler.py`, with the Python of an environment that has it: a line of JSON says what to
load, each line after it what to sample.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it tells much
    given = json.loads(sys.stdin.readline())
    from vllm import LLM, SamplingParams

    engine = LLM(
        given["model"],
        dtype=given["dtype"],
        max_model_len=given["length"],
        max_num_seqs=given["slots"],
        skip_tokenizer_init=True,
        enable_prefix_caching=given["shared"],
    )
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        new = asked["new"]
        sampling = SamplingParams(
            max_tokens=new, min_tokens=new, ignore_eos=True, temperature=1.0, logprobs=0, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        started = time.perf_counter()
        found = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        engine.reset_prefix_cache()  # as a sampler forgets when the weights have changed
        answers.write(json.dumps({"seconds": seconds, "tokens": sum(len(each.outputs[0].token_ids) for each in found)}))
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
