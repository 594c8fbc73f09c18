"""`tune` of `agentscope.tuner`: the weights."""

from __future__ import annotations

from astune.api.run import Run
from astune.api.tune import tune as tune_weights
from astune.errors import ConfigError
from astune.tuner.arguments import AlgorithmConfig, DatasetConfig, JudgeType, TunerModelConfig, WorkflowType
from astune.tuner.checks import check_judge_function, check_workflow_function
from astune.tuner.keys import (
    algorithm_keys,
    check_config_path,
    example_keys,
    model_keys,
    monitor_keys,
    reads_examples,
    task_keys,
)


def tune(
    *,
    workflow_func: WorkflowType,
    judge_func: JudgeType | None = None,
    train_dataset: DatasetConfig | None = None,
    eval_dataset: DatasetConfig | None = None,
    model: TunerModelConfig | None = None,
    auxiliary_models: dict[str, TunerModelConfig] | None = None,
    algorithm: AlgorithmConfig | None = None,
    project_name: str | None = None,
    experiment_name: str | None = None,
    monitor_type: str | None = None,
    config_path: str | None = None,
) -> Run:
    """Train the model behind an agent by `astune.tune`, which this function translates to; the run is returned.

    `config_path` is a configuration of ASTune, whose keys the other arguments override; `astune.backbone` in it says
    where the model is trained, without it `local`: in this process, on one GPU or the CPU.

    Raises ValueError for a function with other parameters, and `ConfigError` for what cannot be meant here.
    """
    check_workflow_function(workflow_func)
    if judge_func is not None:
        check_judge_function(judge_func)
    backbone = check_config_path(config_path)
    if config_path is None:
        for name, value in (("model", model), ("train_dataset", train_dataset)):
            if value is None:
                raise ConfigError(f"{name}: not given, and there is no config_path that says it")
    if auxiliary_models:
        raise ConfigError(
            f"auxiliary_models: got {', '.join(auxiliary_models)}; no engines are started for them here. Serve each, "
            "as by `vllm serve`, and name its address: config_path='FILE' with "
            "`astune: {rollout: {auxiliary_models: {NAME: {base_url: ..., model: ...}}}}`"
        )
    examples = reads_examples(algorithm)
    if eval_dataset is not None and (train_dataset is None or examples):
        why = f"{algorithm.algorithm_type} plays none" if algorithm and examples else "there is no train_dataset"
        raise ConfigError(f"eval_dataset: {why}; name held-out tasks in the file of config_path")
    keys = monitor_keys(project_name, experiment_name, monitor_type)
    rows: list[object] = []
    if train_dataset is not None and examples:
        keys |= example_keys(train_dataset)
    elif train_dataset is not None:
        given, rows = task_keys(train_dataset, eval_dataset)
        keys |= given
    if model is not None:
        keys |= model_keys(model, backbone)
    if algorithm is not None or config_path is None:
        keys |= algorithm_keys(algorithm or AlgorithmConfig(), held_out=eval_dataset is not None)
    tasks, held_out = rows or (None, None)
    return tune_weights(
        None if examples else workflow_func,
        judge=None if examples else judge_func,
        tasks=tasks,
        validation_tasks=held_out,
        conf=config_path,
        **keys,
    )
