"""Is a server that others started what a run needs?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astune.backbone.vllm.server import NamedServer
from astune.backbone.vllm.settings import EXTENSION, Served
from astune.errors import ConfigError, TrainingError

KEY = "astune.rollout.vllm.base_url"


def check_server(server: NamedServer, served: Served) -> str:
    """What it is asked for the model by. Raises ConfigError with all that is amiss, and the command that starts a right
    one."""
    try:
        info = server.get("/server_info", config_format="json")
        if info is None:
            wrong = ["it has no /server_info: VLLM_SERVER_DEV_MODE is not set, or it is no vLLM of 0.32 or later"]
            raise _refused(server, served, wrong)
        wrong = list(_amiss(info, served))
        name = info["vllm_config"]["model_config"]["served_model_name"]
        name = name if isinstance(name, str) else name[0]
        if not wrong:
            try:
                parameters = {"max_tokens": 1, "logprobs": 0}
                server.post("/inference/v1/generate", {"model": name, "token_ids": [0], "sampling_params": parameters})
            except TrainingError as error:
                wrong = [f"it does not answer to token ids, which takes --enable-scale-out ({error})"]
    except TrainingError as error:
        raise _refused(server, served, [str(error)]) from error
    if wrong:
        raise _refused(server, served, wrong)
    return str(name)


def _amiss(info: Mapping[str, Any], served: Served) -> Iterator[str]:
    config = info["vllm_config"]
    model, lora = config["model_config"], config["lora_config"]
    if model["logprobs_mode"] != served.logprobs:
        yield f"--logprobs-mode is {model['logprobs_mode']!r}, expected {served.logprobs!r}"
    if model["generation_config"] != "vllm":
        yield f"--generation-config is {model['generation_config']!r}, expected 'vllm'"
    if model["max_model_len"] < served.context_length:
        yield f"--max-model-len is {model['max_model_len']}, expected {served.context_length} or more"
    if model["dtype"] not in (served.dtype, f"torch.{served.dtype}"):
        yield f"--dtype is {model['dtype']!r}, expected {served.dtype!r}"
    if served.rank is None:
        if config["parallel_config"]["worker_extension_cls"] != EXTENSION:
            yield f"--worker-extension-cls is not {EXTENSION!r}, so it cannot be given weights"
        return
    if lora is None or lora["max_lora_rank"] < served.rank:
        yield f"--max-lora-rank is {lora and lora['max_lora_rank']}, expected {served.rank} or more"
    if not info["vllm_env"].get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        yield "VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set, so it cannot be given adapters"


def _refused(server: NamedServer, served: Served, wrong: list[str]) -> ConfigError:
    told = "\n  - ".join([f"{KEY}: {server.name} is not what this run needs:", *wrong])
    return ConfigError(f"{told}\nStart it with:\n  {served.told()}")
