"""Convert a configuration of ASTune to one of Trinity, with the origin of every value.

    converted = convert(load_config(Path("demo.yaml"), backbone="trinity"), Path("runs/math_agent/demo"))
    converted.tree["buffer"]["batch_size"]       # 16
    converted.origins["buffer.batch_size"]       # "astune.trainer.tasks_per_step (demo.yaml:28)"
    converted.yaml()                             # what Trinity's load_config reads

Later ones win: `default_config/trinity_default.yaml`, what is converted from `astune.*` as the schema says of each key
(`OnTrinity`), what belongs to this run alone, the section `trinity:` of the user's file. A key of ours on the command
line wins over that section of a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.backbone.foreign.keys import at, leaves, origin_of, place_of, read_shipped, rows, tree_of, with_origin
from astune.backbone.foreign.packages import attention_of
from astune.backbone.trinity.conversion.user_keys import OPERATORS, check_users_keys
from astune.backbone.trinity.conversion.values import CONVERSIONS, ConversionInput, on_megatron, wants_tinker
from astune.config.keys import fates, value_at
from astune.config.load import DEFAULTS, LoadedConfig
from astune.config.render import inline
from astune.config.rules.method import rules_of
from astune.config.schema import AlgorithmConfig
from astune.config.section import OnTrinity
from astune.errors import ConfigError

MADE = "made by ASTune"
TINKER = "model.tinker.enable"
ATTENTION = "trainer.trainer_config.actor_rollout_ref.model.override_config.attn_implementation"
SEQUENCE = "trainer.ulysses_sequence_parallel_size"
WORKFLOW_ARGS = "buffer.explorer_input.taskset.workflow_args"

ALIAS = "configuration"
"""Name of the YAML anchor of the embedded configuration, which stands in two places."""


DEFAULTS_FILE = "trinity_default.yaml"
EXAMPLES = "trinity_{method}.yaml"
"""Laid over it with a method other than rl. Its arguments of the loss replace those below, as the losses differ."""
ONLINE = "trinity_online.yaml"
"""Laid over all where the versions of `astune online` are trained."""
LOSS_ARGS = "algorithm.policy_loss_fn_args."


def not_used(loaded: LoadedConfig) -> list[str]:
    """The keys that the user set and that astune.algorithm.method has no use for, to be shown before the run."""
    unused = fates(OnTrinity).keys() - rules_for(loaded).keys()
    return [key for key in loaded.set_by_user() if key in unused]


def rules_for(loaded: LoadedConfig) -> Mapping[str, OnTrinity]:
    """The rules of the keys that astune.algorithm.method uses."""
    method = loaded.config.astune.algorithm.method
    return {key: rule for key, rule in fates(OnTrinity).items() if method in rule.methods}


def constants(algorithm: AlgorithmConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The part that is the same for every configuration of the method, by dotted key, and the file of each value."""
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in (
        [DEFAULTS_FILE] if rules_of(algorithm).plays else [DEFAULTS_FILE, EXAMPLES.format(method=algorithm.method)]
    ):
        values = read_shipped(name)
        found = {key: value for key, value in found.items() if not key.startswith(LOSS_ARGS)} | values
        origins |= dict.fromkeys(values, name)
    return found, {key: origins[key] for key in found}


@dataclass(frozen=True)
class Converted:
    """Trinity's configuration as plain data. `origins` has the place of every value by dotted key."""

    tree: dict[str, Any]
    origins: Mapping[str, str]

    def yaml(self) -> str:
        """One value in a line, its origin behind it; the embedded configuration stands once, near the end."""
        found = list(rows(self.tree, whole=(f"{WORKFLOW_ARGS}.config",)))
        embedded = inline(self.tree["buffer"]["explorer_input"]["taskset"]["workflow_args"]["config"])
        lines = []
        for key, text in found:
            if key in (f"{WORKFLOW_ARGS}.config", OPERATORS):
                anchored = f"&{ALIAS} {embedded}" if key != OPERATORS else f"*{ALIAS}"
                text = text.replace(embedded, anchored)
            lines.append(with_origin(text, self.origins.get(key)))
        return "".join(lines)


def convert(loaded: LoadedConfig, run_path: Path, num_tasks: int | None = None) -> Converted:
    """Trinity's configuration for a run whose folder is `run_path`.

    `num_tasks` is the number of training tasks, or of examples, which `total_epochs` needs. Raises `ConfigError` with
    every key of the user's that would have no effect, each with its place and what to write instead.
    """
    found, origins = constants(loaded.config.astune.algorithm)
    if wants_tinker(loaded):
        found[TINKER], origins[TINKER] = True, "the shipped model is made for a CPU"
    users = dict(leaves(loaded.config.trinity))
    places = dict.fromkeys(place for rule in fates(OnTrinity).values() for place in rule.to)
    check_users_keys(loaded, users, places | found)
    overruled = set(_find_overruled(loaded, users))
    users = {key: value for key, value in users.items() if value != {} and key not in overruled}
    given = ConversionInput(loaded, tree_of(found | users), num_tasks)
    problems = list(_find_parted_rows(loaded, users))
    converted: dict[str, list[str]] = {}
    for key, rule in rules_for(loaded).items():
        try:
            values = _convert_key(key, rule, given, users)
        except ConfigError as error:
            problems.append(str(error))
            continue
        for place, value in values.items():
            found[place] = value
            converted.setdefault(place, []).append(key)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    origins |= {place: origin_of(loaded, keys) for place, keys in converted.items()}
    # with the tinker engine the trainer takes any number of rows, else its GPUs share batches of a fixed one
    rows = 1 if given.tinker else int((found | users)["buffer.train_batch_size"])
    made = _make_values(loaded, run_path, given.tinker, rows)
    if "algorithm.advantage_fn" in users:  # Trinity's own gives plain advantages, without our weights
        made |= {"algorithm.loss_agg_mode": "token-mean", "algorithm.policy_loss_fn_args.loss_agg_mode": "token-mean"}
    found |= made | users
    origins |= dict.fromkeys(made, MADE) | {key: str(place_of(loaded, f"trinity.{key}")) for key in users}
    tree = tree_of(found)
    # as it is read: single values, then sections, last the two that carry the embedded configuration
    long = ("buffer", "data_processor")
    order = sorted(tree, key=lambda name: (name in long and 1 + long.index(name), isinstance(tree[name], dict)))
    return Converted({name: tree[name] for name in order}, origins)


def wants_attention(loaded: LoadedConfig) -> str:
    """transformers' name of the attention in Trinity's training workers; "" where they compute none of transformers'.
    Known before the conversion."""
    users = dict(leaves(loaded.config.trinity))
    if wants_tinker(loaded) or on_megatron(loaded.config.trinity):
        return ""
    ours = attention_of(loaded.config.astune.model, gpus=True)
    return ours if ATTENTION in _find_overruled(loaded, users) else str(users.get(ATTENTION, ours))


def _find_parted_rows(loaded: LoadedConfig, users: Mapping[str, Any]) -> Iterator[str]:
    """Rows that GPUs share without the one attention that sees all of a row then."""
    size, attention = users.get(SEQUENCE, 1), wants_attention(loaded)
    if size != 1 and attention and not attention.startswith("flash"):
        yield (
            f"{at(loaded, f'trinity.{SEQUENCE}')}: got {size}, but the attention is {attention!r}, by which each GPU "
            "would see its own part of a row alone; expected 1, or astune.model.attention: flash_attention_2"
        )


def _convert_key(key: str, rule: OnTrinity, given: ConversionInput, users: Mapping[str, Any]) -> dict[str, Any]:
    """Trinity's values by key, less those in the user's section, which count instead. Raises `ConfigError` for a key
    that the user set in vain."""
    value, why = value_at(given.loaded.config, key), rule.unsupported
    if given.tinker and given.loaded.differs_from_default(key):
        why = why or rule.tinker
    if given.joins_cluster:
        why = why or rule.cluster
    if why and given.loaded.differs_from_default(key) and not (rule.own_server and given.starts_server):
        if key not in given.loaded.set_by_user():  # but a preset, whose file is not the user's
            why = why.replace("take the key out", f"set it to {inline(value_at(DEFAULTS, key))}")
        raise given.fault(key, f"got {value!r}: {why}")
    if rule.if_set and key not in given.loaded.set_by_user():
        return {}
    values = {place: CONVERSIONS[name](value, given) for place, name in rule.to.items() if place not in users}
    return {place: got for place, got in values.items() if got is not None or not place.startswith(LOSS_ARGS)}


def _find_overruled(loaded: LoadedConfig, users: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a file's section `trinity:` that give way to a key of ours on the command line. Only where a single
    key of ours decides: of several, as for the number of runners, none says alone what the section says."""
    rules = rules_for(loaded)
    for place in users:
        ours = [key for key, rule in rules.items() if place in rule.to]
        wins = [loaded.origins[key] for key in ours] == ["command line"]
        if wins and place_of(loaded, f"trinity.{place}") != "command line":
            yield place


def _make_values(loaded: LoadedConfig, run_path: Path, tinker: bool, rows: int) -> dict[str, Any]:
    """The values that belong to this run alone. Batches are filled up to a multiple of `rows` rows."""
    path, config = run_path.absolute(), loaded.config.model_dump(mode="json")
    project, trainer = loaded.config.astune.project_name, "tinker" if tinker else "verl"
    plays = rules_of(loaded.config.astune.algorithm).plays
    return {
        "name": run_path.name,
        "checkpoint_root_dir": str(path / "trinity"),
        # two runs of one name on one cluster must not find each other's actors
        "ray_namespace": f"{project}/{run_path.name}/{hashlib.sha1(str(path).encode()).hexdigest()[:8]}",
        **(
            {"synchronizer.sync_method": "memory" if tinker else "nccl"}
            if plays
            else {"algorithm.sample_strategy_args.trainer": trainer}
        ),
        f"{WORKFLOW_ARGS}.config": config,
        OPERATORS: [
            {
                "name": "astune.backbone.trinity.explorer.samples.SamplesOperator",
                "args": {"rows_multiple": rows, "trainer": trainer, "config": config},
            }
        ],
    }
