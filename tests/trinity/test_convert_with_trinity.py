"""Trinity itself reads what we convert, and changes nothing in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("trinity")

from trinity.common.config import Config as TrinityConfig
from trinity.common.config import load_config as load_trinity_config

from astune.backbone.trinity.conversion.convert import Converted, convert
from astune.backbone.trinity.conversion.user_keys import check_trinity_keys
from astune.backbone.trinity.tinker_process import start_server
from astune.config.keys import fates
from astune.config.load import LoadedConfig, load_config
from astune.config.section import OnTrinity
from astune.errors import ConfigError
from astune.support.resources import tiny_model_dir, tutorial_dir
from tests.garbage import collect_all

# tinker's clients are left to the garbage collector with their connections open
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

TASKS = 2000


def is_for_trinity(path: Path) -> bool:
    """Without a rollout nothing runs, as where a rubric is learned, and a service is no run. `test_convert` tells how
    the rest is refused."""
    astune = yaml.safe_load(path.read_text(encoding="utf-8")).get("astune", {})
    method = astune.get("algorithm", {}).get("method", "rl")
    adapter = astune.get("model", {}).get("lora", {}).get("rank", 0)
    plays = "rollout" in astune and "stages" not in astune and "online" not in astune
    spread = astune.get("algorithm", {}).get("entropy_bonus", 0)
    return plays and method in ("rl", "sft", "dpo") and not adapter and not spread


CONFIGS = sorted(filter(is_for_trinity, tutorial_dir().rglob("*.yaml")))
ON_GPUS = [path for path in CONFIGS if load_config(path).config.astune.algorithm.method != "dpo"]
"""Preferences are for the tinker engine alone."""
TINY = [path for path in CONFIGS if load_config(path).config.astune.model.path == "tiny"]
NO_TINKER = "trinity.model.tinker.enable=false"
"""The model that ships gets a tinker server otherwise."""
GPUS = (NO_TINKER, "trinity.cluster.node_num=1", "trinity.cluster.gpu_per_node=4")
MOVED = "buffer.explorer_input.taskset."
"""Trinity moves the one task set into a list of them."""
STYLES = {"dynamic_by_explorer": "explorer_driven", "dynamic_by_trainer": "trainer_driven"}
"""Trinity's other name of a style."""


def loaded(path: Path, *overrides: str) -> LoadedConfig:
    return load_config(path, overrides, backbone="trinity")


def of_trinity(path: Path) -> dict[str, Any]:
    """What the tutorial itself says of Trinity."""
    return load_config(path).config.trinity


def read_by_trinity(converted: Converted, folder: Path) -> TrinityConfig:
    file = folder / "config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(converted.yaml())
    return load_trinity_config(str(file))


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The values of dataclasses and dictionaries in each other, by dotted key."""
    found: dict[str, Any] = {}
    items = {field.name: getattr(tree, field.name) for field in fields(tree)} if is_dataclass(tree) else tree
    for name, value in items.items():
        key = f"{prefix}{name}"
        found |= flat(value, f"{key}.") if is_dataclass(value) or (isinstance(value, dict) and value) else {key: value}
    return found


def changed(converted: Converted, config: TrinityConfig) -> dict[str, tuple[Any, Any]]:
    """What we wrote and what it is now, where Trinity's validators made it something else."""
    now = flat(config)
    if config.buffer.explorer_input.tasksets:
        (taskset,) = config.buffer.explorer_input.tasksets
        now |= flat(taskset, MOVED)
    found = {}
    for key, value in flat(converted.tree).items():
        after = now[key].value if isinstance(now[key], Enum) else now[key]
        if key.startswith("data_processor.") and key.endswith(".operators"):
            after = [{"name": operator.name, "args": operator.args} for operator in after]
        expected = STYLES.get(value, value) if key == "synchronizer.sync_style" else value
        if expected != after:
            found[key] = (value, after)
    return found


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: str(path.relative_to(tutorial_dir())))
def test_every_tutorial_passes_trinitys_own_validation_on_gpus(path: Path, tmp_path: Path) -> None:
    source = loaded(path, NO_TINKER, *(() if "cluster" in of_trinity(path) else GPUS))
    check_trinity_keys(source, TrinityConfig)
    converted = convert(source, tmp_path / "run", TASKS)
    config = read_by_trinity(converted, tmp_path)
    assert changed(converted, config) == {}
    assert changed(converted, config.check_and_update()) == {}
    assert config.cluster.trainer_gpu_num >= 3


@pytest.mark.parametrize(
    "overrides",
    [
        ("astune.synchronizer.style=dynamic_by_explorer", "astune.trainer.lr_schedule=constant"),
        ("astune.synchronizer.style=dynamic_by_trainer", "astune.trainer.lr_schedule=constant"),
        ("astune.synchronizer.style=async", "astune.trainer.lr_schedule=constant"),
        ("astune.synchronizer.offset=1", "astune.synchronizer.max_staleness=1", "astune.synchronizer.interval=2"),
        ("astune.algorithm.loss=reinforce", "astune.model.dtype=float32", "astune.trainer.total_epochs=1"),
        ("astune.algorithm.preset=gspo",),
        ("astune.algorithm.preset=cispo", "astune.algorithm.advantage=reinforce_pp"),
        ("astune.algorithm.preset=opmd",),
        ("trinity.explorer.rollout_model.tensor_parallel_size=2", "trinity.trainer.ulysses_sequence_parallel_size=2"),
    ],
    ids=" ".join,
)
def test_what_can_be_chosen_passes_as_well(overrides: tuple[str, ...], tmp_path: Path) -> None:
    converted = convert(loaded(tutorial_dir() / "math_agent" / "demo.yaml", *GPUS, *overrides), tmp_path / "run", TASKS)
    config = read_by_trinity(converted, tmp_path).check_and_update()
    assert changed(converted, config) == {}


def test_a_run_that_is_resumed_keeps_its_name(tmp_path: Path) -> None:
    demo = tutorial_dir() / "math_agent" / "demo.yaml"
    for overrides in ((), ("astune.resume=true",)):
        converted = convert(loaded(demo, *GPUS, *overrides), tmp_path / "run")
        config = read_by_trinity(converted, tmp_path).check_and_update()
        assert (config.name, config.ray_namespace) == ("run", converted.tree["ray_namespace"])
        assert Path(config.checkpoint_job_dir) == tmp_path / "run" / "trinity" / "math_agent" / "run"


def test_trinity_knows_every_key_that_we_write(tmp_path: Path) -> None:
    demo = loaded(tutorial_dir() / "math_agent" / "demo.yaml")
    written = {key for key in convert(demo, tmp_path).origins if not key.startswith("trainer.trainer_config.")}
    written |= {place for entry in fates(OnTrinity).values() for place in entry.to}
    overrides = [f"trinity.{key}={{}}" for key in written]
    check_trinity_keys(load_config(None, ["astune.backbone=trinity", *common(demo), *overrides]), TrinityConfig)


def common(source: LoadedConfig) -> list[str]:
    config = source.config.astune
    return [
        f"astune.rollout.agentscope_learn_protocol={config.rollout.agentscope_learn_protocol}",
        f"astune.task_reader.jsonl.training.file_path={config.task_reader.jsonl.training.file_path}",
    ]


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("cluster.gpu_per_nod=4", "cluster.gpu_per_node"),
        ("engine_num=2", "explorer.rollout_model.engine_num"),
        ("model.lora_configs=[{rank: 8}]", "model.lora_configs.lora_rank"),
        ("algorithm.optimiser={lr: 1}", "algorithm.optimizer"),
    ],
)
def test_a_key_that_trinity_does_not_know_names_the_nearest_one(override: str, meant: str) -> None:
    source = loaded(tutorial_dir() / "math_agent" / "demo.yaml", f"trinity.{override}")
    with pytest.raises(ConfigError, match=rf"^command line: trinity\..*Did you mean 'trinity\.{meant}'\?$"):
        check_trinity_keys(source, TrinityConfig)


@pytest.fixture(scope="module")
def tinker_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tinker")
    with start_server(tiny_model_dir(), folder / "server", log=folder / "log") as server:
        before = os.environ.get("TINKER_API_KEY")
        os.environ["TINKER_API_KEY"] = server.api_key
        yield server
        if before is None:
            del os.environ["TINKER_API_KEY"]
        else:
            os.environ["TINKER_API_KEY"] = before
    collect_all()


def for_tinker(path: Path, address: str) -> LoadedConfig:
    return loaded(
        path,
        "trinity.model.tinker.enable=true",
        f"trinity.model.tinker.base_url={address}",
        "astune.trainer.micro_batch_tokens=16384",  # the server cuts its own batches
        "astune.rollout.temperature=1.0",  # and knows log-probabilities at no other
    )


TINKER_CHANGES: Mapping[str, tuple[Any, Any]] = {
    "explorer.rollout_model.engine_type": ("vllm", "tinker"),
    "explorer.rollout_model.tensor_parallel_size": (1, 0),
    "explorer.rollout_model.data_parallel_size": (1, 0),
    "explorer.rollout_model.pipeline_parallel_size": (1, 0),
    "trainer.trainer_type": ("verl", "tinker"),
}
"""What Trinity sets itself where the engine is a tinker server."""


@pytest.mark.parametrize("path", TINY, ids=lambda path: str(path.relative_to(tutorial_dir())))
def test_every_tutorial_of_the_tiny_model_passes_on_a_tinker_server(
    path: Path, tmp_path: Path, tinker_server: Any
) -> None:
    converted = convert(for_tinker(path, tinker_server.base_url), tmp_path / "run", TASKS)
    config = read_by_trinity(converted, tmp_path)
    assert changed(converted, config) == {}
    config.check_and_update()
    assert config.trainer.trainer_config is None
    config.trainer.trainer_config = converted.tree["trainer"]["trainer_config"]
    assert changed(converted, config) == TINKER_CHANGES
