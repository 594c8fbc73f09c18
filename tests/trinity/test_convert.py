"""No option of ASTune is lost on the way to Trinity. Runs without Trinity."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional, get_args

import annotated_types
import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, find, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

from astune.backbone.base import BACKBONES, check_keys
from astune.backbone.foreign.keys import leaves
from astune.backbone.trinity.conversion.convert import DEFAULTS_FILE, Converted, convert, wants_attention
from astune.backbone.trinity.conversion.user_keys import BOUND, check_trinity_keys
from astune.backbone.trinity.conversion.values import CONVERSIONS
from astune.cli import main
from astune.config.algorithm import METHODS, AlgorithmConfig, CriticConfig, Preset
from astune.config.keys import FIELDS, LEAVES, fates, value_at
from astune.config.load import LoadedConfig, Place, load_config
from astune.config.monitor import TRACKERS
from astune.config.rules import contradictions
from astune.config.rules.algorithm import LOSSES_WITH, USED_BY
from astune.config.schema import Config
from astune.config.section import OnTrinity
from astune.errors import ConfigError
from astune.plugins import load_plugin
from astune.support.resources import default_config_dir, tiny_model_dir, tutorial_dir
from tests.rows import each_row

GOLDEN = Path(__file__).with_name("converted.yaml")
RUN = Path("/runs/p/n")
TASKS = 80
ENTRIES = fates(OnTrinity)
KEYS = [*ENTRIES]
JOB = """\
astune:
  task_reader: {jsonl: {training: {file_path: /data/train.jsonl}}}
  rollout: {agentscope_learn_protocol: 'package.module:Agent'}
"""
NO_TINKER = "trinity.model.tinker.enable=false"
OWN_TINKER = "trinity.model.tinker.enable=true"
FAR_TINKER = f"{OWN_TINKER} trinity.model.tinker.base_url=http://gpu-box:10610"


def load(folder: Path, *overrides: str, text: str = "") -> LoadedConfig:
    return load_config(written(folder, text), [NO_TINKER, *overrides], backbone="trinity")


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB + text)
    return path


def complaint(folder: Path, *overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        convert(load(folder, *overrides, text=text), RUN)
    return str(caught.value).replace(str(folder / "job.yaml"), "F")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        found |= flat(value, f"{key}.") if isinstance(value, dict) and value else {key: value}
    return found


def loss_of(function: str, **arguments: object) -> dict[str, object]:
    given = {f"algorithm.policy_loss_fn_args.{name}": value for name, value in arguments.items()}
    return {"algorithm.policy_loss_fn": function} | given


def embedded(converted: Converted) -> dict[str, Any]:
    """The configuration that travels inside Trinity's, the same to the workflow and to the operator."""
    config: dict[str, Any] = converted.tree["buffer"]["explorer_input"]["taskset"]["workflow_args"]["config"]
    (operator,) = converted.tree["data_processor"]["experience_pipeline"]["operators"]
    assert operator["args"]["config"] == config
    return config


# the table


@each_row("key", KEYS)
def test_an_entry_says_one_thing(key: str) -> None:
    entry = ENTRIES[key]
    kinds = [bool(entry.to or entry.ours), bool(entry.unsupported), bool(entry.ignored)]
    assert kinds.count(True) == 1
    assert set(entry.to.values()) <= set(CONVERSIONS)
    in_use = {f"astune.prompts.{name}" for name in ("texts", "files", "from")}
    elsewhere = ("astune.debug.", "astune.online.", "astune.rubrics.", "astune.prompts.")
    assert bool(entry.ignored) == (key == "astune.backbone" or (key.startswith(elsewhere) and key not in in_use))
    assert not (entry.tinker or entry.if_set) or entry.to
    assert not entry.unsupported or "take the key out" in entry.unsupported


def test_every_conversion_is_used() -> None:
    assert {name for entry in ENTRIES.values() for name in entry.to.values()} == set(CONVERSIONS)


def test_every_constant_says_why_and_none_is_converted_as_well() -> None:
    text = (default_config_dir() / DEFAULTS_FILE).read_text()
    values = [line for line in text.splitlines() if re.search(r"^ *[^#\s][^#]*: *[^\s#]", line)]
    assert len(values) == len(flat(yaml.safe_load(text)))
    assert [line for line in values if "  # " not in line and " # " not in line] == []
    converted = {place for entry in ENTRIES.values() if not entry.if_set for place in entry.to}
    assert converted & set(flat(yaml.safe_load(text))) == set()


# what becomes of a value


@each_row(
    ("overrides", "expected"),
    [
        ("astune.project_name=x", {"project": "x"}),
        ("astune.resume=true", {"continue_from_checkpoint": True}),
        ("astune.seed=7", {"explorer.rollout_model.seed": 7, "model.tinker.seed": 7}),
        ("astune.model.path=tiny", {"model.model_path": str(tiny_model_dir()), "model.max_model_len": 2048}),
        (
            "astune.model.path=Qwen/Qwen3-8B astune.model.max_model_len=4096",
            {"model.model_path": "Qwen/Qwen3-8B", "model.max_model_len": 4096},
        ),
        ("astune.model.max_model_len=1500", {"model.max_model_len": 1500}),
        (
            "astune.model.dtype=float32",
            {
                "explorer.rollout_model.dtype": "float32",
                "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.dtype": "float32",
            },
        ),
        (
            "astune.model.gradient_checkpointing=false",
            {"trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing": False},
        ),
        ("", {"trainer.trainer_config.actor_rollout_ref.model.enable_gradient_checkpointing": True}),
        (
            "astune.rollout.num_repeat=4 astune.trainer.tasks_per_step=3",
            {"algorithm.repeat_times": 4, "buffer.batch_size": 3, "buffer.train_batch_size": 12},
        ),
        ("astune.rollout.max_tokens=100", {"model.max_response_tokens": 100}),
        ("astune.rollout.temperature=0.7 astune.rollout.top_p=0.9", {"model.temperature": 0.7, "model.top_p": 0.9}),
        ("astune.rollout.top_k=0", {"model.top_k": -1}),
        ("astune.rollout.top_k=20", {"model.top_k": 20}),
        ("", {"explorer.max_timeout": 670, "synchronizer.sync_timeout": 6700, "explorer.max_retry_times": 0}),
        (
            "astune.rollout.episode_timeout=10.5 astune.task_judge.timeout=1",
            {"explorer.max_timeout": 72, "buffer.trainer_input.experience_buffer.max_read_timeout": 3600},
        ),
        (
            "astune.algorithm.loss=ppo_clip",
            loss_of(
                "ppo", fallback_to_policy_gradient=False, clip_range_low=0.2, clip_range_high=0.28, clip_ratio_c=1e9
            ),
        ),
        ("astune.algorithm.clip_dual=3", loss_of("ppo", clip_ratio_c=3.0)),
        ("astune.algorithm.loss=reinforce", loss_of("ppo", fallback_to_policy_gradient=True)),
        (
            "astune.algorithm.loss=gspo astune.algorithm.clip_low=3e-4 astune.algorithm.clip_high=4e-4",
            loss_of("gspo", clip_range_low=3e-4, clip_range_high=4e-4, loss_agg_mode="seq-mean-token-sum"),
        ),
        ("astune.algorithm.loss=cispo astune.algorithm.clip_high=4", loss_of("cispo", clip_range_high=4.0)),
        ("astune.algorithm.loss=opmd astune.algorithm.opmd_tau=2", loss_of("opmd", tau=2.0)),
        (
            "astune.algorithm.clip_low=0.1 astune.algorithm.clip_high=0.3",
            {
                "algorithm.policy_loss_fn_args.clip_range_low": 0.1,
                "algorithm.policy_loss_fn_args.clip_range_high": 0.3,
            },
        ),
        ("astune.trainer.total_steps=5", {"buffer.total_steps": 5, "trainer.total_steps": 6}),
        (
            "astune.trainer.total_steps=null astune.trainer.total_epochs=2",
            {"buffer.total_steps": 20, "trainer.total_steps": 21},
        ),
        ("astune.trainer.total_epochs=2", {"buffer.total_steps": 20}),
        ("astune.trainer.total_epochs=20", {"buffer.total_steps": 100}),
        (
            "astune.trainer.learning_rate=1e-5 astune.trainer.warmup_steps=3 astune.trainer.lr_schedule=cosine",
            {
                "algorithm.optimizer.lr": 1e-5,
                "algorithm.optimizer.lr_warmup_steps": 3,
                "algorithm.optimizer.lr_scheduler_type": "cosine",
                "algorithm.optimizer.min_lr_ratio": 0.0,
            },
        ),
        (
            "astune.trainer.weight_decay=0.1 astune.trainer.betas=[0.8,0.9]",
            {"algorithm.optimizer.weight_decay": 0.1, "algorithm.optimizer.betas": [0.8, 0.9]},
        ),
        (
            "astune.trainer.max_grad_norm=0.5",
            {"trainer.grad_clip": 0.5, "algorithm.optimizer.clip_grad": 0.5},
        ),
        ("astune.trainer.micro_batch_tokens=99", {"trainer.max_token_len_per_gpu": 99}),
        (
            "astune.trainer.save_every=4 astune.trainer.keep_checkpoints=3",
            {"trainer.save_interval": 4, "trainer.max_checkpoints_to_keep": 3},
        ),
        (
            "astune.synchronizer.style=dynamic_by_explorer astune.synchronizer.interval=2",
            {
                "synchronizer.sync_style": "dynamic_by_explorer",
                "synchronizer.sync_interval": 2,
                "trainer.total_steps": None,
                "buffer.total_steps": 100,
            },
        ),
        (
            "astune.synchronizer.offset=1 astune.synchronizer.max_staleness=2",
            {"synchronizer.sync_offset": 1, "algorithm.sample_strategy_args.max_staleness": 2},
        ),
        ("", {"synchronizer.sync_method": "nccl"}),
        (OWN_TINKER, {"synchronizer.sync_method": "memory"}),
        (f"{OWN_TINKER} trinity.synchronizer.sync_method=checkpoint", {"synchronizer.sync_method": "checkpoint"}),
    ],
)
def test_a_value_arrives_where_trinity_looks_for_it(
    tmp_path: Path, overrides: str, expected: Mapping[str, object]
) -> None:
    found = flat(convert(load(tmp_path, *overrides.split()), RUN, TASKS).tree)
    assert {key: found[key] for key in expected} == expected


@each_row(
    ("overrides", "expected"),
    [
        ("astune.rollout.max_concurrent=64", 8),
        ("astune.rollout.max_concurrent=32", 4),
        ("astune.rollout.max_concurrent=3", 1),
        ("astune.rollout.max_concurrent=64 astune.rollout.num_repeat=16", 4),
        ("astune.rollout.max_concurrent=1000", 8),
        ("astune.rollout.max_concurrent=1000 astune.trainer.tasks_per_step=20", 20),
        ("astune.rollout.max_concurrent=1000 astune.synchronizer.offset=1", 16),
        ("astune.rollout.max_concurrent=1000 astune.synchronizer.interval=3", 24),
        ("astune.rollout.max_concurrent=1000 astune.synchronizer.style=async", 16),
        ("astune.rollout.max_concurrent=1000 trinity.explorer.rollout_model.engine_num=3", 3),
        ("astune.rollout.max_concurrent=64 trinity.explorer.rollout_model.engine_num=3", 2),
        ("trinity.explorer.runner_per_model=5", 5),
    ],
)
def test_runners_keep_to_max_concurrent_and_to_the_tasks_that_there_are(
    tmp_path: Path, overrides: str, expected: int
) -> None:
    tree = convert(load(tmp_path, *overrides.split()), RUN).tree
    assert tree["explorer"]["runner_per_model"] == expected


def test_what_belongs_to_the_run_is_made_from_its_folder(tmp_path: Path) -> None:
    loaded = load(tmp_path, "astune.project_name=math")
    tree = convert(loaded, RUN).tree
    assert (tree["name"], tree["checkpoint_root_dir"]) == ("n", "/runs/p/n/trinity")
    namespaces = {tree["ray_namespace"], convert(loaded, Path("/other/p/n")).tree["ray_namespace"]}
    assert len(namespaces) == 2 and all(name.startswith("math/n/") for name in namespaces)
    assert convert(loaded, RUN).tree == tree
    relative = convert(loaded, Path("runs/p/n")).tree["checkpoint_root_dir"]
    assert relative == str(Path.cwd() / "runs/p/n/trinity")


# no option is lost


CURRICULUM = "astune.trainer.curriculum"
EXAMPLES = {"astune.trainer.examples": "/data/examples.jsonl"}
SOURCES = {"huggingface": ("dataset_path", "owner/name"), "reasoning_gym": ("datasets", {"chain_sum": {}})}
BESIDE: Mapping[str, Mapping[str, object]] = {
    **{
        f"astune.algorithm.{key}": {"astune.algorithm.loss": losses[-1]}
        for key, losses in LOSSES_WITH.items()
        if AlgorithmConfig().loss not in losses
    },
    **{f"astune.algorithm.{key}": {"astune.algorithm.advantage": user} for key, user in USED_BY.items()},
    **{
        key: {"astune.monitor.trackers": [tracker]}
        for tracker in TRACKERS
        for key in LEAVES
        if key.startswith(f"astune.monitor.{tracker}.")
    },
    "astune.monitor.tracker_episodes": {"astune.monitor.trackers": ["wandb"]},
    **{f"astune.algorithm.critic.{name}": {"astune.algorithm.advantage": "gae"} for name in CriticConfig.model_fields},
    **{key: {f"{CURRICULUM}.enabled": True} for key in LEAVES if key.startswith(f"{CURRICULUM}.")},
    **{
        key: {"astune.task_reader.type": reader, f"astune.task_reader.{reader}.{name}": there}
        for reader, (name, there) in SOURCES.items()
        for key in LEAVES
        if key.startswith(f"astune.task_reader.{reader}.")
    },
    **{
        f"astune.task_reader.env_service.{name}": {
            "astune.task_reader.type": "env_service",
            "astune.task_reader.env_service.env_url": "http://127.0.0.1:1",
        }
        for name in ("training_split", "validation_split")
    },
    "astune.task_reader.huggingface.streaming": {
        "astune.task_reader.type": "huggingface",
        "astune.task_reader.huggingface.dataset_path": "owner/name",
        "astune.task_reader.max_training_tasks": 9,
    },
    "astune.algorithm.method": EXAMPLES,
    "astune.algorithm.dpo_beta": EXAMPLES
    | {"astune.algorithm.method": "dpo", "trinity.model": {"tinker": {"enable": True}}},
    "astune.algorithm.kl_estimator": {"astune.algorithm.kl_beta": 0.1},
    "astune.algorithm.kl_in": {"astune.algorithm.kl_beta": 0.1},
    "astune.algorithm.importance_cap": {"astune.algorithm.loss": "opmd", "astune.algorithm.importance": "mask"},
    "astune.algorithm.overlong_buffer": {"astune.model.max_model_len": 10**6, "astune.rollout.max_tokens": 10**5},
    "astune.algorithm.overlong_penalty": {"astune.model.max_model_len": 4096, "astune.algorithm.overlong_buffer": 8},
    "astune.algorithm.critic.value_clip": {"astune.algorithm.advantage": "gae", "astune.algorithm.critic.updates": 2},
    "astune.task_reader.env_service.options": {"astune.task_reader.env_service.serve": "countdown"},
    "astune.allow_changes": {"astune.resume": True},
    "astune.task_judge.rubrics.pass_at": {
        "astune.task_judge.judge_protocol": "RubricsAsJudge",
        "astune.task_judge.rubrics.file": "rubrics.yaml",
        "astune.task_judge.llm.models": [{"base_url": "http://127.0.0.1:1/v1", "model": "m"}],
    },
    **{
        key: {"astune.rollout.workspace.type": "AstuneSandbox"}
        for key in LEAVES
        if key.startswith("astune.rollout.workspace.") and not key.endswith(".type")
    },
    **{
        f"astune.rollout.context.{name}": {"astune.rollout.context.strategy": "summarise"}
        for name in ("at", "keep", "prompt")
    },
    "astune.rollout.context.model": {
        "astune.rollout.context.strategy": "summarise",
        "astune.rollout.auxiliary_models": {"a": {"base_url": "http://h/v1", "model": "m"}},
    },
    "astune.models": {"astune.model.lora.rank": 4},
    **{
        key: {"astune.model.lora.rank": 4, "astune.models": {"a": {}, "b": {}}}
        for key in ("astune.rollout.agents", "astune.trainer.update")
    },
    "astune.task_reader.validation_fraction": {"astune.task_reader.jsonl.validation.file_path": None},
    "astune.task_reader.split_seed": {
        "astune.task_reader.jsonl.validation.file_path": None,
        "astune.task_reader.validation_fraction": 0.1,
    },
    "astune.task_judge.llm.max_opponents": {"astune.task_judge.llm.mode": "pairwise"},
    "astune.task_judge.llm.votes": {"astune.task_judge.llm.temperature": 1.0},
    "astune.task_reader.csv.separator": {"astune.task_reader.jsonl.training.file_path": "/data/train.csv"},
    "astune.task_reader.csv.encoding": {"astune.task_reader.jsonl.training.file_path": "/data/train.tsv"},
    "astune.trainer.keep_best": {"astune.evaluation.every": 10},
    "astune.trainer.examples": {"astune.algorithm.method": "sft"},
    "astune.trainer.examples_filter": EXAMPLES | {"astune.algorithm.method": "sft"},
}
"""What keys make no sense without: as the rules' own tables say, and for those whose rule is no table."""


def values(key: str) -> st.SearchStrategy[Any]:
    """Values of a key's type; not all of them are valid."""
    if key == "astune.rollout.auxiliary_models":
        model = st.fixed_dictionaries({"base_url": st.just("http://h/v1"), "model": st.text(max_size=3)})
        return st.dictionaries(st.text(max_size=3), model, min_size=1, max_size=2)
    if key == "astune.models":
        model = st.fixed_dictionaries({"frozen": st.booleans()})
        return st.dictionaries(st.sampled_from("ab"), model, min_size=1, max_size=2)
    if key == "astune.rollout.agents":
        return st.dictionaries(st.sampled_from(["w_*", "v"]), st.sampled_from("ab"), min_size=1, max_size=2)
    if key == "astune.trainer.update":
        return st.sampled_from(["all", "alternate(2)", "a, b"])
    if key == "astune.tools.servers":
        server = st.fixed_dictionaries({"command": st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=2)})
        return st.dictionaries(st.sampled_from("ab"), server, min_size=1, max_size=2)
    if key.startswith("astune.rollout.context.") and key.endswith((".model", ".prompt")):
        return st.sampled_from([None, "a", "b"])
    if key == "astune.rollout.workspace.type":
        return st.just("AstuneSandbox")
    if key == "astune.rollout.workspace.hosts":
        return st.lists(st.sampled_from(["a.org", "b:8443"]), min_size=1, max_size=2)
    if key == "astune.monitor.trackio.server_url":
        return st.just("http://h")
    if key == "astune.algorithm.method":
        return st.sampled_from([*METHODS])
    if key == "astune.algorithm.teacher":
        api = st.fixed_dictionaries({"base_url": st.just("http://h/v1"), "model": st.text(max_size=3)})
        return st.none() | st.text(max_size=3) | api
    if key.endswith((".llm.models", ".augment.models")):
        model = st.fixed_dictionaries({"base_url": st.just("http://h/v1"), "model": st.text(max_size=3)})
        return st.lists(model, min_size=1, max_size=2)
    if key == "astune.task_judge.llm.criteria":
        return st.dictionaries(st.text(max_size=3), st.text(min_size=1, max_size=3), min_size=1, max_size=2)
    if key == "astune.task_judge.judge_protocol":
        named = st.fixed_dictionaries({"judge": st.text("ab:.", min_size=1), "weight": st.floats(-2, 2)})
        return st.text("ab:.", min_size=1) | st.lists(named, min_size=1, max_size=3)
    if key == "astune.evaluation.sets":
        return st.dictionaries(st.sampled_from(["hard", "a-b"]), st.just({"file_path": "/data/hard.jsonl"}), max_size=2)
    if key == "astune.trainer.keep_best":
        return st.sampled_from([None, "eval/greedy/success", "eval/sampled/reward"])
    if key == "astune.stages":
        return st.lists(st.fixed_dictionaries({"trainer": st.just({"total_steps": 3})}), min_size=1, max_size=3)
    if key == "astune.trainer.updates_per_step":
        return st.integers(1, 64)  # more than there are episodes in a step make no sense
    if key == "astune.algorithm.critic.warmup_updates":
        return st.integers(0, 64)  # more than a run has are refused
    if key == "astune.model.device":
        return st.sampled_from(["auto", "cpu", "cuda", "cuda:1"])
    if key == "astune.algorithm.clip_dual":
        return st.none() | st.floats(1.01, 9)
    if key == "astune.model.chat_template_kwargs":
        return st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.booleans() | st.integers(), max_size=2)
    if key == "astune.model.clock":
        return st.none() | st.datetimes().map(lambda time: time.isoformat())
    if key in ("astune.task_reader.env_service.env_url", "astune.rollout.vllm.base_url"):
        return st.sampled_from([None, "http://h:1", "https://h"])
    if key == "astune.rollout.workspace.options" or (
        key.startswith("astune.task_reader.env_service.") and key.endswith((".options", ".params"))
    ):
        return st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(), min_size=1, max_size=2)
    if key == "astune.task_reader.reasoning_gym.datasets":
        return st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.integers()), max_size=2)
    if key == "astune.task_reader.validation_fraction":
        return st.none() | st.floats(0.01, 0.99)
    if key == "astune.task_judge.rubrics.pass_at":
        return st.none() | st.floats(0.01, 1.0)
    limits = [mark for mark in FIELDS[key].metadata if isinstance(mark, annotated_types.BaseMetadata)]
    kind: Any = FIELDS[key].annotation
    return st.from_type(Annotated[(kind, *limits)] if limits else kind)  # type: ignore[index]


def loaded_with(key: str | None, value: Any) -> LoadedConfig:
    """As if `key` stood on the command line, beside what it makes no sense without. Raises pydantic's ValidationError
    for what it would refuse."""
    tree = load_tree()
    places: dict[str, Place] = dict.fromkeys(LEAVES, "default")
    given = {} if key is None else {**BESIDE.get(key, {}), key: value}
    for dotted, setting in given.items():
        *sections, name = dotted.split(".")
        inner = tree
        for section in sections:
            inner = inner[section]
        inner[name] = setting
        places[dotted] = "command line"
    return LoadedConfig(Config.model_validate(tree), places, None)


def load_tree() -> dict[str, Any]:
    tree = Config().model_dump(mode="json")
    tree["astune"]["backbone"] = "trinity"
    tree["trinity"] = {"model": {"tinker": {"enable": False}}}  # as for a model that needs GPUs
    tree["astune"]["rollout"]["agentscope_learn_protocol"] = "package.module:Agent"
    tree["astune"]["task_reader"]["jsonl"]["training"]["file_path"] = "/data/train.jsonl"
    tree["astune"]["task_reader"]["jsonl"]["validation"]["file_path"] = "/data/heldout.jsonl"
    return tree


COMMON = convert(loaded_with(None, None), RUN, TASKS)


@settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_no_option_is_silently_lost(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([key for key in KEYS if not ENTRIES[key].ignored]))
    value = data.draw(values(key))
    assume(can_be_set(key, value))
    loaded = loaded_with(key, value)
    try:
        converted = convert(loaded, RUN, TASKS)
    except ConfigError as error:
        assert re.search(rf"command line: {key}: |^{key}: |astune\.model\.max_model_len: ", str(error), re.MULTILINE)
        return
    assert_kept(key, ENTRIES[key], loaded, converted)


def assert_kept(key: str, entry: OnTrinity, loaded: LoadedConfig, converted: Converted) -> None:
    """The value stands in the tree, or what stands there depends on it, or what acts on it gets it."""
    value = value_at(loaded.config, key)
    before, after = flat(COMMON.tree), flat(converted.tree)
    exact = [place for place, name in entry.to.items() if name in ("same", "as_list")]
    assert all(after[place] == (list(value) if isinstance(value, tuple) else value) for place in exact)
    if entry.ours:
        assert value_at(Config.model_validate(embedded(converted)), key) == value
    elif key == "astune.rollout.max_concurrent":  # whole groups: rounded down
        episodes = after["explorer.runner_per_model"] * loaded.config.astune.rollout.num_repeat
        assert episodes <= max(value, loaded.config.astune.rollout.num_repeat)
    else:
        assert exact or any(after.get(place) == value or before.get(place) != after.get(place) for place in entry.to)


def can_be_set(key: str, value: Any) -> bool:
    try:
        loaded = loaded_with(key, value)
    except ValidationError:
        return False
    return loaded.differs_from_default(key) and not list(contradictions(loaded.config))


OF_OTHER_METHODS = {
    *(f"astune.algorithm.{name}" for name in ("preference_loss", "preference_margin", "kto_good_weight")),
    *(f"astune.algorithm.{name}" for name in ("kto_bad_weight", "keep_per_task", "teacher")),
    "astune.trainer.held_out_examples",
}
"""Refused where the configuration is loaded, as their methods are not the one that is converted here."""


@each_row("key", [key for key in KEYS if not ENTRIES[key].ignored and key not in OF_OTHER_METHODS])
def test_the_property_above_reaches_every_key(key: str) -> None:
    value = find(values(key), partial(can_be_set, key), settings=settings(database=None, phases=[Phase.generate]))
    assert can_be_set(key, value)


def test_the_whole_configuration_travels_along(tmp_path: Path) -> None:
    loaded = load(tmp_path, "astune.seed=3", "trinity.cluster.node_num=2")
    assert Config.model_validate(embedded(convert(loaded, RUN))) == loaded.config


# errors


@each_row(
    ("overrides", "message"),
    [
        ("astune.model.device=cuda", "command line: astune.model.device: got 'cuda': Ray decides where models run;"),
        (
            "astune.algorithm.advantage=running_mean",
            "command line: astune.algorithm.advantage: got 'running_mean': it remembers earlier steps",
        ),
        ("astune.algorithm.advantage=gae", "command line: astune.algorithm.advantage: got 'gae': Trinity's critic"),
        ("astune.trainer.updates_per_step=2", "command line: astune.trainer.updates_per_step: got 2: a step is one"),
        ("astune.trainer.max_skipped_updates=1", "command line: astune.trainer.max_skipped_updates: got 1: Trinity"),
        (
            "astune.trainer.lr_schedule=linear",
            "command line: astune.trainer.lr_schedule: Trinity has no 'linear'; expected 'cosine' or 'constant'",
        ),
        (
            "astune.trainer.lr_schedule=cosine astune.synchronizer.style=async",
            "command line: astune.trainer.lr_schedule: 'cosine' needs to know the last step",
        ),
        (
            "astune.algorithm.loss=minirl",
            "command line: astune.algorithm.loss: there is no 'minirl' on Trinity. There are: ppo_clip, gspo, cispo,",
        ),
        (
            "astune.algorithm.kl_beta=0.1",
            "command line: astune.algorithm.kl_beta: got 0.1: on Trinity each token's advantage carries its weight",
        ),
        (
            "astune.algorithm.loss=opmd astune.algorithm.importance=mask",
            "command line: astune.algorithm.importance: got 'mask': Trinity's losses that weigh no token by its ratio",
        ),
        (
            "astune.model.path=Qwen/Qwen3-8B",
            "astune.model.max_model_len: not set, and there is no folder 'Qwen/Qwen3-8B'",
        ),
        ("astune.trainer.total_epochs=1", "command line: astune.trainer.total_epochs: the number of training tasks"),
        (
            f"{FAR_TINKER} astune.rollout.temperature=0.9",
            "command line: astune.rollout.temperature: got 0.9, but a tinker server's trainer",
        ),
        (f"{FAR_TINKER} astune.model.dtype=float32", "command line: astune.model.dtype: got 'float32': the tinker"),
        (f"{FAR_TINKER} astune.model.device=cpu", "command line: astune.model.device: got 'cpu': Ray decides"),
        (
            f"{OWN_TINKER} astune.model.gradient_checkpointing=true",
            "command line: astune.model.gradient_checkpointing: got True: the tinker",
        ),
        (
            f"{FAR_TINKER} astune.trainer.micro_batch_tokens=9",
            "command line: astune.trainer.micro_batch_tokens: got 9: the tinker",
        ),
        (
            f"{OWN_TINKER} astune.trainer.keep_checkpoints=9",
            "command line: astune.trainer.keep_checkpoints: got 9: Trinity never deletes",
        ),
        (
            "trinity.monitor.monitor_type=wandb",
            "command line: trinity.monitor.monitor_type: a part of ASTune stands there; take the key out",
        ),
        (
            "trinity.buffer.explorer_input.taskset.path=x",
            "command line: trinity.buffer.explorer_input.taskset.path: a part of ASTune stands there",
        ),
        (
            "trinity.model.lora_configs=[{lora_rank:8}]",
            "command line: trinity.model.lora_configs: our rollouts ask the completions endpoint of Trinity's engine",
        ),
        (
            "trinity.model.temperature=0.5",
            "command line: trinity.model.temperature: ASTune's own parts go by astune.rollout.temperature; set that",
        ),
        (
            f"{OWN_TINKER} astune.trainer.save_every=2 trinity.synchronizer.sync_method=checkpoint",
            "command line: trinity.synchronizer.sync_method: got 'checkpoint', with which Trinity's explorer waits",
        ),
        (
            "trinity.cluster=3",
            "command line: trinity.cluster: expected a section with ray_address, node_num, gpu_per_node, got 3",
        ),
        (
            "trinity.buffer.batch_size.x=3",
            "command line: trinity.buffer.batch_size.x: trinity.buffer.batch_size is a value, not a section",
        ),
    ],
)
def test_what_trinity_cannot_serve_is_an_error_with_place_and_remedy(
    tmp_path: Path, overrides: str, message: str
) -> None:
    assert complaint(tmp_path, *overrides.split()).startswith(message)


REFUSED_PRESETS = {
    "grpo": "astune.algorithm.kl_beta: got 0.04: on Trinity each token's advantage carries its weight in the loss, and "
    "Trinity's own KL term does not see it; set it to 0.0",
    "dapo": "astune.algorithm.dynamic_sampling: got 3: Trinity's explorer plays the tasks of a step once; set it to 0",
    "minirl": "astune.algorithm.loss: there is no 'minirl'",
    "ppo": "astune.algorithm.advantage: got 'gae'",
}


@each_row("preset", get_args(Preset))
def test_a_preset_is_converted_or_refused_by_the_key_that_trinity_cannot_serve(tmp_path: Path, preset: str) -> None:
    override = f"astune.algorithm.preset={preset}"
    if said := REFUSED_PRESETS.get(preset):
        assert f"presets/{preset}.yaml" in complaint(tmp_path, override) and said in complaint(tmp_path, override)
    else:
        convert(load(tmp_path, override), RUN)


def test_a_refused_preset_works_once_it_is_overruled_as_the_error_says(tmp_path: Path) -> None:
    for preset, key in (("grpo", "kl_beta=0.0"), ("dapo", "dynamic_sampling=0")):
        converted = convert(load(tmp_path, f"astune.algorithm.preset={preset}", f"astune.algorithm.{key}"), RUN)
        assert converted.tree["algorithm"]["policy_loss_fn"] == "ppo"


def test_an_error_names_the_line_of_the_file_and_hides_no_other(tmp_path: Path) -> None:
    text = "  model: {device: cpu}\n  trainer:\n    lr_schedule: linear\n    updates_per_step: 1\n"
    first, second = complaint(tmp_path, text=text).splitlines()
    assert first.startswith("F:4: astune.model.device: got 'cpu'")
    assert second.startswith("F:6: astune.trainer.lr_schedule: Trinity has no 'linear'")


def test_what_asks_for_another_key_names_one_that_leads_there() -> None:
    assert {place for place, key in BOUND.items() if place not in ENTRIES[key].to} == set()


def test_a_key_written_with_its_default_is_no_error(tmp_path: Path) -> None:
    written = convert(
        load(tmp_path, OWN_TINKER, "astune.trainer.max_skipped_updates=5", "astune.model.dtype=auto"), RUN
    )
    assert written.tree == convert(load(tmp_path, OWN_TINKER), RUN).tree


# what the user sets of Trinity's own


def test_what_the_users_section_says_of_a_schedule_counts_where_trinity_has_not_the_other(tmp_path: Path) -> None:
    text = "  trainer: {lr_schedule: linear}\ntrinity: {algorithm: {optimizer: {lr_scheduler_type: cosine}}}\n"
    converted = convert(load(tmp_path, text=text), RUN)
    place = "algorithm.optimizer.lr_scheduler_type"
    assert (flat(converted.tree)[place], converted.origins[place]) == ("cosine", f"{tmp_path / 'job.yaml'}:5")


def test_the_command_line_wins_over_what_a_file_says_of_trinity(tmp_path: Path) -> None:
    text = """\
  trainer: {lr_schedule: linear, save_every: 3}
trinity:
  algorithm: {optimizer: {lr_scheduler_type: cosine}}
  trainer: {save_interval: 7}
  explorer: {runner_per_model: 1}
"""
    overrides = [
        "astune.trainer.lr_schedule=constant",
        "astune.trainer.save_every=5",
        "astune.trainer.tasks_per_step=9",
    ]
    expected = {
        "algorithm.optimizer.lr_scheduler_type": ("constant", "astune.trainer.lr_schedule (command line)"),
        "trainer.save_interval": (2, "command line"),
        "explorer.runner_per_model": (1, f"{tmp_path / 'job.yaml'}:8"),  # several keys of ours count for it
    }
    converted = convert(load(tmp_path, *overrides, "trinity.trainer.save_interval=2", text=text), RUN)
    assert {key: (flat(converted.tree)[key], converted.origins[key]) for key in expected} == expected


@pytest.mark.parametrize(("overrides", "served"), [((), True), ((NO_TINKER,), False)])
def test_the_model_that_ships_needs_no_gpu(tmp_path: Path, overrides: tuple[str, ...], served: bool) -> None:
    tree = convert(load_config(written(tmp_path, ""), overrides, backbone="trinity"), RUN).tree
    assert tree["model"]["tinker"]["enable"] is served
    assert tree["synchronizer"]["sync_method"] == ("memory" if served else "nccl")
    assert tree["explorer"]["runner_per_model"] == (2 if served else 8)


def test_the_run_starts_an_environment_service_unless_it_joins_a_cluster(tmp_path: Path) -> None:
    service = "  task_reader: {type: env_service, env_service: {serve: countdown, options: {tasks: 9}}}\n"
    job = JOB.replace("  task_reader: {jsonl: {training: {file_path: /data/train.jsonl}}}\n", service)
    (tmp_path / "job.yaml").write_text(job)
    convert(load_config(tmp_path / "job.yaml", backbone="trinity"), RUN)
    with pytest.raises(ConfigError) as caught:
        joined = ["trinity.cluster.ray_address=auto"]
        convert(load_config(tmp_path / "job.yaml", joined, backbone="trinity"), RUN)
    first, second = str(caught.value).splitlines()
    assert "env_service.serve: got 'countdown': runners on several machines share one service: start it with" in first
    assert "env_service.options: got {'tasks': 9}: they are options of env_service.serve" in second


SHIPPED = [
    path
    for path in sorted(tutorial_dir().rglob("*.yaml"))
    if "agentscope_learn_protocol" in (text := path.read_text(encoding="utf-8")) and "\n  online:" not in text
]
"""A service is no run."""


@each_row("backbone", ["trinity", "debug", "local"])
@each_row("path", SHIPPED, ids=lambda path: str(path.relative_to(tutorial_dir())))
def test_every_file_that_ships_runs_on_every_backbone_with_nothing_but_the_flag(path: Path, backbone: str) -> None:
    if backbone == "local" and "dynamic_by_explorer" in path.read_text(encoding="utf-8"):
        with pytest.raises(ConfigError, match=r"'dynamic_by_explorer', which only Trinity has; .* --backbone=trinity"):
            load_config(path, backbone=backbone)
        return
    section = yaml.safe_load(path.read_text(encoding="utf-8"))["astune"]
    if "stages" in section and backbone != "local":
        with pytest.raises(ConfigError, match=f"the backbone '{backbone}' has no stages"):
            load_config(path, backbone=backbone)
        return
    if section.get("algorithm", {}).get("method") == "distill" and backbone == "trinity":
        with pytest.raises(ConfigError, match="got 'distill', which Trinity has not"):
            load_config(path, backbone=backbone)
        return
    loaded = load_config(path, backbone=backbone)
    if backbone == "trinity" and loaded.config.astune.model.lora.rank:
        with pytest.raises(ConfigError, match="answers without the adapter"):
            convert(loaded, RUN, TASKS)
        return
    if backbone == "trinity" and loaded.config.astune.algorithm.entropy_bonus:
        with pytest.raises(ConfigError, match="Trinity's own entropy term does not see it; take the key out"):
            convert(loaded, RUN, TASKS)
        return
    check_keys(load_plugin(backbone, kind="backbone", builtin=BACKBONES)(), loaded)
    if backbone == "trinity":
        config = loaded.config.astune
        tree = convert(loaded, RUN, TASKS).tree
        assert tree["model"]["tinker"]["enable"] == (config.model.path == "tiny")


def test_the_users_section_wins_and_its_origin_shows(tmp_path: Path) -> None:
    text = "  trainer: {save_every: 5}\ntrinity:\n  trainer:\n    save_interval: 7\n    param_offload: true\n"
    text += "  explorer: {rollout_model: {engine_num: 2}}\n"
    converted = convert(load(tmp_path, "trinity.mode=colocate", text=text), RUN)
    expected = {
        "trainer.save_interval": (7, "F:7"),
        "trainer.param_offload": (True, "F:8"),
        "explorer.rollout_model.engine_num": (2, "F:9"),
        "explorer.rollout_model.engine_type": ("vllm", "trinity_default.yaml"),
        "mode": ("colocate", "command line"),
        "trainer.max_checkpoints_to_keep": (2, "astune.trainer.keep_checkpoints (default)"),
        "name": ("n", "made by ASTune"),
    }
    found = flat(converted.tree)
    origins = {key: origin.replace(str(tmp_path / "job.yaml"), "F") for key, origin in converted.origins.items()}
    assert {key: (found[key], origins[key]) for key in expected} == expected


def test_an_empty_section_changes_nothing(tmp_path: Path) -> None:
    assert flat(
        convert(load(tmp_path, text="trinity: {cluster: {}, algorithm: {policy_loss_fn_args: {}}}\n"), RUN).tree
    )["algorithm.policy_loss_fn_args.clip_range_low"] == pytest.approx(0.2)


def test_origins_name_the_keys_that_were_set_where_several_count(tmp_path: Path) -> None:
    place = "buffer.train_batch_size"
    assert convert(load(tmp_path), RUN).origins[place] == (
        "astune.rollout.num_repeat, astune.trainer.tasks_per_step (default)"
    )
    converted = convert(load(tmp_path, text="  trainer: {tasks_per_step: 4}\n"), RUN)
    assert converted.origins[place] == f"astune.trainer.tasks_per_step ({tmp_path / 'job.yaml'}:4)"


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    converted = convert(load(tmp_path, text="trinity: {cluster: {node_num: 1}, log: {level: DEBUG}}\n"), RUN)
    carried = "buffer.explorer_input.taskset.workflow_args.config."
    assert [key for key in flat(converted.tree) if not key.startswith(carried) and key not in converted.origins] == []


# the text


def as_read(converted: Converted) -> Any:
    return OmegaConf.to_container(OmegaConf.create(converted.yaml()), resolve=True)


def test_the_text_reads_back_as_the_tree(tmp_path: Path) -> None:
    converted = convert(load(tmp_path, "trinity.model.custom_chat_template='\\${x} # off'"), RUN)
    assert as_read(converted) == converted.tree
    assert list(converted.tree)[-2:] == ["buffer", "data_processor"]
    assert json.loads(json.dumps(converted.tree)) == converted.tree


awkward = st.text(max_size=8) | st.sampled_from(
    ["${", "\\${x}", "${astune.seed}", "off", "1e-6", "a: b", "#", "*a", "&a"]
)


@settings(max_examples=40)  # each converts a whole configuration
@given(name=awkward, kwargs=st.dictionaries(st.sampled_from("ab"), awkward), level=awkward)
def test_any_text_survives(name: str, kwargs: dict[str, str], level: str) -> None:
    tree = load_tree()
    tree["astune"] |= {"project_name": name}
    tree["astune"]["model"]["chat_template_kwargs"] = kwargs
    tree["trinity"] = {"log": {"level": level}}
    places: dict[str, Place] = dict.fromkeys([*LEAVES, "trinity.log.level"], "command line")
    converted = convert(LoadedConfig(Config.model_validate(tree), places, None), RUN)
    assert as_read(converted) == converted.tree


ON_GPUS = "trinity.model.tinker.enable=false"
SECTION = "trinity.trainer.trainer_config.actor_rollout_ref.model.override_config.attn_implementation"
SHARED = "trinity.trainer.ulysses_sequence_parallel_size=2"


@each_row(
    ("overrides", "expected"),
    [
        ([ON_GPUS], "flash_attention_2"),
        ([ON_GPUS, "astune.model.dtype=float32"], "sdpa"),
        ([ON_GPUS, "astune.model.attention=eager"], "eager"),
        ([ON_GPUS, f"{SECTION}=flash_attention_3", SHARED], "flash_attention_3"),
        ([ON_GPUS, "trinity.trainer.trainer_strategy=megatron"], ""),
        ([], ""),
    ],
)
def test_attention_of_training_workers_is_known_before_the_conversion_and_after(
    overrides: list[str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "  trainer: {total_steps: 50}\n")
    loaded = load_config(tmp_path / "job.yaml", overrides, backbone="trinity")
    assert wants_attention(loaded) == expected
    found = dict(leaves(convert(loaded, RUN).tree))[SECTION.removeprefix("trinity.")]
    assert not expected or found == expected


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["astune.model.attention=sdpa", SHARED],
            "got 2, but the attention is 'sdpa', by which each GPU would see its",
        ),
        ([f"{SECTION}=eager", SHARED], "got 2, but the attention is 'eager', by which each GPU would see its own part"),
        (
            ["astune.model.attention=sdpa", "trinity.trainer.trainer_strategy=megatron"],
            "got 'sdpa', but Megatron .* has an attention of its own; take the key out",
        ),
        (
            ["astune.model.attention=sdpa", "trinity.model.tinker.enable=true"],
            "astune.model.attention: got 'sdpa': the tinker server decides how attention is computed",
        ),
    ],
)
def test_an_attention_that_trinity_would_not_compute_is_refused(
    overrides: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "  trainer: {total_steps: 50}\n")
    loaded = load_config(tmp_path / "job.yaml", [ON_GPUS, *overrides], backbone="trinity")
    with pytest.raises(ConfigError, match=said):
        convert(loaded, RUN)


def test_the_text_is_the_golden_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = JOB + "  trainer: {total_steps: 50, save_every: 10}\ntrinity:\n  cluster: {node_num: 1, gpu_per_node: 4}\n"
    text += "  model: {tinker: {enable: false}}\n"
    Path("job.yaml").write_text(text)
    shown = convert(load_config(Path("job.yaml"), ["astune.seed=1"], backbone="trinity"), RUN).yaml()
    assert without_what_varies(shown) == GOLDEN.read_text()


def without_what_varies(text: str) -> str:
    """The folder of this installation, and the embedded configuration, which grows with every key of ASTune."""
    text = text.replace(str(tiny_model_dir()), "/tiny")
    return re.sub(r"(&configuration) \{.*\}  #", r"\1 {...}  #", text)


# the command line


def test_the_command_prints_what_trinity_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    command = ["config", "convert", "--conf", str(tmp_path / "job.yaml"), "astune.seed=3"]
    assert main([*command, "--backbone", "trinity"]) == 0
    shown = capsys.readouterr().out
    assert "    seed: 3  # astune.seed (command line)\n" in shown
    assert yaml.safe_load(shown)["name"] == "job"
    assert main(command) == 2
    assert "astune.backbone: 'local' is not configured by another program's file" in capsys.readouterr().err
    assert main([*command, "--backbone=trinity", "astune.trainer.keep_checkpoints=9"]) == 2
    assert "error: command line: astune.trainer.keep_checkpoints: got 9: Trinity never" in capsys.readouterr().err


def test_the_command_reads_the_tasks_where_epochs_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.jsonl").write_text('{"query": "1+1"}\n{"query": "1+2"}\n{"query": "2+3"}\n')
    (tmp_path / "job.yaml").write_text(JOB.replace("/data/", ""))
    command = ["config", "convert", "--backbone=trinity", "--conf", str(tmp_path / "job.yaml")]
    assert main([*command, "astune.trainer.total_epochs=4", "astune.trainer.tasks_per_step=2"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["buffer"]["total_steps"] == 4


def test_converting_loads_neither_trinity_nor_ray_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    code = (
        "import sys\nfrom astune.cli import main\n"
        f"main(['config', 'convert', '--backbone=trinity', '--conf', {str(tmp_path / 'job.yaml')!r}])\n"
        "print('heavy:', sorted({'trinity', 'ray', 'torch', 'transformers', 'tinker', 'vllm'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.endswith("heavy: []\n")


# keys that Trinity does not know


@dataclass
class Inner:
    size: int = 0
    names: dict[str, "Inner"] = field(default_factory=dict)


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    more: Optional[list[Inner]] = None  # noqa: UP045 - as Trinity writes it
    free: Any = None
    tag: str = ""


@each_row(
    ("override", "message"),
    [
        ("tga=x", "trinity.tga: unknown key of Trinity's. Did you mean 'trinity.tag'?"),
        ("inner.siz=1", "trinity.inner.siz: unknown key of Trinity's. Did you mean 'trinity.inner.size'?"),
        ("size=1", "trinity.size: unknown key of Trinity's. Did you mean 'trinity.inner.size'?"),
        ("xyz=1", "trinity.xyz: unknown key of Trinity's. There are: inner, more, free, tag"),
        (
            "more=[{size: 1}, {sizes: 2}]",
            "trinity.more.sizes: unknown key of Trinity's. Did you mean 'trinity.more.size'?",
        ),
    ],
)
def test_a_key_that_trinity_does_not_know_is_an_error_with_the_nearest_one(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"command line: {message}")):
        check_trinity_keys(load(tmp_path, f"trinity.{override}"), Outer)


def test_an_unknown_key_is_placed_in_its_file(tmp_path: Path) -> None:
    text = "trinity:\n  free: {any: thing}\n  inner: {names: {any: {}}}\n  more: [{size: 1}]\n  inr: 1\n  tg: 1\n"
    with pytest.raises(ConfigError) as caught:
        check_trinity_keys(load_config(written(tmp_path, text), backbone="trinity"), Outer)
    lines = str(caught.value).replace(str(tmp_path / "job.yaml"), "F").splitlines()
    assert [line.partition(" unknown")[0] for line in lines] == ["F:8: trinity.inr:", "F:9: trinity.tg:"]


def test_an_advantage_function_of_trinitys_comes_with_trinitys_aggregation(tmp_path: Path) -> None:
    """Its advantages carry no weights, so rows would count by their length under ours."""
    loaded = load(tmp_path, "trinity.algorithm.advantage_fn=step_wise_grpo", "trinity.algorithm.algorithm_type=grpo")
    algorithm = convert(loaded, RUN).tree["algorithm"]
    assert (algorithm["algorithm_type"], algorithm["advantage_fn"]) == ("grpo", "step_wise_grpo")
    assert algorithm["loss_agg_mode"] == algorithm["policy_loss_fn_args"]["loss_agg_mode"] == "token-mean"


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ((), 10_000),
        (("astune.synchronizer.style=dynamic_by_explorer", "astune.synchronizer.interval=3"), 3),
        (("astune.synchronizer.style=async",), 2),
    ],
)
def test_batches_that_wait_for_a_slow_trainer_are_bounded_where_nothing_else_does(
    tmp_path: Path, settings: tuple[str, ...], batches: int
) -> None:
    buffer = convert(load(tmp_path, *settings), RUN).tree["buffer"]
    assert buffer["trainer_input"]["experience_buffer"]["capacity"] == batches


def test_a_tinker_server_that_the_run_starts_takes_device_numbers_and_temperature(tmp_path: Path) -> None:
    settings = ("astune.model.device=cpu", "astune.model.dtype=float32", "astune.rollout.temperature=0.9")
    converted = convert(load(tmp_path, OWN_TINKER, *settings), RUN)
    assert converted.tree["model"]["temperature"] == 0.9
    assert embedded(converted)["astune"]["model"]["device"] == "cpu"
