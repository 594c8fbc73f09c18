"""`astune.evaluation`: when held-out tasks are played, which, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from astune.config.section import Located, Section
from astune.errors import ConfigError, nearest

NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""The name of a set of held-out tasks: it stands in names of metrics and of files."""
DECODINGS = ("sampled", "greedy")
FIGURES = ("success", "reward", "turns", "tokens/prompt", "tokens/sampled", "tools/calls", "tools/errors")
"""Figures that an evaluation may have whatever is played, beside `pass_at_k`."""
FAMILIES = ("judge/", "workflow/", "agent_reward/", "tools/calls/", "tools/errors/")
"""Beginnings of those whose names the user's judge, workflow, agents and tools give."""
LEAST = re.compile(r"loss|turns|tokens/.+|tools/errors(/.+)?|judge/(.+/)?(invalid_tool|steps_penalty)")
"""Figures that are best where they are least, unless it is said otherwise."""
SHARES = re.compile(
    r"judge/(.+/)?(answer_found|answer_read|asked_llm|correct_tool|correct_args|tool_success|invalid_tool|recall"
    r"|correctness|format_bonus)"
)
"""Metrics of the judges that ship which lie between 0 and 1."""


class Aim(NamedTuple):
    """The aim of the best checkpoint: the highest value of `figure`, or the lowest."""

    figure: str
    lowest: bool


def aim_of(keep_best: str) -> Aim:
    """Read `astune.trainer.keep_best`.

    >>> aim_of("eval/greedy/success"), aim_of("eval/greedy/turns").lowest, aim_of("highest eval/greedy/turns").lowest
    (Aim(figure='eval/greedy/success', lowest=False), True, False)
    >>> aim_of("lowest eval/hard/greedy/workflow/characters")
    Aim(figure='eval/hard/greedy/workflow/characters', lowest=True)
    """
    word, _, figure = keep_best.partition(" ")
    if word in ("highest", "lowest"):
        return Aim(figure, word == "lowest")
    return Aim(keep_best, LEAST.fullmatch(split_figure(keep_best)[1]) is not None)


def split_figure(name: str) -> tuple[str, str]:
    """The evaluation that a metric is of and the figure.

    >>> split_figure("eval/greedy/success"), split_figure("eval/hard/greedy/judge/format")
    (('eval/greedy', 'success'), ('eval/hard/greedy', 'judge/format'))
    >>> split_figure("held_out/examples/loss")
    ('held_out/examples', 'loss')
    """
    parts = name.split("/")
    of = 3 if parts[0] == "eval" and parts[1:2] not in ([decoding] for decoding in DECODINGS) else 2
    return "/".join(parts[:of]), "/".join(parts[of:])


def is_success(figure: str) -> bool:
    """True if the figure is `success` or `pass_at_k`: it is shown in percent."""
    return figure == "success" or figure.startswith("pass_at_")


def is_share(figure: str) -> bool:
    """True if the figure of a task lies between 0 and 1, 0 and 1 included, as those of success do and some of the
    judges that ship.

    >>> is_share("judge/ToolUseJudge/recall"), is_share("judge/length")
    (True, False)
    """
    return is_success(figure) or SHARES.fullmatch(figure) is not None


def is_named_by_user(figure: str) -> bool:
    """True if a figure has its name from the judge, the workflow, an agent or a tool.

    >>> is_named_by_user("judge/format"), is_named_by_user("judge/"), is_named_by_user("turns")
    (True, False, False)
    """
    return any(figure.startswith(family) and figure != family for family in FAMILIES)


def check_figures(figures: Iterable[str]) -> None:
    """Raise ConfigError for a name that no figure can have."""
    for figure in figures:
        if figure not in FIGURES and not re.fullmatch(r"pass_at_\d+", figure) and not is_named_by_user(figure):
            families = (f"{family}..." for family in FAMILIES)
            raise ConfigError(
                f"--figures: there is no figure {figure!r}.{nearest(figure, FIGURES)} "
                f"There are: {', '.join([*FIGURES, 'pass_at_2', *families])}"
            )


class HeldOutSetConfig(Section):
    file_path: Annotated[str | None, Located("file")] = Field(
        None, description="file of tasks, as astune.task_reader.jsonl takes one; null: where the held-out tasks are"
    )
    split: str | None = Field(None, description="with task_reader.type huggingface or env_service: its held-out split")
    filter: str | None = Field(None, description="which rows, as astune.task_reader.filter; null: all")
    max_tasks: PositiveInt | None = Field(None, description="the first so many; null: all")
    every: NonNegativeInt | None = Field(None, description="in place of astune.evaluation.every; null: that")


class EvaluationConfig(Section):
    before: bool = Field(True, description="evaluate on the held-out tasks before the first step")
    after: bool = Field(True, description="evaluate after the last step")
    every: NonNegativeInt = Field(0, description="steps between evaluations; 0: none in between")
    decoding: tuple[Literal["sampled", "greedy"], ...] = Field(
        ("sampled", "greedy"), description="sampled: at rollout.temperature; greedy: at 0"
    )
    attempts: PositiveInt = Field(
        1, description="sampled attempts at each held-out task, for pass@k; greedy decoding makes one"
    )
    sets: dict[str, HeldOutSetConfig] = Field(
        default_factory=dict,
        description="more sets of held-out tasks by name, as {hard: {file_path: hard.jsonl}}; keys of each: file_path, "
        "split, filter, max_tasks, every",
    )

    @field_validator("sets")
    @classmethod
    def _check_names(cls, sets: dict[str, HeldOutSetConfig]) -> dict[str, HeldOutSetConfig]:
        if wrong := [name for name in sets if not re.fullmatch(NAME, name)]:
            raise ValueError(f"names of letters, digits, - and _, 64 at most, and {wrong[0]!r} is none")
        return sets
