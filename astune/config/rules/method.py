"""What each `astune.algorithm.method` needs, and what it does not use."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.algorithm import PLAYING, AlgorithmConfig
from astune.config.chat_models import TeacherConfig
from astune.config.rules.algorithm import UNSET
from astune.config.schema import AstuneConfig

USED_BY: dict[str, tuple[str, ...]] = {
    "loss_aggregation": ("rl", "sft", "rft", "distill"),
    "credit": ("rl", "rft", "distill"),
    "keep_per_task": ("rft",),
    "teacher": ("distill",),
    "loss": ("rl", "distill"),
    "clip_low": ("rl", "distill"),
    "clip_high": ("rl", "distill"),
    "dpo_beta": ("dpo", "kto"),
    "preference_loss": ("dpo",),
    "preference_margin": ("dpo",),
    "kto_good_weight": ("kto",),
    "kto_bad_weight": ("kto",),
}
"""The methods that use a key of `astune.algorithm`; the other keys are for method rl."""
SAID_ELSEWHERE = {"method", "preset", "kl_beta", "kl_estimator", "kl_in", "entropy_bonus"}


def method_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    yield from _examples(astune)
    yield from _unused(astune.algorithm, astune.backbone)


def _unused(algorithm: AlgorithmConfig, backbone: str) -> Iterator[tuple[str, str]]:
    for name in sorted(set(AlgorithmConfig.model_fields) - SAID_ELSEWHERE):
        methods = USED_BY.get(name, ("rl",))
        if backbone == "trinity" and "rl" in methods:  # which lists such keys when the run starts
            continue
        if algorithm.method not in methods and getattr(algorithm, name) != getattr(UNSET, name):
            *most, last = map(repr, methods)
            only = f"only methods {', '.join(most)} and {last} have it" if most else f"only method {last} has it"
            yield f"astune.algorithm.{name}", f"{only}, and the method is {algorithm.method!r}; take the key out"
    if algorithm.preference_margin and algorithm.preference_loss != "simpo":
        yield (
            "astune.algorithm.preference_margin",
            f"only preference_loss 'simpo' has it, and it is {algorithm.preference_loss!r}; take the key out",
        )


def _examples(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    method, trainer = astune.algorithm.method, astune.trainer
    if method in PLAYING:
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
    if method != "rl" and astune.backbone == "debug" and astune.debug.with_update:
        yield (
            "astune.algorithm.method",
            f"got {method!r}, but the backbone 'debug' learns from rewards only; expected 'rl'",
        )
    if method == "distill" and astune.algorithm.teacher is None:
        yield "astune.algorithm.teacher", "not set; method 'distill' learns from what a teacher thinks"
    if isinstance(astune.algorithm.teacher, TeacherConfig) and astune.rollout.temperature != 1:
        yield (
            "astune.rollout.temperature",
            f"got {astune.rollout.temperature:g}, but the teacher is an API, which gives log-probabilities at "
            "temperature 1: another distribution than that sampled from; expected 1, or a teacher in a folder",
        )
    if astune.backbone == "trinity" and method not in ("rl", "sft", "dpo"):
        yield "astune.algorithm.method", f"got {method!r}, which Trinity has not; expected 'rl', 'sft' or 'dpo'"
    if trainer.held_out_examples is not None and method != "sft":
        yield (
            "astune.trainer.held_out_examples",
            "only method 'sft' tells their loss; take the key out",
        )
    if trainer.examples_filter is not None and method in PLAYING:
        yield (
            "astune.trainer.examples_filter",
            f"it chooses among recorded episodes, which method {method!r} does not learn from; take the key out",
        )
    elif trainer.examples_filter is not None and method != "sft" and astune.backbone == "trinity":
        yield (
            "astune.trainer.examples_filter",
            "it chooses among recorded episodes, which only method 'sft' learns from on Trinity; take the key out",
        )
    if method == "kto" and trainer.tasks_per_step < 2 * trainer.updates_per_step:
        yield (
            "astune.trainer.tasks_per_step",
            "method 'kto' compares an answer with those to other prompts, so an update needs 2 examples or more",
        )
