"""The configuration of each of `astune.models`, and values there that cannot work together, or with others."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator
from itertools import combinations
from pathlib import Path

from astune.config.model import NamedModelConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig, LoraConfig, TrainerConfig
from astune.config.section import merge
from astune.errors import nearest

ALL = "all"
ALTERNATE = re.compile(r"alternate\(([1-9][0-9]*)\)")

OWN_TRAINER = (
    "betas",
    "keep_best",
    "learning_rate",
    "lr_schedule",
    "max_grad_norm",
    "max_skipped_updates",
    "micro_batch_tokens",
    "optimizer",
    "updates_per_step",
    "warmup_steps",
    "weight_decay",
)
"""The keys of `astune.trainer` that a model may have for itself; all else is the run's."""
OF_THE_RUN = {
    "preset": "name the keys that it would set",
    "dynamic_sampling": "which tasks are played is the run's to say: set it in astune.algorithm",
    "trained_agents": "agents of a model that is frozen are not trained, of others astune.algorithm says",
}
"""The keys of `astune.algorithm` that a model has not for itself, and what to do."""


def config_of(astune: AstuneConfig, name: str) -> AstuneConfig:
    """The configuration of one of several models; earlier versions have that of the model they are of. Raises
    pydantic's ValidationError where its own keys are wrong."""
    own = _own(astune, name)
    lora, trainer, algorithm = (
        type(section).model_validate(merge(section.model_dump(), given))
        for section, given in (
            (astune.model.lora, own.lora),
            (astune.trainer, own.trainer),
            (astune.algorithm, own.algorithm),
        )
    )
    if is_whole(astune, name):
        lora = LoraConfig.model_validate(own.lora)  # what the run says of its adapters is not for it
    model = astune.model.model_copy(update={"lora": lora, "path": own.path or astune.model.path})
    return astune.model_copy(update={"model": model, "trainer": trainer, "algorithm": algorithm})


def _own(astune: AstuneConfig, name: str) -> NamedModelConfig:
    own = astune.models[name]
    return astune.models.get(own.past_of or name, own)


def is_whole(astune: AstuneConfig, name: str) -> bool:
    """True of one of several models that is no adapter, but has all its weights for itself."""
    return _own(astune, name).lora.get("rank", astune.model.lora.rank) is None


def share_bases(astune: AstuneConfig) -> list[list[str]]:
    """List the models by the weights that they share: adapters over one base together, a whole one by itself."""
    found: dict[tuple[str | None, str], list[str]] = {}
    for name in astune.models:
        base = (None, name) if is_whole(astune, name) else (_own(astune, name).path or astune.model.path, "")
        found.setdefault(base, []).append(name)
    return list(found.values())


def split_by_base(astune: AstuneConfig) -> dict[tuple[str, ...], AstuneConfig]:
    """Split the configuration of several models: a part for those that share weights, by their names, which has them in
    `models`; that of a whole model is as if it were the only one."""
    parts = {}
    for names in share_bases(astune):
        part = config_of(astune, names[0])
        own = {
            name: astune.models[name].model_copy(
                update={"path": None, "lora": config_of(astune, name).model.lora.model_dump()}
            )
            for name in names
        }
        parts[tuple(names)] = part.model_copy(update={"models": {} if is_whole(astune, names[0]) else own})
    return parts


def configs_of_trained(astune: AstuneConfig) -> dict[str, AstuneConfig]:
    """The configuration of each model that is trained, by its name. The only one of a run has no name."""
    if not astune.models:
        return {"": astune}
    return {name: config_of(astune, name) for name, model in astune.models.items() if model.learns}


def figures_of_best(astune: AstuneConfig) -> dict[str, str | None]:
    """The held-out figures by which checkpoints are kept: of the run, which has no name, and of each model that has one
    of its own."""
    own = {name: str(figure) for name, model in astune.models.items() if (figure := model.trainer.get("keep_best"))}
    return {"": astune.trainer.keep_best, **own}


def begin_with(astune: AstuneConfig, checkpoint: Path) -> AstuneConfig:
    """The configuration with the checkpoint as the model that it begins with; of several, each that is not frozen with
    its folder there."""
    if not astune.models:
        return astune.model_copy(update={"model": astune.model.model_copy(update={"path": str(checkpoint)})})
    models = {
        name: model
        if model.frozen
        else model.model_copy(update={"path" if is_whole(astune, name) else "start_from": str(checkpoint / name)})
        for name, model in astune.models.items()
    }
    return astune.model_copy(update={"models": models})


def whose_turn(astune: AstuneConfig, step: int) -> list[str]:
    """The models that learn from step `step`, counted from 0, as `astune.trainer.update` says.

    >>> from astune.config.schema import AstuneConfig
    >>> astune = AstuneConfig(models={"wolf": {}, "villager": {}}, trainer={"update": "alternate(2)"})
    >>> [whose_turn(astune, step) for step in range(5)]
    [['wolf'], ['wolf'], ['villager'], ['villager'], ['wolf']]
    """
    names, update = [name for name, model in astune.models.items() if model.learns], astune.trainer.update
    if update == ALL:
        return names or [""]
    each = 1
    if alternate := ALTERNATE.fullmatch(update):
        each = int(alternate[1])
    else:
        names = names_in(update)
    return [names[step // each % len(names)]]


def places_of(astune: AstuneConfig) -> dict[str, list[str]]:
    """The names under which the policy answers for each of `astune.models`: as many as versions of it are kept."""
    return {
        name: [name, *(f"{name}@{place}" for place in range(1, model.size if model.past_of else 1))]
        for name, model in astune.models.items()
    }


def count_turns(astune: AstuneConfig, name: str, steps: range) -> int:
    """Count the steps from which a model learns."""
    every = astune.trainer.update == ALL
    return len(steps) if every else sum(name in whose_turn(astune, step) for step in steps)


def names_in(update: str) -> list[str]:
    """The models that `astune.trainer.update` names one by one."""
    return [name.strip() for name in update.split(",")]


def pattern_problems(astune: AstuneConfig, agents: Collection[str]) -> Iterator[tuple[str, str]]:
    """Patterns that none of the agents matches who had a turn, if anybody had one."""
    patterns = {"rollout.agents": astune.rollout.agents, "algorithm.trained_agents": astune.algorithm.trained_agents}
    for key, of_key in patterns.items() if agents else ():
        for pattern in of_key:
            if not fnmatch.filter(agents, pattern):
                known = ", ".join(sorted(agents))
                yield f"astune.{key}", f"no agent matches {pattern!r}.{nearest(pattern, agents)} There are: {known}"


def own_key_problems(astune: AstuneConfig, name: str) -> Iterator[tuple[str, str]]:
    """Keys that a model has for itself and cannot have."""
    key, model = f"astune.models.{name}", astune.models[name]
    for own in model.trainer:
        if own in TrainerConfig.model_fields and own not in OWN_TRAINER:
            yield f"{key}.trainer.{own}", f"a model has no {own!r} of its own; it may have {', '.join(OWN_TRAINER)}"
    for own in OF_THE_RUN.keys() & model.algorithm.keys():
        yield f"{key}.algorithm.{own}", f"a model has none of its own; {OF_THE_RUN[own]}"
    for section in () if model.learns else ("trainer", "algorithm"):
        if getattr(model, section):
            yield f"{key}.{section}", "it is not trained, so that it learns in no way; take the keys out"
    for own in {"lora", "path", "frozen"}.intersection(model.find_changed()) if model.past_of else ():
        yield f"{key}.{own}", f"it has what {model.past_of!r} has, and is never trained; take it out"
    if is_whole(astune, name):
        if model.start_from is not None:
            yield f"{key}.start_from", "it names an adapter, and this one has all its weights (lora.rank); set path"
        if model.past_of in astune.models:
            yield (
                f"{key}.past_of",
                f"earlier versions are kept as adapters, and {model.past_of!r} has all its weights for itself; set "
                "lora.rank there, or take a frozen model with a checkpoint of it as path",
            )
    names = next(names for names in share_bases(astune) if name in names)
    has_dora = any(_own(astune, each).lora.get("dora", astune.model.lora.dora) for each in names)
    if has_dora and names[0] == name and sum(len(places_of(astune)[each]) for each in names) > 1:
        yield (
            "astune.model.lora.dora",
            "DoRA cannot tell the rows of a batch apart, so a base has one such adapter; expected false",
        )


def model_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it. For the configuration of one of them this finds what is its own."""
    models, agents = astune.models, astune.rollout.agents
    if not models:
        if agents:
            yield (
                "astune.rollout.agents",
                "there is one model, which all agents run on; set astune.models, or take it out",
            )
        if astune.trainer.update != ALL:
            yield "astune.trainer.update", "there is one model, which learns from every step; expected 'all'"
        return
    yield from _turns(astune)
    yield from _past(astune)
    yield from _agents(astune)
    for pattern, name in agents.items():
        if name not in models:
            yield (
                "astune.rollout.agents",
                f"{pattern!r} is for the model {name!r}, which astune.models has not.{nearest(name, models)} It has: "
                f"{', '.join(models)}",
            )
    for name in models.keys() & astune.rollout.auxiliary_models.keys():
        yield f"astune.models.{name}", "a model of astune.rollout.auxiliary_models has the same name; rename one"
    if not any(model.learns for model in models.values()) and astune.traits.trains:
        yield (
            "astune.models",
            "none of them learns; expected one that is neither frozen nor past_of another",
        )
    yield from _engine(astune)
    yield from _learning(astune)


def _agents(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Patterns of which an agent could match two that are for different models."""
    key = "astune.rollout.agents"
    for pattern in astune.rollout.agents:
        if "[" in pattern:
            yield key, f"{pattern!r} has a bracket; expected names in which * and ? stand for others"
            return
    for (one, model), (other, another) in combinations(astune.rollout.agents.items(), 2):
        if model != another and (name := find_common_name(one, other)) is not None:
            yield key, f"{one!r} and {other!r} both match an agent {name!r}, and are for {model!r} and {another!r}"


def find_common_name(one: str, other: str) -> str | None:
    """Find a name that both patterns match, in which * stands for any text and ? for one sign.

    >>> find_common_name("wolf_*", "*_1"), find_common_name("wolf_?", "wolf_12"), find_common_name("*", "")
    ('wolf_1', None, '')
    """
    if other.startswith("*"):
        one, other = other, one
    if one.startswith("*"):
        found = find_common_name(one[1:], other)
        if found is not None or not other:
            return found
        found = find_common_name(one, other[1:])
        return found if found is None or other[0] == "*" else other[0] + found
    if not one or not other:
        return None if one or other else ""
    if one[0] != other[0] and "?" not in (one[0], other[0]):
        return None
    found = find_common_name(one[1:], other[1:])
    return None if found is None else (other[0] if one[0] == "?" else one[0]) + found


def _past(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Earlier versions of a model that has none, or not as many as are asked for."""
    trained = [name for name, model in astune.models.items() if model.learns]
    for name, model in astune.models.items():
        key, steps = f"astune.models.{name}", astune.trainer.total_steps
        if model.past_of is None:
            for own in sorted({"size", "every", "draw"}.intersection(model.find_changed())):
                yield f"{key}.{own}", "it is of earlier versions of another model; set past_of there, or take it out"
        elif model.past_of not in trained:
            yield (
                f"{key}.past_of",
                f"{model.past_of!r} is no model that is trained, which alone has earlier versions."
                f"{nearest(model.past_of, trained)} There are: {', '.join(trained) or 'none'}",
            )
        elif steps is not None and (turns := count_turns(astune, model.past_of, range(steps))) <= model.every:
            yield (
                f"{key}.every",
                f"{model.past_of!r} learns from {turns} steps, so that only its first version would be met; expected a "
                "number below that",
            )


def _turns(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Names that `astune.trainer.update` has and should not, or has not and should."""
    update, trained = astune.trainer.update, [name for name, model in astune.models.items() if model.learns]
    if update == ALL or ALTERNATE.fullmatch(update):
        return
    named = names_in(update)
    for name in [each for each in dict.fromkeys(named) if each not in trained]:
        if name == ALL:
            what = "'all' stands alone."
        elif name.lower().startswith("alternate"):
            what = f"{name!r} gives no number of steps from 1."
        else:
            what = f"{name!r} is no model that is trained.{nearest(name, [ALL, *trained])}"
        listed = f"Expected 'all', 'alternate(5)' or names in a row: {', '.join(trained)}"
        yield "astune.trainer.update", f"{what} {listed}"
    if not {*named} >= {*trained} and {*named} <= {*trained}:
        never = ", ".join(name for name in trained if name not in named)
        yield "astune.trainer.update", f"it is never the turn of {never}; name it, or set frozen there"


def _engine(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Settings with which the engine cannot answer for several models."""
    if any("base" in model.lora for model in astune.models.values()):
        yield "astune.models", "lora.base is of the weights that adapters have in common; set it in astune.model.lora"
    if astune.traits.own_engine and astune.rollout.engine == "vllm":
        yield (
            "astune.rollout.engine",
            "'vllm' is handed one model; expected 'torch', which answers for all of astune.models",
        )


def _learning(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    if not rules_of(astune.algorithm).plays:
        yield (
            "astune.algorithm.method",
            f"{astune.algorithm.method!r} learns from examples, which do not say whose they are (astune.models); "
            "expected a method that plays episodes, as 'rl', or one run for each model",
        )
    if not astune.traits.trains and astune.debug.with_update:
        yield "astune.debug.with_update", "an update is shown of a run with one model; take it out, or astune.models"
