"""Environments that agents act in, and the service that runs them for others over HTTP."""

from astune.environment.environment_base import (
    Action,
    Environment,
    Instance,
    Message,
    NoPlace,
    Observation,
    ToolCall,
    function_tool,
)

__all__ = ["Action", "Environment", "Instance", "Message", "NoPlace", "Observation", "ToolCall", "function_tool"]
