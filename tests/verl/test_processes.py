"""Whoever died is named. Ray is stood in for: how it tells of real processes is in test_on_ray.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import ray

from astune.backbone.verl import processes
from astune.backbone.verl.processes import VerlProcesses
from astune.errors import RunFolderError, TrainingError

DIED, UNREACHED = ray.exceptions.ActorDiedError(), ray.exceptions.ActorUnavailableError("the network hiccups", None)


class Actor:
    """Gives the first of `answers` to each that asks, until one is left: an error, "lives", or None for a while."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.__ray_ready__ = self

    def remote(self) -> tuple[Actor, Any]:
        return self, self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(asked: Sequence[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [each for each in asked if each[1] is not None], []

    def get(answer: Any) -> None:
        if isinstance(answer[1], Exception):
            raise answer[1]

    monkeypatch.setattr(processes.ray, "wait", wait)
    monkeypatch.setattr(processes.ray, "get", get)
    monkeypatch.setattr(processes, "BETWEEN", 0.0)
    monkeypatch.setattr(processes, "EVERY", 0.0)


def failure(**actors: Actor) -> str:
    """What is said of a call that failed."""
    with pytest.raises(TrainingError) as told, VerlProcesses(actors).failing_loudly():
        raise ray.exceptions.RayTaskError("step", "", ValueError("connection closed by peer"))
    return str(told.value)


def test_the_dead_process_is_named_though_others_fail_first_and_wait(answered: None) -> None:
    assert failure(one=Actor("lives"), two=Actor(None), three=Actor(UNREACHED, UNREACHED, DIED)).startswith(
        "three died"
    )


def test_where_all_live_the_failure_is_told(answered: None) -> None:
    told = failure(one=Actor("lives"), two=Actor(UNREACHED, "lives"))
    assert told == "verl failed: ValueError: connection closed by peer"


def test_a_process_that_could_not_be_reached_once_is_not_lost(answered: None) -> None:
    actors = {"one": Actor("lives"), "two": Actor(UNREACHED, "lives", UNREACHED, "lives", DIED)}
    assert str(asyncio.run(VerlProcesses(actors).wait_for_loss())).startswith("two died")
    assert len(actors["two"].answers) == 1


def test_what_astune_says_in_a_process_is_said(answered: None) -> None:
    with (
        pytest.raises(RunFolderError, match="another adapter"),
        VerlProcesses({"one": Actor("lives")}).failing_loudly(),
    ):
        raise ray.exceptions.RayTaskError("init_model", "", RunFolderError("another adapter"))
