"""How often chance crosses the held-out lakes: python tutorial/frozen_lake/random_play.py"""

import random
from pathlib import Path

from astune.config.load import load_config
from astune.environment import Action, Environment
from astune.environment.registry import load_environment

TIMES = 20


def crossed(environment: Environment, task_id: str, rng: random.Random) -> float:
    """1 if a random walk reaches the goal, else 0."""
    lake = environment.create(task_id, {})
    while not lake.step(Action(rng.choice("1234"))).done:
        pass
    return lake.evaluate()


def main() -> None:
    tasks = load_config(Path(__file__).with_name("frozen_lake.yaml")).config.astune.task_reader
    environment = load_environment(tasks.env_service.serve, tasks.env_service.options)
    held_out = environment.task_ids("validation")[: tasks.max_validation_tasks]
    rng = random.Random(0)
    scores = [crossed(environment, task_id, rng) for task_id in held_out for _ in range(TIMES)]
    print(f"random play: {sum(scores) / len(scores):.1%} of {len(scores)} walks reach the goal")


if __name__ == "__main__":
    main()
