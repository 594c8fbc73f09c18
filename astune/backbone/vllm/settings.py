"""What a server is started with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.config.schema import AstuneConfig
from astune.config.vllm import VllmConfig
from astune.errors import ConfigError, MissingDependency

IN_SERVER = Path(__file__).parent / "in_server"
NAME = "policy"
"""The model's name on the server."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for; an adapter of another takes the next."""
ALONE, BESIDE_TRAINER = 0.9, 0.4
"""Parts of a GPU's memory."""


@dataclass(frozen=True)
class ServerSettings:
    """The command that serves at a socket's path which is still to be added, and the variables it needs besides.
    `shares` says that it has the trainer's GPU; `logprobs` is vLLM's `logprobs_mode`."""

    command: Sequence[str]
    environment: dict[str, str]
    shares: bool
    logprobs: str


def settings_of(
    config: AstuneConfig, model: Path, *, device: str, index: int, dtype: str, context_length: int
) -> ServerSettings:
    """The server of a run whose trainer computes on `device`, "cuda" or "cpu", of that `index`, in `dtype`. Raises
    ConfigError for what goes only with GPUs, and without any."""
    vllm = config.rollout.vllm
    served_version(vllm)
    for name in ("gpus", "gpu_memory_utilization"):
        if device == "cpu" and getattr(vllm, name):
            raise ConfigError(f"astune.rollout.vllm.{name}: the model is on the CPU; take the key out")
    gpus = vllm.gpus or (index,)
    shares = device == "cuda" and index in gpus
    if shares and config.synchronizer.style == "async":
        raise ConfigError(
            "astune.rollout.vllm.gpus: with astune.synchronizer.style 'async' the server answers while the model is "
            f"trained, so it cannot sleep on GPU {index}, the trainer's; name others, or set style 'fixed'"
        )
    cut = config.rollout.top_p < 1.0 or config.rollout.top_k > 0
    logprobs = "raw_logprobs" if cut else "processed_logprobs"
    command = [vllm.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--served-model-name", NAME, "--enable-scale-out"]
    command += ["--generation-config", "vllm", "--logprobs-mode", logprobs, "--dtype", dtype]
    command += ["--max-model-len", str(context_length), "--max-num-seqs", str(config.rollout.max_concurrent)]
    command += ["--seed", str(config.seed % 2**32), "--disable-uvicorn-access-log"]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(IN_SERVER)}
    if config.model.lora.rank is None:
        command += ["--worker-extension-cls", "astune_weights.WeightsFromFolder"]
    else:
        rank = next(rank for rank in RANKS if rank >= config.model.lora.rank)
        command += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(rank)]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if device == "cuda":
        share = vllm.gpu_memory_utilization or (BESIDE_TRAINER if shares else ALONE)
        command += ["--gpu-memory-utilization", str(share), "--tensor-parallel-size", str(len(gpus))]
        command += ["--enable-sleep-mode"] if shares else []
        environment["CUDA_VISIBLE_DEVICES"] = visible(gpus)
    else:
        command.append("--enforce-eager")  # to compile takes minutes, and a CPU is for trying it out
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    return ServerSettings(command, environment, shares, logprobs)


LEAST = (0, 32)
"""The first version that was tried."""
ASK = """
from importlib import metadata
for name in ("vllm", "vllm-cpu"):
    try:
        print(metadata.version(name))
        break
    except metadata.PackageNotFoundError:
        pass
"""


def served_version(config: VllmConfig) -> str:
    """The version of vLLM that `astune.rollout.vllm.python` has. Raises MissingDependency where it has none, or one
    that is too old."""
    python = config.python or sys.executable
    try:
        asked = subprocess.run([python, "-I", "-c", ASK], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(
            f"astune.rollout.vllm.python {python!r} is no interpreter that runs: {error}"
        ) from error
    version = asked.stdout.strip()
    if not version:
        raise MissingDependency(
            f"{python} has no vLLM. As vLLM wants an older transformers than ASTune, give it an environment of its "
            "own, and name its interpreter in astune.rollout.vllm.python"
        )
    if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < LEAST:
        raise MissingDependency(f"{python} has vLLM {version}; {'.'.join(map(str, LEAST))} is the oldest that works")
    return version


def visible(gpus: Sequence[int]) -> str:
    """The GPUs that the run knows by these numbers, as the driver knows them."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    beyond = [number for number in gpus if names and number >= len(names)]
    if beyond:
        raise ConfigError(f"astune.rollout.vllm.gpus: there is no GPU {beyond[0]}: CUDA_VISIBLE_DEVICES names {names}")
    return ",".join(names[number] if names else str(number) for number in gpus)
