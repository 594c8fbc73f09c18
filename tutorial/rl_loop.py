"""Reinforcement learning of an agent on one page: tasks, an agent, a judge, advantages, updates.

    python tutorial/rl_loop.py        # twenty seconds on two CPU cores

This is what `astune` does in every step of a run, without what makes runs convenient: configuration files, a run
folder, evaluations, checkpoints, resuming. The loop of real runs is `astune/training/loop.py`. The agent is an agent of
AgentScope 2.x with a tool; the model is the tiny one that ships with ASTune.
"""

import asyncio
import random
from collections.abc import Sequence
from operator import add, floordiv, mul, sub
from statistics import fmean

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit

from astune import Episode, Sampling, Task, Tuner, Verdict, Workflow, WorkflowOutput
from astune.algorithm import to_samples
from astune.backbone.local.engine import load_engine
from astune.config.schema import AstuneConfig
from astune.rollout import RolloutSetup, run_groups
from astune.workflow.agentscope import training_defaults

STEPS = 12
TASKS_PER_STEP = 8
ATTEMPTS = 8
LEARNING_RATE = 6e-4

# 1. Tasks: a query, and a reference answer for the judge. The agent sees the query alone.


def make_task(number: int) -> Task:
    """Write a word problem with numbers of its own: the same one for the same `number`."""
    rng = random.Random(number)
    a, b, c = rng.randint(11, 99), rng.randint(3, 9), rng.randint(11, 99)
    query, answer = rng.choice(
        [
            (f"One box holds {a} pens. How many pens do {b} boxes hold?", a * b),
            (f"A shop sold {a} lamps on Monday and {c} on Tuesday. How many lamps were sold on both days?", a + c),
        ]
    )
    return Task(task_id=str(number), query=query, answer=str(answer))


# 2. The agent: any code that calls a model. `tuner.model` is the model that is trained, in the shape that the agent's
# framework wants; what it reads and writes is recorded token for token.

OPERATIONS = {"+": add, "-": sub, "*": mul, "/": floordiv}


def calculator(expression: str) -> str:
    """Calculate with two whole numbers.

    Args:
        expression: for example 12 * 7
    """
    left, sign, right = expression.split()
    return str(OPERATIONS[sign](int(left), int(right)))


class Cashier(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = Agent(
            name="cashier",
            system_prompt="You work at a till. Use the calculator. End with: The answer is N.",
            model=tuner.model("cashier"),
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            **training_defaults(),  # tools run without asking, no clock in the prompt
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())


# 3. The judge: a good answer from a bad one. What it raises is an episode that nobody could judge, not a reward of 0.


class ExactAnswer:
    async def judge(self, task: Task, episode: Episode) -> Verdict:
        right = episode.output is not None and f"The answer is {task.answer}." in str(episode.output.answer)
        return Verdict(reward=float(right))


# 4. The advantage: how much better an attempt was than the others at the same task. Attempts that all earned the same
# teach nothing.


def advantage(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean, in units of its spread (GRPO, https://arxiv.org/abs/2402.03300)."""
    mean = fmean(rewards)
    spread = fmean((reward - mean) ** 2 for reward in rewards) ** 0.5
    return [(reward - mean) / spread if spread else 0.0 for reward in rewards]


# 5. The loop: attempt, judge, compare, update, publish, again.


async def train() -> list[float]:
    """Returns the mean reward of each step."""
    config = AstuneConfig.model_validate({"rollout": {"max_tokens": 64, "max_turns": 6}})
    engine = load_engine(config)  # a policy to sample from, and a learner that changes it
    setup = RolloutSetup(
        policy=engine.policy,
        chat_format=engine.chat_format,
        workflow_factory=Cashier,
        judge=ExactAnswer(),
        config=config.rollout,
        judge_timeout=10.0,
    )
    curve = []
    for step in range(STEPS):
        tasks = [make_task(step * TASKS_PER_STEP + number) for number in range(TASKS_PER_STEP)]
        groups = await run_groups(
            tasks,
            ATTEMPTS,
            setup,
            seed=42,
            sampling=Sampling(max_tokens=64, temperature=1.0),
            max_concurrent=64,
            label=f"step/{step}",
        )
        samples, receipt = to_samples(groups, advantage)
        if samples:  # without a single group whose attempts differ there is nothing to learn from
            await engine.learner.update(samples, LEARNING_RATE)
            await engine.learner.publish()  # from now on the policy samples from the new weights
        rewards = [episode.reward for group in groups for episode in group.episodes if episode.reward is not None]
        curve.append(fmean(rewards))
        trained = f"trained {receipt.trained:4} of {receipt.sampled:4} tokens"
        print(f"step {step + 1:2}  {trained}  reward {curve[-1]:.2f} {'#' * round(40 * curve[-1])}")
    return curve


if __name__ == "__main__":
    asyncio.run(train())
