"""Is it the prompt or the weights? Four evaluations of the same tasks: the first prompt and a tuned one, each with the
first weights and with trained ones.

All that is told is paired: a task's value in one cell less its value in another. So what is hard about a task for all
four cancels out, and few tasks tell more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from astune.config.evaluation import is_share
from astune.config.schema import AstuneConfig, Config
from astune.rollout.metrics import values_by_task
from astune.support.statistics import MeanOverTasks, PairedTest, estimate, permutation_test
from astune.training.candidates import Candidate, candidate_of
from astune.training.engine import LoadEngine
from astune.training.held_out import Evaluation
from astune.training.standalone import Played, play
from astune.workflow.named_texts import texts_of


class Cell(NamedTuple):
    """A prompt and weights. False is the first of each, True the tuned or trained one."""

    tuned: bool
    trained: bool

    @property
    def name(self) -> str:
        """The name of its folder, and in JSON."""
        return f"{'tuned' if self.tuned else 'first'}_prompt-{'trained' if self.trained else 'first'}_weights"


CELLS = tuple(Cell(tuned, trained) for trained in (False, True) for tuned in (False, True))
FIRST, PROMPT, WEIGHTS, BOTH = CELLS

EFFECTS: Mapping[str, tuple[Sequence[Cell], Sequence[Cell]]] = {
    "the prompt, with the first weights": ((PROMPT,), (FIRST,)),
    "the prompt, with trained weights": ((BOTH,), (WEIGHTS,)),
    "the weights, with the first prompt": ((WEIGHTS,), (FIRST,)),
    "the weights, with the tuned prompt": ((BOTH,), (PROMPT,)),
    "both": ((BOTH,), (FIRST,)),
    "both, less the sum of each alone": ((BOTH, FIRST), (PROMPT, WEIGHTS)),
}
"""What changes: the cells that are added up, and those that are taken away from them. The last is the interaction."""


class Effect(NamedTuple):
    """The mean over tasks of what a change adds to a figure, its interval, and the test that it adds nothing."""

    name: str
    difference: MeanOverTasks
    test: PairedTest


class Crossed(NamedTuple):
    """A figure of an evaluation in the four cells, over the tasks that have it in all of them. `left_out` are tasks
    that have it in some only."""

    evaluation: str
    figure: str
    cells: Mapping[Cell, MeanOverTasks]
    effects: Sequence[Effect]
    left_out: int


def cross(played: Mapping[Cell, Played], chosen: Sequence[str] = ()) -> list[Crossed]:
    """The figures of `chosen` that all four cells have for a task in common; without any success, else the reward."""
    found = []
    for evaluation in played[FIRST].groups:
        values = {cell: values_by_task(played[cell].groups[evaluation]) for cell in CELLS}
        for figure in chosen or ["success" if any("success" in each for each in values.values()) else "reward"]:
            by_task = [values[cell].get(figure, {}) for cell in CELLS]
            tasks = [task for task in by_task[0] if all(task in each for each in by_task)]
            if tasks:
                every = {task for each in by_task for task in each}
                found.append(_cross(evaluation, figure, values, tasks, len(every) - len(tasks)))
    return found


def _cross(
    evaluation: str,
    figure: str,
    values: Mapping[Cell, Mapping[str, Mapping[str, float]]],
    tasks: Sequence[str],
    left_out: int,
) -> Crossed:
    of = {cell: [values[cell][figure][task] for task in tasks] for cell in CELLS}
    cells = {cell: estimate(of[cell], share=is_share(figure)) for cell in CELLS}
    effects = []
    for name, (added, taken) in EFFECTS.items():
        differences = [
            sum(of[cell][at] for cell in added) - sum(of[cell][at] for cell in taken) for at in range(len(tasks))
        ]
        effects.append(Effect(name, estimate(differences), permutation_test(differences)))
    return Crossed(evaluation, figure, cells, effects, left_out)


def _with_texts(config: AstuneConfig, source: str | None) -> AstuneConfig:
    """`config` with the texts themselves in the place of the files that hold them, those of the search `source` among
    them: so a cell's folder says what was played, and a search that has gone on since makes it another cell."""
    asked = config.prompts.model_copy(update={"from": source})
    prompts = asked.model_copy(update={"texts": texts_of(asked), "files": {}, "from": None})
    return config.model_copy(update={"prompts": prompts})


def play_cells(
    config: Config,
    ready: AstuneConfig,
    prompts: str,
    trained: Candidate,
    evaluations: Sequence[Evaluation],
    load_engine: LoadEngine,
    folder: Path,
    *,
    as_model: bool = False,
) -> dict[Cell, Played]:
    """Play the four cells one after the other, each into a folder of its own below `folder`, and what is played
    already not again; see `standalone.play`. `prompts` is the search, or its file, that has the tuned texts."""
    first, played = candidate_of("none", config.astune), dict[Cell, Played]()
    for cell in CELLS:
        source = prompts if cell.tuned else None
        played[cell] = play(
            config.model_copy(update={"astune": _with_texts(config.astune, source)}),
            _with_texts(ready, source),
            trained if cell.trained else first,
            evaluations,
            load_engine,
            folder / cell.name,
            as_model=as_model,
            beside=played.get(FIRST),
        )
    return played
