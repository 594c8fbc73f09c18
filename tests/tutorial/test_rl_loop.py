"""The page that is read first does what it says."""

import asyncio
from importlib import metadata
from statistics import fmean

import pytest

pytest.importorskip("torch")
pytest.importorskip("agentscope")
if metadata.version("agentscope").startswith("1."):
    pytest.skip("the agent is one of AgentScope 2.x", allow_module_level=True)

from tutorial import rl_loop


def test_the_loop_on_one_page_learns():
    curve = asyncio.run(rl_loop.train())
    assert len(curve) == rl_loop.STEPS
    assert fmean(curve[-3:]) > fmean(curve[:3]) + 0.15
