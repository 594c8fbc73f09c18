"""`TrainingRunner`: plays requests of a deployed agent again with the model that is trained, and reports their rewards.

Production is never touched: a request is copied after it was answered, and everything else happens in the background.
Errors here are counted.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from astune.errors import OnlineError
from astune.online.agent.client import OnlineClient, ServiceError, endpoint_of
from astune.online.agent.counts import RunnerCounts, RunnerStats
from astune.online.agent.functions import play_of, request_of, wrap_function
from astune.online.agent.outbox import Outbox
from astune.online.agent.selection import RequestContext, SamplingRateStrategy, SelectionStrategy, take_mark
from astune.online.agent.shadow import Clients, Play, Request, ShadowRun, as_shadow, shadow_run
from astune.online.agent.spool import Spool
from astune.online.agent.writes import RecordedTool, WriteGuard, check_policy
from astune.online.wire import FEEDBACK_PATH, Feedback

logger = logging.getLogger(__name__)

Reward = float | Mapping[str, float] | None
RewardFunction = Callable[[ShadowRun], Reward | Awaitable[Reward]]
_CLOSING_SECONDS = 5.0
Job = tuple[Request, Play, int]


@dataclass
class _Session:
    """The state of a runner between start and end. `jobs` are runs that wait."""

    loop: asyncio.AbstractEventLoop
    client: OnlineClient
    clients: Clients
    outbox: Outbox
    jobs: asyncio.Queue[Job]
    attempts: Counter[Request] = field(default_factory=Counter)
    """Runs of each request that have not ended."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    busy: dict[asyncio.Task[None] | None, anyio.CancelScope] = field(default_factory=dict)
    open: bool = True
    ended: bool = False
    committed: int = 0
    """Rewards that were sent before the last commit."""


class TrainingRunner:
    """Selected requests of a deployed agent are played again in the background by a clone of the agent with the trained
    model. `reward(run)` says what each run was worth, and the service learns from it.

        runner = TrainingRunner("http://127.0.0.1:8010", "policy", reward=score, strategy=SamplingRateStrategy(0.1))
        async with runner:
            runner.watch(agent)
            ...                     # production goes on as ever

    - `strategy` selects requests; each is played `repeat_time` times, as runs "0", "1", ... of one task, so that they
      can be compared with each other; what they earned is sent once all have ended: a commit before finds none of it.
    - `reward(run)`, sync or async, returns a number, named numbers that add up, or None for "cannot tell".
    - `pool_size` runs at most are under way, `capacity` at most wait; a request that finds no room is dropped. A run,
      its reward included, ends after `timeout` seconds.
    - `writes` says what a tool call does in a shadow unless it only reads: "recorded" gives it the result that the same
      call had in production and refuses others, "refuse" refuses all, and a sandbox (tools of the same names: a toolkit
      of AgentScope, a mapping of functions, or a function that makes one for each run) is called instead. Tools that
      only read are those marked by `read_only`, those that AgentScope 2.x knows as such, and those named in
      `read_only`.
    - `sampling` goes with every request of an AgentScope clone, as `{"temperature": 1.0, "max_tokens": 512}`.
    - A commit is asked for every `commit_interval` seconds in which rewards were sent (0: never) and at the end.
    - `spool` is a folder for rewards that are not sent yet: what a crash leaves there is sent by the next run.

    It lives in the event loop that started it; `with` instead of `async with` gives it one of its own, in a thread, for
    programs without. Requests may come from any thread.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        *,
        reward: RewardFunction,
        strategy: SelectionStrategy | None = None,
        commit_interval: float = 300.0,
        repeat_time: int = 1,
        pool_size: int = 8,
        capacity: int = 1000,
        timeout: float = 300.0,
        writes: Any = "recorded",
        read_only: Collection[str] = (),
        sampling: Mapping[str, Any] | None = None,
        token: str | None = None,
        spool: str | Path | None = None,
    ) -> None:
        for name, value in (("repeat_time", repeat_time), ("pool_size", pool_size), ("capacity", capacity)):
            if not isinstance(value, int) or value < 1:
                raise OnlineError(f"TrainingRunner: {name} must be a whole number of at least 1, got {value!r}")
        if repeat_time > capacity:
            raise OnlineError(f"TrainingRunner: repeat_time {repeat_time} is above capacity {capacity}")
        if not timeout > 0:
            raise OnlineError(f"TrainingRunner: timeout must be a number of seconds above 0, got {timeout!r}")
        if not callable(reward):
            raise OnlineError(f"TrainingRunner: reward must be a function of the shadow run, got {reward!r}")
        check_policy(writes)
        self.endpoint, self.model, self.token = endpoint_of(endpoint), model, token
        self.writes, self.read_only, self.sampling = writes, frozenset(read_only), dict(sampling or {})
        self._strategy = strategy or SamplingRateStrategy(0.1)
        self._reward = reward
        self._interval, self._repeat, self._pool, self._capacity = commit_interval, repeat_time, pool_size, capacity
        self._timeout = timeout
        self._spool = Spool(Path(spool)) if spool is not None else None
        self._counts = RunnerCounts()
        self._counting = threading.Lock()
        """For requests, which come from any thread; everything else is counted in the loop's thread."""
        self._session: _Session | None = None
        self._portal: AbstractContextManager[BlockingPortal] | None = None

    async def start(self) -> None:
        """Raises OnlineError: it was started before. A new runner takes over the spool of an old one."""
        if self._session is not None:
            raise OnlineError("this TrainingRunner was started before; make a new one")
        client = OnlineClient(self.endpoint, token=self.token, timeout=self._timeout)
        outbox = Outbox(client, self._spool)
        clients = Clients(self.endpoint, self.token, self._timeout)
        session = _Session(asyncio.get_running_loop(), client, clients, outbox, asyncio.Queue(self._capacity))
        outbox.start()
        session.tasks = [asyncio.create_task(self._work(session), name=f"astune-shadow-{n}") for n in range(self._pool)]
        if self._interval > 0:
            session.tasks.append(asyncio.create_task(self._commit_regularly(session), name="astune-commit"))
        self._session = session

    async def stop(self, seconds: float = 60.0) -> None:
        """Take no more requests; finish the runs, then send the rewards, for at most `seconds` each. Runs that are left
        are counted as unplayed; rewards that are left stay in the spool, or are lost and counted."""
        session = self._session
        if session is None or not session.open:
            return
        session.open = False
        try:
            with anyio.move_on_after(seconds):
                await session.jobs.join()
        finally:
            session.ended = True
            self._counts.unplayed += session.jobs.qsize()
            while not session.jobs.empty():
                session.jobs.get_nowait()
            for task in session.tasks:
                # AgentScope takes a task's cancellation for an interruption by the user, and goes on. A scope insists.
                end = session.busy[task].cancel if task in session.busy else task.cancel
                end()
            await asyncio.wait(session.tasks, timeout=_CLOSING_SECONDS)
            await session.outbox.close(seconds)
            with anyio.move_on_after(seconds):
                await self._commit(session)
            await session.client.close()
            logger.info("online training: %s", self.stats())

    async def __aenter__(self) -> TrainingRunner:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def __enter__(self) -> TrainingRunner:
        self._portal = start_blocking_portal()
        self._portal.__enter__().call(self.start)
        return self

    def __exit__(self, *exc_info: object) -> None:
        session, portal = self._session, self._portal
        assert session is not None and portal is not None  # __enter__ made them
        asyncio.run_coroutine_threadsafe(self.stop(), session.loop).result()
        portal.__exit__(None, None, None)

    def watch(self, agent: Any, *, clone: Callable[[Any], Any] | None = None, middlewares: Any = None) -> Any:
        """Tell this runner of the requests of an AgentScope agent (`Agent` of 2.x, `ReActAgent` of 1.x); returns it.

        `clone(model)` makes an agent for a shadow run where the agent's class is not AgentScope's own, or where it has
        what a shadow must not share (a long-term memory, a plan): with fresh state, on `model`. `middlewares` are those
        of 2.x that a shadow has too; an agent with any needs it said, `[]` for none.

        Raises:
            OnlineError: the agent cannot be cloned without them, or is none of AgentScope's.
        """
        from astune.online.agent.agentscope import watch_agent

        watch_agent(self, agent, clone=clone, middlewares=middlewares)
        return agent

    def wrap(self, function: Callable[..., Any], *, client: Any) -> Callable[..., Any]:
        """`function(client, ...)` without its first argument, for production to call. The trained model's client takes
        its place in shadow runs: an `AsyncOpenAI` if the function is async, else an `OpenAI` (in a thread). Tools that
        write belong into `shadow_safe`."""
        return wrap_function(self, function, client)

    def observe(
        self, inputs: Any, output: Any, run: Callable[[Any], Any], *, tool_calls: Iterable[RecordedTool] = ()
    ) -> None:
        """Tell of a request that production has answered. `run(client)` answers it again, as often as it is called,
        from a copy of its inputs. `tool_calls` are those that `shadow_safe` tools may be answered from. It
        raises nothing."""
        try:
            context = self.select_request(None, inputs, output)
            if context is not None:
                held = copy.deepcopy((inputs, output))
                self.offer(request_of(*held, context, list(tool_calls)), play_of(run))
        except Exception as error:  # production goes on, whatever its values do when they are copied
            self.report_error(error)

    def select_request(self, agent: Any, inputs: Any, output: Any) -> RequestContext | None:
        """Ask the strategy whether to play a request again: its context if so, else None. Never raises."""
        if shadow_run() is not None:
            return None
        try:
            context = take_mark()
            with self._counting:
                self._counts.requests += 1
            if not self._strategy.should_select(agent, inputs, output, context):
                return None
        except Exception as error:  # a strategy's fault is not production's
            self.report_error(error)
            return None
        with self._counting:
            self._counts.selected += 1
        return context

    def skip(self, why: str) -> None:
        self._counts.skipped.add(why)

    def report_error(self, error: Exception) -> None:
        self._counts.trouble.add(error)
        if self._counts.trouble.counts[type(error).__name__] == 1:
            logger.warning("a request is not played again, and production went on", exc_info=error)

    def offer(self, request: Request, play: Play) -> None:
        """Queue the runs of a request, all or none."""
        session = self._session
        if session is None or not session.open:
            self._counts.dropped += 1
            return
        if asyncio._get_running_loop() is session.loop:
            self._queue(session, request, play)
            return
        try:
            session.loop.call_soon_threadsafe(self._queue, session, request, play)
        except RuntimeError:  # the loop was closed, without stop()
            self._counts.dropped += 1

    def _queue(self, session: _Session, request: Request, play: Play) -> None:
        if not session.open or session.jobs.qsize() + self._repeat > self._capacity:
            self._counts.dropped += 1
            return
        self._counts.runs += self._repeat
        session.attempts[request] = self._repeat
        for number in range(self._repeat):
            session.jobs.put_nowait((request, play, number))

    async def _work(self, session: _Session) -> None:
        while not session.ended:
            request, play, number = await session.jobs.get()
            self._counts.under_way += 1
            try:
                await self._run(session, request, play, number)
            except Exception as error:  # a run's fault is data, whatever it is
                self._counts.failed.add(error)
                logger.debug("a shadow run failed", exc_info=error)
            except asyncio.CancelledError:
                self._counts.unplayed += 1
                raise
            finally:
                self._counts.under_way -= 1
                session.attempts[request] -= 1
                if not session.attempts[request]:
                    del session.attempts[request]
                    session.outbox.release(request)
                session.jobs.task_done()

    async def _run(self, session: _Session, request: Request, play: Play, number: int) -> None:
        held = copy.deepcopy((request.inputs, request.output))
        guard = WriteGuard(self.writes, self.read_only, request.recorded)
        shadow = ShadowRun(
            task_id=request.task_id,
            run_id=str(number),
            model=self.model,
            inputs=held[0],
            output=held[1],
            context=request.context,
            guard=guard,
            clients=session.clients,
            sampling=self.sampling,
        )
        reward: Reward = None
        try:
            with anyio.move_on_after(self._timeout) as limit, as_shadow(shadow):
                session.busy[asyncio.current_task()] = limit
                shadow.result = await play(shadow)
                if shadow.msg_ids:
                    reward = await self._reward_of(shadow)
        finally:
            with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                await shadow.close()
            for use in guard.uses:
                self._counts.tool_calls.add(use.decision)
            del session.busy[asyncio.current_task()]
        if limit.cancel_called and session.ended:
            self._counts.unplayed += 1
        elif limit.cancel_called:  # whatever came of it
            self._counts.timed_out += 1
        elif not shadow.msg_ids:
            self._counts.without_replies += 1
        elif reward is None:
            self._counts.unrewarded += 1
        else:
            await session.outbox.add(FEEDBACK_PATH, _feedback(shadow, reward), held_for=request)
            self._counts.rewarded += 1

    async def _reward_of(self, shadow: ShadowRun) -> Reward:
        """Compute the reward of a run, in a thread if the function is not async, as it may block."""
        if inspect.iscoroutinefunction(self._reward):
            reward: Any = await self._reward(shadow)
        else:
            reward = await anyio.to_thread.run_sync(self._reward, shadow, abandon_on_cancel=True)
            reward = await reward if inspect.isawaitable(reward) else reward
        return reward  # type: ignore[no-any-return]  # checked by _feedback

    async def _commit_regularly(self, session: _Session) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._commit(session)

    async def _commit(self, session: _Session) -> None:
        """Ask for a commit, if there are rewards that no commit has seen."""
        if session.outbox.sent == session.committed:
            return
        sent = session.outbox.sent
        try:
            await session.client.commit()
        except ServiceError as error:  # the next commit takes all of it
            self._counts.commits_failed.add(error)
            logger.warning("the commit failed: %s", error)
            return
        session.committed = sent
        self._counts.commits += 1

    def stats(self) -> RunnerStats:
        session = self._session
        if session is None:
            return self._counts.stats(queued=0, outbox=None)
        return self._counts.stats(queued=session.jobs.qsize(), outbox=session.outbox)


def _feedback(shadow: ShadowRun, reward: Reward) -> Feedback:
    """The body with a run's reward. Raises OnlineError for a value that is no reward."""
    said: dict[str, Any] = {"msg_ids": shadow.msg_ids, "task_id": shadow.task_id, "run_id": shadow.run_id}
    named_ones = reward if isinstance(reward, Mapping) else {"reward": reward}
    for name, value in named_ones.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise OnlineError(f"the reward function returned {reward!r:.200}; {name!r} must be a finite number")
    if isinstance(reward, Mapping):
        return Feedback(rewards={str(name): float(value) for name, value in reward.items()}, **said)
    return Feedback(reward=float(reward), **said)  # type: ignore[arg-type]  # checked above
