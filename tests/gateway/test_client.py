from __future__ import annotations

import asyncio

import openai
import pytest

from astune.gateway.app import OpenAIApp
from astune.gateway.client import in_process_client


async def test_a_call_needs_no_thread_so_calls_arrive_in_the_order_of_the_agents_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a call in process went through a thread")

    app = OpenAIApp()
    client = in_process_client(app, "nobody")
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
    with pytest.raises(openai.APIStatusError):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
