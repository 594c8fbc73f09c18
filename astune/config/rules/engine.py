"""Values of `astune.rollout.engine` and `astune.rollout.vllm` that contradict others."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.rollout import VllmConfig
from astune.config.schema import AstuneConfig

UNSET = VllmConfig()


def engine_contradictions(astune: AstuneConfig, *, plays: bool) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it; `plays` says that the run asks a policy at all."""
    if not astune.traits.own_engine:
        return  # the backbone refuses each of these keys, and says why
    if astune.rollout.engine == "torch":
        for name, value in astune.rollout.vllm:
            if value != getattr(UNSET, name):
                yield (
                    f"astune.rollout.vllm.{name}",
                    "there is no vLLM without astune.rollout.engine: vllm; set it, or take the key out",
                )
        return
    if astune.rollout.vllm.base_url is not None:
        for name, value in astune.rollout.vllm:
            if name != "base_url" and value != getattr(UNSET, name):
                yield (
                    f"astune.rollout.vllm.{name}",
                    "the server at astune.rollout.vllm.base_url runs already, as it was started; take one of them out",
                )
    yield from _adapters(astune)
    yield from _sampling(astune)
    if not plays:
        yield (
            "astune.rollout.engine",
            f"the method {astune.algorithm.method!r} plays no episodes that vLLM could answer; take the key out",
        )


def _adapters(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    lora = astune.model.lora
    if lora.dora:
        yield "astune.model.lora.dora", "vLLM does not serve DoRA; expected false, or astune.rollout.engine: torch"
    if lora.base != "dtype":
        yield (
            "astune.model.lora.base",
            f"vLLM would serve the weights below the adapters as they are in the file, not in {lora.base!r}; expected "
            "'dtype', or astune.rollout.engine: torch",
        )
    if lora.rank is not None and lora.rank > 512:
        yield "astune.model.lora.rank", f"got {lora.rank}; vLLM serves adapters of rank 512 at most"


def _sampling(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    rollout = astune.rollout
    if (rollout.top_p < 1.0 or rollout.top_k > 0) and rollout.temperature not in (0.0, 1.0):
        yield (
            "astune.rollout.temperature",
            f"got {rollout.temperature:g} together with top_p or top_k: vLLM then tells no log-probabilities of the "
            "distribution before they cut it, and nothing could be trained; expected 1, or top_p 1 and top_k 0, or "
            "astune.rollout.engine: torch",
        )
