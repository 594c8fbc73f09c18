"""Trinity's launcher in mode `train`, on a Ray and a tinker server of its own, alive from update to update.

    rows --> Trinity's buffer --> Trinity's trainer --> the tinker server, which saves after every update
    <service>/trinity             its logs, its configuration, its checkpoints; the next session begins it anew

A session begins with the model as configured, or with the checkpoint of a version. The buffer is one in memory: what a
trainer that was killed did not come to is trained by nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import ray
from trinity.buffer import get_buffer_writer
from trinity.cli.launcher import MODE_MAP, StageStatus
from trinity.common.config import Config as TrinityConfig
from trinity.common.experience import Experience

from astune.backbone.trinity.conversion.convert import Converted
from astune.backbone.trinity.conversion.online import convert_online
from astune.backbone.trinity.driver.outcome import LogWatch
from astune.backbone.trinity.driver.recorder import rename_figures
from astune.backbone.trinity.driver.run import GRACE, POLL, ray_session, set_environment, start_tinker, trinity_config
from astune.backbone.trinity.shared.events import Logged
from astune.backbone.trinity.shared.mailbox import open_mailbox
from astune.config.load import LoadedConfig
from astune.errors import TrainingError

SCHEME = "tinker://"
BEGINNING = f"{SCHEME}version/weights/beginning"
"""What Trinity's trainer calls the checkpoint that a session begins with."""
AT_ONCE = 1000


@dataclass(frozen=True)
class Beginning:
    """A checkpoint as a session has left it, and the number of updates that made it."""

    folder: Path
    updates: int


@dataclass(frozen=True)
class Trained:
    """An update of Trinity's trainer: its figures, under our names where they have one, and the folder of the weights
    that came of it."""

    figures: dict[str, float]
    folder: Path


class TrinitySession:
    """Ray, the server and Trinity, all of which end with `close`.

    They are started and ended by one thread: what Ray has started dies with the thread that did it.
    """

    def __init__(self, loaded: LoadedConfig, folder: Path, beginning: Beginning | None, share: float) -> None:
        """`share` is that of the configured learning rate by which it trains."""
        self._root = folder / "trinity"
        self._step = 0 if beginning is None else beginning.updates
        self._saved: Path | None = None
        self._started, self._over = Future[None](), threading.Event()
        self._started.set_running_or_notify_cancel()  # so that who stops waiting for it does not end it
        self._outcome: list[StageStatus | Exception] = []

        def live() -> None:
            try:
                with ExitStack() as stack:
                    converted = convert_online(loaded, folder)
                    converted.tree["algorithm"]["optimizer"]["lr"] *= share
                    self._open(loaded, converted, beginning, stack)
                    self._started.set_result(None)
                    self._over.wait()
            except Exception as error:
                if self._started.done():
                    raise
                self._started.set_exception(error)

        self._thread = threading.Thread(target=live, name="trinity")
        self._thread.start()

    async def ready(self) -> None:
        """Returns when all is started. Raises ConfigError for what Trinity does not accept, TrainingError where the
        server does not come up."""
        await asyncio.wrap_future(self._started)

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _open(self, loaded: LoadedConfig, converted: Converted, beginning: Beginning | None, stack: ExitStack) -> None:
        job = f"{converted.tree['project']}/{converted.tree['name']}"
        self._job = self._root / job
        self._begin_with(beginning, job)
        server = start_tinker(loaded, converted, self._root.parent, stack)
        assert server is not None, "convert_online refuses a server elsewhere"
        self._server, environment = server, {"TINKER_API_KEY": server.api_key}
        stack.enter_context(set_environment(environment))
        config = trinity_config(converted, self._root.parent)
        stack.enter_context(ray_session(config, environment))
        self._mailbox = open_mailbox(None, config.explorer.name)
        self._writer = get_buffer_writer(config.buffer.trainer_input.experience_buffer)
        self._watch = LogWatch(Path(config.log.save_dir))

        def launch() -> None:
            try:
                self._outcome.append(MODE_MAP[config.mode](config))
            except Exception as error:
                self._outcome.append(error)

        launcher = threading.Thread(target=launch, name="trinity-launcher", daemon=True)
        launcher.start()
        stack.callback(_end, config, launcher)

    def _begin_with(self, beginning: Beginning | None, job: str) -> None:
        """Begin the folder anew. The checkpoint, which may be in it still, is left where the server, and word of it
        where the trainer, looks for its own."""
        made = self._root.with_name("trinity.new")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        if beginning is not None:
            shutil.copytree(beginning.folder, _folder_of(BEGINNING, made))
            step = made / job / f"global_step_{beginning.updates}"
            step.mkdir(parents=True)
            (step / "remote_checkpoint_path.txt").write_text(BEGINNING)
            (made / job / "latest_checkpointed_iteration.txt").write_text(str(beginning.updates))
            self._saved = _folder_of(BEGINNING, self._root)
        shutil.rmtree(self._root, ignore_errors=True)
        made.rename(self._root)

    async def train(self, rows: list[Experience]) -> Trained:
        """Have Trinity take one update over these rows, which say how many they are. Raises TrainingError with its
        reason where Trinity has failed; the session is then of no more use."""
        await self._writer.write(rows)
        self._step += 1
        while True:
            for event in await self._mailbox.take.remote(AT_ONCE):
                if isinstance(event, Logged) and event.step == self._step:
                    return Trained(rename_figures(event.metrics), self._take_saved())
            self._check()
            await asyncio.sleep(POLL)

    def _take_saved(self) -> Path:
        """The checkpoint of the update, after which the one before is of no more use."""
        if self._saved is not None:
            shutil.rmtree(self._saved)
        path = self._job / f"global_step_{self._step}" / "remote_checkpoint_path.txt"
        self._saved = _folder_of(path.read_text(), self._root)
        return self._saved

    def _check(self) -> None:
        """Trinity logs what goes wrong and ends without a word, or waits."""
        self._server.check()
        if failed := self._watch.poll():
            raise TrainingError(f"Trinity's {failed[0].actor} failed ({failed[0].file})\n{failed[0].traceback}")
        if self._outcome:
            raise TrainingError(f"Trinity's trainer ended: {self._outcome[0]}")


def _folder_of(path: str, root: Path) -> Path:
    return root / "tinker" / path.removeprefix(SCHEME)


def _end(config: TrinityConfig, launcher: threading.Thread) -> None:
    """End Trinity's trainer at once, as it may wait for rows, and its launcher with it."""
    until = time.monotonic() + GRACE
    while launcher.is_alive() and time.monotonic() < until:
        with contextlib.suppress(ValueError):  # there is none yet, or no longer
            ray.kill(ray.get_actor(config.trainer.name, namespace=config.ray_namespace))
        launcher.join(POLL)
