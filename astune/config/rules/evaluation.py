"""Combinations of `astune.evaluation` and of what goes by its figures that cannot work together."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.schema import AstuneConfig
from astune.config.task_sources import sources_of
from astune.errors import nearest


def evaluation_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Those of the sets of held-out tasks, and of how often each task is tried."""
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
    """Those of the figure by which the best checkpoint is kept."""
    figure, evaluation, total = astune.trainer.keep_best, astune.evaluation, astune.trainer.total_steps
    if figure is None:
        return
    keys = {name: key for key, names in _figures(astune).items() for name in names}
    if figure not in keys:
        listed = f" There are: {', '.join(keys)}" if keys else " There are no held-out tasks"
        yield "astune.trainer.keep_best", f"no evaluation gives {figure!r}.{nearest(figure, keys)}{listed}"
        return
    key = keys[figure]
    name = key.removeprefix("astune.evaluation.").removesuffix(".every").removeprefix("sets.")
    own = evaluation.sets[name].every if name in evaluation.sets else None
    every = evaluation.every if own is None else own
    if every == 0 or (total is not None and every >= total):
        yield (
            "astune.trainer.keep_best",
            f"{figure!r} is not known between the first and the last step, as {key} is {every}, so the last checkpoint "
            "would always be the best; set that key to a number of steps below astune.trainer.total_steps",
        )


def _figures(astune: AstuneConfig) -> dict[str, list[str]]:
    """Names of all held-out figures that a run may give, by the key that says how often."""
    reader, evaluation = astune.task_reader, astune.evaluation
    sources = sources_of(reader)
    there = sources is None or sources.has_held_out or reader.validation_fraction is not None
    found = {"astune.evaluation.every": list(_of_set("eval", astune))} if there else {}
    if astune.trainer.held_out_examples is not None:
        found.setdefault("astune.evaluation.every", []).append("held_out/examples/loss")
    for name, chosen in evaluation.sets.items():
        key = "astune.evaluation.every" if chosen.every is None else f"astune.evaluation.sets.{name}.every"
        found.setdefault(key, []).extend(_of_set(f"eval/{name}", astune))
    return found


def _of_set(prefix: str, astune: AstuneConfig) -> Iterator[str]:
    for decoding in astune.evaluation.decoding:
        yield f"{prefix}/{decoding}/success"
        yield f"{prefix}/{decoding}/reward"
        k = 2
        while decoding == "sampled" and k <= astune.evaluation.attempts:
            yield f"{prefix}/{decoding}/pass_at_{k}"
            k *= 2
