"""Learn a rubric as a configuration says and write it to a file; judge labelled examples by a rubric."""

from __future__ import annotations

import asyncio
from datetime import date
from pathlib import Path

from astune.clients.asking import Watch
from astune.clients.chat_models import Budget, BudgetSpent, ChatModels
from astune.config.judges import LlmJudgeConfig
from astune.config.load import LoadedConfig
from astune.errors import AstuneError, ConfigError, PolicyError
from astune.rubrics.edits import Edits, edits_of
from astune.rubrics.examples import Examples, read_examples
from astune.rubrics.judge_examples import Asking, judge_by_rubric, rewards_of
from astune.rubrics.learn import RubricLearner
from astune.rubrics.measure import Accuracy, measure
from astune.rubrics.report import set_date, with_report
from astune.rubrics.split import split_examples
from astune.task_judge.llm.rubric import Rubric, load_rubric, save_rubric

DEFAULT_OUT = Path("rubrics.yaml")
GO_ON = "All replies so far are kept, and none is paid twice: the same command goes on from there"


def learn_rubric(
    loaded: LoadedConfig, watch: Watch, today: date, examples: Examples | None = None, *, keep_edited: bool = False
) -> tuple[Rubric, Path]:
    """Learns a rubric as `astune.rubrics` says, from `examples` or its file of them, and writes it; that file is
    replaced in one step.

    Raises ConfigError and TaskError before any call for what cannot work, NothingHelps where nothing came of it, and
    AstuneError where the budget or the models ended it: what is paid is kept, and the same call goes on.
    """
    config = loaded.config.astune
    examples = examples or read_examples(_examples_path(loaded))
    out = Path(config.rubrics.out) if config.rubrics.out else DEFAULT_OUT
    edits = _edits(out, keep_edited)
    split = split_examples(examples, config.seed)
    llm = _with_cache(config.task_judge.llm, out)
    asking = Asking(ChatModels(llm), llm, watch)
    asking.models.budget = Budget(config.rubrics.max_calls, config.rubrics.max_cost)
    learner = RubricLearner(examples, split, config.rubrics, asking, config.seed, edits)
    try:
        learned = asyncio.run(learner.learn())
    except BudgetSpent as error:
        raise AstuneError(
            f"{error}. {GO_ON}, with astune.rubrics.max_calls and max_cost counted anew; raise them to do it at once"
        ) from error
    except PolicyError as error:
        raise AstuneError(f"{error}. {GO_ON}") from error
    rubric = set_date(with_report(out.stem, learned, examples, split, asking, config.seed), today)
    save_rubric(rubric, out)
    return rubric, out


def check_rubric(
    rubric: Rubric, loaded: LoadedConfig, examples: Path | None, watch: Watch
) -> tuple[Accuracy, Examples]:
    """Judges labelled examples by a rubric as it is. Nothing is learned or written."""
    labelled = read_examples(examples or _examples_path(loaded))
    llm = loaded.config.astune.task_judge.llm
    judged = asyncio.run(
        judge_by_rubric(Asking(ChatModels(llm), llm, watch), rubric, labelled.all, "judge the examples")
    )
    pass_at = loaded.config.astune.task_judge.rubrics.pass_at or rubric.pass_at
    return measure(labelled.all, labelled.kind, rewards_of(judged), pass_at), labelled


def _examples_path(loaded: LoadedConfig) -> Path:
    path = loaded.config.astune.rubrics.examples
    if path is None:
        raise ConfigError(
            f"{loaded.where('astune.rubrics.examples')} is not set, expected a JSON Lines file of examples"
        )
    return Path(path)


def _edits(out: Path, keep_edited: bool) -> Edits:
    """The changes of a person in the file that is there, if they are to be kept. Raises ConfigError if they would be
    lost."""
    if not out.exists():
        return Edits()
    edits = edits_of(load_rubric(out))
    if edits and not keep_edited:
        names = [*(one.id for one in edits.criteria), *(f"{name} (taken out)" for name in sorted(edits.removed))]
        raise ConfigError(
            f"{out} was edited by hand ({', '.join(names)}), and would be overwritten: add --keep-edited to keep what "
            "was edited and learn the rest anew, or write to another file with astune.rubrics.out=..."
        )
    return edits


def _with_cache(llm: LlmJudgeConfig, out: Path) -> LlmJudgeConfig:
    """A run that is cut off goes on from the cache, so there always is one."""
    return llm if llm.cache is not None else llm.model_copy(update={"cache": f"{out}.replies.sqlite"})
