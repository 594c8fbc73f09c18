"""When does it matter what each agent of an episode is paid, and what counts the same in the loss?

    python benchmarks/agent_rewards.py               # a minute on one core; 20 seeds

Agents whose policy is one number each, the chance that they do the better of two things, learn from the samples that
`BatchRules` and `to_samples` make of eight attempts a step. All of them together move by a step of bounded length, as
the weights that they share do. What is shown is a mean over seeds.

    dilemma    what an agent keeps is worth 1 to it, what it gives 0.8 to each of the two; the episode's reward is the
               mean of what they have: 1 where both keep, 1.6 where both give
    jobs       eight agents, each with a job of its own; the episode's reward is the share of jobs that are done
    luck       the same with three agents, but what all have in an attempt is shifted by the same luck, ten times as
               large as what a job is worth
    plan       a planner says one word, a worker six times ten; the reward is the share of the work that is right, 0
               after a wrong plan
    silent     the jobs of luck, which is what a frozen fourth says, and none is paid for its own; with `leave_one_out`
               each attempt is played once again for each agent, with the same luck, so `same` also gets as many
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import TypeAlias, get_args

from bench_table import table_of

from astune.algorithm import BatchRules, Weighting, to_samples
from astune.algorithm.advantage import grpo
from astune.algorithm.aggregation import LossAggregation
from astune.algorithm.batch_rules import REDRAWN, AgentReward
from astune.context_tracker.merge import TurnForest
from astune.support.terminal import Console
from astune.types import Episode, Group, Sample, StopReason, Task, Turn, Verdict

ATTEMPTS, RATE, LONGEST = 8, 0.5, 0.4
LUCK = 10.0
REWARDS: Sequence[AgentReward] = get_args(AgentReward)
REDRAWING: AgentReward = "leave_one_out"
AGGREGATIONS: Sequence[LossAggregation] = ("token_mean", "turn_mean", "agent_mean")

Deeds: TypeAlias = Mapping[str, Sequence[bool]]
"""By agent, for each of its turns whether it did the better thing."""
Paid: TypeAlias = tuple[float, Mapping[str, float]]
"""The reward of the episode, and of its agents where they have their own."""
World: TypeAlias = tuple[Mapping[str, Sequence[int]], Callable[[Deeds, Random], Paid]]
"""By agent the tokens of each of its turns; and what they are paid for what they did."""


def pay_dilemma(did: Deeds, chance: Random) -> Paid:
    gives = {agent: turns[0] for agent, turns in did.items()}
    pool = 0.8 * sum(gives.values())
    own = {agent: pool + (not gave) for agent, gave in gives.items()}
    return fmean(own.values()), own


def pay_jobs(did: Deeds, chance: Random) -> Paid:
    own = {agent: float(turns[0]) for agent, turns in did.items()}
    return fmean(own.values()), own


def pay_luck(did: Deeds, chance: Random) -> Paid:
    shift = chance.gauss(0.0, LUCK)
    own = {agent: turns[0] + shift for agent, turns in did.items()}
    return fmean(own.values()), own


def pay_plan(did: Deeds, chance: Random) -> Paid:
    return (fmean(did["worker"]) if did["planner"][0] else 0.0), {}


def pay_silent(did: Deeds, chance: Random) -> Paid:
    return pay_luck(did, chance)[0], {}


WORLDS: Mapping[str, World] = {
    "dilemma": ({"one": [5], "other": [5]}, pay_dilemma),
    "jobs": ({f"agent_{number}": [5] for number in range(8)}, pay_jobs),
    "luck": ({f"agent_{number}": [5] for number in range(3)}, pay_luck),
    "silent": ({f"agent_{number}": [5] for number in range(3)}, pay_silent),
    "plan": ({"planner": [1], "worker": [10] * 6}, pay_plan),
}


def learn(
    world: str,
    steps: int,
    seed: int,
    reward: AgentReward = "own",
    aggregation: LossAggregation = "episode_mean",
    attempts: int = ATTEMPTS,
) -> dict[str, float]:
    """Learn in a world. Returns the chance of each agent to do the better thing, a half at the beginning."""
    chance, lengths = Random(f"{world}/{seed}"), WORLDS[world][0]
    logits = dict.fromkeys(lengths, 0.0)
    rules, weighting = BatchRules(agent_reward=reward), Weighting(aggregation)
    for step in range(steps):
        task = Task(f"{step}", "?")
        played = tuple(play(world, task, f"{step}/{number}", logits, chance, reward) for number in range(attempts))
        samples, _ = to_samples(rules([Group(task, played)]).groups, grpo, weighting)
        pulls = pull(samples, logits)
        length = math.hypot(*pulls.values())
        factor = RATE * min(1.0, LONGEST / length) if length else 0.0
        logits = {agent: logit + factor * pulls[agent] for agent, logit in logits.items()}
    return {agent: chance_of(logit) for agent, logit in logits.items()}


def play(world: str, task: Task, name: str, logits: Mapping[str, float], chance: Random, paid: AgentReward) -> Episode:
    lengths, pay = WORLDS[world]

    def draw(agent: str) -> list[bool]:
        return [chance.random() < chance_of(logits[agent]) for _ in lengths[agent]]

    did = {agent: draw(agent) for agent in lengths}
    turns = [
        Turn(agent, (number,), (int(deed),) * length, (-1.0,) * length, 0, "stop")
        for agent, deeds in did.items()
        for number, (deed, length) in enumerate(zip(deeds, lengths[agent], strict=True))
    ]
    luck = chance.getstate()
    reward, own = pay(did, chance)
    others = {REDRAWN + agent: replay(pay, {**did, agent: draw(agent)}, luck) for agent in did if paid == REDRAWING}
    lines, end = TurnForest(turns).timelines(), StopReason.COMPLETED
    return Episode(name, task, tuple(turns), lines, end, verdict=Verdict(reward), metrics=others, agent_rewards=own)


def replay(pay: Callable[[Deeds, Random], Paid], did: Deeds, luck: tuple[object, ...]) -> float:
    """What the episode is worth where another did something else."""
    same = Random()
    same.setstate(luck)  # type: ignore[arg-type]
    return pay(did, same)[0]


def pull(samples: Sequence[Sample], logits: Mapping[str, float]) -> dict[str, float]:
    """The gradient by the logit of each agent: every token of a turn says what the turn did."""
    pulls = dict.fromkeys(logits, 0.0)
    for sample in samples:
        agent = sample.timeline.agent
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True):
            deed = sample.timeline.token_ids[span.start]
            pulls[agent] += advantage * weight * len(span) * (deed - chance_of(logits[agent]))
    return pulls


def chance_of(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


def measure(world: str, steps: int, seeds: int, agent: str = "", **setting: str | int) -> float:
    """The mean chance of the agents, or of one, over seeds."""
    found = [learn(world, steps, seed, **setting) for seed in range(seeds)]  # type: ignore[arg-type]
    return fmean(fmean([chances[agent]] if agent else chances.values()) for chances in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    console = Console()
    rows = [
        [world, *(f"{measure(world, given.steps, given.seeds, reward=reward):.0%}" for reward in REWARDS)]
        for world in ("dilemma", "jobs", "luck", "silent")
    ]
    console.print(table_of("chance of the better deed, by what agents are paid", ["world", *REWARDS], rows))
    as_many = measure("silent", given.steps, given.seeds, reward="same", attempts=4 * ATTEMPTS)
    console.print(f"silent, same with as many attempts as leave_one_out plays: {as_many:.0%}")
    rows = [
        [agent, *(f"{measure('plan', given.steps, given.seeds, agent, aggregation=each):.0%}" for each in AGGREGATIONS)]
        for agent in ("planner", "worker")
    ]
    console.print(table_of("the same of plan, by what counts the same", ["agent", *AGGREGATIONS], rows))


if __name__ == "__main__":
    main()
