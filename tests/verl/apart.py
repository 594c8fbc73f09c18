"""A training worker and a server in processes of their own, and a record of what goes on beside what."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from astune.support.current_episode import EPISODE
from astune.training.engine import Engine, Learner
from astune.types import Generation, Policy, Sample, Sampling, Update

ROLLOUT = "verl.actor_rollout_ref.rollout"
OWN_SERVER = (
    f"{ROLLOUT}.nnodes=1",
    f"{ROLLOUT}.n_gpus_per_node=1",
    f"{ROLLOUT}.checkpoint_engine.backend=astune_file",
    f"{ROLLOUT}.checkpoint_engine.custom_backend_module=astune.backbone.verl.servers.file_weights",
)
APART = ("verl.trainer.n_gpus_per_node=1", *OWN_SERVER)
AHEAD = ("astune.synchronizer.style=async", "astune.synchronizer.max_staleness=1")


class Watched:
    """An engine, and in `came` what came in which order: ("called", step), ("updated", step), as steps are counted
    from 1, and ("answered beside", step) for an answer that came while another step was learned. An update of the step
    `stop_in` is stopped as with Ctrl-C."""

    def __init__(self, engine: Engine) -> None:
        self.engine = replace(engine, policy=Asked(self, engine.policy), learner=Learning(self, engine.learner))
        self.came: list[tuple[str, int]] = []
        self.learning = False
        self.stop_in = 0

    def assert_ahead(self, steps: int) -> None:
        """Every step but the first was begun before the one before it had been learned."""
        for step in range(2, steps + 1):
            assert self.came.index(("called", step)) < self.came.index(("updated", step - 1)), self.came
        assert any(what == "answered beside" for what, _ in self.came)


class Asked:
    def __init__(self, watched: Watched, policy: Policy) -> None:
        self._watched, self._policy = watched, policy

    @property
    def context_length(self) -> int:
        return self._policy.context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        episode = EPISODE.get()
        assert episode is not None
        step = int(episode.episode_id.split("/")[1])
        self._watched.came.append(("called", step))
        answer = await self._policy.generate(prompt_ids, sampling)
        if self._watched.learning:
            self._watched.came.append(("answered beside", step))
        return answer


class Learning:
    """The learner of an engine, which tells of its updates."""

    def __init__(self, watched: Watched, learner: Learner) -> None:
        self._watched, self._learner = watched, learner

    def __getattr__(self, name: str) -> object:
        return getattr(self._learner, name)

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        step = self._learner.updates + 1
        self._watched.learning = True
        if step == self._watched.stop_in:
            signal.raise_signal(signal.SIGINT)
        try:
            return await self._learner.update(samples, learning_rate)
        finally:
            self._watched.learning = False
            self._watched.came.append(("updated", step))
