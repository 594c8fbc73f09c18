"""The sandbox as a workspace of AgentScope 2.x: its tools, skills and offloading act inside, as in production."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import resources
from typing import Any

from agentscope import workspace as workspaces
from agentscope.mcp import MCPClient
from agentscope.tool import BackendBase, ToolBase
from agentscope.tool._builtin._backend import ExecResult
from agentscope.workspace import LocalWorkspace as LocalWorkspace
from agentscope.workspace import WorkspaceBase

from astune.config.rollout import NO_ISOLATION, OURS, SandboxLimits
from astune.errors import PluginError, nearest
from astune.plugins import load_plugin
from astune.workspaces.door import Door
from astune.workspaces.sandbox import PROGRAMS, WORKDIR, Sandbox

GLOB = "/run/astune/glob.py"
LIMIT_OF = {
    "memory": "memory (memory_mb)",
    "cpu": "CPU time (cpu_seconds)",
    "files": "files (files)",
    "processes": "processes (processes)",
    "output": "output (output_kb)",
}
"""What ended a command, in the words that the model reads."""


class AstuneSandbox(BackendBase):
    """Runs commands and keeps files in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def exec_shell(
        self, command: list[str], *, cwd: str | None = None, timeout: float | None = None
    ) -> ExecResult:
        result = await self.sandbox.run(command, cwd=cwd or WORKDIR, seconds=timeout)
        if result.ended == "time":
            return ExecResult(-1, b"", b"timed out")  # the words by which AgentScope's Bash knows it
        stderr = result.stderr
        if result.ended:
            stderr += (
                f"\nended by the sandbox: more than its limit of {LIMIT_OF.get(result.ended, result.ended)}".encode()
            )
        return ExecResult(result.exit_code, result.stdout, stderr)

    async def read_file(self, path: str) -> bytes:
        return await self.sandbox.read(path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self.sandbox.write(path, data)

    async def getcwd(self) -> str:
        return WORKDIR

    async def expanduser(self, path: str) -> str:
        return WORKDIR + path[1:] if path == "~" or path.startswith("~/") else path


class SandboxWorkspace(WorkspaceBase):
    """A workspace whose backend is an `AstuneSandbox`. `reset` ends the sandbox and starts another."""

    workdir = WORKDIR

    def __init__(
        self,
        limits: SandboxLimits,
        template: bytes = b"",
        hosts: Sequence[str] = (),
        skill_paths: list[str] | None = None,
        instructions: str = "",
    ) -> None:
        """`template` is a tar archive of the files that are there at the beginning, `hosts` what can be reached."""
        super().__init__(skill_paths=skill_paths)
        self._limits, self._template, self._hosts = limits, template, hosts
        self._instructions = instructions or f"<workspace>Your files are in {WORKDIR}, and tools act there.</workspace>"

    @property
    def sandbox(self) -> Sandbox:
        backend = self.get_backend()
        assert isinstance(backend, AstuneSandbox)
        return backend.sandbox

    @property
    def _glob_helper_path(self) -> str:
        return GLOB

    async def initialize(self) -> None:
        if self.is_alive:
            return
        helper = resources.files("agentscope.tool._builtin._scripts").joinpath("_glob_helper.py").read_text("utf-8")
        sandbox = Sandbox(self._limits, {GLOB: helper}, Door(self._hosts) if self._hosts else None)
        await sandbox.start()
        self._backend = AstuneSandbox(sandbox)
        self.is_alive = True
        try:
            if self._template:
                await sandbox.unpack(self._template)
            if self.skill_paths:
                await self._setup_skills()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        backend, self._backend = self._backend, None
        self.is_alive = False
        if isinstance(backend, AstuneSandbox):
            await backend.sandbox.close()

    async def reset(self) -> None:
        await self.close()
        await self.initialize()

    async def list_tools(self) -> list[ToolBase]:
        """AgentScope's six tools; five where the machine has no ripgrep, without which `Grep` always fails."""
        tools = await super().list_tools()
        has_ripgrep = shutil.which("rg", path=":".join(PROGRAMS)) is not None
        return [each for each in tools if has_ripgrep or each.name != "Grep"]

    async def get_instructions(self) -> str:
        return self._instructions

    async def list_mcps(self, **of: Any) -> list[MCPClient]:
        return []

    async def add_mcp(self, mcp_client: MCPClient, **of: Any) -> MCPClient:
        raise ValueError("no MCP server runs in this sandbox; give the agent its client beside the workspace")

    async def remove_mcp(self, name: str, **of: Any) -> None:
        raise ValueError(f"no MCP server runs in this sandbox, {name!r} neither")


def find_class(name: str) -> type[WorkspaceBase]:
    """The class of workspaces of that name, AgentScope's own or `package.module:Name`. Raises PluginError."""
    if ":" in name:
        found = load_plugin(name, kind="workspace")
        if not (isinstance(found, type) and issubclass(found, WorkspaceBase)):
            raise PluginError(f"{name} is no class that derives from agentscope.workspace.WorkspaceBase")
        return found
    known = [each for each in workspaces.__all__ if each.endswith("Workspace")]
    if name == LocalWorkspace.__name__:
        raise PluginError(f"LocalWorkspace isolates nothing: say so with astune.rollout.workspace.type={NO_ISOLATION}")
    if name not in known:
        names = [OURS, NO_ISOLATION, *(each for each in known if each != LocalWorkspace.__name__)]
        raise PluginError(f"unknown workspace {name!r}.{nearest(name, names)} There are: {', '.join(names)}.")
    kind: type[WorkspaceBase] = getattr(workspaces, name)
    return kind
