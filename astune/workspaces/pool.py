"""The workspaces of a run: made side by side and ahead of time, each episode's its own, ended whatever happens."""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from astune.config.rollout import NO_ISOLATION, OURS, WorkspaceConfig
from astune.errors import EnvServiceError, MissingDependency, SetupError, name_error
from astune.support.lending import Lender
from astune.workspaces.proof import prove_isolation
from astune.workspaces.sandbox import Sandbox

logger = logging.getLogger(__name__)

KEY = "astune.rollout.workspace"
UNISOLATED = (
    f"{KEY}.type is {NO_ISOLATION!r}: tools run on this machine as the user who runs the training, with whatever the "
    "model writes. Figures of such episodes have workspace/none"
)


@dataclass
class Lease:
    """A workspace in the hands of one episode, or of several."""

    workspace: Any
    """AgentScope's object."""
    sandbox: Sandbox | None
    """What it is made of, where it is one of ours."""
    folder: str | None = None
    """What is deleted with it."""
    figures: dict[str, float] = field(default_factory=dict)
    """What is marked on every episode that had it."""


class WorkspacePool(Lender[Lease]):
    """Lends workspaces to episodes.

        async with WorkspacePool(config) as pool:          # proves first that the sandbox holds
            async with pool.lease("task-17") as lease:
                ...

    A workspace is used once and ended: what a model did in it meets no other episode. One of a whole run ends with the
    pool, or with the process. Without being entered it lends, too, and makes none ahead.
    """

    def __init__(self, config: WorkspaceConfig) -> None:
        super().__init__(config.isolation, config.warm, most=1 << 30)
        self.config = config
        self._template = b"" if config.template is None else pack_folder(Path(config.template))
        self._proved = False

    async def __aenter__(self) -> WorkspacePool:
        await self._prove()
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lease(self, task_id: str) -> AsyncIterator[Lease]:
        """The workspace of an attempt at the task. Raises EnvServiceError where none can be made, and SetupError where
        the sandbox does not hold."""
        await self._prove()
        loan = await self.take(task_id)
        try:
            yield await self.get(loan)
        finally:
            if (ending := self.give_back(loan)) is not None:
                await asyncio.shield(ending)

    async def make(self) -> Lease:
        try:
            return await self._build()
        except EnvServiceError:
            raise
        except Exception as error:
            raise EnvServiceError(f"no workspace ({KEY}): {name_error(error)}") from error

    async def end(self, thing: Lease) -> None:
        try:
            await asyncio.wait_for(thing.workspace.close(), CLOSE_SECONDS)
        except Exception as error:
            logger.warning("a workspace was not closed: %s", name_error(error))
        if thing.folder is not None:
            await asyncio.to_thread(shutil.rmtree, thing.folder, ignore_errors=True)

    def works(self, thing: Lease) -> bool:
        return thing.sandbox is None or thing.sandbox.is_alive

    async def _build(self) -> Lease:
        config = self.config
        if config.type == OURS:
            ours = _agentscope().SandboxWorkspace
            workspace = ours(config.limits, self._template, config.hosts, **config.options)
            await workspace.initialize()
            return Lease(workspace, workspace.sandbox)
        if config.type == NO_ISOLATION:
            folder = tempfile.mkdtemp(prefix="astune-workspace-")
            workspace = _agentscope().LocalWorkspace(workdir=folder, **config.options)
            lease = Lease(workspace, None, folder, {"workspace/none": 1.0})
        else:
            workspace = _agentscope().find_class(str(config.type))(**config.options)
            lease = Lease(workspace, None)
        initializing = asyncio.ensure_future(workspace.initialize())
        try:
            # Cancelled in its middle, AgentScope leaves processes that it has started.
            await asyncio.shield(initializing)
            if self._template:
                await _unpack_into(workspace, self._template)
        except BaseException:
            ended = asyncio.gather(initializing, return_exceptions=True)
            await asyncio.wait([ended], timeout=CLOSE_SECONDS)
            await self.end(lease)
            raise
        return lease

    async def _prove(self) -> None:
        if self._proved:
            return
        if self.config.type == OURS:
            _agentscope()
            await prove_isolation()
        elif self.config.type == NO_ISOLATION:
            logger.warning("%s", UNISOLATED)
        elif self.config.type is not None:
            _agentscope().find_class(self.config.type)
        self._proved = True


CLOSE_SECONDS = 30.0
"""A workspace that is not closed by then is left behind, with a warning."""


def _agentscope() -> ModuleType:
    """The module with all that needs AgentScope 2.x. Raises MissingDependency."""
    try:
        from astune.workspaces import agentscope_backend
    except ImportError as error:
        raise MissingDependency(f"{KEY} needs AgentScope 2.x: pip install 'agentscope>=2' ({error})") from error
    return agentscope_backend


def pack_folder(folder: Path) -> bytes:
    """The files of a folder as a tar archive. Raises SetupError where it cannot be read."""
    if not folder.is_dir():
        raise SetupError(f"{KEY}.template is no folder: {folder}")
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(folder, arcname=".")
    except OSError as error:
        raise SetupError(f"{KEY}.template: {error}") from error
    return packed.getvalue()


async def _unpack_into(workspace: Any, template: bytes) -> None:
    """The files of the template, into a workspace that is not ours."""
    backend = workspace.get_backend()
    with tarfile.open(fileobj=io.BytesIO(template)) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                await backend.write_file(backend.join_path(workspace.workdir, member.name[2:]), file.read())
