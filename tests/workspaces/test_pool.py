"""The workspaces of a run: whose they are, what is in them, and that all of them end."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("agentscope.workspace", reason="AgentScope 2.x")

from agentscope.workspace import LocalWorkspace

from astune.config.rollout import WorkspaceConfig
from astune.errors import EnvServiceError, PluginError, SetupError
from astune.workspaces.pool import WorkspacePool

ours = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def sandboxes(**settings: object) -> WorkspacePool:
    return WorkspacePool(WorkspaceConfig.model_validate({"type": "AstuneSandbox", **settings}))


@ours
async def test_each_episode_has_the_template_and_nothing_of_another(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("given")

    async def episode(pool: WorkspacePool) -> str:
        async with pool.lease("same task") as lease:
            backend = lease.workspace.get_backend()
            found = await backend.list_dir("/workspace", recursive=True)
            await backend.write_file("/workspace/data/mine", b"x")
            return f"{found} {(await backend.read_file('/workspace/data/a.txt')).decode()}"

    async with sandboxes(template=str(tmp_path)) as pool:
        seen = await asyncio.gather(*(episode(pool) for _ in range(6)))
    assert set(seen) == {"['/workspace/data/a.txt'] given"}


@ours
@pytest.mark.parametrize(("isolation", "different"), [("episode", 4), ("task", 2), ("run", 1)])
async def test_isolation_says_who_shares_one(isolation: str, different: int) -> None:
    there, all_there = [], asyncio.Event()

    async def episode(pool: WorkspacePool, task: str) -> tuple[int, int]:
        async with pool.lease(task) as lease:
            assert lease.sandbox is not None
            there.append(task)
            if len(there) == 4:
                all_there.set()
            await all_there.wait()
            return id(lease.workspace), lease.sandbox.pid

    async with sandboxes(isolation=isolation) as pool:
        seen = await asyncio.gather(*(episode(pool, task) for task in "aabb"))
    assert len(set(seen)) == different
    assert [pid for _, pid in seen if Path(f"/proc/{pid}").exists()] == []


@ours
async def test_a_cancelled_episode_leaves_none() -> None:
    async with sandboxes(warm=0) as pool:
        pids = []

        async def episode() -> None:
            async with pool.lease("a") as lease:
                assert lease.sandbox is not None
                pids.append(lease.sandbox.pid)
                await lease.sandbox.run(["sleep", "50"])

        playing = [asyncio.ensure_future(episode()) for _ in range(3)]
        while len(pids) < 3:
            await asyncio.sleep(0)
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_no_isolation_is_said_and_marked_and_leaves_no_folder(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkspacePool(WorkspaceConfig(type="none")) as pool, pool.lease("a") as lease:
        folder = Path(lease.workspace.workdir)
        assert folder.is_dir()
        assert lease.figures == {"workspace/none": 1.0}
    assert not folder.exists()
    assert "tools run on this machine as the user who runs the training" in caplog.text


class Counting(LocalWorkspace):  # type: ignore[misc]
    """Counts how many are being made at once."""

    under_way = most = 0

    async def initialize(self) -> None:
        Counting.under_way += 1
        Counting.most = max(Counting.most, Counting.under_way)
        await asyncio.sleep(0)  # whoever is made beside it begins meanwhile
        await super().initialize()
        Counting.under_way -= 1


@pytest.mark.parametrize("warm", [0, 5])
async def test_they_are_made_side_by_side(warm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "most", 0)
    config = WorkspaceConfig(type=f"{__name__}:Counting", options={"workdir": str(tmp_path)}, warm=warm)
    async with WorkspacePool(config) as pool, AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(pool.lease("a")) for _ in range(5)))
        assert Counting.most >= 5


class Slow(LocalWorkspace):  # type: ignore[misc]
    """Notes which were begun, and which initialized to their end."""

    begun: ClassVar[list[str]] = []
    whole: ClassVar[list[str]] = []

    async def initialize(self) -> None:
        Slow.begun.append(self.workspace_id)
        for _ in range(5):
            await asyncio.sleep(0)
        await super().initialize()
        Slow.whole.append(self.workspace_id)


async def test_one_that_is_being_made_as_the_pool_closes_is_not_cut_in_the_middle(tmp_path: Path) -> None:
    """AgentScope would leave processes that it has started."""
    config = WorkspaceConfig(type=f"{__name__}:Slow", options={"workdir": str(tmp_path)}, warm=3)
    async with WorkspacePool(config):
        while not Slow.begun:
            await asyncio.sleep(0)
    assert sorted(Slow.whole) == sorted(Slow.begun)


class Broken(LocalWorkspace):  # type: ignore[misc]
    async def initialize(self) -> None:
        raise OSError("no room")


@pytest.mark.parametrize(
    ("kind", "options", "error", "said"),
    [
        ("LocalWorkspace", {}, PluginError, "isolates nothing"),
        ("DockerWorkspac", {}, PluginError, "Did you mean 'DockerWorkspace'"),
        (f"{__name__}:ours", {}, PluginError, "no class that derives"),
        (f"{__name__}:Broken", {"workdir": "x"}, EnvServiceError, "no room"),
        (f"{__name__}:Broken", {"size": 3}, EnvServiceError, "size"),
        ("AstuneSandbox", {"size": 3}, EnvServiceError, "size"),
    ],
)
async def test_what_cannot_be_made_says_why(kind: str, options: dict[str, object], error: type, said: str) -> None:
    if kind == "AstuneSandbox" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    with pytest.raises(error, match=said):
        async with WorkspacePool(WorkspaceConfig(type=kind, options=options, warm=0)) as pool, pool.lease("a"):
            pass


def test_a_template_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"template is no folder: .*missing"):
        sandboxes(template=str(tmp_path / "missing"))
