"""From a configuration of ASTune to one of Trinity, with the origin of every value.

    converted = convert(load_config(Path("demo.yaml"), backbone="trinity"), Path("runs/math_agent/demo"))
    converted.tree["buffer"]["batch_size"]       # 16
    converted.origins["buffer.batch_size"]       # "astune.trainer.tasks_per_step (demo.yaml:28)"
    converted.yaml()                             # what Trinity's load_config reads

Later ones win: `default_config/trinity_default.yaml`, what is converted from `astune.*` as
`default_config/config_auto_convertion_trinity.json` says, what belongs to this run alone, the section `trinity:` of the
user's file. A key of ours on the command line wins over that section of a file.
Imports neither Trinity nor Ray.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from astune.backbone.trinity.conversion.table import Entry, constants, leaves, table
from astune.backbone.trinity.conversion.user_keys import refused
from astune.backbone.trinity.conversion.values import CONVERSIONS, Job, wants_tinker
from astune.config.keys import value_at
from astune.config.load import LoadedConfig
from astune.config.render import inline
from astune.errors import ConfigError

MADE = "made by ASTune"
TINKER = "model.tinker.enable"
WORKFLOW_ARGS = "buffer.explorer_input.taskset.workflow_args"
OPERATORS = "data_processor.experience_pipeline.operators"

OWNED = (
    "name",
    "checkpoint_root_dir",
    "algorithm.sample_strategy",
    "buffer.explorer_input",
    OPERATORS,
    "monitor.monitor_type",
)
"""Where ASTune's own parts plug into Trinity. Without them it would not be ASTune that runs, so nobody sets them."""

ALIAS = "configuration"
"""Name of the YAML anchor of the embedded configuration, which stands in two places."""


@dataclass(frozen=True)
class Converted:
    """Trinity's configuration as plain data. `origins` has the place of every value by dotted key."""

    tree: dict[str, Any]
    origins: Mapping[str, str]

    def yaml(self) -> str:
        """One value in a line, its origin behind it; the embedded configuration stands once, near the end."""
        rows = list(_rows(self.tree, ""))
        embedded = inline(self.tree["buffer"]["explorer_input"]["taskset"]["workflow_args"]["config"])
        lines = []
        for key, text in rows:
            if key in (f"{WORKFLOW_ARGS}.config", OPERATORS):
                anchored = f"&{ALIAS} {embedded}" if key != OPERATORS else f"*{ALIAS}"
                text = text.replace(embedded, anchored)
            origin = self.origins.get(key)
            lines.append(f"{text}  # {origin}\n" if origin else f"{text}\n")
        return "".join(lines)


def convert(loaded: LoadedConfig, run_path: Path, num_tasks: int | None = None) -> Converted:
    """`num_tasks` is the number of training tasks, or of examples, which `total_epochs` needs. Raises `ConfigError`
    with every key of the user's that would have no effect, each with its place and what to write instead."""
    found, origins = constants(loaded.config.astune.algorithm.method)
    if wants_tinker(loaded):
        found[TINKER], origins[TINKER] = True, "the shipped model is made for a CPU"
    users = dict(leaves(loaded.config.trinity))
    places = dict.fromkeys(place for entry in table().values() for place in entry.to)
    wrong = [f"{_place(loaded, key)}: trinity.{key}: {what}" for key, what in refused(users, loaded)]
    if clashes := [*_owned(loaded, users), *wrong, *_clashes(loaded, users, places | found)]:
        raise ConfigError("\n".join(clashes))
    overruled = set(_overruled(loaded, users))
    users = {key: value for key, value in users.items() if value != {} and key not in overruled}
    job = Job(loaded, _tree(found | users), num_tasks)
    problems: list[str] = []
    converted: dict[str, list[str]] = {}
    for key, entry in table().items():
        try:
            values = _convert_key(key, entry, job, users)
        except ConfigError as error:
            problems.append(str(error))
            continue
        for place, value in values.items():
            found[place] = value
            converted.setdefault(place, []).append(key)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    origins |= {place: _origin(loaded, keys) for place, keys in converted.items()}
    # with the tinker engine the trainer takes any number of rows, else its GPUs share batches of a fixed one
    rows = 1 if job.tinker else int((found | users)["buffer.train_batch_size"])
    made = _made(loaded, run_path, job.tinker, rows)
    if "algorithm.advantage_fn" in users:  # Trinity's own gives plain advantages, without our weights
        made |= {"algorithm.loss_agg_mode": "token-mean", "algorithm.policy_loss_fn_args.loss_agg_mode": "token-mean"}
    found |= made | users
    origins |= dict.fromkeys(made, MADE) | {key: str(_place(loaded, key)) for key in users}
    return Converted(_arranged(_tree(found)), origins)


def check_trinity_keys(loaded: LoadedConfig, schema: type) -> None:
    """Raises `ConfigError` for every key of the user's section `trinity:` that is none of `schema`, Trinity's dataclass
    of the whole configuration."""
    problems = [
        f"{_place(loaded, key)}: trinity.{key}: unknown key of Trinity's.{_meant(key, schema)}"
        for key in _unknown(loaded.config.trinity, schema, "")
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(tree: Mapping[str, Any], schema: type, prefix: str) -> Iterator[str]:
    sections = _sections(schema)
    for name, value in tree.items():
        section = sections.get(name)
        if name not in sections:
            yield f"{prefix}{name}"
        elif section is not None:
            for item in value if isinstance(value, list) else [value]:
                yield from _unknown(item if isinstance(item, dict) else {}, section, f"{prefix}{name}.")


def _sections(schema: type) -> dict[str, type | None]:
    """The names of a dataclass's fields, with the dataclass that each holds, itself or in a list, if any."""
    return {name: _dataclass_in(kind) for name, kind in get_type_hints(schema).items()}


def _dataclass_in(kind: Any) -> type | None:
    """None for a mapping: its keys are the user's."""
    if isinstance(kind, type) and is_dataclass(kind):
        return kind
    if get_origin(kind) is dict:
        return None
    return next((found for inner in get_args(kind) if (found := _dataclass_in(inner))), None)


def _meant(key: str, schema: type) -> str:
    """The key that was probably meant: a name alike beside it, or the same name in another section."""
    known = list(_keys(schema, ""))
    section, _, name = key.rpartition(".")
    beside = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    meant = [beside[found] for found in get_close_matches(name, beside, n=1)]
    meant += [other for other in known if other.rpartition(".")[2] == name]
    return f" Did you mean 'trinity.{meant[0]}'?" if meant else f" There are: {', '.join(beside)}"


def _keys(schema: type, prefix: str) -> Iterator[str]:
    for name, section in _sections(schema).items():
        yield f"{prefix}{name}"
        if section is not None:
            yield from _keys(section, f"{prefix}{name}.")


def _convert_key(key: str, entry: Entry, job: Job, users: Mapping[str, Any]) -> dict[str, Any]:
    """Trinity's values by key, less those in the user's section, which count instead. Raises `ConfigError` for a key
    that the user set in vain."""
    if job.config.algorithm.method not in entry.methods:
        return {}
    value, why = value_at(job.loaded.config, key), entry.unsupported
    if job.tinker and job.loaded.differs_from_default(key):
        why = why or entry.tinker
    if job.joins_cluster:
        why = why or entry.cluster
    if why and job.loaded.differs_from_default(key) and not (entry.own_server and job.starts_server):
        raise job.fault(key, f"got {value!r}: {why}")
    if entry.if_set and key not in job.loaded.set_by_user():
        return {}
    return {place: CONVERSIONS[name](value, job) for place, name in entry.to.items() if place not in users}


def _overruled(loaded: LoadedConfig, users: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a file's section `trinity:` that are one key of ours, which the command line sets. Where several of
    ours count, as for the number of runners, none of them says what the section does."""
    entries = {key: entry for key, entry in table().items() if loaded.config.astune.algorithm.method in entry.methods}
    for place in users:
        ours = [key for key, entry in entries.items() if place in entry.to]
        if [loaded.origins[key] for key in ours] == ["command line"] and _place(loaded, place) != "command line":
            yield place


def _owned(loaded: LoadedConfig, users: Mapping[str, Any]) -> Iterator[str]:
    for key in users:
        if any(key == owned or key.startswith(f"{owned}.") for owned in OWNED):
            yield f"{_place(loaded, key)}: trinity.{key}: a part of ASTune stands there; take the key out"


def _made(loaded: LoadedConfig, run_path: Path, tinker: bool, rows: int) -> dict[str, Any]:
    """What belongs to this run alone; `rows` is what the rows of a batch are filled up to a multiple of."""
    path, config = run_path.absolute(), loaded.config.model_dump(mode="json")
    project = loaded.config.astune.project_name
    return {
        "name": run_path.name,
        "checkpoint_root_dir": str(path / "trinity"),
        # two runs of one name on one cluster must not find each other's actors
        "ray_namespace": f"{project}/{run_path.name}/{hashlib.sha1(str(path).encode()).hexdigest()[:8]}",
        **_handing_over(loaded, tinker),
        f"{WORKFLOW_ARGS}.config": config,
        OPERATORS: [
            {
                "name": "astune.backbone.trinity.explorer.samples.SamplesOperator",
                "args": {"rows_multiple": rows, "trainer": "tinker" if tinker else "verl", "config": config},
            }
        ],
    }


def _handing_over(loaded: LoadedConfig, tinker: bool) -> dict[str, Any]:
    """How weights or, with a method other than rl, examples come to where they are needed."""
    if loaded.config.astune.algorithm.method == "rl":
        return {"synchronizer.sync_method": "memory" if tinker else "nccl"}
    return {"algorithm.sample_strategy_args.trainer": "tinker" if tinker else "verl"}


def _clashes(loaded: LoadedConfig, users: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """What to say of a value where Trinity's tree has a section, and the other way round."""
    for key, value in users.items():
        inside = dict.fromkeys(
            other[len(key) + 1 :].partition(".")[0] for other in known if other.startswith(f"{key}.")
        )
        above = [other for other in known if key.startswith(f"{other}.") and not isinstance(known[other], dict)]
        if inside and value != {}:
            yield f"{_place(loaded, key)}: trinity.{key}: expected a section with {', '.join(inside)}, got {value!r}"
        elif above:
            yield f"{_place(loaded, key)}: trinity.{key}: trinity.{above[0]} is a value, not a section"


def _origin(loaded: LoadedConfig, keys: list[str]) -> str:
    """The keys that the user set, else all that would count."""
    chosen = [key for key in keys if loaded.origins[key] != "default"]
    return ", ".join(f"{key} ({loaded.origins[key]})" for key in chosen) or f"{', '.join(keys)} (default)"


def _place(loaded: LoadedConfig, key: str) -> object:
    """Where the user wrote a key of Trinity's; for one that came with a merged or interpolated section, that one's."""
    dotted = f"trinity.{key}"
    while dotted not in loaded.origins:
        dotted = dotted.rpartition(".")[0]
    return loaded.origins[dotted]


def _tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return tree


def _arranged(tree: dict[str, Any]) -> dict[str, Any]:
    """The same tree: single values, sections, the two sections that carry the embedded configuration."""
    long = ("buffer", "data_processor")
    order = sorted(tree, key=lambda name: (name in long and 1 + long.index(name), isinstance(tree[name], dict)))
    return {name: tree[name] for name in order}


def _rows(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        key, indent = f"{prefix}{name}", "  " * prefix.count(".")
        if isinstance(value, dict) and value and key != f"{WORKFLOW_ARGS}.config":
            yield key, f"{indent}{inline(name)}:"
            yield from _rows(value, f"{key}.")
        else:
            yield key, f"{indent}{inline(name)}: {inline(value)}"
