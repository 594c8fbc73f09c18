"""The workspaces of a run: made side by side and ahead of time, each episode's its own, ended whatever happens."""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import tarfile
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from astune.config.rollout import NO_ISOLATION, OURS, WorkspaceConfig
from astune.errors import EnvServiceError, MissingDependency, SetupError, name_error
from astune.support.concurrency import has_result
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
    close: Callable[[], Coroutine[Any, Any, None]]
    holders: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    """What is marked on every episode that had it."""


class WorkspacePool:
    """Lends workspaces to episodes.

        async with WorkspacePool(config) as pool:          # proves first that the sandbox holds
            async with pool.lease("task-17") as lease:
                ...

    While it is entered it keeps `warm` of them ready; without that the first `lease` proves and none is made ahead.
    A workspace is used once and ended: what a model did in it meets no other episode. One of a whole run ends with the
    pool, or with the process.
    """

    def __init__(self, config: WorkspaceConfig) -> None:
        self.config = config
        self._template = b"" if config.template is None else pack_folder(Path(config.template))
        self._ready: deque[Lease] = deque()
        self._making: set[asyncio.Task[None]] = set()
        self._shared: dict[str, asyncio.Task[Lease]] = {}
        self._wanted = 0
        self._proved = False

    async def __aenter__(self) -> WorkspacePool:
        await self._prove()
        self._wanted = self.config.warm if self.config.isolation == "episode" else 0
        self._refill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted = 0
        for making in self._making:
            making.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        leases = [*self._ready, *(each.result() for each in self._shared.values() if has_result(each))]
        self._ready.clear()
        self._shared.clear()
        await asyncio.gather(*(_end(each) for each in leases))

    @asynccontextmanager
    async def lease(self, task_id: str) -> AsyncIterator[Lease]:
        """The workspace of an attempt at the task. Raises EnvServiceError where none can be made, and SetupError where
        the sandbox does not hold."""
        await self._prove()
        key = {"episode": "", "task": task_id, "run": "of the run"}[self.config.isolation]
        lease = await (self._share(key) if key else self._take())
        lease.holders += 1
        try:
            yield lease
        finally:
            lease.holders -= 1
            if lease.holders == 0 and self.config.isolation != "run":
                self._shared.pop(key, None)
                await _finish(_end(lease))
            self._refill()

    async def _share(self, key: str) -> Lease:
        if key not in self._shared:
            self._shared[key] = asyncio.ensure_future(self._make())
        making = self._shared[key]
        try:
            return await asyncio.shield(making)
        except EnvServiceError:
            self._shared.pop(key, None)
            raise

    async def _take(self) -> Lease:
        if self._ready:
            lease = self._ready.popleft()
            self._refill()
            return lease
        return await self._make()

    def _refill(self) -> None:
        for _ in range(self._wanted - len(self._ready) - len(self._making)):
            making = asyncio.ensure_future(self._make_ready())
            self._making.add(making)
            making.add_done_callback(self._making.discard)

    async def _make_ready(self) -> None:
        try:
            self._ready.append(await self._make())
        except EnvServiceError as error:
            logger.warning("no workspace could be made ahead: %s", error)

    async def _make(self) -> Lease:
        try:
            return await self._build()
        except EnvServiceError:
            raise
        except Exception as error:
            raise EnvServiceError(f"no workspace ({KEY}): {name_error(error)}") from error

    async def _build(self) -> Lease:
        config = self.config
        if config.type == OURS:
            ours = _agentscope().SandboxWorkspace
            workspace = ours(config.limits, self._template, config.hosts, **config.options)
            await workspace.initialize()
            return Lease(workspace, workspace.sandbox, workspace.close)
        if config.type == NO_ISOLATION:
            folder = tempfile.mkdtemp(prefix="astune-workspace-")
            workspace = _agentscope().LocalWorkspace(workdir=folder, **config.options)
            lease = Lease(workspace, None, lambda: _remove(workspace, folder), figures={"workspace/none": 1.0})
        else:
            workspace = _agentscope().find_class(str(config.type))(**config.options)
            lease = Lease(workspace, None, workspace.close)
        try:
            await workspace.initialize()
            if self._template:
                await _unpack_into(workspace, self._template)
        except BaseException:
            await _end(lease)
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
CANCELLED_SECONDS = 3.0
"""Seconds that a cancelled episode waits for the end of its workspace."""


async def _end(lease: Lease) -> None:
    """Close the workspace. Never raises for what that does."""
    try:
        await asyncio.wait_for(lease.close(), CLOSE_SECONDS)
    except Exception as error:
        logger.warning("a workspace was not closed: %s", name_error(error))


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    job = asyncio.ensure_future(work)
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait({job}, timeout=CANCELLED_SECONDS)
        raise


async def _remove(workspace: Any, folder: str) -> None:
    try:
        await workspace.close()
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


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
            archive.add(folder, arcname=".", filter=_without_owner)
    except OSError as error:
        raise SetupError(f"{KEY}.template: {error}") from error
    return packed.getvalue()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def _unpack_into(workspace: Any, template: bytes) -> None:
    """The files of the template, into a workspace that is not ours."""
    backend = workspace.get_backend()
    with tarfile.open(fileobj=io.BytesIO(template)) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                await backend.write_file(backend.join_path(workspace.workdir, member.name[2:]), file.read())
