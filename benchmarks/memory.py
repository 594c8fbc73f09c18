"""How far is the estimate of memory from what a process takes?

    .venv/bin/python benchmarks/memory.py

Each case is a process of its own: a Qwen3 of random weights samples one token and takes one update over a row of the
full length, on the CPU in float32. "Measured" is the largest resident size of the process, less what it was before the
model was loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping

DEFAULTS = {"hidden": 256, "layers": 6, "vocabulary": 8192, "tokens": 2048, "recompute": 0, "rank": 0}
CASES: dict[str, dict[str, int]] = {
    "all weights": {},
    "recomputed": {"recompute": 1},
    "adapter": {"rank": 8},
    "large vocabulary": {"vocabulary": 120_000},
    "wide": {"hidden": 512, "tokens": 1024},
    "long row": {"tokens": 6000, "recompute": 1, "hidden": 128},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=3, metavar=("WORK", "CASE", "FOLDER"), help="what each process is asked")
    child = parser.parse_args().child
    if child is not None:
        work, case, folder = child
        if work == "write":
            write(DEFAULTS | CASES[case], folder)
        else:
            print(*measure(DEFAULTS | CASES[case], folder, resident))
        return
    print("| case | estimated MiB | measured MiB | measured / estimated |\n| --- | --- | --- | --- |")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            run("write", case, folder)  # by itself, so that the other never held these weights
            estimated, measured = (float(word) / 2**20 for word in run("measure", case, folder).split()[-2:])
        print(f"| {case} | {estimated:,.0f} | {measured:,.0f} | {measured / estimated:.2f} |", flush=True)


def run(work: str, case: str, folder: str) -> str:
    command = [sys.executable, __file__, "--child", work, case, folder]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def write(case: Mapping[str, int], folder: str) -> None:
    """Write a model of random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    hidden = case["hidden"]
    shape = Qwen3Config(
        vocab_size=case["vocabulary"],
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=case["layers"],
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    Qwen3ForCausalLM(shape).save_pretrained(folder)


def measure(
    case: Mapping[str, int], folder: str, most: Callable[[], int], *, device: str = "cpu", dtype: str = "float32"
) -> tuple[int, int]:
    """Sample from the model in `folder` and train it: the bytes that are estimated, and by how many `most`, the largest
    memory so far, has grown."""
    from astune.backbone.local.learning.learner import LocalLearner
    from astune.backbone.local.model.model import load_model
    from astune.backbone.local.sampling.sampler import Sampler
    from astune.backbone.memory.model_size import read_size
    from astune.config.schema import AstuneConfig
    from astune.doctor.memory_estimate import Extent, GpuOfRun, estimate
    from astune.support.machine_memory import is_of_amd
    from astune.types import Sample, Sampling, Span, Timeline

    tokens = case["tokens"]
    config = AstuneConfig.model_validate(
        {
            "model": {
                "path": folder,
                "device": device,
                "dtype": dtype,
                "gradient_checkpointing": bool(case["recompute"]),
                "lora": {"rank": case["rank"] or None},
            },
            "rollout": {"max_concurrent": 2},
            "trainer": {"micro_batch_tokens": tokens},
        }
    )
    before = most()
    loaded = load_model(config.model)
    sampler = Sampler(loaded.sampling_model, slots=2, context_length=loaded.context_length)
    learner = LocalLearner(loaded, sampler, config.algorithm, config.trainer)
    prompt = [3 + 7 * place % 5000 for place in range(tokens)]
    span = Span(0, tokens // 2, tokens, 0, 1.0, True, [-9.0] * (tokens - tokens // 2))
    row = Sample(Timeline("agent", prompt, (span,)), (1.0,), (1 / tokens,), "task", "episode")

    async def step() -> None:
        await sampler.generate(prompt, Sampling(max_tokens=1, seed=0))
        for _ in range(2):  # AdamW makes its averages in the first
            await learner.update([row], 1e-4)

    asyncio.run(step())
    laid_out = device == "cpu" and is_of_amd()
    gpu = GpuOfRun(0, 0.0) if device == "cuda" else None  # its size matters beside a server alone
    reduced = dtype == "bfloat16"
    extent = Extent(reduced=reduced, trains=True, positions=tokens, tokens=tokens, laid_out=laid_out, gpu=gpu)
    return int(sum(estimate(read_size(loaded.directory), config, extent).values())), most() - before


def resident() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
