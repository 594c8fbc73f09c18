import asyncio
import math
import threading

import httpx
import pytest

from astune.config.online import OnlineEngineConfig
from astune.errors import ConfigError, ModelError, PolicyError
from astune.online.service.vllm import LEAVING, VllmEngine
from astune.online.store.versions import ModelVersion
from astune.online.training.checkpoint import seal
from astune.testing import ScriptedPolicy, ScriptedVllm
from astune.types import Sampling

CONFIG = OnlineEngineConfig(base_url="http://vllm/v1", model="base")


class InThread(httpx.BaseTransport):
    """The application for clients without an event loop."""

    def __init__(self, app):
        self._transport = httpx.ASGITransport(app=app)

    def handle_request(self, request):
        answers = []

        async def answer():
            response = await self._transport.handle_async_request(
                httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
            )
            answers.append(httpx.Response(response.status_code, content=await response.aread()))

        thread = threading.Thread(target=lambda: asyncio.run(answer()))
        thread.start()
        thread.join()
        return answers[0]


def engine(vllm, tmp_path, config=CONFIG):
    def connect(kind):
        transport = InThread(vllm.app) if kind is httpx.Client else httpx.ASGITransport(app=vllm.app)
        return kind(transport=transport, base_url=f"{config.base_url}/")

    return VllmEngine(config, tmp_path, connect=connect)


async def test_it_gives_the_tokens_that_the_engine_sampled(chat_format, tmp_path):
    vllm = ScriptedVllm(lambda prompt: "Hello", chat_format)
    policy = engine(vllm, tmp_path).load(ModelVersion(0))
    assert policy.context_length == 4096
    prompt, sampling = chat_format.encode("Hi"), Sampling(9, stop=("x",), stop_token_ids=(2,), seed=7)
    said = await policy.generate(prompt, sampling)
    assert said == await ScriptedPolicy(["Hello"], chat_format).generate(prompt, sampling)
    body = vllm.requests[-1]
    assert (body["prompt"], body["stop"], body["seed"], body["top_k"]) == (list(prompt), ["x"], 7, -1)
    warm = await policy.generate(prompt, Sampling(9, temperature=0.5))
    assert all(map(math.isnan, warm.logprobs)), "those of a vLLM are before temperature"


async def test_new_versions_are_adapters_that_it_loads(chat_format, tmp_path):
    vllm = ScriptedVllm(lambda prompt: "Hello", chat_format)
    loading = engine(vllm, tmp_path)
    adapter, whole = (tmp_path / name for name in ("v1", "v2"))
    for folder, name in ((adapter, "adapter_config.json"), (whole, "model.safetensors")):
        folder.mkdir()
        (folder / name).write_text("{}")
    version = ModelVersion(1, folder="v1", sha256=seal(adapter))
    # The service was started again, the vLLM was not. A policy that nobody has any more is unloaded, in a thread.
    policy, again = (loading.load(version) for _ in range(2))
    (name,) = vllm.adapters
    assert name.startswith("astune-v1-") and vllm.adapters[name] == str(adapter)
    assert [(await each.generate([5], Sampling(4))).policy_version for each in (policy, again)] == [1, 1]
    assert vllm.requests[-1]["model"] == name
    with pytest.raises(ModelError, match="version 2 has all weights, and a vLLM takes adapters alone"):
        loading.load(ModelVersion(2, folder="v2", sha256=seal(whole)))


async def test_a_version_of_another_store_is_not_what_the_engine_had_under_its_number(chat_format, tmp_path):
    vllm, stores = ScriptedVllm(lambda prompt: "Hello", chat_format), [tmp_path / name for name in ("old", "new")]
    for store in stores:
        adapter = store / "v1"
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        (adapter / "weights").write_text(store.name)
        policy = engine(vllm, store).load(ModelVersion(1, folder="v1", sha256=seal(adapter)))
    await policy.generate([5], Sampling(4))
    assert vllm.adapters[vllm.requests[-1]["model"]] == str(stores[1] / "v1")


async def test_an_adapter_leaves_the_engine_with_its_policy_and_is_loaded_again_for_another_server(
    chat_format, tmp_path
):
    vllm = ScriptedVllm(lambda prompt: "Hello", chat_format)
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "adapter_config.json").write_text("{}")
    version = ModelVersion(1, folder="v1", sha256=seal(tmp_path / "v1"))
    one, other = (engine(vllm, tmp_path).load(version) for _ in range(2))
    del one
    for thread in threading.enumerate():
        if thread.name == LEAVING:
            await asyncio.to_thread(thread.join)
    assert not vllm.adapters
    assert (await other.generate([5], Sampling(4))).policy_version == 1
    assert len(vllm.adapters) == 1


def test_an_engine_that_cannot_serve_is_an_error_at_the_start(chat_format, tmp_path, monkeypatch):
    without = engine(ScriptedVllm(lambda prompt: "Hello", chat_format, token_ids=False), tmp_path)
    with pytest.raises(ConfigError, match=r"engine.base_url: the engine gave no token ids .* return_token_ids"):
        without.load(ModelVersion(0))
    other = engine(ScriptedVllm(lambda prompt: "Hello", chat_format, model="qwen"), tmp_path)
    with pytest.raises(ConfigError, match=r"engine\.model: there is no 'base'; it has qwen"):
        other.load(ModelVersion(0))
    with pytest.raises(ConfigError, match=r"nothing answers at http://127\.0\.0\.1:9/v1"):
        VllmEngine(OnlineEngineConfig(base_url="http://127.0.0.1:9/v1", model="base"), tmp_path).load(ModelVersion(0))
    keyed = OnlineEngineConfig(base_url="http://vllm/v1", model="base", api_key_env="VLLM_KEY")
    with pytest.raises(ConfigError, match="environment variable VLLM_KEY is not set"):
        VllmEngine(keyed, tmp_path, environ={})


async def test_an_engine_that_fails_is_a_policy_error(chat_format, tmp_path):
    policy = engine(ScriptedVllm(lambda prompt: "Hello", chat_format), tmp_path).load(ModelVersion(0))
    policy._model = "gone"
    with pytest.raises(PolicyError, match="the engine answered 404"):
        await policy.generate([1], Sampling(4))
