"""Run Trinity's launcher, from its configuration to the last event, with Ray's life around it.

Ray is ours only while the run lasts: a local cluster is started and ended with it, an existing one is joined and left.
On Ctrl-C the run ends at the next step's boundary, where Trinity saves; a second one ends the run's actors at once, and
nothing else on the cluster.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import ray
from trinity.buffer.pipelines.task_pipeline import check_and_run_task_pipeline
from trinity.cli.launcher import MODE_MAP, StageStatus
from trinity.common.config import Config as TrinityConfig
from trinity.common.config import load_config

from astune.backbone.ray_cluster.connect import join_ray
from astune.backbone.trinity.conversion.convert import Converted, wants_attention
from astune.backbone.trinity.conversion.values import uses_tinker
from astune.backbone.trinity.driver.outcome import LogWatch, steps_reached
from astune.backbone.trinity.driver.preflight import ADDRESS, check_before, check_cluster, check_gpus
from astune.backbone.trinity.driver.recorder import Recorder
from astune.backbone.trinity.shared.events import SetupFailed
from astune.backbone.trinity.shared.mailbox import open_mailbox
from astune.backbone.trinity.tinker_process import ServerProcess, start_server
from astune.config.load import LoadedConfig
from astune.errors import ConfigError, SetupError, TrainingError
from astune.support.signals import on_ctrl_c

Status = Literal["completed", "interrupted", "failed"]

POLL = 0.2
"""Seconds between two looks into the mailbox."""
GRACE = 30.0
"""Seconds that a run of which a part has failed gets to end by itself."""
EMPTY = 60.0
"""Seconds after which a batch without any episode is no longer taken for news that are still on their way."""
SETTLE = 30.0
"""Seconds to wait for the last events after Trinity's launcher has returned."""
AT_ONCE = 1000


def open_run(
    loaded: LoadedConfig, converted: Converted, recorder: Recorder, steps: int, stack: ExitStack
) -> TrinityRun:
    """Join Ray and check everything; `steps` is the number of train steps that the run has to make. Raises
    `ConfigError` for what can be found before the first rollout."""
    server = start_tinker(loaded, converted, recorder.run_dir.path, stack)
    environment: dict[str, str] = {}
    if uses_tinker(converted.tree):
        environment = {"TINKER_API_KEY": tinker_key() if server is None else server.api_key}
    stack.enter_context(set_environment(environment))
    config = trinity_config(converted, recorder.run_dir.path)
    check_before(loaded.config.astune, config)
    session_dir = stack.enter_context(ray_session(config, environment))
    check_cluster(loaded.config.astune, config, wants_attention(loaded))
    return TrinityRun(config, recorder, steps, session_dir, server)


def tinker_key() -> str:
    """The key of a tinker server at an address of its own. Trinity hands on the address to its processes, but not the
    key, so that comes from the environment."""
    if "TINKER_API_KEY" not in os.environ:
        raise ConfigError(
            "trinity.model.tinker.base_url: the environment variable TINKER_API_KEY is not set; expected the key that "
            "the server at this address printed"
        )
    return os.environ["TINKER_API_KEY"]


def start_tinker(loaded: LoadedConfig, converted: Converted, run_path: Path, stack: ExitStack) -> ServerProcess | None:
    """Start our tinker-compatible server if the tinker engine is to be used and no address is given."""
    tinker = converted.tree["model"]["tinker"]
    if not uses_tinker(converted.tree) or tinker.get("base_url"):
        return None
    config = loaded.config.astune
    server = start_server(
        Path(converted.tree["model"]["model_path"]),
        run_path / "trinity" / "tinker",
        device=config.model.device,
        dtype=config.model.dtype,
        slots=config.rollout.max_concurrent,
        training_temperature=config.rollout.temperature,
        micro_batch_tokens=config.trainer.micro_batch_tokens,
        log=run_path / "trinity" / "tinker.log",
    )
    stack.callback(server.stop)
    tinker["base_url"] = server.base_url
    return server


def trinity_config(converted: Converted, run_path: Path) -> TrinityConfig:
    """The configuration as Trinity reads it back from the file that is kept in the run folder, so that what the file
    says is what runs."""
    path = run_path / "trinity" / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(converted.yaml())
    try:
        config = load_config(str(path))
        check_gpus(config)
        return config.check_and_update()
    except (ValueError, AssertionError, RuntimeError, ImportError) as error:
        raise ConfigError(f"Trinity does not accept the configuration ({path}): {error}") from error


@contextmanager
def set_environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the time of the run: Trinity's validator, in this process, asks the tinker
    server."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def ray_session(config: TrinityConfig, environment: dict[str, str]) -> AbstractContextManager[Path]:
    """Join the cluster of `cluster.ray_address`; "local" is one of our own, which ends with the run. Gives the folder
    of Ray's session."""
    return join_ray(config.cluster.ray_address, config.ray_namespace, config.get_envs() | environment, ADDRESS)


@dataclass
class TrinityRun:
    """Trinity's launcher in a thread, and the loop beside it that the user sees."""

    config: TrinityConfig
    recorder: Recorder
    steps: int
    session_dir: Path
    """Ray's, where processes that died wrote their last words."""
    server: ServerProcess | None
    """The tinker server, if the run has one of its own."""
    _outcome: list[StageStatus | Exception] = field(default_factory=list)
    _interrupts: int = 0

    def until_done(self) -> Status:
        engine = self.config.explorer.rollout_model
        self._mailbox = open_mailbox(engine, self.config.explorer.name)
        self._watch = LogWatch(Path(self.config.log.save_dir))
        # a launcher that waits for a dead actor must not keep this process alive
        thread = threading.Thread(target=self._launch, name="trinity", daemon=True)
        with on_ctrl_c(self._interrupt):
            thread.start()
            failed = self._supervise(thread)
        self._settle()
        return self._status(failed)

    def _launch(self) -> None:
        try:
            # what `trinity run` does, but for `ray.init` and `ray.shutdown`: the mailbox outlives the launcher
            check_and_run_task_pipeline(self.config)
            self._outcome.append(MODE_MAP[self.config.mode](self.config))
        except Exception as error:
            self._outcome.append(error)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._mailbox.stop.remote()
            self.recorder.progress.note("stopping at the end of the step; Ctrl-C again ends the run at once")
        else:
            self._end_actors()

    def _supervise(self, thread: threading.Thread) -> bool:
        """Hand events on until the launcher returns. True if something failed meanwhile: an error that Trinity only
        logs ends the run, within `GRACE` seconds."""
        failed = False
        deadline = float("inf")
        while thread.is_alive():
            self._take()
            if not failed and (what := self._what_failed()) is not None:
                self.recorder.progress.note(f"{what}; ending the run")
                failed, deadline = True, time.monotonic() + GRACE
                torn_down = self._mailbox.end.remote(GRACE)
                if self._setup_failed:  # Trinity would try again, and nothing can come of it
                    ray.wait([torn_down])
                    deadline = 0.0
            if time.monotonic() > deadline:
                self._end_actors()
                deadline = float("inf")
            thread.join(POLL)
        return failed

    def _what_failed(self) -> str | None:
        """A failure after which Trinity would wait in vain, for up to an hour; None while there is none."""
        if self._setup_failed:
            return "the workflow's setup failed"
        if found := self._watch.poll():
            return f"{found[0].actor} failed"
        if (batch := self.recorder.empty_batch(EMPTY)) is not None:
            return f"all runners failed in batch {batch}"
        if (stopped := self.recorder.stopped) is not None:
            self._outcome.insert(0, stopped)
            self._mailbox.stop.remote()
            return "the run is not to go on"
        if self.server is not None:
            try:
                self.server.check()
            except TrainingError as error:
                self._outcome.append(error)
                return "the tinker server died"
        return None

    @property
    def _setup_failed(self) -> bool:
        return any(isinstance(outcome, SetupError) for outcome in self._outcome)

    def _take(self) -> int:
        events = ray.get(self._mailbox.take.remote(AT_ONCE))
        for event in events:
            if isinstance(event, SetupFailed):
                self._outcome.insert(0, SetupError(event.message))
            else:
                self.recorder.handle(event)
        return len(events)

    def _settle(self) -> None:
        """Take the last events, which may still be on their way."""
        until = time.monotonic() + SETTLE
        while time.monotonic() < until:
            if not self._take():
                reached = steps_reached(Path(self.config.checkpoint_job_dir))
                if self.recorder.step >= reached.train_steps:
                    return
            time.sleep(POLL)

    def _end_actors(self) -> None:
        """End explorer and trainer; what they started ends with them. Nothing else on the cluster is touched."""
        for name in (self.config.explorer.name, self.config.trainer.name):
            try:
                ray.kill(ray.get_actor(name, namespace=self.config.ray_namespace))
            except ValueError:
                continue  # it has ended already

    def _status(self, failed: bool) -> Status:
        """Tell how the run ended, by the steps it made and what was saved, whatever Trinity's launcher says."""
        reached = steps_reached(Path(self.config.checkpoint_job_dir))
        if reached.checkpoint_step and reached.checkpoint_step == self.recorder.step:
            self.recorder.checkpoint(self.recorder.step, self.recorder.batch)
        if self.recorder.step >= self.steps and not failed:
            return "completed"
        if self._interrupts and not failed:
            return "interrupted"
        self.recorder.progress.note(self._reason())
        return "failed"

    def _reason(self) -> str:
        """Why the run is short of its steps: an error that an actor logged, else the error of the launcher, such as of
        an actor that was killed and could log nothing."""
        head = f"the run ended after {self.recorder.step} of {self.steps} steps"
        outcome = self._outcome[0] if self._outcome else None
        if isinstance(outcome, TrainingError | SetupError):
            return f"{head}: {outcome}"
        logged = self._watch.last_error(self.session_dir)
        if logged is not None and not logged.is_consequence:
            return f"{head}: {logged.actor} failed ({logged.file})\n{logged.traceback}"
        if isinstance(outcome, StageStatus) and outcome.error is not None:
            return f"{head}: {outcome.error.type_name}: {outcome.error.message}"
        if isinstance(outcome, Exception):
            return f"{head}: {type(outcome).__name__}: {outcome}"
        found = "no log has an error" if logged is None else f"{logged.actor}: {logged.exception} ({logged.file})"
        return f"{head}; Trinity's launcher reports success, and {found}"
