"""The JSON schema of the configuration says of a file what `load_config` says of its names, types, ranges and words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from astune.cli import main
from astune.cli.json_schema import FIRST_LINE, schema_text
from astune.config.keys import LEAVES
from astune.config.load import load_config
from astune.config.schema import Config
from astune.config.source import Loader
from astune.errors import ConfigError
from tests.rows import each_row

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft7Validator(json.loads(schema_text()))
SHIPPED = [
    path
    for folder in ("tutorial", "default_config")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if re.search(r"^(astune|trinity|verl):", path.read_text(encoding="utf-8"), re.MULTILINE)
]


def faults(text: str) -> list[str]:
    """Where a file breaks the schema."""
    errors = VALIDATOR.iter_errors(yaml.load(text, Loader))
    return [".".join(map(str, error.absolute_path)) for error in errors]


def test_the_schema_is_one_and_describes_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.Draft7Validator.check_schema(VALIDATOR.schema)
    assert main(["config", "schema"]) == 0
    assert capsys.readouterr().out == (ROOT / "default_config/schema.json").read_text(encoding="utf-8")
    sections = [VALIDATOR.schema, *VALIDATOR.schema["definitions"].values()]
    values = [value for section in sections for value in section.get("properties", {}).values()]
    assert len(values) > len(LEAVES)
    assert [value for value in values if not value["description"]] == []


@each_row("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_configuration_is_valid_and_names_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert faults(text) == []
    line = text.splitlines(keepends=True)[0]
    file = line.strip().rpartition("=")[2]
    assert line == FIRST_LINE.format(file=file)
    assert (path.parent / file).resolve() == ROOT / "default_config/schema.json"


def test_every_default_is_valid() -> None:
    assert len(SHIPPED) > 30
    assert list(VALIDATOR.iter_errors(Config().model_dump(mode="json"))) == []


@each_row(
    "text",
    [
        "astune: {seed: 3, trainer: {learning_rate: 1e-6, betas: [0.9, 0.99], total_steps: null}}",
        "astune: {trainer: {total_steps: '${astune.seed}'}, model: {dtype: '${oc.env:DTYPE}'}}",
        "astune: {model: {clock: '2026-01-31T12:00'}, task_reader: {env_service: {params: null, options: {size: 4}}}}",
        "astune: {task_judge: {judge_protocol: [{judge: LlmAsJudge, weight: 2}]}}",
        "astune: {task_judge: {llm: {criteria: {brief: 'It is short.', kind: {text: 'It is kind.', max: 3}}}}}",
        "astune: {rollout: {auxiliary_models: {critic: {base_url: 'http://a/v1', model: m}}}}",
        "astune: {algorithm: {method: 'mine.py:Method', teacher: {base_url: 'http://a/v1', model: m}}}",
        "astune: {stages: [{algorithm: {method: sft}}, {trainer: {total_steps: 3}}]}",
        "{trinity: {algorithm: {anything: [1, null]}}, verl: {trainer: {n_gpus_per_node: 2}}}",
    ],
)
def test_what_may_be_written_is_valid(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTYPE", "float32")
    assert faults(text) == []
    problems = complaints(tmp_path, text)
    assert not re.search(r"unknown key|: expected", problems), problems


@each_row(
    ("text", "where"),
    [
        ("astun: {}", ""),
        ("astune: {trainer: {total_step: 3}}", "astune.trainer"),
        ("astune: {trainer: {total_steps: many}}", "astune.trainer.total_steps"),
        ("astune: {trainer: {total_steps: 0}}", "astune.trainer.total_steps"),
        ("astune: {trainer: {betas: [0.9]}}", "astune.trainer.betas"),
        ("astune: {trainer: null}", "astune.trainer"),
        ("astune: {trainer: {learning_rate: true}}", "astune.trainer.learning_rate"),
        ("astune: {seed: null}", "astune.seed"),
        ("astune: {monitor: {log_json: 3}}", "astune.monitor.log_json"),
        ("astune: {monitor: {progress: bars}}", "astune.monitor.progress"),
        ("astune: {model: {device: gpu}}", "astune.model.device"),
        ("astune: {model: {lora: {rank: '8'}}}", "astune.model.lora.rank"),
        ("astune: {project_name: 3}", "astune.project_name"),
        ("astune: {task_judge: {judge_protocol: [{weight: 2}]}}", "astune.task_judge.judge_protocol"),
        ("astune: {task_judge: {llm: {criteria: {kind: {min: 3}}}}}", "astune.task_judge.llm.criteria"),
        ("astune: {rollout: {auxiliary_models: {critic: {model: m}}}}", "astune.rollout.auxiliary_models"),
        ("astune: {stages: [{algoritm: {}}]}", "astune.stages"),
        ("trinity: [1]", "trinity"),
    ],
)
def test_a_planted_mistake_is_found_where_it_stands(tmp_path: Path, text: str, where: str) -> None:
    assert faults(text) == [where]
    if "rank: '8'" not in text:  # pydantic reads a number in quotes
        assert complaints(tmp_path, text)


def complaints(folder: Path, text: str) -> str:
    """What `load_config` says against a file that no run is asked of."""
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    try:
        load_config(folder / "job.yaml", for_run=False)
    except ConfigError as error:
        return str(error)
    return ""


def test_schema_and_loader_agree_of_the_types_that_each_key_takes() -> None:
    """Where they differ, the loader reads a text: a time, a method or a plug-in's place."""
    differ = []
    for key in (leaf for leaf in LEAVES if leaf.startswith("astune.")):
        for value in ("x", True, 3):
            tree: Any = value
            for name in reversed(key.split(".")):
                tree = {name: tree}
            try:
                read = bool(Config.model_validate(tree))
            except ValidationError:
                read = False
            if VALIDATOR.is_valid(tree) != read:
                differ.append((key, value))
    words = [("astune.model.clock", "x"), ("astune.algorithm.method", "x")]
    compared = [("astune.online.feedback.rating_as", "x"), ("astune.online.feedback.least", 3)]  # with other keys
    assert differ == [*words, *(pair for pair in differ if pair in compared)]
    assert set(compared) <= set(differ)
