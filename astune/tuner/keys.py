"""From the arguments of 1.x's `tune` to keys of the configuration. An argument that cannot mean anything here raises
`ConfigError` that names it, and what to use instead."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from astune.config.monitor import TRACKERS
from astune.config.source import read_yaml
from astune.errors import ConfigError, nearest
from astune.tuner.arguments import AlgorithmConfig, DatasetConfig, TunerModelConfig, is_file, rows_of

log = logging.getLogger(__name__)

QUESTION = ("query", "question", "messages")
"""Columns that a reader takes for the question by itself."""
CLIPPED: Mapping[str, Any] = {
    **{"loss": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2, "clip_dual": 3.0, "loss_aggregation": "token_mean"},
    **{"kl_beta": 0.001, "kl_estimator": "k2"},
}
"""Trinity's defaults of its `ppo` loss and `k2` term."""
ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "multi_step_grpo": {"advantage": "step_wise_grpo", **CLIPPED},
    "grpo": {"advantage": "grpo", **CLIPPED},
    **{name: {"preset": name} for name in ("cispo", "dapo", "gspo", "opmd", "ppo", "rloo")},
    "reinforceplusplus": {"preset": "reinforce_pp"},
    "sft": {"method": "sft"},
    "dpo": {"method": "dpo"},
}
"""Trinity's names, and what they are here."""
PARSERS = {"hermes": "auto", "qwen3_coder": "qwen3_coder", "qwen3_xml": "qwen3_coder", "llama3_json": "llama3_json"}
PARSERS |= {"deepseek_v3": "deepseek_v3", "deepseek_v31": "deepseek_v31", "glm45": "glm", "glm47": "glm"}
PARSERS |= {"openai": "harmony", "kimi_k2": "kimi_k2", "minimax_m2": "minimax_m2", "seed_oss": "seed_oss"}
"""vLLM's names of parsers, and the `astune.model.tool_call_format` that each is; the default is found by trying."""
THOUGHTS = ("deepseek_r1", "qwen3")
ENGINES = {"trinity": "trinity.explorer.rollout_model", "verl": "verl.actor_rollout_ref.rollout"}


def check_config_path(config_path: str | None) -> str:
    """The backbone that the file names. Raises `ConfigError` for a file of Trinity's."""
    values = {} if config_path is None else read_yaml(Path(config_path)).values
    if values and "astune" not in values:
        raise ConfigError(
            f"config_path: {config_path} has no section `astune:`, so it is Trinity's own file. Write one with "
            "`astune: {backbone: trinity}`, and beneath `trinity:` those of its keys that no argument of tune() says"
        )
    return str((values.get("astune") or {}).get("backbone", "local"))


def model_keys(model: TunerModelConfig, backbone: str) -> dict[str, Any]:
    """The keys of the model that is tuned, where `backbone` is what the file of the configuration names."""
    keys: dict[str, Any] = {
        "astune.model.path": model.model_path,
        "astune.model.max_model_len": model.max_model_len,
        "astune.model.tool_call_format": _look_up("tool_call_parser", model.tool_call_parser, PARSERS),
        "astune.rollout.temperature": model.temperature,
        "astune.rollout.top_p": model.top_p,
        "astune.rollout.max_tokens": min(model.max_tokens, model.max_model_len - 1),
    }
    if model.reasoning_parser not in THOUGHTS:
        raise ConfigError(
            f"model.reasoning_parser: got {model.reasoning_parser!r}; expected {' or '.join(THOUGHTS)}: thoughts are "
            "read as the model's own chat template writes them, whatever it is called"
        )
    if model.enable_thinking is not None:
        keys["astune.model.chat_template_kwargs"] = {"enable_thinking": model.enable_thinking}
    if model.tinker_config is not None:
        if backbone not in ("local", "trinity"):
            raise ConfigError(f"model.tinker_config: a tinker server trains by 'trinity' alone, not by {backbone!r}")
        tinker = model.tinker_config.model_dump(exclude={"seed"}, exclude_none=True)
        keys |= {"astune.backbone": "trinity", "trinity.model.tinker": tinker | {"enable": True}}
        if model.tinker_config.seed is not None:
            keys["astune.seed"] = model.tinker_config.seed
    return keys | _engine_keys(model, backbone if model.tinker_config is None else "trinity")


def _engine_keys(model: TunerModelConfig, backbone: str) -> dict[str, Any]:
    keys = {}
    for name, theirs in (("inference_engine_num", "engine_num"), ("tensor_parallel_size", "tensor_parallel_size")):
        value = getattr(model, name)
        if value == 1:
            continue
        if backbone not in ENGINES or (backbone == "verl" and theirs == "engine_num"):
            raise ConfigError(
                f"model.{name}: got {value}, and the backbone {backbone!r} has no such number; expected 1. More GPUs: "
                "config_path='FILE' with `astune: {backbone: trinity}`, or verl, or `astune: {rollout: {engine: vllm, "
                "vllm: {gpus: [0, 1]}}}`"
            )
        keys[f"{ENGINES[backbone]}.{'tensor_model_parallel_size' if backbone == 'verl' else theirs}"] = value
    return keys


def reads_examples(algorithm: AlgorithmConfig | None) -> bool:
    """True if the training data are examples, and no tasks."""
    return algorithm is not None and "method" in ALGORITHMS.get(algorithm.algorithm_type, {})


def algorithm_keys(algorithm: AlgorithmConfig, *, held_out: bool) -> dict[str, Any]:
    """The keys of the algorithm; `held_out` says that there are tasks to evaluate on."""
    found = _look_up("algorithm.algorithm_type", algorithm.algorithm_type, ALGORITHMS)
    keys: dict[str, Any] = {f"astune.algorithm.{name}": value for name, value in found.items()}
    keys |= {
        "astune.trainer.learning_rate": algorithm.learning_rate,
        "astune.trainer.tasks_per_step": algorithm.batch_size,
        "astune.trainer.save_every": algorithm.save_interval_steps,
    }
    if "method" in found:
        return keys
    keys["astune.rollout.num_repeat"] = algorithm.group_size
    return keys | ({"astune.evaluation.every": algorithm.eval_interval_steps} if held_out else {})


def example_keys(train: DatasetConfig) -> dict[str, Any]:
    """The keys of a file of examples."""
    return {"astune.trainer.examples": train.path, **_length_keys(train)}


def _length_keys(train: DatasetConfig) -> dict[str, Any]:
    epochs = train.total_epochs if train.total_steps is None else None
    return {"astune.trainer.total_steps": train.total_steps, "astune.trainer.total_epochs": epochs}


def task_keys(train: DatasetConfig, held_out: DatasetConfig | None) -> tuple[dict[str, Any], list[Any]]:
    """The keys of the data sets, or where no reader reads both of them, their rows: those to train on, and those held
    out."""
    keys = _length_keys(train) | question_keys(train, rows_of(train, limit=1)[0])
    if is_file(train) and (held_out is None or is_file(held_out)):
        keys |= {"astune.task_reader.type": "jsonl", "astune.task_reader.jsonl.training.file_path": train.path}
        return keys | ({} if held_out is None else {"astune.task_reader.jsonl.validation.file_path": held_out.path}), []
    if held_out is None or (train.path, train.name) == (held_out.path, held_out.name):
        section = {"dataset_path": train.path, "dataset_name": train.name or None}
        section["training_split"] = train.split or "train"
        section["validation_split"] = None if held_out is None else held_out.split or "train"
        keys |= {f"astune.task_reader.huggingface.{name}": value for name, value in section.items()}
        return keys | {"astune.task_reader.type": "huggingface"}, []
    tables = [rows_of(train), rows_of(held_out)]
    return keys, [[dict(table[index]) for index in range(len(table))] for table in tables]


def question_keys(train: DatasetConfig, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The key of the column that is the question, where its name does not tell."""
    if any(name in columns for name in QUESTION):
        return {}
    text = next((name for name, value in columns.items() if isinstance(value, str)), None)
    if text is None:
        raise ConfigError(f"train_dataset: no column of {train.path} is a text; it has {', '.join(columns)}")
    log.warning("%s has no column %s: its column %r is shown as the question", train.path, QUESTION[1], text)
    return {"astune.task_reader.fields.query": text}


def monitor_keys(project: str | None, experiment: str | None, monitor_type: str | None) -> dict[str, Any]:
    """The keys of the names of a run, and of the tracker. Without a name the run has one of the time, as in 1.x."""
    keys: dict[str, Any] = {} if project is None else {"astune.project_name": project}
    keys["astune.experiment_name"] = experiment or f"Experiment-{datetime.now():%Y%m%d%H%M%S}"
    if monitor_type is not None:
        keys["astune.monitor.trackers"] = [_look_up("monitor_type", monitor_type, {name: name for name in TRACKERS})]
    return keys


def _look_up(argument: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise ConfigError(f"{argument}: {name!r} is not known.{nearest(name, known)} Expected {', '.join(known)}")
    return known[name]
