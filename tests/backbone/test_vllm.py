"""What a vLLM server is started with and asked for, without one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astune.backbone.compared import ComparedAnswers
from astune.backbone.server_traits import ServerTraits
from astune.backbone.vllm import settings
from astune.backbone.vllm.policy import ServedPolicy
from astune.backbone.vllm.server import VllmServer
from astune.backbone.vllm.settings import ServerSettings, served_version, settings_of
from astune.backbone.vllm.weights import ServedWeights
from astune.config.schema import AstuneConfig
from astune.config.vllm import VllmConfig
from astune.errors import ConfigError, ContextOverflow, MissingDependency, TrainingError, WorkflowError
from astune.types import Sampling


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "served_version", lambda config: "0.32.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def made(device: str = "cpu", index: int = 0, **values: Any) -> ServerSettings:
    config = AstuneConfig.model_validate({"rollout": {"engine": "vllm", **values.pop("rollout", {})}, **values})
    return settings_of(config, Path("/m"), device=device, index=index, dtype="float32", context_length=99)


def option(command: Any, name: str) -> str:
    return str(command[list(command).index(name) + 1])


@pytest.mark.usefixtures("installed")
def test_a_server_on_the_cpu_takes_no_part_of_a_gpu() -> None:
    server = made()
    assert not server.shares
    assert "--gpu-memory-utilization" not in server.command
    assert option(server.command, "--logprobs-mode") == "processed_logprobs"
    with pytest.raises(ConfigError, match=r"astune\.rollout\.vllm\.gpus: the model is on the CPU"):
        made(rollout={"vllm": {"gpus": [1]}})


@pytest.mark.usefixtures("installed")
def test_a_server_on_the_trainers_gpu_can_sleep_and_one_on_others_need_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = made("cuda", 1)
    assert shared.shares
    assert "--enable-sleep-mode" in shared.command
    assert shared.environment["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    alone = made("cuda", 0, rollout={"vllm": {"gpus": [1, 2]}})
    assert not alone.shares
    assert "--enable-sleep-mode" not in alone.command
    assert alone.environment["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert option(alone.command, "--tensor-parallel-size") == "2"
    with pytest.raises(ConfigError, match="there is no GPU 3"):
        made("cuda", 0, rollout={"vllm": {"gpus": [3]}})


@pytest.mark.usefixtures("installed")
def test_a_server_that_has_to_sleep_cannot_answer_while_the_model_is_trained() -> None:
    with pytest.raises(ConfigError, match=r"astune\.rollout\.vllm\.gpus: with astune\.synchronizer\.style 'async'"):
        made("cuda", synchronizer={"style": "async", "max_staleness": 1})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("rank", "room"), [(1, "1"), (4, "8"), (64, "64"), (65, "128")])
def test_a_server_has_room_for_the_adapter(rank: int, room: str) -> None:
    assert option(made(model={"lora": {"rank": rank}}).command, "--max-lora-rank") == room


def test_an_environment_without_vllm_is_named() -> None:
    with pytest.raises(MissingDependency, match=r"has no vLLM.*astune\.rollout\.vllm\.python"):
        served_version(VllmConfig())
    with pytest.raises(MissingDependency, match="'/no/python' is no interpreter"):
        served_version(VllmConfig(python="/no/python"))


@pytest.mark.fault("Foreign servers", "vLLM does not come up, or dies in a run", "The run ends with the end of its log")
def test_a_server_that_does_not_come_up_is_told_with_the_end_of_its_log() -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no room for the model')"]
    with pytest.raises(TrainingError, match=r"vLLM did not come up \(exit code 1\)(?s:.)*no room for the model"):
        VllmServer(ServerSettings(broken, {}, False, "processed_logprobs"))


class Server:
    """Answers what a server would that has log-probabilities of `score`, and keeps what it was asked."""

    def __init__(self, folder: Path, score: float = -1.0) -> None:
        self.folder, self.score, self.asked = folder, score, list[str]()

    def post(self, path: str, body: Any = None, **parameters: str) -> Any:
        self.asked.append(path)
        if path != "/inference/v1/generate":
            return {}
        return {"prompt_logprobs": [None, *({str(each): {"logprob": self.score}} for each in body["token_ids"][1:])]}

    def forget(self) -> None:
        self.asked.append("forget")


def weights(server: Any, **more: bool) -> tuple[ServedWeights, Any]:
    policy: Any = SimpleNamespace(model="policy")
    written: Any = lambda folder: folder.mkdir()  # noqa: E731
    flags = {"adapter": False, "shares": False, **more}
    return ServedWeights(server, policy, ComparedAnswers([1, 2, 3], 64, 1e-3), written, **flags), policy


def published(weights: ServedWeights, expected: float = -1.0) -> Any:
    rows = weights.rows(1)
    return weights.publish(1, rows, [[expected] * (len(row.timeline.token_ids) - 1) for row in rows], lambda: None)


def test_a_server_sleeps_while_the_trainer_needs_its_gpu_and_is_woken_before_it_gets_weights(tmp_path: Path) -> None:
    server = Server(tmp_path)
    served, _ = weights(server, shares=True)
    served.make_room()
    served.make_room()
    served.stale = True
    published(served)
    assert server.asked == ["/sleep", "/wake_up", "/collective_rpc", "forget", "/inference/v1/generate"]
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_gets_a_new_name_each_time(tmp_path: Path) -> None:
    server = Server(tmp_path)
    served, policy = weights(server, adapter=True)
    published(served)
    served.stale = True
    published(served)
    assert policy.model == "policy-2"
    assert [path for path in server.asked if path.startswith("/v1")] == [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/load_lora_adapter",
    ]


@pytest.mark.fault(
    "Foreign servers",
    "vLLM goes on with weights from before the last step",
    "The run ends, with both log-probabilities",
)
def test_weights_that_did_not_arrive_end_the_run_with_both_figures(tmp_path: Path) -> None:
    served, _ = weights(Server(tmp_path, score=-2.0))
    with pytest.raises(TrainingError, match=r"version 1: .* 1 apart .* the server gives -2, the trainer -1"):
        published(served)


def test_weights_that_a_server_has_are_not_sent_again_but_its_cache_is_emptied(tmp_path: Path) -> None:
    server = Server(tmp_path)
    served, _ = weights(server)
    published(served)
    server.asked.clear()
    assert served.rows(1) == []
    published(served)
    assert server.asked == ["forget"]


def test_what_the_model_cannot_take_never_reaches_the_server() -> None:
    nothing: Any = None
    policy = ServedPolicy(nothing, ServerTraits("vllm", "processed_logprobs"), 8, 10, "policy", lambda ids: None)
    with pytest.raises(WorkflowError, match="token id 10, but the model knows 0 to 9"):
        asyncio.run(policy.generate([1, 10], Sampling(2)))
    with pytest.raises(ContextOverflow):
        asyncio.run(policy.generate([1] * 7, Sampling(2)))
