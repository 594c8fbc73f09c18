"""A teacher behind an API: a server with vLLM's completions endpoint, `prompt_logprobs` and all, over a small model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.learner import LocalTeacher, RemoteTeacher, Teacher
from astune.backbone.local.model.model import LoadedModel, load_model, read_weights, save_model
from astune.backbone.losses.teacher import ApiTeacher
from astune.config.chat_models import TeacherConfig
from astune.config.load import load_config
from astune.config.schema import AlgorithmConfig, ModelConfig
from astune.errors import ConfigError, ModelError, TrainingError
from astune.types import Sample, Span, Timeline
from tests.backbone.local.test_examples import QUICK, run_job, timeless, write_job

Answer = Callable[[dict[str, Any], dict[str, Any]], tuple[int, dict[str, Any]]]
"""From the request and what the server would say to what it says."""


def honest(body: dict[str, Any], said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, said


class Server:
    """`/v1/completions` of vLLM. `answer` may bend what it says."""

    def __init__(self, folder: Path) -> None:
        self.model, self.answer = read_weights(folder), honest
        self.model.set_attn_implementation("sdpa")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.under_way = self.most_under_way = 0
        app = Starlette(routes=[Route("/v1/completions", self._complete, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.01)
        self.base_url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/v1"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _complete(self, request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        status, said = self.answer(body, await asyncio.to_thread(self._completion, body["prompt"]))
        self.under_way -= 1
        return JSONResponse(said, status)

    def _completion(self, ids: list[int]) -> dict[str, Any]:
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
        entries: list[Any] = [None]
        for place, token in enumerate(ids[1:]):
            text = self.tokenizer.decode([token], skip_special_tokens=False)
            entries.append({str(token): {"logprob": float(logprobs[place, token]), "rank": 1, "decoded_token": text}})
        choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": "length", "prompt_logprobs": entries}
        return {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "big", "choices": [choice]}


@pytest.fixture(scope="module")
def student() -> LoadedModel:
    return load_model(ModelConfig(path="tiny", device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def folder(student: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The teacher: the shipped model with other weights."""
    directory = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(1)
    loaded = load_model(ModelConfig(path="tiny", device="cpu", dtype="float32"))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    save_model(loaded, directory)
    return directory


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.stop()


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    yield running
    running.answer = honest


def api(server: Server, **more: Any) -> TeacherConfig:
    return TeacherConfig(base_url=server.base_url, model="big", max_retries=0, **more)


def teacher_of(server: Server, student: LoadedModel, **more: Any) -> RemoteTeacher:
    return RemoteTeacher(ApiTeacher(api(server, **more), AlgorithmConfig(), student.directory))


def sample(ids: list[int], *spans: tuple[int, int], episode: str, weight: float, temperature: float = 1.0) -> Sample:
    drawn = tuple(Span(turn, a, b, 0, temperature, True, [-1.0] * (b - a)) for turn, (a, b) in enumerate(spans))
    zero = (1.0,) * len(spans)
    return Sample(Timeline("a", tuple(ids), drawn), zero, tuple(weight for _ in spans), "t", episode)


def samples() -> list[Sample]:
    """Two branches of an episode, with context after what was sampled last, and another episode."""
    first = [5, 9, 30, 31, 12, 40, 41, 42, 7]
    return [
        sample(first, (2, 4), (5, 8), episode="a", weight=0.1),
        sample([*first[:4], 50, 51, 52], (5, 7), episode="a", weight=0.1),
        sample([6, 8, 60, 61], (2, 4), episode="b", weight=0.15),
    ]


def weighed_by(teacher: Teacher, student: LoadedModel, rows: list[Sample]) -> list[torch.Tensor]:
    weighed = asyncio.run(teacher.weigh(rows))
    with student.training():
        return [weighed.logprob(batch) for batch in micro_batches(weighed.samples, 12, student.device)]


def test_an_api_weighs_tokens_as_the_same_model_in_a_folder_does(
    server: Server, folder: Path, student: LoadedModel
) -> None:
    there = weighed_by(teacher_of(server, student, max_concurrent=2), student, samples())
    here = weighed_by(LocalTeacher(str(folder), student), student, samples())
    assert len(there) == len(here) > 1 and server.most_under_way <= 2
    for one, other in zip(there, here, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_an_episode_that_the_teacher_does_not_weigh_is_left_out_as_a_whole(
    server: Server, student: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    teacher = teacher_of(server, student)

    def short(body: dict[str, Any], said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        too_long = {"error": {"message": "maximum context length is 7 tokens", "type": "BadRequestError", "code": 400}}
        return (400, too_long) if len(body["prompt"]) > 7 else (200, said)

    server.answer = short
    weighed = asyncio.run(teacher.weigh(samples()))
    assert [each.episode_id for each in weighed.left_out] == ["a", "a"]
    (kept,) = weighed.samples
    assert kept.episode_id == "b" and kept.weight_sum == pytest.approx(1.0)
    assert "1 of 2 episodes" in caplog.text and "maximum context length is 7" in caplog.text
    warm = [sample([6, 8, 60, 61], (2, 4), episode="c", weight=0.25, temperature=0.7), samples()[2]]
    assert [each.episode_id for each in asyncio.run(teacher.weigh(warm)).left_out] == ["c"]
    with pytest.raises(TrainingError, match=r"none of the 1 episodes of an update: .*temperature 0\.7"):
        asyncio.run(teacher.weigh(warm[:1]))


def bent(change: Callable[[list[Any]], Any]) -> Answer:
    def answer(body: dict[str, Any], said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        choice = said["choices"][0]
        return 200, {**said, "choices": [{**choice, "prompt_logprobs": change(choice["prompt_logprobs"])}]}

    return answer


def each_entry(change: Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]) -> Answer:
    return bent(lambda rows: [row and dict(change(*pair) for pair in row.items()) for row in rows])


def fails(status: int) -> Answer:
    return lambda body, said: (status, {"error": {"message": "as it is", "type": "x", "code": status}})


@pytest.mark.fault(
    "Runs and resuming",
    "the API of a teacher gives no log-probabilities, those of other tokens, or fails",
    "at the start an error that says which; later the episode is left out and counted, and is never a 0",
)
@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (bent(lambda rows: None), ConfigError, "gives no log-probabilities of a prompt; expected a server with"),
        (bent(lambda rows: rows[1:]), ConfigError, r"gave \d+ log-probabilities for \d+ tokens"),
        (each_entry(lambda token, e: (token + "0", e)), ConfigError, r"gave None for token \d+ at place 1"),
        (each_entry(lambda token, e: (token, {**e, "logprob": 3.5})), ConfigError, "gave 3.5 for token"),
        (each_entry(lambda token, e: (token, {**e, "logprob": None})), ConfigError, "gave None for token"),
        (each_entry(lambda token, e: (token, {**e, "decoded_token": "Ж"})), ModelError, "has other tokens than"),
        (fails(400), ConfigError, "did not accept the request"),
        (fails(401), ConfigError, "refused a call without an API key"),
        (fails(404), ConfigError, "has no model 'big'"),
        (fails(500), ConfigError, "failed"),
    ],
)
def test_a_server_that_cannot_teach_is_told_before_the_run(
    server: Server, student: LoadedModel, answer: Answer, error: type[Exception], message: str
) -> None:
    server.answer = answer
    with pytest.raises(error, match=rf"astune\.algorithm\.teacher: .*{message}"):
        teacher_of(server, student)


def test_a_server_that_tells_no_texts_is_taken_at_its_word(server: Server, student: LoadedModel) -> None:
    server.answer = each_entry(lambda token, entry: (token, {**entry, "decoded_token": None}))
    assert len(asyncio.run(teacher_of(server, student).weigh(samples())).samples) == 3


def test_a_run_is_drawn_towards_a_teacher_behind_an_api(server: Server, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"query": "What is 1 plus 1?", "answer": "2"}))
    conf = write_job(
        tmp_path,
        [],
        trainer={"examples": None, "total_steps": 2, "tasks_per_step": 1, "learning_rate": 2e-4},
        algorithm={"method": "distill", "teacher": api(server).model_dump(mode="json")},
        task_reader={"jsonl": {"training": {"file_path": "train.jsonl"}}},
        rollout={"agentscope_learn_protocol": f"{QUICK}:quick", "num_repeat": 4, "max_tokens": 8},
        monitor={"progress": "off", "trackers": [], "check_invariants": True},
    )
    there = timeless(run_job(conf))
    here = timeless(run_job(conf, "astune.experiment_name=here", f"astune.algorithm.teacher={folder}"))
    for one, other in zip(there, here, strict=True):
        assert one.keys() == other.keys()
        assert one["kl/teacher"] == pytest.approx(other["kl/teacher"], abs=1e-4)
    calls = 0

    def every_second(body: dict[str, Any], said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        nonlocal calls
        calls += 1
        return fails(500)(body, said) if calls % 2 == 0 else (200, said)

    server.answer = every_second
    (row, *_) = timeless(run_job(conf, "astune.experiment_name=half", "astune.trainer.total_steps=1"))
    assert row["tokens/dropped_no_teacher"] + row["tokens/trained"] == row["tokens/sampled"]
    assert 0 < row["tokens/trained"] < row["tokens/sampled"] and row["kl/teacher"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("teacher={base_url: 'http://x/v1'}", r"astune\.algorithm\.teacher: .*no model"),
        ("teacher={base_url: x, model: m}", "base_url: an address that begins with http"),
        ("teacher={base_url: 'http://x', model: m, limit_field: max_tokens}", "unknown key 'limit_field'"),
        ("teacher=3", "a folder, a hub id, or an API as {base_url, model, ...}"),
    ],
)
def test_an_api_that_is_wrongly_described(tmp_path: Path, settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["astune.algorithm.method=distill", f"astune.algorithm.{settings}"], for_run=False)


def test_an_api_is_not_compared_at_another_temperature(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    conf = tmp_path / "job.yaml"
    teacher = {"base_url": "http://x/v1", "model": "big"}
    algorithm = {"method": "distill", "teacher": teacher}
    conf.write_text(json.dumps({"astune": {"algorithm": algorithm, "rollout": {"temperature": 0.7}}}))
    with pytest.raises(ConfigError, match=r"temperature: got 0\.7, but the teacher is an API"):
        load_config(conf)
    loaded = load_config(conf, for_run=False).config.astune.algorithm.teacher
    assert isinstance(loaded, TeacherConfig) and loaded.model == "big"  # no folder, though there is one of that name
