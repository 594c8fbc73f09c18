"""The variables that verl reads when it is imported, in every process."""

from __future__ import annotations

from astune.backbone.verl.cpu import CPU_ENVIRONMENT

PLUGIN = "astune.backbone.verl.servers.plugin"
MODULES = "VERL_USE_EXTERNAL_MODULES"


def environment(*, cpu: bool) -> dict[str, str]:
    """Name what verl is to import beside itself, and on a CPU that there is nothing else."""
    more = CPU_ENVIRONMENT if cpu else {}
    modules = [name for name in (more.get(MODULES), PLUGIN) if name]
    return {**more, MODULES: ",".join(modules), "VERL_LOGGING_LEVEL": "ERROR"}
