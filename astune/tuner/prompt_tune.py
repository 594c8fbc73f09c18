"""`agentscope.tuner.prompt_tune`: a better system prompt."""

from __future__ import annotations

import os
from typing import Any

from astune.api.search_prompts import search_prompts
from astune.errors import ConfigError, nearest
from astune.prompts.result import PromptSearch
from astune.tuner.arguments import DatasetConfig, JudgeType, PromptTuneConfig, WorkflowType
from astune.tuner.checks import check_parameters
from astune.tuner.keys import monitor_keys, task_keys

__all__ = ["PromptTuneConfig", "tune_prompt"]

TEXT = "system_prompt"
PROVIDERS = {
    "dashscope": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
}
"""The addresses of their APIs, where `PROVIDER_API_BASE` of the environment names no other; keys are in
`PROVIDER_API_KEY`, as with litellm, which 1.x asks by."""
ROUNDS = {"light": 6, "medium": 12, "heavy": 18}
"""Candidates that MIPROv2 proposes by the level of optimization."""


def prompt_keys(config: PromptTuneConfig, first: str) -> dict[str, Any]:
    """The keys of a search that begins with the text `first`."""
    if config.eval_display_table not in (0, PromptTuneConfig().eval_display_table):
        raise ConfigError(
            f"config.eval_display_table: got {config.eval_display_table}; there is no such table: `astune view` shows "
            "every episode. Leave it out, or set 0"
        )
    keys: dict[str, Any] = {
        "astune.prompts.texts": {TEXT: first},
        "astune.prompts.tune": [TEXT],
        "astune.prompts.reflection.models": [_api_of(config.lm_model_name)],
        "astune.rollout.max_concurrent": config.eval_num_threads,
    }
    if config.optimization_level is not None:
        keys["astune.prompts.rounds"] = ROUNDS[config.optimization_level]
    return keys | ({} if config.eval_display_progress else {"astune.monitor.progress": "off"})


def _api_of(name: str) -> dict[str, Any]:
    provider, _, model = name.partition("/")
    if provider not in PROVIDERS or not model:
        raise ConfigError(
            f"config.lm_model_name: got {name!r}; expected PROVIDER/MODEL with a provider of "
            f"{', '.join(PROVIDERS)}.{nearest(provider, PROVIDERS)} For another API that speaks OpenAI's language: "
            "openai/MODEL, with its address in OPENAI_API_BASE"
        )
    base, key = os.environ.get(f"{provider.upper()}_API_BASE", PROVIDERS[provider]), f"{provider.upper()}_API_KEY"
    needs_key = key in os.environ or base == PROVIDERS[provider]
    return {"base_url": base, "model": model, "api_key_env": key if needs_key else None}


def tune_prompt(
    *,
    workflow: WorkflowType,
    init_system_prompt: str,
    judge_func: JudgeType,
    train_dataset: DatasetConfig,
    eval_dataset: DatasetConfig | None = None,
    config: PromptTuneConfig | None = None,
) -> tuple[str, dict[str, float]]:
    """Search for a better system prompt by `astune.search_prompts`, which this function translates to. Returns the
    prompt to use: the first one, where the test on held-out tasks shows no gain; and `valset_improvement`, in percent.

    The held-out tasks are those of `eval_dataset`, else a third of the others.
    Raises ValueError for a function with other parameters, and `ConfigError` for what cannot be meant here.
    """
    check_parameters(workflow, ("task", TEXT))
    check_parameters(judge_func, ("task", "response"))
    config = config or PromptTuneConfig()
    keys, rows = task_keys(train_dataset, eval_dataset)
    keys |= monitor_keys(None, None, None) | prompt_keys(config, init_system_prompt)
    if eval_dataset is not None:
        keys["astune.prompts.holdout"] = None
    tasks, held_out = rows or (None, None)
    found = search_prompts(workflow, tasks=tasks, validation_tasks=held_out, judge=judge_func, **keys)
    metrics: dict[str, float] = {}
    if eval_dataset is not None and config.compare_performance:
        metrics["valset_improvement"] = _improvement(found)
    return found.prompts[TEXT], metrics


def _improvement(found: PromptSearch) -> float:
    """The gain in reward of the prompt to use, in percent; 0 where that is the first one, and, as in 1.x, where that
    earns nothing."""
    if found.reward is None or not found.gained or not found.reward.first.mean:
        return 0.0
    return found.reward.difference.mean / found.reward.first.mean * 100
