"""Ask every node of a cluster which parts of a run it lacks: the user's code, the model, its data, the run folder."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from astune.backbone.ray_cluster.node_check import NodeQuestion
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.version import __version__ as VERSION

LONGEST_LOOK = 180.0
"""Seconds for one task on each node; a node's first one starts a process there and imports the user's code."""


def refuse(problems: list[str], program: str) -> None:
    """Raise `ConfigError` with all problems that keep a run from starting on a program."""
    if problems:
        raise ConfigError(f"this run cannot start on {program}:\n  - " + "\n  - ".join(problems))


def live_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster that this process has joined."""
    return [node for node in ray.nodes() if node["Alive"]]


def ask_nodes(
    nodes: list[dict[str, Any]], config: AstuneConfig, model: str, folder: Path, attention: str
) -> Iterator[str]:
    """Ask every node with one small task, and give what the nodes say, equal answers once. `model` is the model's
    folder or a hub id, `folder` one that all nodes have to share, if there are several; `attention` is what training
    workers compute, on nodes with GPUs."""
    if not os.path.isdir(model):
        model = ""
    mark = _leave_mark(folder) if len(nodes) > 1 else None
    try:
        question = NodeQuestion(config.model_dump_json(), model, "" if mark is None else str(mark), attention)
        answers = list(_ask(nodes, question))
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)
    by_problem: dict[str, list[str]] = {}
    for address, problems in answers:
        for problem in problems:
            by_problem.setdefault(problem, []).append(address)
    for problem, addresses in by_problem.items():
        yield f"on {', '.join(dict.fromkeys(addresses))}: {problem}"


def _leave_mark(folder: Path) -> Path:
    """A file that the other nodes must find."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".astune_{uuid.uuid4().hex}"
    mark.write_text(socket.gethostname())
    return mark


def _ask(nodes: list[dict[str, Any]], question: NodeQuestion) -> Iterator[tuple[str, list[str]]]:
    """Each node's address with the problems it sees. A node may lack ASTune, so the task is sent as code."""
    probe = ray.remote(num_cpus=0, max_retries=0)(_make_probe())
    asked = {}
    for node in nodes:
        there = probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        own = question if node["Resources"].get("GPU") else question._replace(attention="")
        asked[there.remote(VERSION, tuple(own))] = node["NodeManagerAddress"]
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=LONGEST_LOOK)
    for answer in done:
        try:
            yield asked[answer], ray.get(answer)
        except ray.exceptions.RayError as error:
            yield asked[answer], [f"a first task fails there: {error}"]
    for answer in late:
        ray.cancel(answer, force=True)
        yield asked[answer], [f"no answer to a first task within {LONGEST_LOOK:.0f} s; see `ray status` and Ray's logs"]


def _make_probe() -> Any:
    """The task. It may use no name of this module: Ray would send a reference to the module instead of the code, and a
    node without ASTune could not even say so."""

    def probe(version: str, question: tuple[str, str, str, str]) -> list[str]:
        try:
            from astune.version import __version__ as there
        except ImportError as error:
            return [f"ASTune cannot be imported there ({error}); install astune=={version} on every node"]
        if there != version:
            return [f"ASTune {there} is installed there, here {version}; install the same on every node"]
        from astune.backbone.ray_cluster.node_check import NodeQuestion, find_problems

        return find_problems(NodeQuestion(*question))

    return probe
