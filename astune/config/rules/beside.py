"""Keys that are read only beside another key: one that was set where nothing reads it is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from astune.config.judges import TaskJudgeConfig
from astune.config.schema import AstuneConfig
from astune.config.section import Section
from astune.config.tasks import READERS, TaskReaderConfig, sources_of

AWAY = "take the key out"
ASKED = tuple(
    f"llm.{name}"
    for name in ("models", "instructions", "shown", "votes", "temperature", "max_tokens", "max_concurrent", "cache")
)
"""Keys that every judge that asks models reads."""
READ_BY_JUDGE: Mapping[str, tuple[str, ...]] = {
    "EnvServiceJudge": (),
    "LlmAsJudge": ("answer_format", "llm"),
    "MathAnswerAndLlmAsJudge": ("answer_format", "must_be_evaluated", *ASKED, "llm.criteria", "llm.pass_at"),
    "MathAnswerAsJudge": ("answer_format", "must_be_evaluated"),
    "ReasoningGymJudge": ("answer_format",),
    "RubricsAsJudge": ("answer_format", *ASKED, "rubrics"),
    "ToolUseJudge": ("answer_format", "must_be_evaluated", "tool_use"),
}
"""The keys and sections of `astune.task_judge` that each judge that ships reads."""
OF_JUDGES = ("answer_format", "must_be_evaluated", "llm", "rubrics", "tool_use")
NO_RECORDING = ("tasks", "index")
"""Keys of `astune.debug` that choose among tasks, not among recorded episodes."""


def unread_keys(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key to take out and why nothing reads it, for commands that run nothing too."""
    reader, service = astune.task_reader, astune.task_reader.env_service
    yield from _of_readers(reader)
    if service.serve is not None and service.token_variable is not None:
        yield (
            "astune.task_reader.env_service.token_variable",
            f"the service that serve starts has a token of its own; {AWAY}",
        )
    if not has_held_out(astune) and not astune.evaluation.sets:
        for key in reader.find_changed(("max_validation_tasks", "on_overlap")):
            yield f"astune.task_reader.{key}", f"there are no held-out tasks; {AWAY}, or name some"
    if astune.task_judge.rubrics.file is None and astune.task_judge.rubrics.pass_at is not None:
        yield "astune.task_judge.rubrics.pass_at", f"there is no rubric without astune.task_judge.rubrics.file; {AWAY}"
    feedback = astune.online.feedback
    if not feedback.judge_share and feedback.find_changed(["judge_after_seconds"]):
        yield (
            "astune.online.feedback.judge_after_seconds",
            f"nothing is judged with astune.online.feedback.judge_share 0; set that, or {AWAY}",
        )
    follow = feedback.follow
    if follow.judge is None:
        for key in follow.find_changed():
            yield f"astune.online.feedback.follow.{key}", f"no judge looks at what followed: set judge there, or {AWAY}"
    for name, read_by in (("words", "rules"), ("signs", "rules"), ("llm", "model")):
        if follow.judge in {"rules", "model"} - {read_by} and follow.find_changed([name]):
            yield f"astune.online.feedback.follow.{name}", f"the judge {follow.judge!r} does not read it; {AWAY}"


def unread_run_keys(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Keys that only a run has no use for."""
    if astune.allow_changes and not astune.resume:
        yield "astune.allow_changes", f"a run that does not go on with another has nothing to change; {AWAY}"
    if not has_held_out(astune) and not astune.evaluation.sets:
        for key in astune.evaluation.find_changed(("decoding", "attempts")):
            yield f"astune.evaluation.{key}", f"there are no held-out tasks; {AWAY}, or name some"
    if astune.traits.trains:
        return
    debug, replays = astune.debug, (astune.debug.model or "").startswith("replay:")
    chosen = NO_RECORDING if replays else ("index",) if debug.tasks else ()
    why = "a recording has its tasks, of which --filter chooses" if replays else "astune.debug.tasks says which tasks"
    for key in debug.find_changed(chosen):
        yield f"astune.debug.{key}", f"{why}; {AWAY}"


def unread_evaluation_keys(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Keys of an evaluation beside a method that plays nothing and has nothing to evaluate."""
    if astune.trainer.held_out_examples is None:
        for key in astune.evaluation.find_changed(("every", "sets")):
            yield (
                f"astune.evaluation.{key}",
                f"the method {astune.algorithm.method!r} evaluates nothing without a workflow and held-out tasks, or "
                f"astune.trainer.held_out_examples; {AWAY}, or set them",
            )


def unread_judge_keys(judge: TaskJudgeConfig, judges: Set[str], *, named: bool) -> Iterator[tuple[str, str]]:
    """Keys of `astune.task_judge` that none of a run's judges reads: `judges` are all, and `named` says that tasks
    name some. A judge of the user's own may read each."""
    if judge.scorers and not named:
        yield "astune.task_judge.scorers", f"no task has a field 'scorer' that names one; {AWAY}"
    if not judges <= READ_BY_JUDGE.keys():
        return
    read = {key for name in judges for key in READ_BY_JUDGE[name]}
    whose = f"none of the judges is one ({', '.join(sorted(judges))})" if judges else "there is no judge"
    for key in judge.find_changed(OF_JUDGES):
        value = getattr(judge, key)
        inside = [f"{key}.{name}" for name in value.find_changed()] if isinstance(value, Section) else [key]
        for place in inside:
            if not {key, place} & read:
                users = [name for name, keys in READ_BY_JUDGE.items() if {key, place} & {*keys}]
                yield f"astune.task_judge.{place}", f"only {' and '.join(users)} read it, and {whose}; {AWAY}"


def has_held_out(astune: AstuneConfig) -> bool:
    """True if there are held-out tasks beside those of `astune.evaluation.sets`; a plug-in may have some."""
    sources = sources_of(astune.task_reader)
    return sources is None or sources.has_held_out or astune.task_reader.validation_fraction is not None


def _of_readers(reader: TaskReaderConfig) -> Iterator[tuple[str, str]]:
    """Keys of another reader than that of `type`. One that says where its tasks are may wait to be chosen, as on the
    command line."""
    if reader.type not in READERS:  # a plug-in, which may read each
        return
    for name in READERS:
        sources = sources_of(reader.model_copy(update={"type": name}))
        if name == reader.type or (sources is not None and sources.has_training):
            continue
        keys = ("training_split", "validation_split") if name == "env_service" else None
        for key in getattr(reader, name).find_changed(keys):
            yield (
                f"astune.task_reader.{name}.{key}",
                f"for astune.task_reader.type {name!r}, and the type is {reader.type!r}; {AWAY}",
            )
    if reader.type == "env_service":
        for key in reader.fields.find_changed():
            yield f"astune.task_reader.fields.{key}", f"tasks of an environment service have no columns; {AWAY}"
