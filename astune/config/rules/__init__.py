"""Combinations of values that are each right but cannot work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.config.monitor import tracker_contradictions
from astune.config.rules.algorithm import (
    advantage_contradictions,
    algorithm_contradictions,
    curriculum_contradictions,
    find_unused_advantage_keys,
)
from astune.config.rules.beside import has_held_out, unread_evaluation_keys, unread_keys, unread_run_keys
from astune.config.rules.evaluation import evaluation_contradictions, keep_best_contradictions
from astune.config.rules.method import rules_of
from astune.config.rules.models import figures_of_best, model_contradictions
from astune.config.rules.models import own_key_problems as own_key_problems
from astune.config.rules.rollouts import (
    context_contradictions,
    engine_contradictions,
    synchronizer_contradictions,
    tool_contradictions,
    workspace_contradictions,
)
from astune.config.schema import AstuneConfig, Config, LoraConfig, ModelConfig
from astune.config.tasks import CSV_SUFFIXES, sources_of
from astune.errors import nearest
from astune.sampling import LEAST_TEMPERATURE, LEAST_TOP_P, is_greedy

ASKS_MODELS = {"LlmAsJudge", "MathAnswerAndLlmAsJudge", "RubricsAsJudge"}
"""Judges that ask the models of `astune.task_judge.llm.models`."""


def contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    astune = config.astune
    yield from judge_contradictions(config)
    yield from unread_run_keys(astune)
    if astune.traits.trains:
        yield from tracker_contradictions(astune.monitor)
    if not needs_policy(astune):  # the others look at their tasks
        yield from unread_keys(astune)
    yield from rules_of(astune.algorithm).problems(astune)
    yield from algorithm_contradictions(astune.algorithm)
    yield from find_unused_advantage_keys(astune.algorithm)
    if astune.traits.own_loop:
        yield from _adapters(astune.model.lora)
    if astune.traits.trains:
        yield from _attention(astune.model)
    if astune.traits.trains and astune.traits.own_loop:
        yield from synchronizer_contradictions(astune)
    yield from engine_contradictions(astune, plays=needs_policy(astune))
    yield from model_contradictions(astune)
    if astune.traits.trains:
        yield from _training(astune)
    if astune.traits.trains:
        yield from tool_contradictions(astune)
    if plays_episodes(astune):
        yield from _rollouts(astune)
    elif evaluates_tasks(astune):
        yield from _tasks(astune)
        yield from _room(astune)
    elif astune.traits.own_loop:  # another lists what has no effect when the run starts
        yield from unread_evaluation_keys(astune)


def contradictions_without_a_run(config: Config) -> Iterator[tuple[str, str]]:
    """Contradictions that commands look for which run nothing."""
    yield from judge_contradictions(config)
    yield from task_contradictions(config.astune)


def judge_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Contradictions of the judge alone."""
    judge = config.astune.task_judge
    names = {named.judge for named in judge.judges}
    asking = sorted(names & ASKS_MODELS)
    if asking and not judge.llm.models:
        yield (
            "astune.task_judge.llm.models",
            f"not set; {asking[0]} asks other models. Expected a list such as "
            "[{base_url: https://.../v1, model: ..., api_key_env: ...}]",
        )
    if "RubricsAsJudge" in names and judge.rubrics.file is None:
        yield "astune.task_judge.rubrics.file", "not set; RubricsAsJudge judges by it, and `astune rubrics` writes one"
    if judge.llm.max_opponents is not None and judge.llm.mode != "pairwise":
        yield (
            "astune.task_judge.llm.max_opponents",
            f"only mode 'pairwise' has opponents, and the mode is {judge.llm.mode!r}; take the key out",
        )
    if judge.llm.votes > 1 and is_greedy(judge.llm.temperature):
        yield (
            "astune.task_judge.llm.temperature",
            f"{judge.llm.temperature:g} makes all {judge.llm.votes} votes equal; expected {LEAST_TEMPERATURE} or more, "
            "or astune.task_judge.llm.votes 1",
        )


def _attention(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Keys that flash-attn never goes with; a lack of this machine is found on that machine."""
    for key, value in (("device", "cpu"), ("dtype", "float32")):
        if model.attention == "flash_attention_2" and getattr(model, key) == value:
            yield (
                "astune.model.attention",
                f"got 'flash_attention_2', whose kernels are for CUDA in half precision, but astune.model.{key} is "
                f"{value!r}; expected 'auto', 'sdpa' or 'eager'",
            )


def _rollouts(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    if astune.rollout.agentscope_learn_protocol is None:
        yield (
            "astune.rollout.agentscope_learn_protocol",
            "not set; name the workflow, as 'my_agent.py:MyWorkflow' or 'package.module:MyWorkflow'",
        )
    yield from workspace_contradictions(astune.rollout.workspace)
    yield from _tasks(astune)
    yield from evaluation_contradictions(astune)
    if astune.traits.trains:
        yield from _sampling(astune)
    yield from _room(astune)


def _room(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    yield from context_contradictions(astune)
    if astune.model.max_model_len is not None and astune.rollout.max_tokens >= astune.model.max_model_len:
        yield (
            "astune.rollout.max_tokens",
            f"{astune.rollout.max_tokens} tokens of answer leave no room for a prompt in "
            f"astune.model.max_model_len = {astune.model.max_model_len}",
        )


def plays_episodes(astune: AstuneConfig) -> bool:
    """True if there are rollouts; else examples are learned, and no workflow, tasks or judge are needed."""
    return rules_of(astune.algorithm).plays or not astune.traits.trains


def evaluates_tasks(astune: AstuneConfig) -> bool:
    """True if a method that learns from examples is evaluated on held-out tasks: where a workflow and such tasks are
    configured."""
    held_out = has_held_out(astune) or bool(astune.evaluation.sets)
    return astune.rollout.agentscope_learn_protocol is not None and held_out


def needs_policy(astune: AstuneConfig) -> bool:
    """True if anything of the run is played, in training or in an evaluation."""
    return plays_episodes(astune) or evaluates_tasks(astune)


def _adapters(lora: LoraConfig) -> Iterator[tuple[str, str]]:
    if lora.rank is not None:
        return
    for name in lora.find_changed():
        yield (
            f"astune.model.lora.{name}",
            "there is no adapter without astune.model.lora.rank; set it, as 16, or take the key out",
        )


def _tasks(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    debugs = not astune.traits.trains
    if debugs and (astune.debug.model or "").startswith("replay:"):
        return  # the recording has the task
    yield from task_contradictions(astune)
    reader = astune.task_reader
    sources = sources_of(reader)
    if sources is None:
        return
    debugs_held_out = debugs and astune.debug.split == "validation"
    if not sources.has_training and not debugs_held_out:
        yield f"astune.task_reader.{sources.training}", f"not set; task_reader.type is {reader.type!r}"
    if sources.has_held_out or reader.validation_fraction is not None:
        return
    missing = f"needs held-out tasks, but astune.task_reader.{sources.held_out} is not set"
    if debugs_held_out:
        yield "astune.debug.split", f"'validation' {missing}"
    if astune.evaluation.every and not astune.evaluation.sets:
        yield "astune.evaluation.every", missing


def task_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Contradictions of the task reader alone."""
    yield from unread_keys(astune)
    reader, service = astune.task_reader, astune.task_reader.env_service
    sources = sources_of(reader)
    if reader.validation_fraction is not None and sources is not None and sources.has_held_out:
        yield (
            "astune.task_reader.validation_fraction",
            f"the held-out tasks come from astune.task_reader.{sources.held_out}; take one of the two out",
        )
    if reader.validation_fraction is None and reader.split_seed:
        yield (
            "astune.task_reader.split_seed",
            "draws what astune.task_reader.validation_fraction holds out, which is not set; set it, or take this out",
        )
    if reader.type == "huggingface" and reader.huggingface.streaming and reader.max_training_tasks is None:
        yield (
            "astune.task_reader.max_training_tasks",
            "not set; a stream (astune.task_reader.huggingface.streaming) has no end that is known, so say how many",
        )
    files = [reader.jsonl.training.file_path, reader.jsonl.validation.file_path, reader.huggingface.dataset_path]
    files += [each.file_path for each in astune.evaluation.sets.values()]
    if not any(file and file.endswith(CSV_SUFFIXES) for file in files):
        for name in reader.csv.find_changed():
            yield f"astune.task_reader.csv.{name}", "for .csv and .tsv files, and no file of tasks is one"
    if service.serve is not None and service.env_url is not None:
        yield (
            "astune.task_reader.env_service.serve",
            f"the service at env_url {service.env_url} runs the environments; take one of the two out",
        )
    if service.serve is None and service.options:
        yield (
            "astune.task_reader.env_service.options",
            "they are for the environment that astune.task_reader.env_service.serve names, which is not set; take them "
            "out, or say null",
        )


def _sampling(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    rollout = astune.rollout
    for name, value, greedy, expected in (
        (
            "temperature",
            rollout.temperature,
            is_greedy(temperature=rollout.temperature),
            f"{LEAST_TEMPERATURE} or more",
        ),
        ("top_p", rollout.top_p, is_greedy(top_p=rollout.top_p), f"more than {LEAST_TOP_P}"),
        ("top_k", rollout.top_k, is_greedy(top_k=rollout.top_k), "0 (the whole vocabulary), or 2 or more"),
    ):
        if greedy:
            yield (
                f"astune.rollout.{name}",
                f"{value:g} makes all attempts at a task equal, so there is nothing to learn from; expected {expected} "
                "(for greedy evaluation: astune.evaluation.decoding: [greedy])",
            )
    if "advantage" in rules_of(astune.algorithm).keys or not astune.traits.trains:
        yield from advantage_contradictions(astune)


def _training(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    trainer = astune.trainer
    yield from keep_best_contradictions(astune)
    yield from curriculum_contradictions(astune)
    if trainer.total_steps is None and trainer.total_epochs is None:
        yield "astune.trainer.total_steps", "neither total_steps nor total_epochs is set: the run would have no end"
    episodes = trainer.tasks_per_step * astune.rollout.num_repeat
    if plays_episodes(astune) and trainer.updates_per_step > episodes:
        yield (
            "astune.trainer.updates_per_step",
            f"{trainer.updates_per_step} updates cannot share the {episodes} episodes of a step "
            "(tasks_per_step times rollout.num_repeat)",
        )
    if not all(0 <= beta < 1 for beta in trainer.betas):
        yield "astune.trainer.betas", f"expected two numbers from 0 to below 1, got {list(trainer.betas)}"


STAGE_SECTIONS = ("algorithm", "trainer", "evaluation", "task_reader", "rollout", "task_judge")
"""The sections of astune that a stage may set; all else is the run's."""
STAGES = "astune.stages"


def wrong_sections(stages: Any) -> Iterator[str]:
    """Find errors in the form of `astune.stages`."""
    if not isinstance(stages, list) or not all(isinstance(stage, Mapping) for stage in stages):
        yield f"expected a list of stages, each with sections of astune, got {stages!r:.80}"
        return
    if len(stages) == 1:
        yield "one stage is no stages; take the key out, and set its values in the sections themselves"
    for number, stage in enumerate(stages, start=1):
        for name in stage:
            if name not in STAGE_SECTIONS:
                yield (
                    f"stage {number}: a stage has no {name!r}.{nearest(str(name), STAGE_SECTIONS)} There are: "
                    f"{', '.join(STAGE_SECTIONS)}"
                )


def stage_contradictions(astune: AstuneConfig, stages: Sequence[AstuneConfig]) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    if not stages:
        if astune.trainer.examples_of_run:
            yield "astune.trainer.examples_of_run", "a run without astune.stages has no earlier episodes; take it out"
        return
    if not astune.traits.trains:
        yield (
            STAGES,
            "the backbone 'debug' has no stages: add astune.stages=[] to the command, which plays what is in common",
        )
    if not astune.traits.own_loop:
        yield STAGES, f"the backbone {astune.backbone!r} has no stages; expected --backbone=local, or take the key out"
    played = False
    for number, stage in enumerate(stages, start=1):
        trainer = stage.trainer
        if trainer.examples_of_run and not played:
            yield STAGES, f"stage {number}: trainer.examples_of_run, but no stage before it plays episodes"
        if trainer.examples_of_run and (trainer.total_steps is None or trainer.total_epochs is not None):
            yield STAGES, f"stage {number}: trainer.examples_of_run needs total_steps alone: examples are counted later"
        if len(figures_of_best(stage)) > 1:
            yield STAGES, f"stage {number}: a model's own trainer.keep_best; with stages the best is the run's to say"
        played = played or rules_of(stage.algorithm).plays
