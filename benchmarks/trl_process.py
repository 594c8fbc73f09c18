"""TRL's GRPOTrainer, as it comes: nothing of ASTune's has been said to torch, its threads or its memory. Run by
`trl_beside.py`, which gives it what to train as a line of JSON, and then one for each step.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from answer_agents import reward
from datasets import Dataset
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from astune.task_judge.math.compare import Relation, compare
from astune.task_judge.math.final_answer import extract_answer

ON_A_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}
"""In float32, with nothing kept or shown on the way."""


def by_text(completions: list[Any], **_: Any) -> list[float]:
    """The reward of `answer_agents.py`."""
    return [reward(messages[0]["content"]) for messages in completions]


def by_answer(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the last message marks the right answer, as the demo's judge has it; all answers are whole numbers."""

    def right(messages: list[Any], reference: str) -> bool:
        found = extract_answer(messages[-1].get("content") or "", "the_answer_is")
        return found is not None and compare(reference, found.text) is Relation.EQUAL

    return [float(right(messages, reference)) for messages, reference in zip(completions, answer, strict=True)]


class TimedGRPO(GRPOTrainer):
    """With a clock on the half of a step before the loss: generation and rewards."""

    rollout = 0.0

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        started = time.perf_counter()
        inputs = super()._prepare_inputs(generation_batch)
        self.rollout += time.perf_counter() - started
        self.inputs = inputs
        return inputs


class WhenTold(TrainerCallback):
    """Makes a step for each line "step" and tells what it took; "save FILE" writes the weights; no line ends it."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers

    def bind(self, trainer: TimedGRPO) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._answer({})
        self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds, inputs = time.perf_counter() - self._began, self._trainer.inputs
        masks = inputs["prompt_mask"], inputs["completion_mask"]
        prompt, sampled = (int(mask.sum()) for mask in masks)
        computed = sum(mask.numel() for mask in masks)
        self._answer(
            {
                "seconds": seconds,
                "rollout": self._trainer.rollout,
                "sampled": sampled,
                "prompt": prompt,
                "computed": computed,
            }
        )
        self._wait(control)

    def _wait(self, control: Any) -> None:
        while (line := sys.stdin.readline()).startswith("save "):
            torch.save(self._trainer.model.state_dict(), line[5:-1])
            self._answer({})
        control.should_training_stop = not line
        self._trainer.rollout = 0.0
        self._began = time.perf_counter()

    def _answer(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def trainer_of(given: dict[str, Any], folder: Path, turns: WhenTold) -> TimedGRPO:
    """The trainer of what `trl_beside.py` gives: see there."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(given["model"], padding_side="left")
    tools: dict[str, Any] = {}
    if given["tools_from"] is not None:
        sys.path.insert(0, given["tools_from"])
        from calculator import calculator

        tokenizer.response_template = trl.chat_template_utils.qwen3_template
        tools = {"tools": [calculator]}
    trainer = TimedGRPO(
        model=AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs={"text": by_text, "answer": by_answer}[given["reward"]],
        args=GRPOConfig(output_dir=str(folder), beta=0.0, **ON_A_CPU, **given["config"]),
        train_dataset=Dataset.from_list(given["rows"]),
        callbacks=[turns],
        **tools,
    )
    if tools:
        from agentscope.tool import FunctionTool, Toolkit

        toolkit = Toolkit(tools=[FunctionTool(calculator)])
        trainer.tools = asyncio.run(toolkit.get_tool_schemas())  # as the prompt of an agent has them
    trainer.remove_callback(PrinterCallback)
    turns.bind(trainer)
    return trainer


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # TRL prints
    assert "astune.backbone.local" not in sys.modules, "it says how torch's threads wait"
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    given = json.loads(sys.stdin.readline())
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    with tempfile.TemporaryDirectory() as folder:
        trainer_of(given, Path(folder), WhenTold(answers)).train()


if __name__ == "__main__":
    main()
