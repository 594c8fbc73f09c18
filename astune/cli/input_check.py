"""A quick check of the names and files in a configuration, before the libraries of a backbone are loaded."""

from __future__ import annotations

from astune.config.algorithm import PLAYING
from astune.config.schema import AstuneConfig
from astune.plugins import load_plugin
from astune.task_judge import BUILTIN_JUDGES
from astune.task_reader import TaskReaderJsonl
from astune.task_reader.task_reader_base import SPLITS
from astune.workflow.workflow_base import as_workflow


def check_input(config: AstuneConfig) -> None:
    """Raises what the run would raise later: for a workflow or a judge that does not load, a file of tasks that is not
    there, a first task that cannot be read."""
    protocol = config.rollout.agentscope_learn_protocol
    if config.algorithm.method not in PLAYING or protocol is None:
        return
    as_workflow(load_plugin(protocol, kind="workflow"))
    for judge in config.task_judge.judges:
        load_plugin(judge.judge, kind="judge", builtin=BUILTIN_JUDGES)
    if config.task_reader.type != "jsonl" or config.backbone == "debug":  # which may play recorded tasks instead
        return
    for split in SPLITS:
        tasks = TaskReaderJsonl(config.task_reader).read(split)
        if config.task_reader.on_bad_record == "error":
            next(iter(tasks), None)
