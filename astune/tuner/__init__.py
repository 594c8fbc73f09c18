"""The tuner of AgentScope 1.x, for agents of 1.x and 2.x: the names and arguments of `agentscope.tuner` 1.0.21.

    from astune.tuner import DatasetConfig, TunerModelConfig, tune      # was: from agentscope.tuner import ...

Each function translates its arguments and calls ASTune's own: `astune.tune`, `astune.search_prompts`,
`astune.select_model`.
"""

from astune.tuner.arguments import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    JudgeType,
    PromptTuneConfig,
    TinkerConfig,
    TunerModelConfig,
    WorkflowOutput,
    WorkflowType,
)
from astune.tuner.checks import check_judge_function, check_workflow_function
from astune.tuner.model_selection import select_model
from astune.tuner.prompt_tune import tune_prompt
from astune.tuner.tune import tune

__all__ = [
    "AlgorithmConfig",
    "DatasetConfig",
    "JudgeOutput",
    "JudgeType",
    "PromptTuneConfig",
    "TinkerConfig",
    "TunerModelConfig",
    "WorkflowOutput",
    "WorkflowType",
    "check_judge_function",
    "check_workflow_function",
    "select_model",
    "tune",
    "tune_prompt",
]
