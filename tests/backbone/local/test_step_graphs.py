"""Steps that are recorded and played again, with a recorder that computes anew from the same memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from astune.backbone.local.sampling.step_graphs import MOST_GRAPHS, Recorded, StepGraphs
from tests.gpu.trained import CPU, Trained, answers, prompts, trained


class Recorder:
    """Counts what is recorded and played. On a CPU nothing is launched at once, so `replay` computes."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.played = 0

    def __call__(self, inputs: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> Recorded:
        self.recorded.append(inputs.shape[1])
        logits = torch.zeros_like(compute(inputs))

        def replay() -> None:
            self.played += 1
            logits.copy_(compute(inputs))

        return Recorded(inputs, logits, replay)


def with_graphs(folder: Path, recorder: Recorder, **model: object) -> Trained:
    made = trained(folder, CPU, model=model)
    made.sampler._cache._graphs = StepGraphs(recorder)  # type: ignore[union-attr]
    return made


@pytest.mark.parametrize("model", [{}, {"lora": {"rank": 2}}])
async def test_recorded_steps_give_the_answers_of_plain_ones(model: dict[str, object], model_dir: Path) -> None:
    asked, recorder = prompts(5, vocabulary=64), Recorder()
    expected = await answers(trained(model_dir, CPU, model=model).sampler, asked)
    made = with_graphs(model_dir, recorder, **model)
    for _ in range(2):
        for found, one in zip(await answers(made.sampler, asked), expected, strict=True):
            assert found.output_ids == one.output_ids and found.logprobs == pytest.approx(one.logprobs, abs=1e-5)
    assert set(recorder.recorded) <= {5, 8} and recorder.played > 30


async def test_weights_in_other_memory_are_recorded_anew(model_dir: Path) -> None:
    asked, recorder = prompts(3, vocabulary=64), Recorder()
    made = with_graphs(model_dir, recorder)
    await answers(made.sampler, asked)
    with torch.no_grad():
        for parameter in made.loaded.model.parameters():
            parameter.data = parameter.data.clone() * 1.5
    made.sampler.publish()
    found = await answers(made.sampler, asked)
    plain = trained(model_dir, CPU)
    with torch.no_grad():
        for parameter in plain.loaded.model.parameters():
            parameter.mul_(1.5)
    expected = await answers(plain.sampler, asked)
    assert [each.output_ids for each in found] == [each.output_ids for each in expected]
    assert len(recorder.recorded) == 2


def test_where_no_graph_can_be_made_steps_stay_plain(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(inputs: torch.Tensor, compute: object) -> Recorded:
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs, number = StepGraphs(refuse), torch.full((3, 1, 1), 7).numpy()
    found = [graphs.step(lambda numbers, _: numbers[0] + 1, number, 256, (), CPU) for _ in range(5)]
    assert [int(each) for each in found] == [8] * 5
    assert caplog.text.count("no CUDA graph can be made") == 1


def test_the_oldest_size_makes_room() -> None:
    recorder = Recorder()
    graphs, number = StepGraphs(recorder), torch.full((3, 1, 1), 7).numpy()
    for _ in range(4):
        for width in range(MOST_GRAPHS + 1):
            assert int(graphs.step(lambda numbers, width: numbers[0] + width, number, width, (), CPU)) == 7 + width
    assert len(graphs._graphs) == MOST_GRAPHS
