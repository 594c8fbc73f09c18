"""Combinations of `astune.evaluation` and of what goes by its figures that cannot work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astune.config.evaluation import FAMILIES, FIGURES, aim_of, is_named_by_user, split_figure
from astune.config.schema import AstuneConfig
from astune.config.tasks import sources_of
from astune.errors import nearest

EXAMPLES = "held_out/examples"


def evaluation_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Contradictions of the sets of held-out tasks, and of how often each task is tried."""
    reader, evaluation = astune.task_reader, astune.evaluation
    sources = sources_of(reader)
    for name, chosen in evaluation.sets.items():
        key = f"astune.evaluation.sets.{name}"
        if name in ("sampled", "greedy"):
            yield key, "a set cannot be called as a way of decoding; name it otherwise"
        if chosen.file_path is not None and chosen.split is not None:
            yield f"{key}.split", "the tasks come from file_path, which has no splits; take one of the two out"
        elif chosen.split is not None and reader.type not in ("huggingface", "env_service"):
            yield (
                f"{key}.split",
                f"astune.task_reader.type is {reader.type!r}, whose tasks have no named splits; expected file_path",
            )
        elif chosen.file_path is None and chosen.split is None and sources is not None and not sources.has_held_out:
            yield (
                f"{key}.file_path",
                "not set, nor is split, and astune.task_reader has no source of held-out tasks that the set could "
                "choose among",
            )
    if evaluation.attempts > 1 and "sampled" not in evaluation.decoding:
        yield (
            "astune.evaluation.attempts",
            f"{evaluation.attempts} attempts at a task are equal under greedy decoding; expected 1, or 'sampled' in "
            "astune.evaluation.decoding",
        )


def keep_best_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Contradictions of the figure by which the best checkpoint is kept. The metrics that a judge or a workflow gives
    are known when it has given them: after the first evaluation."""
    if astune.trainer.keep_best is None:
        return
    figure, evaluation, total = aim_of(astune.trainer.keep_best).figure, astune.evaluation, astune.trainer.total_steps
    keys = _evaluations(astune)
    of, name = split_figure(figure)
    if of not in keys or not (name in _figures(of, astune) or is_named_by_user(name)):
        yield "astune.trainer.keep_best", _unknown(figure, keys, astune)
        return
    key = keys[of]
    named = key.removeprefix("astune.evaluation.").removesuffix(".every").removeprefix("sets.")
    own = evaluation.sets[named].every if named in evaluation.sets else None
    every = evaluation.every if own is None else own
    if every == 0 or (total is not None and every >= total):
        yield (
            "astune.trainer.keep_best",
            f"{figure!r} is not known between the first and the last step, as {key} is {every}, so the last checkpoint "
            "would always be the best; set that key to a number of steps below astune.trainer.total_steps",
        )


def _unknown(figure: str, evaluations: Mapping[str, str], astune: AstuneConfig) -> str:
    known = [f"{of}/{name}" for of in evaluations for name in _figures(of, astune)]
    families = [f"{of}/{family}..." for of in evaluations if of.startswith("eval/") for family in FAMILIES]
    listed = f" There are: {', '.join([*known, *families])}" if known else " There are no held-out tasks"
    return f"no evaluation gives {figure!r}.{nearest(figure, known)}{listed}"


def _evaluations(astune: AstuneConfig) -> dict[str, str]:
    """The evaluations of a run, as the names of their figures begin, and the key that says how often."""
    reader, evaluation = astune.task_reader, astune.evaluation
    sources = sources_of(reader)
    there = sources is None or sources.has_held_out or reader.validation_fraction is not None
    often = "astune.evaluation.every"
    found = {f"eval/{decoding}": often for decoding in evaluation.decoding} if there else {}
    if astune.trainer.held_out_examples is not None:
        found[EXAMPLES] = often
    for name, chosen in evaluation.sets.items():
        key = often if chosen.every is None else f"astune.evaluation.sets.{name}.every"
        found |= {f"eval/{name}/{decoding}": key for decoding in evaluation.decoding}
    return found


def _figures(evaluation: str, astune: AstuneConfig) -> list[str]:
    """Figures of an evaluation, less those that the user's judge, workflow, agents and tools name."""
    if evaluation == EXAMPLES:
        return ["loss"]
    passed, k = [], 2
    while evaluation.endswith("sampled") and k <= astune.evaluation.attempts:
        passed.append(f"pass_at_{k}")
        k *= 2
    return [*FIGURES[:2], *passed, *FIGURES[2:]]
