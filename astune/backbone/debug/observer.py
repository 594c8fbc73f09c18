"""Show every call, tool result and verdict of an episode as it happens, and stop around them."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from astune.backbone.debug.stops.stepper import Stepper
from astune.backbone.debug.stops.stop import Answers, RunningEpisode, Stop
from astune.backbone.debug.studio import Studio
from astune.backbone.debug.terminal import Interrupted
from astune.backbone.debug.views.screen import Screen
from astune.context_tracker.calls import Answer, Call, Source, with_call_ids
from astune.context_tracker.prompt.messages import show_content
from astune.context_tracker.tracker import ContextTracker
from astune.recordings.replay import EpisodeReplay, ReplaySource
from astune.rollout.setup import Observer
from astune.ropes import common_start
from astune.types import Episode, Sampling, Task


class WatchedSource:
    """A source whose calls the observer shows, and may answer in another way."""

    def __init__(self, source: Source, observer: DebugObserver) -> None:
        self.is_policy = source.is_policy
        self._source, self._observer = source, observer

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        return await self._observer.answer(self._source, call, sampling)


class DebugObserver(Observer):
    """Looks on in a debug run. What it shows is decoded from the very tokens that are sent and sampled.

    `policy` stands in for the policy, if there is one; `studio` is shown the messages too.
    """

    def __init__(
        self,
        screen: Screen,
        stepper: Stepper,
        policy: Source | None,
        studio: Studio | None,
    ) -> None:
        self.episodes: list[Episode] = []
        """Episodes that are over, cancelled ones too."""
        self._screen, self._stepper, self._policy = screen, stepper, policy
        self._studio = studio
        self._replay: EpisodeReplay | None = None
        self._running: RunningEpisode | None = None
        self._shown: list[tuple[int, ...]] = []
        self._results: set[tuple[str, str]] = set()
        self._branch = -1

    def begin(self, replay: EpisodeReplay | None, branch: int = -1) -> None:
        """An episode is about to run, with the answers of a recorded one if `replay` is given. Up to the call `branch`
        it is known already: there are no stops."""
        self._replay, self._running, self._branch = replay, None, branch
        self._results.clear()
        self._stepper.episode_started()

    def source(self, name: str | None, source: Source) -> Source:
        if name is None and self._policy is not None:
            source = self._policy
        if self._replay is not None:
            source = ReplaySource(self._replay, source, name)
        return WatchedSource(source, self)

    def on_start(self, episode_id: str, task: Task, tracker: ContextTracker, work: Coroutine[Any, Any, object]) -> None:
        self._running = RunningEpisode(episode_id, task, tracker, work)
        if self._studio is not None:
            self._studio.question(episode_id, task.query)
        if self._replay is not None:
            self._replay.follow(tracker)

    async def on_judging(self, episode: Episode) -> None:
        assert self._running is not None
        await self._stepper.stop(Stop("judge", self._running, episode=episode))

    def on_end(self, episode: Episode) -> None:
        self.episodes.append(episode)

    async def at_verdict(self, episode: Episode) -> None:
        """After the verdict, or where there is none because something failed. A workflow that cannot even be made has
        not begun."""
        if self._running is not None:
            await self._stepper.stop(Stop("verdict", self._running, episode=episode))

    async def answer(self, source: Source, call: Call, sampling: Sampling) -> Answer:
        """Shows the call and its answer and stops around them; returns what the agent is to get."""
        running = self._running
        assert running is not None
        for message in self._find_new_results(call):
            self._show_result(running.episode_id, call, message)
            await self._stop(Stop("tool result", running, call, message=message))

        async def draw(number: int) -> Answer:
            """With another seed for each further answer to the same call."""
            seed = sampling.seed if sampling.seed is None else (sampling.seed + number) % 2**63
            try:
                return await source.answer(call, replace(sampling, seed=seed) if number else sampling)
            except Interrupted:  # Ctrl-C where a person was to answer
                await self._stepper.quit()

        answers = Answers(draw)
        self._show_call(call)
        await self._stop(Stop("call", running, call, answers))
        if not answers.given:
            started = time.perf_counter()
            answer = await answers.again()
            text = call.chat_format.decode(answer.output_ids)
            self._screen.call_done(call, answer, text, time.perf_counter() - started)
        await self._stop(Stop("answer", running, call, answers))
        assert answers.current is not None
        if self._studio is not None:
            self._studio.answer(running.episode_id, call.agent, with_call_ids(answers.current.message, call.number))
        self._shown.append((*call.prompt.ids, *answers.current.output_ids))
        return answers.current

    async def _stop(self, stop: Stop) -> None:
        assert stop.call is not None
        if stop.call.number > self._branch:
            await self._stepper.stop(stop)

    def _show_call(self, call: Call) -> None:
        prompt = tuple(call.prompt.ids)
        known = max((common_start(earlier, prompt) for earlier in self._shown), default=0)
        self._screen.call_started(call, known, call.chat_format.decode(prompt[known:]))
        self._shown.append(prompt)

    def _find_new_results(self, call: Call) -> list[Mapping[str, Any]]:
        """The tool results behind the last answer in the agent's messages that no call has shown yet."""
        found: list[Mapping[str, Any]] = []
        for message in reversed(call.request.messages):
            if message.get("role") == "assistant":
                break
            if message.get("role") == "tool":
                found.append(message)
        new = []
        for message in reversed(found):
            key = (call.agent, str(message.get("tool_call_id")))
            if key not in self._results:
                self._results.add(key)
                new.append(message)
        return new

    def _show_result(self, episode_id: str, call: Call, message: Mapping[str, Any]) -> None:
        name, arguments = _find_call(call.request.messages, message.get("tool_call_id"))
        self._screen.tool_result(name, arguments, show_content(message))
        if self._studio is not None:
            self._studio.tool_result(episode_id, call.agent, name, message)


def _find_call(messages: Sequence[Mapping[str, Any]], call_id: object) -> tuple[str, str]:
    """Name and arguments of the tool call that has this id."""
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if call.get("id") == call_id:
                return call["function"]["name"], call["function"]["arguments"]
    return "a tool", ""
