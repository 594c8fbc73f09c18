"""What a vLLM server is started with and asked for, without one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astune.backbone.policies.compared import ComparedAnswers
from astune.backbone.policies.requests import ServerTraits
from astune.backbone.vllm import server as server_module
from astune.backbone.vllm import settings
from astune.backbone.vllm.policy import ServedPolicy
from astune.backbone.vllm.server import NamedServer, OwnServer, check_server
from astune.backbone.vllm.settings import EXTENSION, Served, ServerSettings, find_vllm_version, make_served, settings_of
from astune.backbone.vllm.weights import ServedWeights
from astune.config.rollout import VllmConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, ContextOverflow, MissingDependency, TrainingError, WorkflowError
from astune.support.http.serving import bound_socket
from astune.support.run_log import command_log, open_log
from astune.types import Sampling
from tests.rows import each_row


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "find_vllm_version", lambda config: "0.32.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def made(device: str = "cpu", index: int = 0, **values: Any) -> ServerSettings:
    config = AstuneConfig.model_validate({"rollout": {"engine": "vllm", **values.pop("rollout", {})}, **values})
    return settings_of(config, needed(config), device=device, index=index)


def needed(config: AstuneConfig) -> Served:
    return make_served(config, Path("/m"), dtype="float32", context_length=99)


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
        find_vllm_version(VllmConfig())
    with pytest.raises(MissingDependency, match="'/no/python' is no interpreter"):
        find_vllm_version(VllmConfig(python="/no/python"))


@pytest.mark.fault("Foreign servers", "vLLM does not come up, or dies in a run", "The run ends with the end of its log")
def test_a_server_that_does_not_come_up_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no room for the model')"]
    with command_log(None):
        open_log(tmp_path, as_json=False)
        with pytest.raises(TrainingError, match=r"vLLM did not come up \(exit code 1\)(?s:.)*no room for the model"):
            OwnServer(ServerSettings(broken, {}, False))
    assert (tmp_path / "logs" / "vllm.log").read_text().endswith("no room for the model\n")


class Server:
    """Answers what a server would that has log-probabilities of `score`, and keeps what it was asked."""

    outlives, alive = False, True

    def __init__(self, folder: Path, score: float = -1.0) -> None:
        self.folder, self.score, self.asked = folder, score, list[str]()

    def close(self) -> None:
        self.asked.append("close")

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
    assert policy.model.startswith("policy-")
    assert policy.model.endswith("-2")
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


def test_a_server_that_outlives_the_run_gets_weights_at_once_and_keeps_no_adapter(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.outlives = True
    given, policy = weights(server)
    published(given)
    assert server.asked[0] == "/collective_rpc"
    given, policy = weights(server, adapter=True)
    published(given)
    given.close()
    given.close()
    assert policy.model == "policy"
    assert server.asked[-3:] == ["/v1/unload_lora_adapter", "close", "close"]


def told(**changes: Any) -> dict[str, Any]:
    """What a server that suits `needed` says of itself, but for the changes."""
    model = {"logprobs_mode": "processed_logprobs", "generation_config": "vllm", "max_model_len": 99}
    model |= {"dtype": "torch.float32", "served_model_name": ["mine"]}
    config: dict[str, Any] = {"model_config": model, "parallel_config": {"worker_extension_cls": EXTENSION}}
    config["lora_config"] = changes.pop("lora_config", None)
    environment = changes.pop("vllm_env", {})
    config["parallel_config"] |= {key: changes.pop(key) for key in [*changes] if key == "worker_extension_cls"}
    model |= changes
    return {"vllm_config": config, "vllm_env": environment}


@asynccontextmanager
async def standing_in(info: dict[str, Any] | None, *, takes_ids: bool = True) -> AsyncIterator[str]:
    """The address of a server that says this of itself."""

    async def answer(request: Request) -> Response:
        known = info is not None if request.url.path == "/server_info" else takes_ids
        return JSONResponse(info or {}) if known else Response(status_code=404)

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    listening = bound_socket("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await serving


async def checked(info: dict[str, Any] | None, folder: Path, *, takes_ids: bool = True, **values: Any) -> str:
    config = AstuneConfig.model_validate({"rollout": {"engine": "vllm"}, **values})
    async with standing_in(info, takes_ids=takes_ids) as address:
        server = NamedServer(address, folder)
        try:
            return await asyncio.to_thread(check_server, server, needed(config))
        finally:
            server.close()


async def test_a_server_by_name_is_asked_for_its_model_by_the_name_it_has(tmp_path: Path) -> None:
    assert await checked(told(), tmp_path) == "mine"
    with_adapters = told(lora_config={"max_lora_rank": 8}, vllm_env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": True})
    assert await checked(with_adapters, tmp_path, model={"lora": {"rank": 5}}) == "mine"
    assert list(tmp_path.iterdir()) == []


@each_row(
    ("info", "values", "message"),
    [
        (None, {}, "VLLM_SERVER_DEV_MODE is not set"),
        (told(logprobs_mode="raw_logprobs"), {}, "--logprobs-mode is 'raw_logprobs', expected 'processed_logprobs'"),
        (told(generation_config="auto"), {}, "--generation-config is 'auto', expected 'vllm'"),
        (told(max_model_len=98), {}, "--max-model-len is 98, expected 99 or more"),
        (told(dtype="torch.bfloat16"), {}, "--dtype is 'torch.bfloat16', expected 'float32'"),
        (told(worker_extension_cls=""), {}, "--worker-extension-cls is not 'astune_weights"),
        (told(), {"model": {"lora": {"rank": 4}}}, "--max-lora-rank is None, expected 8(?s:.)*UPDATING is not set"),
    ],
)
async def test_a_server_that_does_not_suit_is_refused_with_the_command_that_starts_one(
    info: dict[str, Any] | None, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=f"(?s)base_url: .*{message}.*Start it with:.*python -m vllm.*--model /m --served-model"
    ):
        await checked(info, tmp_path, **values)


async def test_a_server_that_takes_no_token_ids_or_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"base_url(?s:.)*which takes --enable-scale-out"):
        await checked(told(), tmp_path, takes_ids=False)
    server = NamedServer("http://127.0.0.1:9/v1", tmp_path)
    with pytest.raises(ConfigError, match=r"base_url(?s:.)*did not answer /server_info(?s:.)*Start it with"):
        check_server(server, needed(AstuneConfig()))
    server.close()


@pytest.mark.fault(
    "Foreign servers", "A vLLM server named by its address is gone", "After 15 seconds the run ends, and names it"
)
async def test_a_server_by_name_that_goes_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LOST_AFTER", 0.0)
    async with standing_in(told()) as address:
        server = NamedServer(address, tmp_path)
        assert server.alive
    assert "has not answered for" in str(await server.wait_until_lost())
    assert not server.alive
    server.close()
