"""Fakes for tests of agents, workflows and ASTune itself: no model, no GPU, no network."""

from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.environment.server import EnvServer
from astune.testing.chat_server import ScriptedChatServer
from astune.testing.engine import CountingLearner, ScriptedBackbone, script_engine
from astune.testing.model_dir import write_test_model_dir
from astune.testing.online_service import ScriptedOnlineService
from astune.testing.planted_prompts import PlantedPrompts
from astune.testing.planted_rubrics import Faults, PlantedWorld
from astune.testing.vllm import ScriptedVllm

__all__ = [
    "CountingLearner",
    "EnvServer",
    "Faults",
    "PlantedPrompts",
    "PlantedWorld",
    "ScriptedBackbone",
    "ScriptedChatServer",
    "ScriptedOnlineService",
    "ScriptedPolicy",
    "ScriptedVllm",
    "script_engine",
    "write_test_model_dir",
]
