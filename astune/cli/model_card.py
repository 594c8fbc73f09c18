"""The page of a model on a hub, made from the run that trained it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from astune.config.schema import AstuneConfig
from astune.config.tasks import sources_of
from astune.errors import ConfigError
from astune.monitor.receipt import Metrics
from astune.monitor.summary import show_figure, show_interval, summarize
from astune.plugins import LIVE

CARD = "README.md"


@dataclass(frozen=True)
class Card:
    """`metrics` are those of the run up to `step`, which the model is of; `what` is "model" or "adapter"."""

    repo: str
    config: AstuneConfig
    metrics: Metrics
    step: int
    what: str
    license: str

    def write(self) -> str:
        """Write the whole page. It names files without their folders, and nothing of the machine."""
        head = yaml.safe_dump(dict(self._head()), sort_keys=False, allow_unicode=True)
        return "\n".join([f"---\n{head}---\n", f"# {self.repo.partition('/')[2]}\n", *self._body()]) + "\n"

    @property
    def base(self) -> str | None:
        """The base model as hubs know it; None for one that came with ASTune or from a folder."""
        return hub_id(self.config.model.path)

    def _head(self) -> Iterator[tuple[str, Any]]:
        yield "license", self.license
        if self.base is not None:
            yield "base_model", self.base
        yield "library_name", "peft" if self.what == "adapter" else "transformers"
        yield "pipeline_tag", "text-generation"
        yield "tags", ["astune", "agentscope", self.config.algorithm.method]
        reader = self.config.task_reader
        data = hub_id(reader.huggingface.dataset_path or "") if reader.type == "huggingface" else None
        if data is not None:
            yield "datasets", [data]

    def _body(self) -> Iterator[str]:
        base, method = self.base or _file_name(self.config.model.path), self.config.algorithm.method
        what = f"An adapter (LoRA) for {base}" if self.what == "adapter" else f"{base}, trained further"
        yield f"{what}, with [ASTune](https://github.com/agentscope-ai): method `{method}`, {self.step} steps.\n"
        yield "| | |\n| --- | --- |"
        for name, value in self._facts():
            yield f"| {name} | {value} |"
        yield f"\n## Held-out tasks\n\n{self._figures()}\n\n## How to load it\n\n{self._how_to_load()}"

    def _facts(self) -> Iterator[tuple[str, str]]:
        config, summary = self.config, summarize(self.metrics)
        reader, named = config.task_reader, sources_of(config.task_reader)
        yield "Base", self.base or f"`{_file_name(config.model.path)}`"
        yield "Licence of the base", self.license
        if config.rollout.agentscope_learn_protocol is not None:
            yield "Agent", f"`{_file_name(config.rollout.agentscope_learn_protocol)}`"
        files = [reader.jsonl.training.file_path] if reader.type == "jsonl" else [reader.huggingface.dataset_path]
        data = [hub_id(path) or f"`{Path(path).name}`" for path in files if path is not None and named is not None]
        yield "Data", ", ".join([f"read by `{_file_name(reader.type)}`", *data])
        judges = [f"`{_file_name(judge.judge)}`" for judge in config.task_judge.judges]
        yield "Judge", ", ".join(judges) or "none"
        yield "Method", f"`{config.algorithm.method}`, learning rate {config.trainer.learning_rate:g}"
        if config.model.lora.rank is not None:
            yield "Adapter", f"LoRA, rank {config.model.lora.rank}"
        yield "Trained on", f"{summary['episodes']:,} episodes, {summary['tokens']['trained']:,} tokens"

    def _figures(self) -> str:
        rows = []
        for name, held in summarize(self.metrics)["held_out"].items():
            for point in (held["first"], held["last"]):
                if point is not None:
                    rows.append(_row(name, held["figure"], point))
        if not rows:
            return "None were played."
        notes = "An interval is of 95 %, over tasks. Figures of another run, judge or split cannot be set beside these."
        return "\n".join(
            ["| evaluation | step | figure | interval | tasks |\n| --- | --- | --- | --- | --- |", *rows, "", notes]
        )

    def _how_to_load(self) -> str:
        if self.what == "model":
            return (
                "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
                f'model = AutoModelForCausalLM.from_pretrained("{self.repo}")\n'
                f'tokenizer = AutoTokenizer.from_pretrained("{self.repo}")\n```\n\n'
                f"```bash\nvllm serve {self.repo}\n```"
            )
        return (
            "```python\nfrom peft import AutoPeftModelForCausalLM\n\n"
            f'model = AutoPeftModelForCausalLM.from_pretrained("{self.repo}")\n```'
        )


def hub_id(name: str) -> str | None:
    """`owner/name` as hubs have it; None for anything else, such as a path.

    >>> hub_id("Qwen/Qwen3-0.6B"), hub_id("/models/mine"), hub_id("tiny")
    ('Qwen/Qwen3-0.6B', None, None)
    """
    path = name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/") or Path(name).exists()
    return None if path else name


def read_license(folder: Path) -> str | None:
    """Read the licence that the card in a model's folder names; None where there is no card, or none in it."""
    text = (folder / CARD).read_text(encoding="utf-8", errors="replace") if (folder / CARD).is_file() else ""
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return None
    try:
        head = yaml.safe_load(parts[1])
    except yaml.YAMLError as error:
        raise ConfigError(f"{folder / CARD}: its head is no YAML ({error}); say --license") from error
    found = head.get("license_name") or head.get("license") if isinstance(head, dict) else None
    return found if isinstance(found, str) else None


def _row(name: str, figure: str, point: Mapping[str, Any]) -> str:
    interval = show_interval(figure, point["low"], point["high"]) if {"low", "high"} <= point.keys() else "not known"
    tasks = f"{point['tasks']:g}" if "tasks" in point else "not known"
    return f"| {name}, {figure} | {point['step']} | {show_figure(figure, point['value'])} | {interval} | {tasks} |"


def _file_name(spec: str) -> str:
    """The last part of a path or plug-in, without the folders of this machine.

    >>> _file_name("/home/me/agent.py:solve"), _file_name("live:exact")
    ('agent.py:solve', 'exact')
    """
    return (spec.rpartition("/")[2] or spec).removeprefix(LIVE)
