"""How torch's threads are told to wait for work: before torch is imported, by the package that imports it."""

from __future__ import annotations

import importlib
import os

import pytest

import astune.backbone.local

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ((None, None), ("PASSIVE", "3000")),
        ((None, "7"), ("PASSIVE", "7")),
        (("ACTIVE", None), ("ACTIVE", None)),
        (("PASSIVE", None), ("PASSIVE", None)),
    ],
)
def test_threads_spin_a_little_unless_the_user_says_how_they_wait(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str | None, str | None], then: tuple[str | None, str | None]
) -> None:
    for name, value in zip(NAMES, given, strict=True):
        monkeypatch.setenv(name, value or "")  # so that it is as before afterwards, whatever the package sets
        if value is None:
            monkeypatch.delenv(name)
    importlib.reload(astune.backbone.local)
    assert tuple(os.environ.get(name) for name in NAMES) == then
