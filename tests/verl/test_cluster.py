"""What a cluster lacks of a run is found before verl waits for it without end."""

from __future__ import annotations

from typing import Any

import pytest

from astune.backbone.verl.demand import Demand
from astune.config.schema import AlgorithmConfig


def node(name: str, gpus: int, cpus: int) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerAddress": name, "Resources": {"GPU": float(gpus), "CPU": float(cpus)}}


SHARED = Demand(2, 8, 0, 8, 2)
APART = Demand(1, 8, 2, 8, 4)


@pytest.mark.parametrize(
    ("demand", "nodes", "told"),
    [
        (SHARED, [node("a", 8, 24), node("b", 8, 96)], None),
        (
            SHARED,
            [node("a", 8, 24), node("b", 8, 23)],
            "2 nodes with 8 free GPUs and 24 CPUs each are asked for, and 1",
        ),
        (SHARED, [node("a", 16, 96)], None),
        (APART, [node("a", 8, 96), node("b", 8, 96)], "verl.actor_rollout_ref.rollout.nnodes"),
        (APART, [node(name, 8, 96) for name in "abc"], None),
        (Demand(1, 1, 0, 1, 1), [node("a", 0, 64)], "a has 0 GPUs and 64 CPUs"),
    ],
)
def test_gpus_and_cpus_that_are_not_there_are_named(demand: Demand, nodes: list[Any], told: str | None) -> None:
    problems = list(demand.missing(nodes))
    assert problems == [] if told is None else told in problems[0]


def test_servers_fill_the_gpus_that_they_are_on() -> None:
    assert list(SHARED.problems()) == [] and SHARED.servers == 8
    assert list(APART.problems()) == [] and APART.servers == 4
    (problem,) = Demand(1, 8, 0, 8, 3).problems()
    assert "servers of 3 GPUs each do not fill 8" in problem


def test_the_table_says_what_runs_where() -> None:
    assert SHARED.table(AlgorithmConfig()) == [
        "training workers  16 on 2 x 8 GPUs",
        "servers           8, of 2 GPUs each, on the GPUs of the training workers, by turns",
    ]
    assert "on 2 x 8 GPUs of their own" in APART.table(AlgorithmConfig())[1]
    assert APART.table(AlgorithmConfig(), servers=False)[1] == "servers           none, as nothing is played"


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [({"kl_beta": 0.1}, "reference"), ({"method": "distill", "teacher": "someone/larger"}, "teacher")],
    ids=["reference", "teacher"],
)
def test_the_table_has_the_models_beside_the_one_that_is_trained(algorithm: dict[str, Any], name: str) -> None:
    _, beside, _ = SHARED.table(AlgorithmConfig.model_validate(algorithm))
    assert beside.split()[0] == name and "4 bytes for each of its numbers" in beside
