"""Every family of training killed twenty times at random moments (SIGKILL) and gone on with, until it is done: its
checkpoint, figures and episodes must be those of a run that was never stopped, bit for bit.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.attack.forked import fork, warm_up
from tests.attack.found import Found
from tests.attack.kills import SECONDS, Job, difference, write_job

STEPS = 6
EXAMPLES = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": str(n)}]} for n in range(8)
]

PAIRS = [
    {
        "messages": [{"role": "user", "content": f"{n}?"}],
        "chosen": {"role": "assistant", "content": str(n)},
        "rejected": {"role": "assistant", "content": "no"},
    }
    for n in range(8)
]

LABELLED = [
    {"messages": pair["messages"], "answer": pair[name], "good": name == "chosen"}
    for pair in PAIRS
    for name in ("chosen", "rejected")
]
EXAMPLE_FILES = {"examples": EXAMPLES, "pairs": PAIRS, "labelled": LABELLED}
TEACHER = "runs/attack/teacher/checkpoints/step_000006"
"""What comes of six steps of SFT, run first for a family that names it."""

STAGES = (
    "astune.stages=[{algorithm: {method: sft}, trainer: {total_steps: 2, examples: examples.jsonl}}, "
    "{trainer: {total_steps: 2}}, "
    "{algorithm: {method: dpo}, trainer: {total_steps: 2, examples: pairs.jsonl}}]"
)

TWO_MODELS = (
    "astune.model.lora.rank=4",
    "astune.models={wolf: {trainer: {updates_per_step: 2}}, villager: {lora: {rank: 2}}, "
    "past: {past_of: villager, size: 2, every: 1, draw: by_win_rate}}",
    "astune.rollout.agentscope_learn_protocol=agent.py:opponents",
    "astune.rollout.agents={wolf: wolf, villager: villager, elder: past}",
)

FAMILIES: Mapping[str, Sequence[str]] = {
    "GRPO": (),
    "GRPO, LoRA": ("astune.model.lora.rank=4",),
    "GRPO, held near the first model": ("astune.algorithm.kl_beta=0.1",),
    "DAPO, groups without signal replaced": ("astune.algorithm.preset=dapo", "astune.algorithm.dynamic_sampling=2"),
    "GRPO, tasks drawn by a curriculum": ("astune.trainer.curriculum.enabled=true",),
    "REINFORCE, a running mean, one attempt": (
        "astune.algorithm.advantage=running_mean",
        "astune.rollout.num_repeat=1",
    ),
    "RFT": (
        "astune.algorithm.method=rft",
        "astune.algorithm.keep_per_task=2",
        "astune.rollout.agentscope_learn_protocol=agent.py:right_by_halves",
    ),
    "Distillation": ("astune.algorithm.method=distill", f"astune.algorithm.teacher={TEACHER}"),
    "PPO with a critic": ("astune.algorithm.preset=ppo", "astune.algorithm.critic.updates=2"),
    "PPO with a critic, LoRA": ("astune.algorithm.preset=ppo", "astune.model.lora.rank=4"),
    "SFT": ("astune.algorithm.method=sft", "astune.trainer.examples=examples.jsonl"),
    "DPO": ("astune.algorithm.method=dpo", "astune.trainer.examples=pairs.jsonl"),
    "KTO": ("astune.algorithm.method=kto", "astune.trainer.examples=labelled.jsonl"),
    "DPO, LoRA": ("astune.algorithm.method=dpo", "astune.trainer.examples=pairs.jsonl", "astune.model.lora.rank=4"),
    "SFT, then GRPO, then DPO": (STAGES,),
    "SFT, then GRPO, then DPO, LoRA": (STAGES, "astune.model.lora.rank=4"),
    "Two adapters, one against earlier versions": TWO_MODELS,
    "Two adapters by turns, attempts played again for each agent": (
        *TWO_MODELS,
        "astune.trainer.update=wolf, villager, villager",
        "astune.algorithm.agent_reward=leave_one_out",
    ),
    "GRPO, the best checkpoint kept": ("astune.trainer.keep_best=eval/sampled/reward", "astune.evaluation.attempts=2"),
}
"""What each family sets, beyond the job of `kills.write_job`."""


class ForkedJob(Job):
    """A run under one name, each start of it a fork."""

    def __init__(self, folder: Path, name: str, settings: Sequence[str]) -> None:
        super().__init__(folder, name)
        self._arguments = ["--conf", str(folder / "job.yaml"), f"astune.experiment_name={name}", *settings]

    def fork(self) -> BaseProcess:
        return fork(self.folder, [*self._arguments, *self.going_on()], self.log)

    def to_its_end(self) -> int | None:
        process = self.fork()
        process.join(SECONDS)
        return process.exitcode


def attack(
    families: Mapping[str, Sequence[str]] = FAMILIES, kills: int = 20, seed: int = 0, steps: int = STEPS
) -> Iterator[Found]:
    for number, (name, settings) in enumerate(families.items()):
        with tempfile.TemporaryDirectory() as folder:
            yield from _family(Path(folder), name, settings, kills, random.Random(f"{seed}/{number}"), steps)


def _family(
    folder: Path, name: str, settings: Sequence[str], kills: int, draw: random.Random, steps: int
) -> Iterator[Found]:
    write_job(folder, steps)
    for file, rows in EXAMPLE_FILES.items():
        (folder / f"{file}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    straight = ForkedJob(folder, "straight", settings)
    warm_up()
    if any(TEACHER in setting for setting in settings):
        teacher = ForkedJob(folder, "teacher", [*FAMILIES["SFT"], f"astune.trainer.total_steps={STEPS}"])
        if teacher.to_its_end() != 0:
            yield Found(f"{name}: its teacher", False, teacher.log.read_text()[-300:])
            return
    began = time.monotonic()
    if straight.to_its_end() != 0:
        yield Found(f"{name}: the run that is not stopped", False, straight.log.read_text()[-300:])
        return
    lasts = time.monotonic() - began
    expected, done, runs = straight.result(), 0, 0
    while done < kills:
        job = ForkedJob(folder, f"killed{runs}", settings)
        runs += 1
        while done < kills and _killed(job, draw, lasts, steps):
            done += 1
        code = job.to_its_end()
        got = job.result() if code == 0 else {}
        # killed between a save and the deletion of what is old, at the very end, it keeps one checkpoint more
        got |= {"checkpoints": {name: got.get("checkpoints", {}).get(name) for name in expected["checkpoints"]}}
        wrong = [f"{part}: {difference(expected, got, part)}" for part in expected if got.get(part) != expected[part]]
        told = f"run {runs}: {done} of {kills} kills, exit code {code}"
        if code != 0 or wrong:
            yield Found(f"{name}: as if never stopped", False, f"{told}; {'; '.join(wrong)}; {job.last_line()}")
            return
    yield Found(f"{name}: as if never stopped", True, f"{kills} kills over {runs} runs of {steps} steps")


def _killed(job: ForkedJob, draw: random.Random, lasts: float, steps: int) -> bool:
    """Start the run and kill it: half the time at any moment of its first half, which is while it loads, reads, goes
    back or plays; else soon after it has recorded another step, while that is evaluated or saved, or the next is played
    or trained. `lasts` are the seconds of a whole run. False if the run was done before."""
    before, process = job.steps(), job.fork()
    if draw.random() < 0.5:
        process.join(draw.uniform(0.0, lasts / 2))
    else:
        while process.exitcode is None and job.steps() <= before:
            process.join(0.01)
        process.join(draw.uniform(0.0, lasts / steps))
    alive = process.exitcode is None
    process.kill()
    process.join()
    return alive
