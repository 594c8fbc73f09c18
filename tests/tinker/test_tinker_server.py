"""The real tinker SDK against the real server on a real port, with the shipped tiny model."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

tinker = pytest.importorskip("tinker")
peft = pytest.importorskip("peft")

from tinker import types  # noqa: E402

from astune.backbone.local.model.model import load_model, read_weights  # noqa: E402
from astune.backbone.local.sampling.sampler import Sampler  # noqa: E402
from astune.backbone.trinity.tinker_process import ServerProcess, start_server  # noqa: E402
from astune.config.schema import ModelConfig  # noqa: E402
from astune.errors import TrainingError  # noqa: E402
from astune.support.resources import tiny_model_dir  # noqa: E402
from astune.types import Generation, Sampling  # noqa: E402
from tests.garbage import collect_all  # noqa: E402
from tests.rows import each_row  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:DEPRECATED:FutureWarning"),  # what newer SDKs say of the older one's calls
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's business with transformers
]
CLIENTS: list[Any] = []
"""The SDK never closes its connections. Clients that are held do not complain of it in tests of other modules."""
PROMPTS = [[1001, 872, 220, 18, 489, 19, 30], [1001, 872, 220, 18], [7, 300, 42, 42, 9, 11, 500, 8, 1, 2, 3]]
END = 1002


def text(ids: list[int]) -> Any:
    return types.ModelInput.from_ints(ids)


def datum(ids: list[int], weights: list[float] | None = None) -> Any:
    """Each token is to be followed by the next one."""
    inputs = {"target_tokens": ids[1:], "weights": weights or [1.0] * (len(ids) - 1)}
    return types.Datum(model_input=text(ids[:-1]), loss_fn_inputs=inputs)


def sample(client: Any, ids: list[int], **params: Any) -> Any:
    return client.sample(text(ids), 1, types.SamplingParams(**params)).result().sequences[0]


def scores(client: Any, ids: list[int]) -> list[float]:
    return client.compute_logprobs(text(ids)).result()[1:]


def local_answers(prompts: list[list[int]], **params: Any) -> list[Generation]:
    loaded = load_model(ModelConfig(path="tiny", device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=2048)

    async def answers() -> list[Generation]:
        sampling = Sampling(stop_token_ids=(END,), **params)
        return await asyncio.gather(*(sampler.generate(prompt, sampling) for prompt in prompts))

    return asyncio.run(answers())


def plain_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """Without any of ASTune's attention, (n - 1,)."""
    logits = model(torch.tensor([ids[:-1]])).logits[0]
    return torch.log_softmax(logits.float(), -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def plain_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def folder_of(server_folder: Path, path: str) -> Path:
    return server_folder / path.removeprefix("tinker://")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_complain() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        collect_all()


class Client:
    """A `ServiceClient`, of which newer SDKs give clients later and older ones at once."""

    def __init__(self, server: ServerProcess) -> None:
        self._service = tinker.ServiceClient(base_url=server.base_url, api_key=server.api_key)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._service, name)
        return (lambda *given, **named: ready(found(*given, **named))) if name.startswith("create_") else found


def ready(client: Any) -> Any:
    return client.result() if isinstance(client, tinker.APIFuture) else client


def connect(server: ServerProcess) -> Any:
    CLIENTS.append(Client(server))
    return CLIENTS[-1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tinker")
    with start_server(tiny_model_dir(), folder / "checkpoints", device="cpu", log=folder / "server.log") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    return connect(server)


@pytest.fixture(scope="session")
def base() -> str:
    return str(tiny_model_dir())


@pytest.fixture
def checkpoints(server: ServerProcess) -> Path:
    return server.log.parent / "checkpoints"


@pytest.fixture(scope="module")
def sampler(client: Any, base: str) -> Any:
    return client.create_sampling_client(base_model=base)


@pytest.fixture
def trainer(client: Any, base: str) -> Any:
    return client.create_lora_training_client(base_model=base, rank=8, seed=1)


def learn(trainer: Any, ids: list[int], rate: float = 1e-3) -> None:
    trainer.forward_backward([datum(ids)], "cross_entropy").result()
    trainer.optim_step(types.AdamParams(learning_rate=rate)).result()


# Sampling


def test_the_server_says_what_it_serves(client: Any, base: str) -> None:
    (model,) = client.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length) == (base, 2048)


def test_the_sdk_finds_the_tokenizer(sampler: Any) -> None:
    assert sampler.get_tokenizer().decode([END]) == "<|im_end|>"


def test_greedy_answers_are_those_of_the_local_sampler(sampler: Any) -> None:
    expected = local_answers(PROMPTS, max_tokens=12, temperature=0.0)
    for prompt, answer in zip(PROMPTS, expected, strict=True):
        got = sample(sampler, prompt, max_tokens=12, temperature=0.0)
        assert got.tokens == list(answer.output_ids)
        assert got.stop_reason == answer.finish_reason
        assert got.logprobs == pytest.approx(answer.logprobs, abs=1e-5)


def test_a_seed_gives_the_same_answer_and_logprobs_at_its_temperature(sampler: Any) -> None:
    params = {"max_tokens": 16, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 5}
    expected = local_answers(PROMPTS[:1], **params)[0]
    for _ in range(2):
        got = sample(sampler, PROMPTS[0], **params)
        assert got.tokens == list(expected.output_ids)
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_the_samples_of_one_request_differ_and_their_seed_fixes_them(sampler: Any) -> None:
    def tokens() -> list[list[int]]:
        params = types.SamplingParams(max_tokens=12, temperature=2.0, seed=3)
        return [each.tokens for each in sampler.sample(text(PROMPTS[2]), 3, params).result().sequences]

    first = tokens()
    assert len({tuple(each) for each in first}) == 3
    assert tokens() == first


def test_an_answer_ends_at_stop_tokens_and_stop_texts(sampler: Any) -> None:
    free = sample(sampler, PROMPTS[2], max_tokens=20, temperature=1.5, seed=8)
    third = free.tokens[2]
    by_token = sample(sampler, PROMPTS[2], max_tokens=20, temperature=1.5, seed=8, stop=[third])
    assert by_token.tokens == free.tokens[: free.tokens.index(third) + 1] and by_token.stop_reason == "stop"
    word = sampler.get_tokenizer().decode([third])
    by_text = sample(sampler, PROMPTS[2], max_tokens=20, temperature=1.5, seed=8, stop=word)
    assert len(by_text.tokens) <= 3 and by_text.stop_reason == "stop"


def test_prompt_logprobs_are_those_of_a_plain_forward_pass_at_the_temperature(sampler: Any) -> None:
    params = types.SamplingParams(max_tokens=1, temperature=0.5)
    reply = sampler.sample(text(PROMPTS[0]), 1, params, True, 3).result()
    model = plain_model(tiny_model_dir())
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([PROMPTS[0]])).logits[0] / 0.5, -1)
        expected = logprobs[range(len(PROMPTS[0]) - 1), PROMPTS[0][1:]]
        likely = logprobs.topk(3)
    assert reply.prompt_logprobs[0] is None and reply.topk_prompt_logprobs[0] is None
    assert reply.prompt_logprobs[1:] == pytest.approx(expected.tolist(), abs=1e-4)
    tops = [[token for token, _ in each] for each in reply.topk_prompt_logprobs[1:]]
    assert tops == likely.indices[:-1].tolist()


def test_clients_side_by_side_get_what_they_get_alone(server: ServerProcess, base: str) -> None:
    alone = [each.output_ids for each in local_answers(PROMPTS, max_tokens=10, temperature=0.0)]

    def caller(number: int) -> tuple[int, ...]:
        mine = connect(server).create_sampling_client(base_model=base)
        futures = [
            mine.sample(text(PROMPTS[number % 3]), 1, types.SamplingParams(max_tokens=10, temperature=0.0))
            for _ in range(5)
        ]
        (answer,) = {tuple(each.result().sequences[0].tokens) for each in futures}
        return answer

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(caller, range(6))) == alone * 2


# Training


@pytest.mark.parametrize("rank", [0, 4])
def test_a_custom_loss_trains_all_weights_or_an_adapter_of_the_rank_as_plain_autograd_does(
    client: Any, base: str, checkpoints: Path, rank: int
) -> None:
    trainer = client.create_lora_training_client(base_model=base, rank=rank, seed=7)
    assert (trainer.get_info().is_lora, trainer.get_info().lora_rank) == (rank > 0, rank)
    rows = [[*PROMPTS[0], *tail] for tail in ([5, 6, 7], [5, 6, 9, 10], [1, 2])] + [PROMPTS[2]]
    advantages = [1.0, -2.0, 0.5, -0.25]
    old = [torch.linspace(-3, -1, len(row) - 1) for row in rows]

    def loss_of(logprobs: list[torch.Tensor]) -> torch.Tensor:
        parts = []
        for logprob, before, advantage in zip(logprobs, old, advantages, strict=True):
            ratio = (logprob - before).exp()
            parts.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean())
        return torch.stack(parts).sum()

    plain = plain_model(tiny_model_dir())
    if rank:
        begin = folder_of(checkpoints, trainer.save_weights_for_sampler("begin").result().path)
        plain = peft.PeftModel.from_pretrained(plain, str(begin), is_trainable=True)
        assert plain.peft_config["default"].r == rank
    trained = {name: weight for name, weight in plain.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for _ in range(2):
        future = trainer.forward_backward_custom(
            [datum(row) for row in rows], lambda _, logprobs: (loss_of(logprobs), {"mine": 1.0})
        )
        step = trainer.optim_step(types.AdamParams(learning_rate=1e-3, eps=1e-8, weight_decay=0.1, grad_clip_norm=0.5))
        assert future.result().metrics["mine"] == 1.0
        loss_of([plain_logprobs(plain, row) for row in rows]).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), 0.5)
        assert step.result().metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
        optimizer.step()
        optimizer.zero_grad()
    path = trainer.save_weights_for_sampler("custom").result().path
    saved = (
        peft.PeftModel.from_pretrained(plain_model(tiny_model_dir()), str(folder_of(checkpoints, path)))
        if rank
        else read_weights(folder_of(checkpoints, path))
    )
    weights = dict(saved.named_parameters())
    for name, expected in trained.items():
        torch.testing.assert_close(weights[name], expected, atol=1e-4, rtol=1e-3, msg=name, check_device=False)
    with torch.no_grad():
        expected = plain_logprobs(plain, PROMPTS[2]).tolist()
    assert scores(client.create_sampling_client(model_path=path), PROMPTS[2]) == pytest.approx(expected, abs=1e-3)


def test_models_of_several_ranks_learn_side_by_side_where_their_clients_want_it(
    client: Any, base: str, checkpoints: Path
) -> None:
    parts = {"train_mlp": {"train_attn": False}, "train_attn": {"train_mlp": False}, "all": {}}
    made = {
        name: client.create_lora_training_client(base_model=base, rank=2 + number, seed=3, **asked)
        for number, (name, asked) in enumerate(parts.items())
    }
    for trainer in made.values():
        learn(trainer, PROMPTS[2])
    layers: dict[str, set[str]] = {}
    for number, (name, trainer) in enumerate(made.items()):
        state = trainer.save_state("one").result().path
        settings = peft.LoraConfig.from_pretrained(str(folder_of(checkpoints, state)))
        assert settings.r == 2 + number
        layers[name] = {target.rpartition(".")[2] for target in settings.target_modules}
        again = client.create_training_client_from_state_with_optimizer(state)
        learn(trainer, PROMPTS[0])
        learn(again, PROMPTS[0])
        rows = [datum(prompt) for prompt in PROMPTS]
        found = [each.forward(rows, "cross_entropy").result().metrics for each in (trainer, again)]
        assert found[0] == found[1], name
    assert layers["train_mlp"] == {"gate_proj", "up_proj", "down_proj"}
    assert layers["train_attn"] == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert layers["all"] == layers["train_mlp"] | layers["train_attn"]


def test_a_seed_fixes_where_an_adapter_begins(client: Any, base: str) -> None:
    def after_a_step(seed: int) -> dict[str, float]:
        trainer = client.create_lora_training_client(base_model=base, rank=2, seed=seed)
        learn(trainer, PROMPTS[2])
        return dict(trainer.forward([datum(PROMPTS[2])], "cross_entropy").result().metrics)

    assert after_a_step(1) == after_a_step(1) != after_a_step(2)


@each_row(
    ("asked", "told"),
    [
        ({"rank": 4, "train_mlp": False, "train_attn": False}, "the head no adapter"),
        ({"rank": 0, "train_mlp": False}, "rank 0 trains all weights"),
        ({"rank": 5000}, "rank is 5000; expected an integer from 0 to 4096"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused_in_words(
    client: Any, base: str, asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(tinker.BadRequestError, match=told):
        client.create_lora_training_client(base_model=base, **asked)


def test_weights_do_not_go_into_a_model_of_another_kind(client: Any, base: str) -> None:
    whole, small, large = (client.create_lora_training_client(base_model=base, rank=rank) for rank in (0, 2, 3))
    again = client.create_training_client_from_state_with_optimizer(whole.save_state("whole").result().path)
    assert (again.get_info().is_lora, again.get_info().lora_rank) == (False, 0)
    path = small.save_state("small").result().path
    for other, told in (
        (whole, "holds an adapter, and this model trains all weights"),
        (large, "rank is 3, and was 2"),
    ):
        with pytest.raises(tinker.RequestFailedError, match=told):
            other.load_state(path).result()


def test_negative_weights_make_tokens_unlikely(client: Any, trainer: Any) -> None:
    row = PROMPTS[2]
    before = trainer.forward([datum(row)], "cross_entropy").result()
    negative = [0.0] * (len(row) - 2) + [-1.0]
    result = trainer.forward_backward([datum(row, negative)], "cross_entropy").result()
    logprob = before.loss_fn_outputs[0]["logprobs"].data
    assert result.metrics["loss:sum"] == pytest.approx(logprob[-1], rel=1e-5)
    trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result()
    after = trainer.forward([datum(row)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    assert after[-1] < logprob[-1]


def test_forward_leaves_no_gradient(trainer: Any) -> None:
    trainer.forward([datum(PROMPTS[0])], "cross_entropy").result()
    with pytest.raises(tinker.RequestFailedError, match="there is no gradient") as caught:
        trainer.optim_step(types.AdamParams()).result()
    assert caught.value.category == types.RequestErrorCategory.User


def test_gradients_add_up_over_requests(client: Any, base: str, trainer: Any) -> None:
    once = client.create_lora_training_client(base_model=base, rank=8, seed=1)
    data = [datum(prompt) for prompt in PROMPTS]
    for each in data:
        trainer.forward_backward([each], "cross_entropy")
    once.forward_backward(data, "cross_entropy")
    norms = [each.optim_step(types.AdamParams()).result().metrics["grad_norm"] for each in (trainer, once)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


# Versions and checkpoints


def test_two_versions_are_sampled_side_by_side_and_training_changes_neither(
    client: Any, sampler: Any, trainer: Any
) -> None:
    untrained = scores(sampler, PROMPTS[2])
    learn(trainer, PROMPTS[2])
    first = client.create_sampling_client(model_path=trainer.save_weights_for_sampler("a").result().path)
    trained = scores(first, PROMPTS[2])
    assert sum(trained) > sum(untrained) + 1
    learn(trainer, PROMPTS[2])
    second = ready(trainer.save_weights_and_get_sampling_client())
    assert sum(scores(second, PROMPTS[2])) > sum(trained)
    assert scores(first, PROMPTS[2]) == trained
    assert scores(sampler, PROMPTS[2]) == untrained
    assert second.get_tokenizer().decode([END]) == "<|im_end|>"


def test_versions_that_left_the_memory_are_read_again(client: Any, trainer: Any) -> None:
    learn(trainer, PROMPTS[2])
    first = client.create_sampling_client(model_path=trainer.save_weights_for_sampler("v0").result().path)
    expected = scores(first, PROMPTS[2])
    for number in range(1, 5):
        learn(trainer, PROMPTS[2])
        scores(ready(trainer.save_weights_and_get_sampling_client()), PROMPTS[2 - number % 2])
    assert scores(first, PROMPTS[2]) == expected


def test_a_deleted_version_is_sampled_on_until_it_leaves_the_memory(client: Any, trainer: Any) -> None:
    path = trainer.save_weights_for_sampler("short-lived").result().path
    old = client.create_sampling_client(model_path=path)
    before = scores(old, PROMPTS[0])
    rest = client.create_rest_client()
    rest.delete_checkpoint(trainer.model_id, "short-lived").result()
    assert scores(old, PROMPTS[0]) == before
    assert scores(client.create_sampling_client(model_path=path), PROMPTS[0]) == before, "others sample it"
    for number in range(3):
        scores(ready(trainer.save_weights_and_get_sampling_client()), PROMPTS[number])
    with pytest.raises(tinker.RequestFailedError, match="there is no checkpoint"):
        scores(old, PROMPTS[0])
    with pytest.raises(tinker.NotFoundError, match="there is no checkpoint"):
        client.create_sampling_client(model_path=path)
    with pytest.raises(tinker.NotFoundError, match="no checkpoint 'short-lived'"):
        rest.delete_checkpoint(trainer.model_id, "short-lived").result()


def test_checkpoints_are_listed_and_deleted_by_their_path(client: Any, trainer: Any) -> None:
    state, weights = trainer.save_state("one").result().path, trainer.save_weights_for_sampler("one").result().path
    rest = client.create_rest_client()
    assert [each.tinker_path for each in rest.list_checkpoints(trainer.model_id).result().checkpoints] == [
        state,
        weights,
    ]
    with pytest.raises(tinker.BadRequestError, match="has both"):
        rest.delete_checkpoint(trainer.model_id, "one").result()
    rest.delete_checkpoint_from_tinker_path(state).result()
    (left,) = rest.list_checkpoints(trainer.model_id).result().checkpoints
    assert left.tinker_path == weights


def test_a_name_is_saved_once_unless_overwriting_is_asked_for(trainer: Any, client: Any) -> None:
    path = trainer.save_state("same").result().path
    with pytest.raises(tinker.RequestFailedError, match="is there already"):
        trainer.save_state("same").result()
    learn(trainer, PROMPTS[2])
    expected = trainer.forward([datum(PROMPTS[2])], "cross_entropy").result().metrics
    trainer.save_state("same", overwrite=True).result()
    again = client.create_training_client_from_state(path)
    assert again.forward([datum(PROMPTS[2])], "cross_entropy").result().metrics == expected


@pytest.mark.fault(
    "Runs and resuming", "the tinker server is killed", "a new one goes on from the checkpoint with the same weights"
)
def test_a_killed_server_goes_on_where_the_checkpoint_is(tmp_path: Path, base: str) -> None:
    folder = tmp_path / "dir"
    rows = [datum(row) for row in PROMPTS]

    def logprobs(trainer: Any) -> list[list[float]]:
        found = trainer.forward(rows, "cross_entropy").result().loss_fn_outputs
        return [each["logprobs"].data for each in found]

    with start_server(tiny_model_dir(), folder, device="cpu", log=tmp_path / "log") as first:
        client = connect(first)
        straight = client.create_lora_training_client(base_model=base, rank=8)
        learn(straight, PROMPTS[2])
        learn(straight, PROMPTS[0])
        path = straight.save_state("half way").result().path
        weights = straight.save_weights_for_sampler("half way").result().path
        sampled = scores(client.create_sampling_client(model_path=weights), PROMPTS[0])
        learn(straight, PROMPTS[2])
        expected = logprobs(straight)
        first.check()
        first.process.kill()
        first.process.wait()
        with pytest.raises(TrainingError, match="the tinker server died"):
            first.check()
    torn = folder / ".unfinished" / "torn"
    torn.mkdir()
    with start_server(tiny_model_dir(), folder, device="cpu", log=tmp_path / "log") as second:
        assert not torn.exists()
        client = connect(second)
        resumed = client.create_training_client_from_state_with_optimizer(path)
        learn(resumed, PROMPTS[2])
        assert logprobs(resumed) == expected
        assert scores(client.create_sampling_client(model_path=weights), PROMPTS[0]) == sampled
        anew = client.create_training_client_from_state(path)
        learn(anew, PROMPTS[2])
        assert logprobs(anew) != expected
    assert second.process.returncode == 0


def test_the_example_of_the_documentation_runs(
    server: ServerProcess, client: Any, base: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tinker_server.md").read_text(encoding="utf-8")
    example = re.findall(r"^```python not-run=tinker\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    monkeypatch.setenv("TINKER_BASE_URL", server.base_url)
    monkeypatch.setenv("TINKER_API_KEY", server.api_key)
    names: dict[str, Any] = {}
    if not isinstance(client._service.create_sampling_client(base_model=base), tinker.APIFuture):
        example = re.sub(r"(= service\.create_.*)\.result\(\)$", r"\1", example, flags=re.MULTILINE)
    exec(example.replace('"tiny"', repr(base)), names)
    CLIENTS.append(names["service"])
    assert "stop_reason=" in capsys.readouterr().out


# Faults


@pytest.mark.fault("The OpenAI-compatible endpoint", "a wrong key at the tinker server", "refused")
def test_a_wrong_key_is_refused(server: ServerProcess) -> None:
    with pytest.raises(tinker.AuthenticationError, match="TINKER_API_KEY"):
        CLIENTS.append(tinker.ServiceClient(base_url=server.base_url, api_key="tml-wrong"))
        ready(CLIENTS[-1].create_sampling_client(base_model="x"))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.base_url}/api/v1/healthz")
    assert caught.value.code == 401
    caught.value.close()


def test_unknown_models_and_paths_are_told(client: Any, base: str, trainer: Any) -> None:
    with pytest.raises(tinker.NotFoundError, match="this server serves"):
        client.create_lora_training_client(base_model="Qwen/Qwen3-8B")
    with pytest.raises(tinker.NotFoundError, match="this server serves"):
        client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    trainer.save_state("existing").result()
    with pytest.raises(tinker.NotFoundError, match=r"Did you mean .*/weights/existing"):
        client.create_training_client_from_state(f"tinker://{trainer.model_id}/weights/exsting")
    with pytest.raises(tinker.BadRequestError, match="is no path like"):
        client.create_sampling_client(model_path="tinker://../weights/x")
    path = trainer.save_weights_for_sampler("only weights").result().path
    with pytest.raises(tinker.RequestFailedError, match="has no optimizer state"):
        trainer.load_state_with_optimizer(path).result()
    with pytest.raises(tinker.RequestFailedError, match="ttl_seconds is not supported"):
        trainer.save_state("for a day", ttl_seconds=86400).result()
    with pytest.raises(tinker.RequestFailedError, match="cannot be called"):
        trainer.save_state("../../outside").result()
    with pytest.raises(tinker.RequestFailedError, match="cannot be called"):
        trainer.save_state("..", overwrite=True).result()


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "a prompt that cannot be sampled is sent to the tinker server",
    "the request fails with the reason; the server goes on",
)
@each_row(
    ("ids", "params", "told"),
    [
        ([1] * 2049, {"max_tokens": 1}, "more than the context length of 2048"),
        ([1] * 2000, {"max_tokens": 100}, "exceed the context length of 2048"),
        ([1, 5000], {"max_tokens": 1}, "token id 5000"),
        ([], {"max_tokens": 1}, "no tokens"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"max_tokens": 1, "top_p": 0.0}, "top_p"),
        ([1], {"max_tokens": 1, "temperature": -1.0}, "temperature"),
    ],
)
def test_a_prompt_that_cannot_be_sampled_is_told_and_the_server_goes_on(
    sampler: Any, ids: list[int], params: dict[str, Any], told: str
) -> None:
    with pytest.raises(tinker.RequestFailedError, match=told) as caught:
        sample(sampler, ids, **params)
    assert caught.value.category == types.RequestErrorCategory.User
    assert sample(sampler, PROMPTS[0], max_tokens=1, temperature=0.0).tokens


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "rows that cannot be trained are sent to the tinker server",
    "the request fails with the reason; the model goes on",
)
@each_row(
    ("data", "loss", "told"),
    [
        (datum([1] * 2050), "cross_entropy", "row 0 has 2049 tokens, more than the context length"),
        (datum([1, 2, 3]), "ppo", "loss function 'ppo' is not supported"),
        (datum([1, 2, 3], [1.0]), "cross_entropy", "weights has 1 entries for 2 tokens"),
        (datum([1, 2, 3], [1.0, float("nan")]), "cross_entropy", "not all finite"),
        (datum([1, 5000, 3]), "cross_entropy", "token id 5000"),
        (types.Datum(model_input=text([1]), loss_fn_inputs={"weights": [1.0]}), "cross_entropy", "no target_tokens"),
        (
            types.Datum(
                model_input=types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")]),
                loss_fn_inputs={"target_tokens": [1], "weights": [1.0]},
            ),
            "cross_entropy",
            "takes only tokens",
        ),
    ],
    ids=["too long", "loss", "lengths", "nan", "token", "targets", "image"],
)
def test_rows_that_cannot_be_trained_are_told_and_the_model_goes_on(
    trainer: Any, data: Any, loss: str, told: str
) -> None:
    with pytest.raises(tinker.RequestFailedError, match=told) as caught:
        trainer.forward_backward([data], loss).result()
    assert caught.value.category == types.RequestErrorCategory.User
    learn(trainer, PROMPTS[0])


def test_images_in_a_prompt_are_refused(sampler: Any) -> None:
    prompt = types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")])
    with pytest.raises(tinker.RequestFailedError, match="takes only tokens"):
        sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1)).result()


def post(server: ServerProcess, where: str, body: str) -> tuple[int, Any]:
    headers = {"X-API-Key": server.api_key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.base_url}/api/v1/{where}", body.encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def session(server: ServerProcess) -> str:
    return str(post(server, "create_session", "{}")[1]["session_id"])


@pytest.mark.fault(
    "Foreign servers",
    "a client of the tinker server sends ids or names that lead out of its folder (`../`, absolute, NUL, too long)",
    "400 that names the field; nothing is read, written or deleted outside",
)
def test_ids_and_names_cannot_lead_out_of_the_servers_folder(
    server: ServerProcess, checkpoints: Path, session: str, base: str, trainer: Any
) -> None:
    outside = checkpoints.parent / "outside"
    for kind in ("weights", "sampler_weights"):
        (outside / kind / "x").mkdir(parents=True)
    before = sorted(checkpoints.parent.rglob("outside*/**"))
    model = {"session_id": session, "base_model": base, "lora_config": {"rank": 8}}
    for seq in ("../../outside", "0/../../../outside", "/etc", "x\0", "a" * 5000, 1.5, True, -1, None, [0], {}):
        status, told = post(server, "create_model", json.dumps({**model, "model_seq_id": seq}))
        assert status == 400 and "model_seq_id is" in told["detail"], seq
        body = {"session_id": session, "base_model": base, "sampling_session_seq_id": seq}
        assert post(server, "create_sampling_session", json.dumps(body))[0] == 400
        save = {"model_id": trainer.model_id, "seq_id": seq, "path": "x"}
        for where in ("save_weights", "save_weights_for_sampler", "load_weights"):
            assert post(server, where, json.dumps({**save, "optimizer": False}))[0] == 400
    for name in ("../../outside/weights/x", "..", "/etc", "a\0b", "a" * 201, "é" * 101, ".unfinished"):
        with pytest.raises(tinker.RequestFailedError, match="cannot be called"):
            trainer.save_state(name, overwrite=True).result()
        for uri in (f"tinker://{name}/weights/x", f"tinker://{trainer.model_id}/weights/{name}"):
            body = {"session_id": session, "sampling_session_seq_id": 1, "model_path": uri}
            assert post(server, "create_sampling_session", json.dumps(body))[0] == 400
            assert post(server, "weights_info", json.dumps({"tinker_path": uri}))[0] == 400
    for model_id in ("..%2F..%2Foutside", "..", "%2Fetc", "outside%00"):
        where = f"{server.base_url}/api/v1/training_runs/{model_id}/checkpoints/x"
        request = urllib.request.Request(where, headers={"X-API-Key": server.api_key}, method="DELETE")
        with pytest.raises(urllib.error.HTTPError, match=r"40[45]"):
            urllib.request.urlopen(request)
    assert sorted(checkpoints.parent.rglob("outside*/**")) == before


@pytest.mark.fault(
    "Foreign servers",
    "a client of the tinker server sends sampling or optimizer values of the wrong kind (`max_tokens: 1.5`, NaN, true)",
    "400 that names the field; the model and its optimizer stay as they are",
)
def test_values_of_the_wrong_kind_are_refused_by_name(
    server: ServerProcess, session: str, base: str, trainer: Any
) -> None:
    body = {"session_id": session, "base_model": base, "sampling_session_seq_id": 7}
    sampler_id = post(server, "create_sampling_session", json.dumps(body))[1]["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    huge = "1" + "0" * 400
    for name, value in (
        *(("max_tokens", text) for text in ("1.5", "true", "NaN", '"1"', "[]", huge)),
        *(("temperature", text) for text in ("true", "NaN", "Infinity", "-Infinity", '"1"', huge, "{}")),
        *(("top_p", text) for text in ("true", "NaN", "Infinity", huge, "[1]")),
        *(("top_k", text) for text in ("1.5", "true", "NaN", huge)),
        *(("seed", text) for text in ("1.5", "true", huge)),
    ):
        raw = f'{{"sampling_session_id": "{sampler_id}", "seq_id": 1, "sampling_params": {{"{name}": {value}}}, '
        status, told = post(server, "asample", raw + f'"prompt": {json.dumps(prompt)}}}')
        assert status == 400 and told["detail"].startswith(f"{name} is "), (name, value)
    for raw in ("[]", "1" + "0" * 5000, "{", '{"a": ' * 100_000, "null"):
        assert post(server, "asample", raw)[0] == 400
    learn(trainer, PROMPTS[0])
    for number, (name, value) in enumerate(
        (("learning_rate", "NaN"), ("beta1", "1.0"), ("eps", "0"), ("beta2", "true"))
    ):
        params = {
            "learning_rate": 1e-4,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0,
            "grad_clip_norm": 0,
        }
        del params[name]
        given = json.dumps(params)[:-1] + f', "{name}": {value}}}'
        raw = f'{{"model_id": "{trainer.model_id}", "seq_id": {100 + number}, "adam_params": {given}}}'
        status, told = post(server, "optim_step", raw)
        assert status == 400 and name in told["detail"]
    learn(trainer, PROMPTS[0])


@each_row(
    "asked",
    [
        {"topk_sample_logprobs": 2},
        {"prompt_alt_tokens_k": 1},
        {"record_stability_info": True},
        {"target_prompt_logprobs": {"data": [1], "dtype": "int64", "shape": [1, 1]}},
        {"num_samples": 0},
        {"optimizer_config": {"type": "dimuon", "version": 1}},
        {"optimizer_params": {"type": "dimuon", "learning_rate": 0.1}},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_newer_sdks_may_ask_for_and_nobody_serves_is_refused_by_name(
    server: ServerProcess, session: str, base: str, trainer: Any, asked: dict[str, Any]
) -> None:
    body = {"session_id": session, "base_model": base, "sampling_session_seq_id": 9}
    sampler_id = post(server, "create_sampling_session", json.dumps(body))[1]["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    requests = {
        "asample": {"sampling_session_id": sampler_id, "seq_id": 1, "sampling_params": {}, "prompt": prompt},
        "create_model": {"session_id": session, "base_model": base, "model_seq_id": 9, "lora_config": {"rank": 2}},
        "optim_step": {"model_id": trainer.model_id, "seq_id": 77},
    }
    (name,) = asked
    where = {"optimizer_config": "create_model", "optimizer_params": "optim_step"}.get(name, "asample")
    status, told = post(server, where, json.dumps(requests[where] | asked))
    assert status == 400 and told["detail"].startswith(name), told


def test_a_client_that_is_done_closes_its_session(server: ServerProcess) -> None:
    session = post(server, "create_session", "{}")[1]["session_id"]
    where = f"{server.base_url}/api/v1/sessions/{session}/finish"
    request = urllib.request.Request(where, b"{}", headers={"X-API-Key": server.api_key}, method="POST")
    assert urllib.request.urlopen(request).status == 204
    status, told = post(server, "session_heartbeat", json.dumps({"session_id": session}))
    assert status == 404 and "there is no session" in told["detail"]


def test_an_empty_list_of_stops_takes_the_models_own_away(sampler: Any) -> None:
    params = {"max_tokens": 80, "temperature": 0.0}
    ended = sample(sampler, PROMPTS[1], **params)
    assert ended.stop_reason == "stop" and ended.tokens[-1] == END
    through = sample(sampler, PROMPTS[1], **params, stop=[])
    assert through.stop_reason == "length" and through.tokens[: len(ended.tokens)] == ended.tokens


def test_a_tiny_top_p_is_greedy(sampler: Any) -> None:
    greedy = sample(sampler, PROMPTS[0], max_tokens=8, temperature=0.0)
    for params in ({"top_p": 1e-50}, {"temperature": 1e-300}, {"temperature": 1e-40}, {"top_k": 1}):
        got = sample(sampler, PROMPTS[0], max_tokens=8, **({"temperature": 1.0} | params))
        assert got.tokens == greedy.tokens
        assert got.logprobs == pytest.approx(greedy.logprobs, abs=1e-4)


def test_a_step_whose_gradient_is_no_number_is_skipped_and_says_so(client: Any, base: str, trainer: Any) -> None:
    twin = client.create_lora_training_client(base_model=base, rank=8, seed=1)
    learn(trainer, PROMPTS[0])
    learn(twin, PROMPTS[0])
    for _ in range(2):
        trainer.forward_backward([datum(PROMPTS[0], [3e38] * (len(PROMPTS[0]) - 1))], "cross_entropy").result()
    assert trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result().metrics == {"skipped": 1.0}
    learn(trainer, PROMPTS[2])
    learn(twin, PROMPTS[2])
    rows = [trained.forward([datum(PROMPTS[1])], "cross_entropy").result() for trained in (trainer, twin)]
    assert rows[0].metrics == rows[1].metrics


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"did not come up[\s\S]*no tokenizer.json"):
        start_server(tmp_path, tmp_path / "dir", device="cpu", log=tmp_path / "log")
