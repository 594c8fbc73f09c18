"""The command and the variables that start a server."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.config.rollout import VllmConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, MissingDependency

IN_SERVER = Path(__file__).parent / "in_server"
NAME = "policy"
"""The model's name on the server."""
EXTENSION = "astune_weights.WeightsFromFolder"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM makes room for; an adapter of another takes the next."""
ALONE, BESIDE_TRAINER = 0.9, 0.4
"""Parts of a GPU's memory."""


@dataclass(frozen=True)
class Served:
    """The start of a server, by the run or by others: options behind the model, and variables. `logprobs` is
    vLLM's `logprobs_mode`, `dtype` its name of one."""

    model: Path
    options: Mapping[str, str]
    environment: Mapping[str, str]
    logprobs: str
    dtype: str
    context_length: int
    rank: int | None

    def command(self) -> list[str]:
        """Behind the interpreter."""
        options = [part for name, value in self.options.items() for part in (name, value) if part]
        return ["-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), *options]

    def show_command(self) -> str:
        """The command for people who start one."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, "python", shlex.join(self.command())])


def make_served(config: AstuneConfig, model: Path, *, dtype: str, context_length: int) -> Served:
    cut = config.rollout.top_p < 1.0 or config.rollout.top_k > 0
    logprobs = "raw_logprobs" if cut else "processed_logprobs"
    options = {"--served-model-name": NAME, "--enable-scale-out": "", "--generation-config": "vllm"}
    options |= {"--logprobs-mode": logprobs, "--dtype": dtype, "--max-model-len": str(context_length)}
    options |= {"--max-num-seqs": str(config.rollout.max_concurrent), "--seed": str(config.seed % 2**32)}
    environment = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(IN_SERVER)}
    if config.model.lora.rank is None:
        options["--worker-extension-cls"] = EXTENSION
        rank = None
    else:
        rank = next(rank for rank in RANKS if rank >= config.model.lora.rank)
        options |= {"--enable-lora": "", "--max-loras": "1", "--max-lora-rank": str(rank)}
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return Served(model, options, environment, logprobs, dtype, context_length, rank)


@dataclass(frozen=True)
class ServerSettings:
    """The command that serves at a socket's path which is still to be added, and the variables it needs besides.
    `shares` says that it has the trainer's GPU."""

    command: Sequence[str]
    environment: Mapping[str, str]
    shares: bool


def settings_of(config: AstuneConfig, served: Served, *, device: str, index: int) -> ServerSettings:
    """A server of the run, whose trainer computes on `device`, "cuda" or "cpu", of that `index`. Raises ConfigError for
    a setting that is of no use on the trainer's device."""
    vllm = config.rollout.vllm
    find_vllm_version(vllm)
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
    command = [vllm.python or sys.executable, *served.command(), "--disable-uvicorn-access-log"]
    environment = {**served.environment, "VLLM_NO_USAGE_STATS": "1"}
    if device == "cuda":
        share = vllm.gpu_memory_utilization or (BESIDE_TRAINER if shares else ALONE)
        command += ["--gpu-memory-utilization", str(share), "--tensor-parallel-size", str(len(gpus))]
        command += ["--enable-sleep-mode"] if shares else []
        environment["CUDA_VISIBLE_DEVICES"] = visible(gpus)
    else:
        command.append("--enforce-eager")  # to compile takes minutes, and a CPU is for trying it out
        # vLLM 0.32 dies on a CPU of a prompt in pieces that has a seed ("CPU Generator does not use offset")
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(served.context_length, 8192))]
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    return ServerSettings(command, environment, shares)


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


def find_vllm_version(config: VllmConfig) -> str:
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
