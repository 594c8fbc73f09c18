"""What a cluster lacks of a run is found before verl waits for it without end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from astune.backbone.ray_cluster.episodes import WorkersByNode
from astune.backbone.verl.demand import Demand
from astune.backbone.verl.engine import out_of_reach
from astune.config.schema import AstuneConfig


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
    assert SHARED.table(AstuneConfig()) == [
        "training workers  16 on 2 x 8 GPUs",
        "servers           8, of 2 GPUs each, on the GPUs of the training workers, by turns",
    ]
    assert "on 2 x 8 GPUs of their own" in APART.table(AstuneConfig())[1]
    alone = AstuneConfig.model_validate({"algorithm": {"method": "sft"}, "rollout": {"workers": 12}})
    assert APART.table(alone)[1:] == ["servers           none, as nothing is played"]


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ({"kl_beta": 0.1}, "reference"),
        ({"method": "distill", "teacher": "someone/larger"}, "teacher"),
        ({"advantage": "gae"}, "critic"),
    ],
    ids=["reference", "teacher", "critic"],
)
def test_the_table_has_the_models_beside_the_one_that_is_trained(algorithm: dict[str, Any], name: str) -> None:
    _, beside, _ = SHARED.table(AstuneConfig.model_validate({"algorithm": algorithm}))
    assert beside.split()[0] == name and "bytes for each of its numbers" in beside


def test_the_reference_of_an_adapter_takes_nothing() -> None:
    config = AstuneConfig.model_validate({"algorithm": {"kl_beta": 0.1}, "model": {"lora": {"rank": 4}}})
    assert SHARED.table(config) == SHARED.table(AstuneConfig())


def test_the_table_says_who_plays() -> None:
    config = AstuneConfig.model_validate({"rollout": {"workers": 12}})
    playing = SHARED.table(config)[2]
    assert playing == "episodes          by 12 workers, on all nodes by their CPUs"


def places(*nodes: dict[str, Any], workers: int) -> dict[str, int]:
    taken = WorkersByNode()
    return dict(Counter(taken.take(nodes)["NodeID"] for _ in range(workers)))


def test_workers_are_spread_over_the_nodes_by_their_cpus() -> None:
    assert places(node("a", 8, 96), node("b", 8, 96), workers=7) in ({"a": 4, "b": 3}, {"a": 3, "b": 4})
    assert places(node("a", 8, 96), node("b", 0, 32), workers=8) == {"a": 6, "b": 2}
    assert places(node("head", 0, 0), node("b", 0, 4), workers=50) == {"b": 50}
    assert places(node("head", 0, 0), workers=3) == {"head": 3}


def test_the_place_of_a_worker_that_is_lost_is_taken_by_the_next() -> None:
    nodes, taken = [node("a", 8, 96), node("b", 8, 96)], WorkersByNode()
    for _ in range(6):
        taken.take(nodes)
    taken.leave(nodes[1])
    assert taken.take(nodes) == nodes[1]


@pytest.mark.parametrize(("workers", "nodes", "refused"), [(4, 2, True), (0, 2, False), (4, 1, False)])
def test_an_environment_that_the_run_serves_itself_is_out_of_reach_for_other_nodes(
    workers: int, nodes: int, refused: bool
) -> None:
    config = AstuneConfig.model_validate({"rollout": {"workers": workers}})
    assert list(out_of_reach(config, nodes)) == []
    service = config.task_reader.env_service.at("http://127.0.0.1:9", "token")
    config = config.model_copy(update={"task_reader": config.task_reader.model_copy(update={"env_service": service})})
    problems = list(out_of_reach(config, nodes))
    assert [problem.partition(":")[0] for problem in problems] == ["astune.task_reader.env_service.serve"] * refused
