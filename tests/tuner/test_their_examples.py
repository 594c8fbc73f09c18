"""AgentScope's own examples of its tuner, which are not here: `examples/tuner` of release 1.0.21, where the variable
AGENTSCOPE_TUNER_EXAMPLES names that folder. Each has one import changed, its data and model made small, and scripted
APIs in the place of DashScope."""

import json
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("agentscope")

import agentscope.model

from astune.testing import ScriptedChatServer
from tests.tuner.agents import OF_1, chat_model

THEIRS = os.environ.get("AGENTSCOPE_TUNER_EXAMPLES")
pytestmark = pytest.mark.skipif(THEIRS is None or not OF_1, reason="needs AgentScope 1.x and its examples")
SMALL = {
    'path="openai/gsm8k"': 'path="train.jsonl"',
    'name="main",\n        split="train"': "total_steps=1",
    'name="main",\n        split="test",\n        total_steps=20': "total_steps=3",
    'path="train.parquet"': 'path="train.jsonl"',
    'path="test.parquet"': 'path="test.jsonl"',
    '"Qwen/Qwen3-0.6B"': '"tiny"',
    "max_model_len=24576": "max_model_len=2048",
    "max_tokens=16384": "max_tokens=16",
    "inference_engine_num=4,\n        tensor_parallel_size=1,": "",
    "group_size=8": "group_size=2",
    "batch_size=32": "batch_size=2",
}
"""What is made small, besides the import."""


def answer(body):
    """What a model that solves sums by a prompt of this kind says; `qwen3-max` writes prompts."""
    if body["model"] == "qwen3-max":
        return json.dumps({"lessons": "It says no number.", "text": "You are an agent. Write the number out."})
    asked = str(body["messages"][-1]["content"])
    if "What is" not in asked:
        return "He lost the big contract over a minor saving."
    number = int(asked.split("What is ")[1].split()[0]) + 1
    return f"\\boxed{{{number}}}" if "Write the number out" in str(body["messages"][0]) or number % 3 == 0 else "No ."


def reward_of(response, truth):
    return {"accuracy": float(f"boxed{{{truth}}}" in response)}


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Runs one of the examples, and gives what it prints."""
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("train.jsonl", range(9)), ("test.jsonl", range(20, 32))):
        rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in numbers]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ("trinity", "trinity.common", "trinity.common.rewards", "trinity.common.rewards.math_reward", "sacrebleu")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[names[3]], "MathBoxedRewardFn", lambda: reward_of, raising=False)
    monkeypatch.setattr(
        sys.modules["sacrebleu"],
        "sentence_bleu",
        lambda said, right: SimpleNamespace(score=100.0 * (said == right[0]), bp=1.0, ratio=1.0),
        raising=False,
    )
    with ScriptedChatServer(answer, usage=True) as server:
        monkeypatch.setattr(
            agentscope.model, "DashScopeChatModel", lambda name, **_: chat_model(server.base_url, name, stream=True)
        )
        monkeypatch.setenv("DASHSCOPE_API_BASE", server.base_url)
        monkeypatch.setenv("DASHSCOPE_API_KEY", "none")

        def run(name):
            text = (
                (Path(THEIRS) / name).read_text(encoding="utf-8").replace("from agentscope.tuner", "from astune.tuner")
            )
            for theirs, ours in SMALL.items():
                text = text.replace(theirs, ours)
            data = Path(THEIRS) / name / ".." / "translate_data" / "test.json"
            if data.resolve().is_file():
                Path("translate_data").mkdir()
                rows = json.loads(data.resolve().read_text(encoding="utf-8"))[:3]
                Path("translate_data/test.json").write_text(json.dumps(rows), encoding="utf-8")
            Path("example.py").write_text(text, encoding="utf-8")
            return runpy.run_path("example.py", run_name="__main__")

        yield run


def test_model_tuning(play):
    play("model_tuning/main.py")
    assert list(Path("runs").rglob("metrics.jsonl"))


def test_prompt_tuning(play, capsys):
    play("prompt_tuning/example.py")
    assert "Optimized prompt: ('You are an agent. Write the number out.'" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["example_token_usage", "example_bleu"])
def test_model_selection(play, capsys, name):
    if name == "example_bleu":
        pytest.importorskip("datasets")  # its data are a folder
    play(f"model_selection/{name}.py")
    assert "Selected best model: " in capsys.readouterr().out
