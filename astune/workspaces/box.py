"""The grader's box: a fresh sandbox with a copy of an episode's files, which the agent never touched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astune.config.rollout import SandboxLimits
from astune.errors import EnvServiceError, JudgeError, SetupError
from astune.workspaces.sandbox import Sandbox


@asynccontextmanager
async def open_box(artifacts: bytes | None, limits: SandboxLimits | None = None) -> AsyncIterator[Sandbox]:
    """A sandbox of its own for a judge, in which the files of `Episode.artifacts` lie.

        async with open_box(episode.artifacts) as box:
            result = await box.run(["python3", "-I", "program.py"], seconds=10.0, stdin=b"4")
        return Verdict(float(result.stdout == b"8\n"))   # not by the exit code, which the agent's program chooses

    Raises JudgeError where the episode has no files or the box cannot be had: no reward, and never 0.
    """
    if artifacts is None:
        raise JudgeError(
            "the episode has no files: set astune.rollout.workspace.artifacts_mb, with type AstuneSandbox; they are "
            "those of a run, and a recorded episode has none"
        )
    box = Sandbox(limits or SandboxLimits())
    try:
        await box.start()
        await box.unpack(artifacts)
    except (EnvServiceError, SetupError) as error:
        await box.close()
        raise JudgeError(f"the grader's box could not be had: {error}") from error
    try:
        yield box
    except EnvServiceError as error:
        raise JudgeError(f"the grader's box broke: {error}") from error
    finally:
        await box.close()
