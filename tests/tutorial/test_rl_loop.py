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


def test_the_loop_on_one_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_demo.py` shows that such a loop learns."""
    assert rl_loop.advantage([0.0, 1.0]) == [-1.0, 1.0]
    monkeypatch.setattr(rl_loop, "STEPS", 2)
    first, second = asyncio.run(rl_loop.train())
    assert 0 <= first <= 1 and 0 <= second <= 1


@pytest.mark.release
def test_the_loop_on_one_page_learns() -> None:
    curve = asyncio.run(rl_loop.train())
    assert len(curve) == rl_loop.STEPS
    assert fmean(curve[-3:]) > fmean(curve[:3]) + 0.15
