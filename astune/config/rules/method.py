"""`astune.algorithm.method` as an object: what it asks of a configuration, and what backbones ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, TypeAlias

from astune.config.algorithm import METHODS, AlgorithmConfig
from astune.config.schema import AstuneConfig
from astune.errors import PluginError
from astune.plugins import load_plugin

MethodLoss: TypeAlias = Literal["policy", "teacher", "likelihood"]
SAID_ELSEWHERE = {"method", "preset", "kl_beta", "kl_estimator", "kl_in", "entropy_bonus"}
"""Keys of which `algorithm_contradictions` says whether the method has them."""
AWAY = "take the key out"


class MethodRules:
    """The part of a method that configuration and backbones know; what it does is in `astune.algorithm.method.Method`,
    and where it reads examples in `astune.examples.method.ExampleMethod`."""

    plays: ClassVar[bool]
    """True where episodes are played, False where examples in a file are learned."""
    loss: ClassVar[MethodLoss]
    """The loss of an update: `astune.algorithm.loss` over advantages (policy), the same where a teacher gives them
    (teacher), or -logprob times the advantage, whoever said it (likelihood)."""
    compares: ClassVar[bool] = False
    """True where a loss is over whole answers, good and bad, so that weights of samples say nothing."""
    keys: ClassVar[frozenset[str]] = frozenset()
    """The keys of `astune.algorithm` that the method uses."""
    trained_by: ClassVar[tuple[str, ...]] = ("local", "verl")
    """Backbones that train by it, and "online". A class says its own: it is not inherited, as `trinity`, `debug` and
    `online` have loops of their own, which ask a method for none of its steps."""

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self.algorithm = algorithm

    @property
    def needs_critic(self) -> bool:
        return "critic" in self.keys and self.algorithm.advantage == "gae"

    @property
    def needs_reference(self) -> bool:
        """True if log-probabilities under the weights that the run began with are needed."""
        return self.algorithm.kl_beta > 0

    def is_trained_by(self, name: str) -> bool:
        return name in vars(type(self)).get("trained_by", MethodRules.trained_by)

    def problems(self, astune: AstuneConfig) -> Iterator[tuple[str, str]]:
        """The key to change and what is wrong with it."""
        method, trainer = self.algorithm.method, astune.trainer
        yield from self._examples(astune)
        if astune.backbone == "debug" and astune.debug.with_update and not self.is_trained_by("debug"):
            yield (
                "astune.algorithm.method",
                f"got {method!r}, but the backbone 'debug' learns from rewards only; expected 'rl'",
            )
        if astune.backbone == "trinity" and not self.is_trained_by("trinity"):
            yield "astune.algorithm.method", f"got {method!r}, which Trinity has not; expected 'rl', 'sft' or 'dpo'"
        if trainer.held_out_examples is not None and (self.plays or self.compares):
            yield "astune.trainer.held_out_examples", f"only method 'sft' tells their loss; {AWAY}"
        if trainer.examples_filter is not None and self.plays:
            yield (
                "astune.trainer.examples_filter",
                f"it chooses among recorded episodes, which method {method!r} does not learn from; {AWAY}",
            )
        elif trainer.examples_filter is not None and self.compares and astune.backbone == "trinity":
            yield (
                "astune.trainer.examples_filter",
                f"it chooses among recorded episodes, which only method 'sft' learns from on Trinity; {AWAY}",
            )
        yield from self._find_unused_keys(astune.backbone)

    def _examples(self, astune: AstuneConfig) -> Iterator[tuple[str, str]]:
        method, trainer = self.algorithm.method, astune.trainer
        if self.plays:
            if trainer.examples is not None:
                yield (
                    "astune.trainer.examples",
                    f"astune.algorithm.method {method!r} learns from rewards, not from examples; take the key out, or "
                    "expected method 'sft' or 'dpo'",
                )
        elif trainer.examples is not None and trainer.examples_of_run:
            yield "astune.trainer.examples_of_run", "astune.trainer.examples names a file; take one of the two out"
        elif trainer.examples is None and not trainer.examples_of_run:
            yield "astune.trainer.examples", f"not set; astune.algorithm.method {method!r} learns from examples"

    def _find_unused_keys(self, backbone: str) -> Iterator[tuple[str, str]]:
        builtin = {name: _load(name)(self.algorithm) for name in METHODS}
        for name in sorted(set(self.algorithm.find_changed()) - SAID_ELSEWHERE - self.keys):
            users = {method: rules for method, rules in builtin.items() if name in rules.keys}
            if backbone == "trinity" and any(each.plays and each.is_trained_by(backbone) for each in users.values()):
                continue  # Trinity lists such keys when the run starts
            *most, last = map(repr, users)
            only = f"only methods {', '.join(most)} and {last} have it" if most else f"only method {last} has it"
            yield f"astune.algorithm.{name}", f"{only}, and the method is {self.algorithm.method!r}; {AWAY}"


def rules_of(algorithm: AlgorithmConfig) -> MethodRules:
    """The method of a configuration. Raises PluginError for one that there is not."""
    return _load(algorithm.method)(algorithm)


def _load(name: str) -> type[MethodRules]:
    found = load_plugin(name, kind="method", builtin=METHODS)
    if not (isinstance(found, type) and issubclass(found, MethodRules)):
        raise PluginError(
            f"method {name!r} is no method: expected a class that derives from astune.algorithm.method.Method, or "
            "astune.examples.method.ExampleMethod"
        )
    return found
