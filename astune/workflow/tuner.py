"""Hand a workflow its models, in the shape that the agent's framework wants."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from astune.context_tracker.tracker import ChatAnswer, ChatRequest, ContextTracker
from astune.errors import ContextOverflow, RolloutError, TooManyTokens, TooManyTurns, WorkflowError, nearest
from astune.support.user_code import calling_line
from astune.support.user_values import LARGEST, figure, show_value
from astune.types import Task, ToolCause
from astune.workflow.agentscope import chat_model, major_version, note_host_tools, watch_toolkits
from astune.workflow.episode_tools import EpisodeTools
from astune.workflow.live_model import LiveSource
from astune.workflow.named_texts import CURRENT, NamedTexts
from astune.workflow.notes import Notes
from astune.workflow.surroundings import Surroundings
from astune.workflow.tool_log import ToolLog, find_broken_history

if TYPE_CHECKING:
    import openai


MAIN_AGENT = "agent"
NO_END = 10**9
"""Tokens of a context that no conversation fills."""
Result = TypeVar("Result")


class Tuner(Surroundings):
    """Hands out models for one episode. Every call through any of them is one turn of the episode.

        model = tuner.model("solver")                  # an AgentScope chat model
        client = tuner.openai_client("solver")         # an AsyncOpenAI client; an OpenAI client with sync=True
        url = tuner.base_url("solver")                 # an HTTP endpoint, for any process and language

    The name tells the agents of an episode apart. They all run on the policy, the model that is trained, unless
    `source` names one of `astune.rollout.auxiliary_models`. Of several models (`astune.models`) an agent runs on the
    one that `policy` names, or else `astune.rollout.agents`. `trainable=False` keeps the turns of an agent that runs on
    the policy (a simulated user, for example) out of the loss. Nothing may be called after the episode is over.
    """

    def __init__(
        self,
        task: Task,
        episode_id: str,
        tracker: ContextTracker,
        notes: Notes | None = None,
        texts: NamedTexts | None = None,
        ends: frozenset[ToolCause] = frozenset(),
    ) -> None:
        super().__init__(task, episode_id)
        self.failures: list[Exception] = []
        """Errors of model calls and of the environment's service, in order, whether or not the agent passed them on,
        less those that it got over."""
        self.recovered = 0
        """The number of times that an agent met a limit and was answered in a call that it began afterwards."""
        self._limits: list[tuple[str, Exception]] = []
        """The `failures` that an agent may get over, with its name."""
        self.tool_log = ToolLog(ends, self.failures)
        self.agent_rewards: dict[str, float] = {}
        self.turn_rewards: dict[int, float] = {}
        self._tracker = tracker
        self._notes = notes or Notes()
        self._texts = texts or NamedTexts()
        CURRENT.set(self._texts)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.tools = EpisodeTools(self.tool_log, self._loop, self._check_open)
        """The tools of `astune.tools.servers`, for this episode."""
        self._awaited: set[concurrent.futures.Future[Any]] = set()
        """The results that threads wait for."""
        self._tokens: dict[tuple[str, bool, str | None], str] = {}
        self._calls: set[asyncio.Task[list[ChatAnswer]]] = set()

    def model(
        self,
        name: str = MAIN_AGENT,
        *,
        trainable: bool = True,
        source: str | None = None,
        policy: str | None = None,
        **options: Any,
    ) -> Any:
        """The installed AgentScope's `OpenAIChatModel`; `options` are keyword arguments of that class.

        Raises:
            MissingDependency: AgentScope is not installed.
            WorkflowError: an option that the class does not have, or a source or policy that is not configured.
        """
        from astune.workflow.agentscope_schemas import write_schemas_once

        live = self._tracker.policy_source
        if source is None and isinstance(live, LiveSource):
            if options:
                raise WorkflowError(f"tuner.model(): {', '.join(options)}: a candidate that is an object has its own")
            return live.hand_out(self._check_open, partial(self._note_failure, name))
        client = self.openai_client(name, trainable=trainable, source=source, policy=policy)
        watch_toolkits()
        if major_version() == 2:
            write_schemas_once()
        chosen = self._tracker.source_of(name, source, policy)
        context_size = self._tracker.length_of(chosen) if source is None else None
        if source is None and self._tracker.cuts_context:
            context_size = NO_END  # or an agent of AgentScope 2.x would compress its history beside it
        return chat_model(client, self.tool_log, context_size=context_size, options=options)

    def auxiliary_models(self) -> dict[str, Any]:
        """An AgentScope chat model for each of `astune.rollout.auxiliary_models`; the agents bear their names."""
        return {name: self.model(name, source=name) for name in self._tracker.auxiliary_models}

    def prompt(self, name: str, default: str | None = None, **values: Any) -> str:
        """The text called `name`, `default` unless the configuration or a search gives another; see `named_texts`. With
        `values` its placeholders are filled, as `{city}` by `city="Rome"`. Raises WorkflowError where one is left."""
        return self._texts.ask(name, default, values)

    @overload
    def openai_client(
        self,
        name: str = ...,
        *,
        trainable: bool = ...,
        source: str | None = ...,
        policy: str | None = ...,
        sync: Literal[False] = ...,
    ) -> openai.AsyncOpenAI: ...
    @overload
    def openai_client(
        self,
        name: str = ...,
        *,
        trainable: bool = ...,
        source: str | None = ...,
        policy: str | None = ...,
        sync: Literal[True],
    ) -> openai.OpenAI: ...
    def openai_client(
        self,
        name: str = MAIN_AGENT,
        *,
        trainable: bool = True,
        source: str | None = None,
        policy: str | None = None,
        sync: bool = False,
    ) -> openai.AsyncOpenAI | openai.OpenAI:
        """An `AsyncOpenAI` client whose calls stay in the process; with `sync` an `OpenAI` client, for a workflow that
        is not async. In the thread of the event loop its calls raise WorkflowError, as nothing could answer them."""
        from astune.gateway.app import openai_app
        from astune.gateway.client import blocking_client, in_process_client

        token = self._token(name, trainable, source, policy)
        return blocking_client(openai_app(), token, self.wait) if sync else in_process_client(openai_app(), token)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, for a workflow that is not async: this blocks its thread meanwhile.

            state = tuner.wait(tuner.environment.step("left"))

        Raises:
            WorkflowError: called in the thread of the event loop, which would stand still for ever.
            RolloutError: the episode is over, or ended meanwhile.
        """
        try:
            if threading.get_ident() == self._thread:
                raise WorkflowError(
                    f"a call that blocks in the event loop's own thread, at {calling_line()}: nothing could answer it. "
                    "Await the async client there, or write the workflow as a plain `def`, which gets a thread"
                )
            if self._closed:
                raise self._over()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        self._awaited.add(future)
        if self._closed:  # while it was added
            future.cancel()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._over() from None
        finally:
            self._awaited.discard(future)

    def base_url(
        self,
        name: str = MAIN_AGENT,
        *,
        trainable: bool = True,
        source: str | None = None,
        policy: str | None = None,
    ) -> str:
        """The `base_url` of an endpoint on this machine that speaks OpenAI's API and Anthropic's. The API key does not
        matter.

        A client that gives up on a call cancels it. What OpenAI's and Anthropic's own clients send again is told from a
        new call; in others turn retries off, or a repeated call is a turn of its own.
        """
        from astune.gateway.server import http_server

        return f"{http_server().origin}/{self._token(name, trainable, source, policy)}/v1"

    async def chat(
        self,
        request: ChatRequest,
        *,
        name: str = MAIN_AGENT,
        trainable: bool = True,
        source: str | None = None,
        policy: str | None = None,
    ) -> ChatAnswer:
        """One model call, which everything above comes down to: `choices` with one answer."""
        return (await self.choices(request, name=name, trainable=trainable, source=source, policy=policy))[0]

    async def choices(
        self,
        request: ChatRequest,
        n: int = 1,
        *,
        name: str = MAIN_AGENT,
        trainable: bool = True,
        source: str | None = None,
        policy: str | None = None,
    ) -> list[ChatAnswer]:
        """`n` answers to one request, each a turn. From another event loop, in a thread of the agent's, it comes about
        on that of the episode.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            TooManyTurns: the episode has had its `max_turns` calls.
            TooManyTokens: the episode has sampled its `max_episode_tokens`.
            WorkflowError: the conversation cannot be rendered, or the auxiliary model does not take it.
            PolicyError: the engine or the auxiliary model failed.
            EnvServiceError: the episode's environment has failed before, so no answer can count any more.
            RolloutError: the episode is over.
        """
        if asyncio.get_running_loop() is not self._loop:
            there = self.choices(request, n, name=name, trainable=trainable, source=source, policy=policy)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there, self._loop))
        self._check_open()
        source = self._tracker.source_of(name, source, policy)
        if self._environment is not None:
            self._environment.check_service()
        for kind, where in find_broken_history(request.messages):
            self._notes.once(
                kind, f"{self.episode_id}, agent {name!r}: {where}. The model is shown such a history as it is"
            )
        note_host_tools(self._notes, self.episode_id, name, request.tools)
        request = self._texts.describe(request)
        self.tool_log.add_request(request.messages, request.tools)
        self.tool_log.check()
        met = [limit for limit in self._limits if limit[0] == name]
        call = self._loop.create_task(self._tracker.choices(name, request, n, trainable=trainable, source=source))
        self._calls.add(call)
        try:
            answers = await call
        except Exception as error:
            self._note_failure(name, error)
            raise
        finally:
            self._calls.discard(call)
        for answer in answers:
            self.tool_log.add_calls(answer.message)
            if answer.turn.unread:
                self.tool_log.add_unread(answer.message.get("content") or "")
        for limit in met:
            if limit in self._limits:  # a call beside this one may have found it
                self._limits.remove(limit)
                self.failures.remove(limit[1])
                self.recovered += 1
        return answers

    def _note_failure(self, name: str, error: Exception) -> None:
        """Keep the error of a call of agent `name`. One that met a limit says what the policy did, and counts no longer
        once the agent goes on, as after it has compressed its history. Those of engines and services stay: how an
        episode goes on behind them says nothing of the policy."""
        self.failures.append(error)
        if isinstance(error, ContextOverflow | TooManyTurns | TooManyTokens):
            self._limits.append((name, error))

    def reward(self, name: str, value: float) -> None:
        """Give the agent called `name` a reward of its own, in place of the episode's; several add up.

            tuner.reward("seller", price); tuner.reward("buyer", -price)

        The episode still needs a reward, the workflow's or the judge's: it is what curves show, and what agents
        without one of their own get.
        """
        self._check_reward(name, value)
        self.agent_rewards[name] = self._sum(name, self.agent_rewards.get(name, 0.0), value)

    def reward_turn(self, name: str, value: float, turn: int = -1) -> None:
        """Give one turn of the agent called `name` a reward on top, its last unless `turn` says otherwise (counted
        among its turns); several add up. It is credited to that turn and to those before it. Once an agent has
        such a reward, its other turns at the task count as 0."""
        mine = self._check_reward(name, value)
        if not -len(mine) <= turn < len(mine):
            raise WorkflowError(f"reward_turn({name!r}, turn={turn}): the agent has had {len(mine)} turns")
        number = mine[turn]
        self.turn_rewards[number] = self._sum(name, self.turn_rewards.get(number, 0.0), value)

    def _check_reward(self, name: str, value: float) -> list[int]:
        """The numbers of the agent's turns, if it has any and `value` is a reward."""
        if isinstance(value, bool) or figure(value) is None:
            raise WorkflowError(f"the reward of agent {name!r} is {show_value(value)}; expected a finite number")
        turns = self._tracker.turns
        known = sorted({turn.agent for turn in turns})
        if name not in known:
            raise WorkflowError(
                f"no agent called {name!r} has been answered in this episode.{nearest(name, known)} "
                f"There are: {', '.join(known) or 'none yet'}."
            )
        return [number for number, turn in enumerate(turns) if turn.agent == name]

    def _sum(self, name: str, before: float, value: float) -> float:
        if (total := figure(before + float(value))) is None:
            raise WorkflowError(f"the rewards of agent {name!r} add up to more than {LARGEST:g}")
        return total

    def close(self) -> None:
        """End the episode: calls and steps under way are cancelled, later ones are refused."""
        self._closed = True
        if self._environment is not None:
            self._environment.close()
        self.tools.close()
        for call in self._calls:
            call.cancel()
        for future in tuple(self._awaited):
            future.cancel()
        if self._tokens:
            from astune.gateway.app import openai_app

            for token in self._tokens.values():
                openai_app().remove(token)
            self._tokens.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise self._over()

    def _over(self) -> RolloutError:
        return RolloutError(f"episode {self.episode_id} is over: its models cannot be called any more")

    def _token(self, name: str, trainable: bool, source: str | None, policy: str | None) -> str:
        from astune.gateway.app import Endpoint, openai_app

        self._check_open()
        source = self._tracker.source_of(name, source, policy)
        key = (name, trainable, source)
        if key not in self._tokens:
            choices = partial(self.choices, name=name, trainable=trainable, source=source)

            def count(request: ChatRequest) -> Coroutine[Any, Any, int]:
                return self._tracker.count_tokens(name, self._texts.describe(request), source=source)

            def note(text: str) -> None:
                self._notes.once(text, f"{self.episode_id}, agent {name!r}: {text}")

            where = (self._loop, self._thread, self.episode_id, self._tracker.length_of(source))
            failed = partial(self._note_failure, name)
            endpoint = Endpoint(name, choices, count, self._tracker.format_of(source), *where, failed, note)
            self._tokens[key] = openai_app().add(endpoint)
        return self._tokens[key]
