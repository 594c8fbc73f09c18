"""Environments of Gymnasium with discrete actions, told and acted in as text.

GymnasiumEnvironment("FrozenLake-v1", is_slippery=False, size=4)
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.environment.environment_base import (
    Action,
    Environment,
    Instance,
    Message,
    Observation,
    function_tool,
)
from astune.errors import ConfigError, MissingDependency, TaskError, nearest
from astune.worlds.gymnasium_games import DRAWING, GAMES, MOST_NUMBERS, NUMBERS, Game, Teller, View

SPLITS = ("train", "validation")
HELD_OUT = 5
"""One in so many maps is a validation map."""
MOST_DRAWS = 1000
MOST_STEPS = 100
"""The last step where neither the user nor the environment says when an episode is over."""


class GymnasiumEnvironment(Environment):
    """Any environment of Gymnasium whose actions are `Discrete` and whose observations can be told as text.

    Options, all others are passed on to `gymnasium.make`:

    - `tasks`: number of tasks in each split; `train-17` is the world of seed 17 of split train. No seed of one split is
      in the other, and another `seed` makes other worlds.
    - `max_steps`: actions after which an episode is over; the environment's own limit unless given.
    - `actions`: names of the actions, in Gymnasium's order. Known for the toy games, otherwise numbers.
    - `view`: how an observation is told. FrozenLake: `grid` (the whole map) or `neighbours` (what lies one step away).
    - `size`, `frozen` (FrozenLake): another map for each task, so many tiles wide, of which so large a part is
      frozen. One in five maps is for validation, and never a map of training.

    Raises:
        ConfigError: an environment or option that Gymnasium does not know, or actions or observations without a text.
        MissingDependency: Gymnasium is not installed.
    """

    def __init__(
        self,
        env_id: str,
        *,
        tasks: int = 1000,
        seed: int = 0,
        max_steps: int | None = None,
        actions: Sequence[str] | None = None,
        view: str | None = None,
        **options: Any,
    ) -> None:
        self.env_type = f"gymnasium:{env_id}"
        self._env_id, self._count, self._seed, self._options = env_id, tasks, seed, options
        self._gymnasium = _gymnasium()
        self._lakes = _Lakes.of(env_id, options, seed)
        self._game = _game(env_id)
        for name, number in (("tasks", tasks), ("max_steps", max_steps)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise ConfigError(f"{self.env_type}: {name} is {number!r}; expected a whole number above 0")
        env = self._make(next(self._ids("train")))
        try:
            self._names = _names(self.env_type, env, self._game, actions)
            self._view, self._render_mode = _view(self.env_type, env, self._game, view)
            self._teller = self._view.teller(self._names)
            self._most_steps = max_steps or env.spec.max_episode_steps or MOST_STEPS
        finally:
            env.close()

    def task_ids(self, split: str) -> Sequence[str]:
        if split not in SPLITS:
            raise TaskError(
                f"{self.env_type}: no split {split!r}.{nearest(split, SPLITS)} There are: {', '.join(SPLITS)}"
            )
        return list(self._ids(split))

    def create(self, task_id: str, params: Mapping[str, Any]) -> Instance:
        split, _, number = task_id.rpartition("-")
        if split not in SPLITS or not number.isdecimal() or int(number) >= self._count or f"{int(number)}" != number:
            raise TaskError(
                f"{self.env_type}: no task {task_id!r}; there are train-0 to train-{self._count - 1} and "
                f"validation-0 to validation-{self._count - 1}"
            )
        env = self._make(task_id, render_mode=self._render_mode, max_episode_steps=self._most_steps)
        observation, _ = env.reset(seed=world_seed(self._seed, task_id))
        told = self._teller(env, observation)
        return GymnasiumInstance(env, self._teller, self._names, self._most_steps, self._rules(), told)

    def _ids(self, split: str) -> Iterator[str]:
        return (f"{split}-{number}" for number in range(self._count))

    def _rules(self) -> str:
        wanted = f"Each turn, name one action: {', '.join(self._names)}."
        return "\n".join(part for part in (self._game.rules, self._view.legend, wanted) if part)

    def _make(self, task_id: str, **more: Any) -> Any:
        options = {**self._options, **more, **(self._lakes.options(task_id) if self._lakes else {})}
        try:
            return self._gymnasium.make(self._env_id, disable_env_checker=True, **options)
        except (self._gymnasium.error.Error, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.env_type}: {type(error).__name__}: {error}") from error


class GymnasiumInstance(Instance):
    """One episode. An answer acts by the last action that it names, or by calls of the tool `act`."""

    def __init__(self, env: Any, teller: Teller, names: Sequence[str], most_steps: int, rules: str, first: str) -> None:
        self._env, self._teller, self._names, self._most_steps = env, teller, names, most_steps
        self._rules, self._told = rules, first
        self._steps, self._total, self._done = 0, 0.0, False
        self._numbers = _numbers(names)
        spelled = "|".join(re.escape(name) for name in sorted(self._numbers, key=len, reverse=True))
        self._named = re.compile(rf"(?<!\w)(?:{spelled})(?!\w)", re.IGNORECASE)
        action = {"action": {"type": "string", "enum": list(names)}}
        self.tools = (function_tool("act", "Do one action.", action),)

    def first_messages(self) -> Sequence[Message]:
        return ({"role": "system", "content": self._rules}, {"role": "user", "content": self._told})

    def step(self, action: Action) -> Observation:
        before = self._total
        if action.tool_calls:
            messages = tuple(
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "content": self._act(str(call.arguments.get("action", "")) if call.name == "act" else ""),
                }
                for call in action.tool_calls
            )
        else:
            messages = ({"role": "user", "content": self._act(action.text)},)
        return Observation(messages, self._total - before, self._done, {"steps": self._steps})

    def evaluate(self) -> float:
        """The sum of the rewards so far."""
        return self._total

    def close(self) -> None:
        self._env.close()

    def _act(self, text: str) -> str:
        """Do what `text` names, and tell what comes of it."""
        if self._done:
            return "The episode is over."
        self._steps += 1
        named = self._named.findall(text)
        if named:
            action = self._numbers[named[-1].lower()] + int(self._env.action_space.start)
            observation, reward, terminated, truncated, _ = self._env.step(action)
            self._total += float(reward)
            self._done = bool(terminated or truncated)
            self._told = self._teller(self._env, observation)
        self._done = self._done or self._steps >= self._most_steps
        said = self._told if named else f"Expected one of {', '.join(self._names)}.\n{self._told}"
        return f"{said}\nThe episode is over. Total reward: {self._total:g}." if self._done else said


class _Lakes:
    """Maps of FrozenLake: each belongs to one split, whichever task draws it."""

    def __init__(self, size: int, frozen: float, seed: int) -> None:
        self._size, self._frozen, self._seed = size, frozen, seed

    @classmethod
    def of(cls, env_id: str, options: dict[str, Any], seed: int) -> _Lakes | None:
        """Takes `size` and `frozen` out of the options; None for other games, and where all tasks have one lake."""
        if not _is(env_id, "FrozenLake") or not {"size", "frozen"} & options.keys():
            return None
        size, frozen = options.pop("size", 4), options.pop("frozen", 0.8)
        if not (isinstance(size, int) and size > 1 and isinstance(frozen, (int, float)) and 0 < frozen <= 1):
            raise ConfigError(
                f"gymnasium:{env_id}: size is {size!r}, frozen is {frozen!r}; expected a whole number above 1, and a "
                "part such as 0.8"
            )
        return cls(size, float(frozen), seed)

    def options(self, task_id: str) -> dict[str, Any]:
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        rng = random.Random(f"{self._seed}/{task_id}")
        for _ in range(MOST_DRAWS):
            drawn = generate_random_map(self._size, self._frozen, seed=rng.randrange(2**31))
            digest = hashlib.sha256("\n".join(drawn).encode()).digest()
            if SPLITS[int.from_bytes(digest[:8], "big") % HELD_OUT == 0] == task_id.partition("-")[0]:
                return {"desc": drawn}
        raise ConfigError(
            f"gymnasium:FrozenLake: size {self._size} with frozen {self._frozen} makes too few different maps to hold "
            "some out; expected a larger size or a smaller part"
        )


def world_seed(seed: int, task_id: str) -> int:
    """The seed of a task's world: even for training, odd for validation."""
    return random.Random(f"{seed}:{task_id}").randrange(2**30) * 2 + SPLITS.index(task_id.partition("-")[0])


def _is(env_id: str, game: str) -> bool:
    return re.fullmatch(rf"(?:.*/)?{game}\d*(?:x\d+)?(?:-v\d+)?", env_id) is not None


def _game(env_id: str) -> Game:
    return next((game for name, game in GAMES.items() if _is(env_id, name)), Game("", (), {}))


def _names(where: str, env: Any, game: Game, given: Sequence[str] | None) -> tuple[str, ...]:
    space = env.action_space
    if type(space).__name__ != "Discrete":
        raise ConfigError(f"{where}: its actions are {space}; expected Discrete, of which text can name one")
    count = int(space.n)
    names = tuple(map(str, given or game.actions or range(int(space.start), int(space.start) + count)))
    if len({name.lower() for name in names} - {""}) != count:
        raise ConfigError(f"{where}: actions is {list(names)}; expected {count} different names")
    return names


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """Number of each action by its name in small letters, and by its number where no name is a number."""
    by_name = {name.lower(): number for number, name in enumerate(names)}
    by_number = {} if any(name.isdecimal() for name in names) else {str(n): n for n in range(len(names))}
    return by_number | by_name


def _view(where: str, env: Any, game: Game, name: str | None) -> tuple[View, str | None]:
    """The way observations are told, and the render mode that it takes."""
    if name is not None and name not in game.views:
        known = f"expected {' or '.join(game.views)}" if game.views else "it has one view only, leave it out"
        raise ConfigError(f"{where}: view is {name!r}; {known}.{nearest(name, game.views)}")
    if game.views:
        return game.views[name or next(iter(game.views))], None
    if "ansi" in env.metadata.get("render_modes", ()):
        return DRAWING, "ansi"
    if not _tellable(env.observation_space):
        raise ConfigError(
            f"{where}: its observations are {env.observation_space}; expected Discrete, MultiDiscrete, Text, a Tuple "
            f"of those, or a Box of at most {MOST_NUMBERS} numbers"
        )
    return NUMBERS, None


def _tellable(space: Any) -> bool:
    kind = type(space).__name__
    if kind == "Tuple":
        return all(_tellable(part) for part in space.spaces)
    small = (
        kind in ("Box", "MultiDiscrete", "MultiBinary") and int(space.shape[0] if space.shape else 1) <= MOST_NUMBERS
    )
    return kind in ("Discrete", "Text") or (small and len(space.shape) <= 1)


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingDependency(
            'environments of Gymnasium need the package gymnasium: pip install "astune[environments]"'
        ) from error
    return gymnasium
