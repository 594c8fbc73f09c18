"""Play a recorded episode again: its answers stand in for the model, each given to the call that it was given to.

    replay = EpisodeReplay(recording.episode)
    observer.source = lambda name, source: ReplaySource(replay, source, name)

The workflow, its tools and the judge run anew. As long as they do what they did, the tokens, timelines and verdict are
those of the recording, byte for byte; the first call that asks for something else raises `ReplayError`, which says in
what it differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker.calls import Answer, Call, Source, read_answer
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.errors import PolicyError
from astune.monitor.jsonl import plain
from astune.recordings.diff import Decode, first_difference, prompts_differ, turns_differ
from astune.recordings.recording import Recording
from astune.rollout.episode import run_episode
from astune.rollout.group import episode_seed
from astune.rollout.setup import Observer, RolloutSetup
from astune.rollout.verdict import USERS, strip_verdict
from astune.task_judge.judge_base import GroupJudge
from astune.token_ids import TokenIds
from astune.training.rollout_setup import sampling_for
from astune.types import Episode, Generation, Sampling, StopReason, Task, Turn

PATIENCE = 30.0
"""Seconds without any model call, answer or turn after which a call no longer waits for those that ended before it."""
QUIET = 0.2
"""The same for a call that failed: it fails again after all that were answered beside it."""
_TICK = 0.01
_MADE_BY_SOURCE = ("inexact", "no_logprobs", "forced")
"""Reasons to leave a turn out of training that its source gives; the others follow from the call."""
EDITED = "edited"
"""The same of an answer that a person wrote in the stepper."""


class ReplayError(PolicyError):
    """The episode does not go as it was recorded. The message says where and how."""


class EpisodeReplay:
    """The recorded answers of one episode, given to the calls that they were given to.

    Turns end in the recorded order: an answer waits for those before it. For calls side by side that needs to know
    what the tracker has recorded: `follow(tracker)` before the first call. Calls with numbers from `until` on go to the
    live model. `answers` by call number stand in place of recorded ones. Such turns are in no recorded order.
    """

    def __init__(
        self,
        episode: Episode,
        *,
        until: int | None = None,
        answers: Mapping[int, Answer | Generation] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """`patience`: see `PATIENCE`; where a person may stop the episode for long, `math.inf`."""
        self._episode, self._patience = episode, patience
        self._until, self._answers = until, dict(answers or {})
        self._turns = [
            turn for turn in episode.turns if not self._is_live(turn.call) and turn.call not in self._answers
        ]
        self._given: list[bool] = [False] * len(self._turns)
        lost = int(episode.metrics.get("lost_calls", 0))
        answered = {turn.call for turn in episode.turns}
        self._lost = set(range(len(episode.turns) + lost)) - answered if lost else set()
        self._tracker: ContextTracker | None = None
        self._begun = 0
        self._ended = 0
        """How many recorded answers were handed out, all in order."""
        self._served: set[int] = set()
        """The numbers of the calls that got them."""
        self.live = False
        """True once a call has gone to the live model."""

    def follow(self, tracker: ContextTracker) -> None:
        """`tracker` is the one that records the turns of this replay."""
        self._tracker = tracker

    async def answer(self, call: Call, source: Source, sampling: Sampling, name: str | None) -> Answer:
        """The recorded answer to `call`, once those before it have ended. Raises ReplayError."""
        self._begun += 1
        if call.number in self._answers:
            given = self._answers[call.number]
            return read_answer(call, given) if isinstance(given, Generation) else given
        if self._is_live(call.number):
            self.live = True
            return await source.answer(call, sampling)
        place = self._find(call)
        if place is None:
            raise await self._failure(call)
        self._given[place] = True  # it is taken; it ends when its turn has come
        await self._wait(call, place)
        self._ended = place + 1
        self._served.add(call.number)
        return self._read_recorded(call, self._turns[place], name)

    def _is_live(self, number: int) -> bool:
        return self._until is not None and number >= self._until

    def _find(self, call: Call) -> int | None:
        """The recorded turn of `call`; None if the call failed there."""
        if call.number in self._lost:
            return None
        unused = [place for place, taken in enumerate(self._given) if not taken]
        same = [place for place in unused if self._turns[place].call == call.number]
        for place in (*same, *unused):
            if _asks_the_same(call, self._turns[place]):
                return place
        raise self._explain_parting(call, [*same, *(p for p in unused if self._turns[p].agent == call.agent), *unused])

    def _explain_parting(self, call: Call, candidates: list[int]) -> ReplayError:
        who = f"model call {call.number + 1} of {call.agent!r} has parted from the recording"
        if not candidates:
            return ReplayError(f"{who}: there are only {len(self._turns)} answers in it, and all are given")
        turn = self._turns[candidates[0]]
        for found in self._ways(call, turn):
            return ReplayError(f"{who}: {found}")
        return ReplayError(f"{who}: call {turn.call + 1} of {turn.agent!r} was recorded")

    def _ways(self, call: Call, turn: Turn) -> Iterator[str]:
        """The differences between `call` and a recorded turn, in words."""
        if turn.agent != call.agent:
            yield f"recorded was a call of {turn.agent!r}"
        request = call.request
        now = replace(turn, prompt_ids=call.prompt.ids, messages=request.messages, tools=tuple(request.tools))
        for found in prompts_differ(turn, now, call.chat_format.decode):
            yield f"{found.place}: recorded {found.first}, now {found.second}"

    async def _wait(self, call: Call, place: int) -> None:
        quiet, state = 0.0, self._state()
        while not self._may_end(place):
            await asyncio.sleep(_TICK)  # the tracker tells nobody when it has recorded a turn
            now = self._state()
            quiet, state = (quiet + _TICK if now == state else 0.0), now
            if quiet > self._patience:
                turn = self._turns[self._ended]
                raise ReplayError(
                    f"model call {call.number + 1} of {call.agent!r} waited for call {turn.call + 1} of "
                    f"{turn.agent!r}, which ended before it in the recording, and nothing has moved for "
                    f"{self._patience:g} s"
                )

    def _state(self) -> tuple[int, int, int]:
        return self._begun, self._ended, 0 if self._tracker is None else len(self._tracker.turns)

    def _count_recorded(self) -> int:
        """The number of answers handed out that have become turns."""
        if self._tracker is None:
            return self._ended
        return sum(turn.call in self._served for turn in self._tracker.turns)

    def _may_end(self, place: int) -> bool:
        """True once all turns before it are recorded. Answers to one request are recorded together, when all are in."""
        if self._ended < place:
            return False
        return all(self._one_request(former, place) for former in range(self._count_recorded(), place))

    def _one_request(self, former: int, place: int) -> bool:
        """True if two recorded turns may be answers to one request for several."""
        one, two = self._turns[former], self._turns[place]
        return one.agent == two.agent and one.prompt_ids == two.prompt_ids and two.call - one.call == place - former

    async def _failure(self, call: Call) -> PolicyError:
        """The error for a call that was never answered: the model's recorded one, once all is quiet."""
        error = self._episode.error
        fails = error is not None and error.stage == "policy"
        quiet, state = 0.0, self._state()
        while quiet < (QUIET if fails else self._patience):
            await asyncio.sleep(_TICK)
            now = self._state()
            quiet, state = (quiet + _TICK if now == state else 0.0), now
        if error is not None and fails:
            kind: type[PolicyError] = type(error.kind, (PolicyError,), {})  # an episode keeps the name of the class
            return kind(error.message)
        return ReplayError(
            f"the recording has no answer for model call {call.number + 1} of {call.agent!r}: it was lost there"
        )

    def _read_recorded(self, call: Call, turn: Turn, name: str | None) -> Answer:
        """The policy's tokens, read with today's parser; another model's answer as it was kept."""
        if name is None and turn.exact and turn.excluded not in _MADE_BY_SOURCE:
            generation = Generation(
                tuple(turn.output_ids), tuple(turn.logprobs), turn.policy_version, turn.finish_reason
            )
            answer = read_answer(call, generation)
            return replace(answer, excluded=EDITED) if turn.excluded == EDITED else answer
        same = call.prompt.ids == turn.prompt_ids
        return Answer(
            message=plain(turn.response),
            prompt_ids=call.prompt.ids if same else TokenIds.of(turn.prompt_ids),
            output_ids=turn.output_ids,
            logprobs=turn.logprobs,
            policy_version=turn.policy_version,
            finish_reason=turn.finish_reason,
            exact=turn.exact,
            excluded=turn.excluded if turn.excluded in _MADE_BY_SOURCE else None,
            unread=turn.unread,
        )


def _asks_the_same(call: Call, turn: Turn) -> bool:
    """True if `turn` was recorded of such a call. The prompt ids of another model are its own, or made from text."""
    if call.agent != turn.agent:
        return False
    if call.prompt.ids == turn.prompt_ids:
        return True
    foreign = (call.source is not None and not call.model) or not turn.exact or turn.excluded in _MADE_BY_SOURCE
    asked = plain(list(call.request.messages)), plain(call.request.tools)
    return foreign and bool(turn.messages) and asked == (plain(list(turn.messages)), plain(turn.tools))


class ReplaySource:
    """Answers in place of `source`, the auxiliary model of that name or (None) the policy."""

    def __init__(self, replay: EpisodeReplay, source: Source, name: str | None) -> None:
        self.is_policy = source.is_policy
        self._replay, self._source, self._name = replay, source, name

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        return await self._replay.answer(call, self._source, sampling, self._name)


class ReplayObserver(Observer):
    """The `Observer` of an episode that is played again from beginning to end, with nobody looking on."""

    def __init__(self, replay: EpisodeReplay) -> None:
        self._replay = replay

    def source(self, name: str | None, source: Source) -> Source:
        return ReplaySource(self._replay, source, name)

    def on_start(self, episode_id: str, task: Task, tracker: ContextTracker, work: Coroutine[Any, Any, object]) -> None:
        self._replay.follow(tracker)


async def replay_recording(recording: Recording, setup: RolloutSetup, config: AstuneConfig) -> str | None:
    """Plays it again; None if the episode is the same, else the first difference in words."""
    episode = recording.episode
    observer = ReplayObserver(EpisodeReplay(episode))
    replayed = await run_episode(
        episode.task,
        replace(setup, observer=observer),
        episode_id=episode.episode_id,
        seed=episode_seed(config.seed, episode.episode_id),
        sampling=sampling_for(config, "greedy" if recording.phase.endswith("/greedy") else "sampled"),
        judged=not isinstance(setup.judge_of(episode.task), GroupJudge),
    )
    return replay_difference(recording, replayed, setup)


def replay_difference(recording: Recording, replayed: Episode, setup: RolloutSetup) -> str | None:
    """The first difference between a recording and its replay with `setup`, in words; None if there is none. A verdict
    that was found by comparing attempts is left out, as an attempt played alone cannot have it, and so is that of
    users, or of nobody."""
    recorded = recording.episode
    failed, verdict = recorded.stop_reason is StopReason.ERROR, recorded.verdict
    by_people = not failed and (verdict is None or verdict.judged_by == USERS)
    if by_people or isinstance(setup.judge_of(recorded.task), GroupJudge):
        recorded, replayed = strip_verdict(recorded) or recorded, strip_verdict(replayed) or replayed
    decode = None if setup.models.formats else setup.chat_format.decode  # ids alone where they are of several
    difference = same_episode(recorded, replayed, decode)
    return None if difference is None else difference + _other_time(recording, setup.chat_format)


def _other_time(recording: Recording, chat_format: ChatFormat) -> str:
    """Name both clocks where prompts depend on the time and it is not the recorded one; else nothing."""
    clock = None if recording.config is None else recording.config.astune.model.clock
    if not chat_format.tells_time or clock == chat_format.clock:
        return ""
    then = "was not kept with the recording" if clock is None else f"was {clock.isoformat()} when it was recorded"
    return (
        f". The chat template writes the time into the prompt: it {then}, and is {chat_format.clock.isoformat()} now "
        "(astune.model.clock)"
    )


def same_episode(recorded: Episode, replayed: Episode, decode: Decode | None = None) -> str | None:
    """None if both give the same recording but for timing and traceback, else the first difference in words. Where
    the replay says itself how it parted, that is it. Of an episode that was cut short from outside, cancelled or out
    of time, the turns are all there is to compare.
    """
    error = replayed.error
    if error is not None and error.kind == ReplayError.__name__ and not _was_cut(recorded):
        return error.message
    compare = turns_differ if _was_cut(recorded) else first_difference
    found = compare(recorded, replayed, decode)
    return None if found is None else f"{found.place}: recorded {found.first}, now {found.second}"


def _was_cut(episode: Episode) -> bool:
    return episode.stop_reason in (StopReason.CANCELLED, StopReason.LATE, StopReason.TIMEOUT)
