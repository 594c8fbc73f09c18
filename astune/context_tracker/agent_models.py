"""Which model an agent runs on, where a run has several (`astune.models`), and whether its turns are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, nearest


@dataclass(frozen=True)
class AgentModels:
    """`trained` has the models by name, True for those that are trained; `agents` the models by patterns of agents'
    names, as `{"wolf_*": "wolf"}`. Both are empty where there is one model, which has no name. `drawn` has the names
    under which the policy answers for models of which it has several versions, if not under their own. Only the turns
    of agents whose names match one of `trained_agents` are trained. The answers of the agent `redrawn` are drawn anew,
    where an attempt is played again.

    >>> AgentModels({"wolf": True, "villager": False}, {"wolf_*": "wolf"}).choose("wolf_1")
    'wolf'
    """

    trained: Mapping[str, bool] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, str] = field(default_factory=dict)
    trained_agents: Sequence[str] = ("*",)
    redrawn: str | None = None
    formats: Mapping[str, ChatFormat] = field(default_factory=dict)
    """The chat format of each model; empty where all have the run's."""

    @property
    def names(self) -> tuple[str | None, ...]:
        """The names of all models; None stands for the only one."""
        return tuple(self.trained) or (None,)

    def name(self, source: str | None) -> str:
        """The name of the model that a source is; empty for the only one, and for what is none of them."""
        return source if source is not None and source in self.trained else ""

    def find_length(self, name: str | None, longest: int) -> int:
        """Find the context length of a model where that of the longest is given."""
        own = self.formats.get(name or "")
        return longest if own is None else min(longest, own.context_length or longest)

    def is_trained(self, agent: str, name: str | None) -> bool:
        """Tell whether the turns of an agent that runs on the model `name` are trained."""
        chosen = any(fnmatchcase(agent, pattern) for pattern in self.trained_agents)
        return chosen and (name is None or self.trained.get(name, True))

    def choose(self, agent: str, policy: str | None = None) -> str | None:
        """Choose the model of an agent: the one that its workflow names, else that of the pattern which its name
        matches. Raises ConfigError for a model that there is not, and where none is said."""
        listed = f"astune.models has: {', '.join(self.trained) or 'none'}"
        if policy is not None:
            if policy not in self.trained:
                raise ConfigError(f"policy={policy!r}: there is no such model.{nearest(policy, self.trained)} {listed}")
            return policy
        if not self.trained:
            return None
        for pattern, name in self.agents.items():
            if fnmatchcase(agent, pattern):
                return name  # another that matches is for the same model: `astune.config.rules`
        raise ConfigError(
            f"astune.rollout.agents: no pattern matches the agent {agent!r}, so that it has no model."
            f"{nearest(agent, self.agents)} There are: {', '.join(self.agents) or 'none'}; or let the workflow name "
            f"one, as tuner.model({agent!r}, policy={next(iter(self.trained))!r}) does. {listed}"
        )
