"""Find the files and packages of a run that one machine of a cluster lacks. Runs on every node before the first
rollout."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from astune.algorithm import ADVANTAGES
from astune.backbone.foreign.packages import lacking
from astune.backbone.losses.teacher import TEACHER
from astune.config.algorithm import METHODS
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.config.tasks import READERS
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import ModelError, PluginError
from astune.plugins import NO_BUILTIN, load_plugin
from astune.task_judge.registry import find_judge

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
MODEL = "astune.model.path"
REMEDY = "put the model on a path that every node sees, or name a hub id"
REACH = "install the package that has it on every node, or put the file where every node sees it under this path"


class NodeQuestion(NamedTuple):
    """The driver's question to a node, as plain texts: the node may have another version of ASTune, or none.

    `config` is the run's `AstuneConfig` as JSON, `model` the engine's model folder or "" for a hub id, `mark` a file
    that the driver has left in the run folder, or "" where there is only one machine. `attention` is transformers' name
    of that in training workers, "" where none of them can be.
    """

    config: str
    model: str
    mark: str
    attention: str


def find_problems(question: NodeQuestion) -> list[str]:
    """The problems this machine has, each with the key and the remedy."""
    config = AstuneConfig.model_validate_json(question.config)
    teacher = config.algorithm.teacher
    models = list(_check_folder(Path(question.model)) if question.model else _check_hub(config.model.path, MODEL))
    if isinstance(teacher, str):  # one in a folder, or on the hub, is loaded by every training worker
        models += _check_hub(teacher, TEACHER)
    folder = _check_run_folder(question.mark)
    return [*_check_plugins(config), *_check_files(config), *models, *folder, *lacking(question.attention)]


def _check_plugins(config: AstuneConfig) -> Iterator[str]:
    for key, kind, spec, builtin in (
        ("rollout.agentscope_learn_protocol", "workflow", config.rollout.agentscope_learn_protocol, NO_BUILTIN),
        ("task_reader.type", "task reader", config.task_reader.type, READERS),
        ("algorithm.method", "method", config.algorithm.method, METHODS),
        ("algorithm.advantage", "advantage", config.algorithm.advantage, ADVANTAGES),
    ):
        if spec is None:
            continue
        try:
            load_plugin(spec, kind=kind, builtin=builtin)
        except PluginError as error:
            yield f"astune.{key}: {error}; {REACH}"
    for named in config.task_judge.judges:
        try:
            find_judge(named.judge)
        except PluginError as error:
            yield f"astune.task_judge.judge_protocol: {error}; {REACH}"


def _check_files(config: AstuneConfig) -> Iterator[str]:
    """Tasks, or examples, are read by a process on any node, rubrics by each runner."""
    files = {
        "astune.trainer.examples": config.trainer.examples,
        "astune.task_judge.rubrics.file": config.task_judge.rubrics.file,
    }
    if rules_of(config.algorithm).plays and config.task_reader.type == "jsonl":
        jsonl = config.task_reader.jsonl
        files |= {f"astune.task_reader.jsonl.{split}.file_path": file.file_path for split, file in jsonl}
    for key, path in files.items():
        if path is not None and not Path(path).is_file():
            yield f"{key}: there is no file {path}; put it where every node sees it under this path"


def _check_hub(path: str, key: str) -> Iterator[str]:
    try:
        resolve_model_dir(path, weights=False, key=key)
    except ModelError as error:
        yield f"{error}; {REMEDY}"


def _check_folder(folder: Path) -> Iterator[str]:
    """Tokenizer and template are read by every runner, weights by every engine."""
    if not folder.is_dir():
        yield f"{MODEL}: there is no folder {folder}; {REMEDY}"
        return
    if not (folder / "config.json").is_file():
        yield f"{MODEL}: {folder} has no config.json; {REMEDY}"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"{MODEL}: {folder} has no tokenizer; {REMEDY}"


def _check_run_folder(mark: str) -> Iterator[str]:
    if not mark:
        return
    folder = Path(mark).parent
    remedy = "astune.runs_dir must be on a file system that all nodes share"
    if not Path(mark).is_file():
        yield f"the run folder is not the same as where the run was started: {folder}; {remedy}"
        return
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        yield f"the run folder cannot be written to ({error}); {remedy}"
