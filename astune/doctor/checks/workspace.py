"""Does the workspace isolate what the agent's tools do?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from astune.config.rollout import NO_ISOLATION, OURS
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.packages import how_to_install
from astune.doctor.findings import Finding, fail, ok, warn
from astune.errors import AstuneError, SetupError
from astune.workspaces.pool import UNISOLATED, WorkspacePool

KEY = "astune.rollout.workspace"


def check_workspace(checked: CheckedConfig) -> Iterator[Finding]:
    """Find whether one can be made, which for a sandbox of ours proves from inside that it holds."""
    config = checked.config.rollout.workspace
    if config.type is None:
        checked.workspaces = None
        return
    if config.type == NO_ISOLATION:
        yield warn(UNISOLATED, where=checked.where(f"{KEY}.type"), fix=f"set {KEY}.type to {OURS}")
    try:
        pool = WorkspacePool(config.model_copy(update={"warm": 0}))
        asyncio.run(_make_one(pool))
    except AstuneError as error:
        yield fail(
            str(error),
            where=checked.where(f"{KEY}.type"),
            fix=how_to_install(str(error)) or "see docs/workflows.md (a workspace for tools) for what it needs",
        )
        return
    checked.workspaces = pool
    proved = (
        "; tried from inside, it reaches nothing of this machine and its limits hold" if config.type == OURS else ""
    )
    yield ok(f"a workspace of type {config.type} can be made{proved}")


async def _make_one(pool: WorkspacePool) -> None:
    async with pool, pool.lease("doctor") as lease:
        if lease.sandbox is not None:
            tried = await lease.sandbox.run(["python3", "-c", ""])
            if tried.exit_code != 0:
                said = tried.stderr.decode(errors="replace")[-200:]
                why = tried.ended or said or f"it ends with {tried.exit_code}"
                raise SetupError(f"not even an empty program of Python runs within {KEY}.limits: {why}")
