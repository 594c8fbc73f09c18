"""A real vLLM server on the CPU beside our learner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from astune.backbone.local.engine import load_engine
from astune.backbone.policies.compared import whole_row
from astune.backbone.vllm.settings import make_served
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import ConfigError, TrainingError
from astune.support.http.serving import bound_socket
from astune.training.engine import Engine
from astune.types import Generation, Sample, Sampling, Span, Timeline

PROMPT = [5, 60, 700, 8, 90, 12]


def config_for(vllm: dict[str, Any], **model: Any) -> AstuneConfig:
    return AstuneConfig.model_validate(
        {
            "backbone": "local",
            "model": {"device": "cpu", "max_model_len": 256, **model},
            "rollout": {"engine": "vllm", "vllm": vllm, "max_tokens": 16, "max_concurrent": 8},
            "trainer": {"learning_rate": 0.01},
        }
    )


def sample_of(generation: Generation, temperature: float) -> Sample:
    ids = [*PROMPT, *generation.output_ids]
    span = Span(0, len(PROMPT), len(ids), generation.policy_version, temperature, True, list(generation.logprobs))
    return Sample(Timeline("", ids, (span,)), (1.0,), (1.0 / len(span),), "t", "e")


async def differences(engine: Engine, sampling: Sampling) -> float:
    """How far what the server recorded is from what the learner says of the same tokens, at most."""
    generation = await engine.policy.generate(PROMPT, sampling)
    (own,) = await engine.learner.logprobs([sample_of(generation, sampling.temperature)])
    return max(abs(a - b) for a, b in zip(own, generation.logprobs, strict=True))


async def trained(engine: Engine) -> None:
    """Updates and hand-overs; each time what the server says is what the learner says, and no longer what it was."""
    row = whole_row([*PROMPT, 100, 101, 102])
    for number in range(3):
        assert await engine.learner.publish() == number
        assert await differences(engine, Sampling(16, temperature=1.0, seed=3)) < 1e-3
        assert await differences(engine, Sampling(16, temperature=0.7)) < 1e-3
        assert (await engine.policy.generate(PROMPT, Sampling(4))).policy_version == number
        (before,) = await engine.learner.logprobs([row])
        generation = await engine.policy.generate(PROMPT, Sampling(16))
        done = await engine.learner.update([sample_of(generation, 1.0)], 0.01)
        assert not done.skipped
        assert done.metrics["servers/logprob_difference"] < 1e-3
        (after,) = await engine.learner.logprobs([row])
        assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.01


def processes_of(test: int) -> list[str]:
    """The names of the processes that have the mark of this test in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "environ").exists():
            try:
                if f"ASTUNE_TEST_MARK={test}\0".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "comm").read_text())
            except OSError:
                continue
    return found


async def checked(engine: Engine) -> None:
    """Ids and reasons are exact, and weights that did not arrive are found."""
    await engine.learner.publish()
    greedy = Sampling(16, temperature=0.0)
    first = await engine.policy.generate(PROMPT, greedy)
    stop = Sampling(16, temperature=0.0, stop_token_ids=(first.output_ids[1],))
    cut = await engine.policy.generate(PROMPT, stop)
    assert cut.output_ids == first.output_ids[: first.output_ids.index(first.output_ids[1]) + 1]
    assert (first.finish_reason, cut.finish_reason) == ("length", "stop")
    learner: Any = engine.learner
    parameter = next(learner._learner._loaded.model.parameters())
    with torch.no_grad():
        parameter.mul_(3.0)
    learner._weights._checked = False  # it is asked to compare, and is told nothing of the change
    with pytest.raises(TrainingError, match=r"are .* apart on average, expected at most 0.001 .*trainer"):
        await engine.learner.publish()


async def told_of_a_kill(engine: Engine) -> None:
    learner: Any = engine.learner
    os.kill(learner._weights._server._process.pid, signal.SIGKILL)
    error = await asyncio.wait_for(engine.lost(), 60)
    assert "the vLLM server died" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 4], ids=["all weights", "adapter"])
def test_a_server_follows_the_learner_and_is_checked(
    rank: int | None, vllm_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTUNE_TEST_MARK", str(os.getpid()))
    engine = load_engine(config_for({"python": vllm_python}, lora={"rank": rank}))
    try:
        assert processes_of(os.getpid())
        asyncio.run(trained(engine))
        asyncio.run(checked(engine))
        asyncio.run(told_of_a_kill(engine))
    finally:
        engine.close()
    for _ in range(300):  # what is killed is gone once whoever takes in orphans has noticed
        if not processes_of(os.getpid()):
            return
        time.sleep(0.1)
    raise AssertionError(processes_of(os.getpid()))


@contextmanager
def started(config: AstuneConfig, python: str, log: Path) -> Iterator[str]:
    """The address of a server that somebody started as an error says."""
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    wanted = make_served(config, resolve_model_dir(config.model.path), dtype="float32", context_length=256)
    command = wanted.show_command().replace(" python -m", f" exec {python} -m")
    command += f" --enforce-eager --no-enable-chunked-prefill --port {port}"
    with log.open("w") as written:
        process = subprocess.Popen(["bash", "-c", command], stdout=written, stderr=written, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        while not answers(address):
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"{address}/v1"
    finally:
        process.terminate()
        process.wait(60)


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_a_server_that_runs_already_takes_the_weights_of_one_run_after_another(
    vllm_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    with started(config_for({}), vllm_python, tmp_path / "log") as address:
        config = config_for({"base_url": address})
        config = config.model_copy(update={"runs_dir": str(tmp_path / "runs")})
        for _ in range(2):
            engine = load_engine(config)
            try:
                asyncio.run(trained(engine))
            finally:
                engine.close()
        assert answers(address.removesuffix("/v1"))
        with pytest.raises(ConfigError, match=r"(?s)--max-lora-rank is None.*Start it with:.*--enable-lora"):
            load_engine(config_for({"base_url": address}, lora={"rank": 4}))
