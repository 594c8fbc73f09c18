"""One attempt at one task: the place where tracker, workflow and judge meet, and where errors become data.

How an episode ends:

    the workflow ...                       stop_reason        verdict
    returned                               COMPLETED          the workflow's reward, else the judge's
    ran out of turns, tokens or context    MAX_TURNS,         the judge's, of whatever the workflow returned;
                                           MAX_TOKENS or      of no answer at all if it raised
                                           CONTEXT_OVERFLOW
    ran out of time                        TIMEOUT            none
    came late for its step                 LATE               none
    raised, or returned the wrong type     ERROR              none
    met an environment that failed         ERROR              none
    called a tool that broke               ERROR              none (astune.tools.on_failure)
    met a policy that failed               ERROR              none
    returned, but the judge failed         ERROR              none

An agent that runs out of turns, tokens or context has failed by tokens of its own, so it is judged (`Episode.output`
is None if the workflow raised) and learns from it. One that is answered again afterwards has got over it, as an agent
of AgentScope does by compressing its history: that is counted (`recovered_calls`), and is not how the episode ended. A
bug, a timeout or a broken engine says nothing about the tokens, so it is not judged. What counts is what model calls
and environment steps raised, not what the agent's framework made of it. A task whose environment cannot be made ends as
ERROR before its workflow begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from astune.context_tracker.cuts import CutTracker
from astune.context_tracker.tracker import ContextTracker
from astune.errors import ConfigError, ContextOverflow, EnvServiceError, TooManyTokens, TooManyTurns, WorkflowError
from astune.rollout.environment import enter_environment, release, with_score
from astune.rollout.setup import Attempt, RolloutSetup
from astune.rollout.time_limit import within
from astune.rollout.verdict import NOT_JUDGED, judge_episode
from astune.rollout.workspace import figures_of, lend_workspace, with_artifacts
from astune.support.current_episode import CurrentEpisode, in_episode
from astune.support.user_code import place_of
from astune.support.user_values import contain, text_of, traceback_of
from astune.types import Episode, EpisodeError, Sampling, StopReason, Task, ToolCause, Turn, WorkflowOutput
from astune.workflow.tuner import Tuner
from astune.workflow.workflow_base import begin_attempt, check_output

logger = logging.getLogger(__name__)

LIMITS: dict[type[Exception], StopReason] = {
    TooManyTurns: StopReason.MAX_TURNS,
    TooManyTokens: StopReason.MAX_TOKENS,
    ContextOverflow: StopReason.CONTEXT_OVERFLOW,
}
"""Errors of a model call that mean that the agent has used up a limit, and the end that an episode then has."""

Stage = Literal["workflow", "policy", "environment"]


async def run_episode(
    task: Task,
    setup: RolloutSetup,
    *,
    episode_id: str,
    seed: int,
    sampling: Sampling,
    judged: bool = True,
    drawn: Mapping[str, str] | None = None,
    redrawn: str | None = None,
) -> Episode:
    """One attempt at `task`. Never raises for what the workflow, the policy or the judge do, but ConfigError for what
    would be wrong in every attempt, as the name of a model; cancellation passes through, and the workflow is cancelled
    with it. `judged=False` leaves the verdict to `judge_together`. The answers of the agent `redrawn` are others than
    those of the attempt with this seed."""
    started = time.monotonic()
    attempt = Attempt(task, episode_id, seed, sampling, drawn or {}, redrawn)
    late = None if setup.quorum is None else setup.quorum.late
    if late is not None and late.is_set():
        episode = Episode(episode_id, task, (), (), StopReason.LATE, metrics=turn_metrics(()))
    elif setup.player is not None:
        episode = await setup.player.play(attempt, late)
    else:
        episode = await play_episode(attempt, setup, late)
    if setup.quorum is not None:
        setup.quorum.count_ended()
    with in_episode(episode_id) as this:
        try:
            if judged and episode.stop_reason not in NOT_JUDGED:
                await setup.observer.on_judging(episode)
                episode = await judge_episode(episode, setup)
        except asyncio.CancelledError:
            cut = replace(episode, stop_reason=StopReason.CANCELLED)
            setup.observer.on_end(_with_times(cut, this, time.monotonic() - started))
            raise
    episode = _with_times(episode, this, time.monotonic() - started)
    setup.observer.on_end(episode)
    return episode


async def play_episode(attempt: Attempt, setup: RolloutSetup, late: asyncio.Event | None = None) -> Episode:
    """The attempt without a verdict, played in this process, and cut off as soon as `late` is set. Raises nothing that
    `run_episode` does not."""
    with in_episode(attempt.episode_id) as this:
        started = time.monotonic()
        context = setup.config.context
        make_tracker = ContextTracker if context.strategy == "none" else partial(CutTracker, context)
        tracker = make_tracker(
            setup.policy,
            setup.chat_format,
            attempt.sampling,
            max_turns=setup.config.max_turns,
            max_tokens=setup.config.max_episode_tokens,
            seed=attempt.seed,
            auxiliary_models=setup.auxiliary_models,
            allow_inexact=setup.config.allow_inexact,
            wrap=setup.observer.source,
            models=replace(setup.models, drawn=attempt.drawn, redrawn=attempt.redrawn),
        )
        ends = setup.tools.config.on_failure.causes("end")
        shared = setup.notes, setup.texts, ends
        tuner = Tuner(attempt.task, attempt.episode_id, tracker, *shared)
        try:
            episode = await _play(tuner, tracker, setup, late)
        except asyncio.CancelledError:
            cut = _episode(tuner, tracker, _End(StopReason.CANCELLED))
            setup.observer.on_end(_with_times(cut, this, time.monotonic() - started))
            raise
        if not tuner.environment_done:
            _warn_of_unused_call(episode)
        _warn_of_inexact_turns(tracker, setup)
        return _with_times(episode, this, time.monotonic() - started)


async def _play(tuner: Tuner, tracker: ContextTracker, setup: RolloutSetup, late: asyncio.Event | None) -> Episode:
    """The episode as the workflow made it, without a verdict. Its environment is released, whatever happens, and its
    servers of tools are given back."""
    try:
        async with lend_workspace(tuner, setup):
            try:
                end = await _run(tuner, tracker, setup, late)
            finally:
                tuner.close()  # calls under way end before the turns are read
            episode = _episode(tuner, tracker, end, setup.tools.config.on_failure.causes("no_credit"))
            if end.stop_reason in NOT_JUDGED:
                return episode
            return await with_score(await with_artifacts(episode, tuner, setup), tuner.instance, setup)
    finally:
        await release(tuner.instance, setup)


def _episode(
    tuner: Tuner, tracker: ContextTracker, end: _End, no_credit: frozenset[ToolCause] = frozenset()
) -> Episode:
    """The episode as far as the workflow made it, without a verdict."""
    return Episode(
        episode_id=tuner.episode_id,
        task=tuner.task,
        turns=tracker.turns,
        timelines=tracker.timelines(),
        stop_reason=end.stop_reason,
        output=end.output,
        error=end.error,
        unique_tokens=tracker.unique_tokens,
        agent_rewards=dict(tuner.agent_rewards),
        turn_rewards=dict(tuner.turn_rewards),
        tools=tuner.tool_log.uses,
        no_credit=tuner.tool_log.turns_with(no_credit, tracker.turns),
        metrics={
            **turn_metrics(tracker.turns, tracker.lost_calls),
            **tuner.tool_log.metrics,
            **figures_of(tuner.lease),
            **({"recovered_calls": float(tuner.recovered)} if tuner.recovered else {}),
        },
    )


@dataclass(frozen=True)
class _End:
    """The end of a workflow: why, and with which output or error."""

    stop_reason: StopReason
    output: WorkflowOutput | None = None
    error: EpisodeError | None = None


async def _run(tuner: Tuner, tracker: ContextTracker, setup: RolloutSetup, late: asyncio.Event | None) -> _End:
    """Environment and workflow."""
    output, raised = None, None
    try:
        if tuner.no_workspace is not None:
            raise tuner.no_workspace
        await enter_environment(tuner, setup)
        if setup.tools.pools:
            tuner.tools.servers = await setup.tools.take(tuner.task)
        if tuner.lease is not None:
            await tuner.tools.add_workspace(tuner.lease.workspace)
        with contain("the workflow"):
            workflow = setup.workflow_factory()
            work = begin_attempt(workflow, tuner.task, tuner)
        setup.observer.on_start(tuner.episode_id, tuner.task, tracker, work)
        finished, value = await within(
            work, setup.config.episode_timeout, "the workflow", before_cancel=tuner.close, until=late
        )
        if not finished:
            if late is not None and late.is_set():
                return _End(StopReason.LATE)
            return _out_of_time(setup.config.episode_timeout, tuner.failures)
        with contain("the workflow's output"):
            output = check_output(value, workflow)
    except ConfigError as error:
        place = place_of(error)
        raise ConfigError(f"{place}: {error}" if place else str(error)) from error
    except Exception as error:
        raised = error
    ends = "sandbox" in setup.tools.config.on_failure.causes("end")
    of_sandbox = tuner.tool_log.sandbox_failures if ends else ()  # they say nothing of the policy
    return _classify(output, raised, [*of_sandbox, *tuner.failures])


def _classify(output: WorkflowOutput | None, raised: Exception | None, failures: list[Exception]) -> _End:
    """The end of a workflow that returned `output` or raised, given what its model calls and its environment raised."""
    trace = "" if raised is None else traceback_of(raised)
    limits = [error for error in failures if type(error) in LIMITS]
    broken = [error for error in failures if type(error) not in LIMITS and not isinstance(error, WorkflowError)]
    if broken:
        return _End(
            StopReason.ERROR, output, _error(_stage(broken[0], "policy"), broken[0], traceback_of(broken[0]) + trace)
        )
    if limits:
        return _End(LIMITS[type(limits[0])], output, _error("workflow", limits[0], trace))
    if raised is not None:
        return _End(StopReason.ERROR, output, _error(_stage(raised, "workflow"), raised, trace))
    return _End(StopReason.COMPLETED, output)


def _out_of_time(seconds: float, failures: list[Exception]) -> _End:
    """The end of a workflow that took longer than `seconds`, unless it was its environment that had failed."""
    if any(isinstance(error, EnvServiceError) for error in failures):
        return _classify(None, None, failures)
    message = f"still running after {seconds:g} s (astune.rollout.episode_timeout)"
    return _End(StopReason.TIMEOUT, error=EpisodeError("workflow", "TimeoutError", message))


def _stage(error: Exception, otherwise: Stage) -> Stage:
    return "environment" if isinstance(error, EnvServiceError) else otherwise


def _warn_of_unused_call(episode: Episode) -> None:
    """An agent that stops at a tool call has usually met a permission question or its own limit of rounds. Where the
    answer is no text, the call was the answer: structured output."""
    if episode.stop_reason is not StopReason.COMPLETED or episode.output is None or not episode.turns:
        return
    in_text = episode.output.answer is None or isinstance(episode.output.answer, str)
    if in_text and episode.turns[-1].response.get("tool_calls"):
        logger.warning(
            "%s ended on a tool call whose result the model never saw. Does the agent ask for a permission, which "
            "nobody gives in a rollout (AgentScope 2.x: astune.workflow.agentscope.training_defaults), or has it "
            "reached its own limit of rounds?",
            episode.episode_id,
        )


def _warn_of_inexact_turns(tracker: ContextTracker, setup: RolloutSetup) -> None:
    """Once per run and source."""
    for name, count in tracker.inexact_turns.items():
        untrained = "they are not trained (see astune.rollout.allow_inexact)"
        made = "they are trained on ids made from text, where log-probabilities fit them (allow_inexact)"
        setup.notes.once(
            f"auxiliary model {name}",
            f"astune.rollout.auxiliary_models.{name} is trainable but gave no usable token ids for {count} of the "
            f"{len(tracker.turns)} turns of this episode: {made if setup.config.allow_inexact else untrained}. Serve "
            "it with an engine that returns token ids and log-probabilities to chat requests (vLLM 0.10.2 or newer "
            "does), with the vocabulary of astune.model.path",
        )


def _error(stage: Stage, error: Exception, trace: str) -> EpisodeError:
    return EpisodeError(stage, type(error).__name__, text_of(error), trace)


def _with_times(episode: Episode, this: CurrentEpisode, seconds: float) -> Episode:
    """The episode after so many seconds, with those for which its lines kept the event loop from turning."""
    figures = {**episode.metrics, "seconds": seconds}
    for place, lasted in this.blocked.items():
        figures[f"blocked/{place}"] = figures.get(f"blocked/{place}", 0.0) + lasted
    return replace(episode, metrics=figures)


def turn_metrics(turns: Sequence[Turn], lost_calls: int = 0) -> dict[str, float]:
    """The figures of an episode that its turns tell, the calls that got no answer beside them."""
    return {
        "turns": float(len(turns)),
        "prompt_tokens": float(sum(len(turn.prompt_ids) for turn in turns)),
        "output_tokens": float(sum(len(turn.output_ids) for turn in turns)),
        "lost_calls": float(lost_calls),
    }
