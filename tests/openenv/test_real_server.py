"""The recording is what the real OpenEnv server says, and it serves a run."""

from __future__ import annotations

import json

import pytest

from astune.environment.check import check_environment
from astune.environment.registry import load_environment
from tests.openenv.frames import GOLDEN, PYTHON, real_server, record_all

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make test-openenv builds the environment")


def test_the_real_server_answers_as_it_was_recorded():
    assert record_all() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(("world", "options"), [("guess", {"unfinished": 0}), ("tools", {"unfinished": 0, "tasks": 3})])
def test_its_environments_keep_the_contract(world, options):
    with real_server(world, places=8) as url:
        made = load_environment(f"openenv:{url}", options)
        found = [result for result in check_environment(made, "train") if result.level != "ok"]
        made.close()
    assert found == []
