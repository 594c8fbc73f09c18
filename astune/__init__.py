"""ASTune tunes AgentScope agents by reinforcement learning.

    from astune import Workflow, WorkflowOutput

    class MyWorkflow(Workflow):
        async def execute(self, task, tuner):
            return WorkflowOutput(answer=await my_agent(tuner.model("solver"), task.query))

Nothing heavy is loaded by `import astune`; each name below is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from astune.types import (
    Episode,
    Generation,
    Group,
    JudgeOutput,
    Policy,
    Sample,
    Sampling,
    Task,
    Timeline,
    Turn,
    Verdict,
    WorkflowOutput,
)
from astune.version import __version__ as __version__

if TYPE_CHECKING:
    from astune.api.compare import compare
    from astune.api.evaluate import evaluate
    from astune.api.judge import judge
    from astune.api.rubric import learn_rubric
    from astune.api.run import Run
    from astune.api.search_prompts import search_prompts
    from astune.api.select_model import select_model
    from astune.api.tune import tune
    from astune.task_judge.registry import register_judge
    from astune.workflow.named_texts import load_prompts
    from astune.workflow.tuner import Tuner
    from astune.workflow.workflow_base import Workflow

_LAZY = {
    "Run": "astune.api.run",
    "Tuner": "astune.workflow.tuner",
    "Workflow": "astune.workflow.workflow_base",
    "compare": "astune.api.compare",
    "evaluate": "astune.api.evaluate",
    "judge": "astune.api.judge",
    "learn_rubric": "astune.api.rubric",
    "load_prompts": "astune.workflow.named_texts",
    "register_judge": "astune.task_judge.registry",
    "search_prompts": "astune.api.search_prompts",
    "select_model": "astune.api.select_model",
    "tune": "astune.api.tune",
}

__all__ = [
    "Episode",
    "Generation",
    "Group",
    "JudgeOutput",
    "Policy",
    "Run",
    "Sample",
    "Sampling",
    "Task",
    "Timeline",
    "Tuner",
    "Turn",
    "Verdict",
    "Workflow",
    "WorkflowOutput",
    "compare",
    "evaluate",
    "judge",
    "learn_rubric",
    "load_prompts",
    "register_judge",
    "search_prompts",
    "select_model",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'astune' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
