"""The env service of agentscope-runtime, with AppWorld and BFCL, is played as it stands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("agentscope_runtime")

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.config.tasks import TaskReaderConfig
from astune.errors import EnvServiceError
from astune.support.http.serving import bound_socket
from astune.task_reader import make_reader

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with bound_socket("127.0.0.1", 0) as held:  # so that nobody else is given the port until the server has it
        port = held.getsockname()[1]
        process = subprocess.Popen([sys.executable, HERE / "runtime_box.py", str(port)], stdout=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=9)) as http:
                http.get(f"{url}/healthz", timeout=60.0)
            yield url
        finally:
            process.terminate()
            process.wait()


async def play(url: str, env_type: str, task_id: str, *texts: str) -> tuple[list[str], float]:
    """What the environment says to each text, and its score."""
    client, instance = EnvServiceClient(url), EnvInstance(url, "i", env_type, task_id)
    states = [await client.create(env_type, task_id, "i")]
    for number, text in enumerate(texts):
        states.append(await client.step(instance, {"role": "assistant", "content": text}, number=number))
    try:
        return [state.messages[-1]["content"] for state in states], await client.evaluate(instance)
    finally:
        await client.release(instance)


@pytest.mark.parametrize(("env_type", "task_id"), [("bfcl", "multi_turn_base_0"), ("appworld", "train_1")])
def test_its_tasks_are_read(service: str, env_type: str, task_id: str) -> None:
    settings = {"env_url": service, "env_type": env_type, "training_split": "train"}
    (task,) = make_reader(TaskReaderConfig(type="env_service", env_service=settings)).read("training")
    assert (task.task_id, task.env_type) == (task_id, env_type)


async def test_appworld_is_played(service: str) -> None:
    said, score = await play(service, "appworld", "train_1", "```python\napis.supervisor.complete_task()\n```")
    assert said == ["Do it.", "Output:\n```\nMarked the active task complete.```\n\n"] and score == 0.75


async def test_bfcl_is_played(service: str) -> None:
    call = '<tool_call>\n{"name": "cd", "arguments": {}}\n</tool_call>'
    said, score = await play(service, "bfcl", "multi_turn_base_0", call, "I am there.")
    assert said[0] == "Go to the folder." and "in it" in said[1] and score == 1.0


@pytest.mark.fault("Tools and environments", "BFCL of agentscope-runtime cannot be evaluated", "an error, never 0")
async def test_an_evaluation_that_broke_is_no_score(service: str) -> None:
    with pytest.raises(EnvServiceError, match="no such category"):
        await play(service, "bfcl", "multi_turn_base_0")
