"""`astune online serve` as a process: the parts put together, the socket, the polling, the end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.errors import ConfigError, StoreError
from astune.online.clock import SteadyClock, format_at
from astune.online.comparing.sampling import VersionSampler
from astune.online.comparing.service import Comparisons
from astune.online.place import online_folder, store_url
from astune.online.redaction import Redactor
from astune.online.service.access import AccessControl, read_tokens
from astune.online.service.app import OnlineApp, Parts
from astune.online.service.chat import MOST_CALLS, ChatService, new_token
from astune.online.service.conversations import LiveConversations, MakeTracker
from astune.online.service.lookups import Lookups
from astune.online.service.metrics import ServiceMetrics
from astune.online.service.presence import Presence
from astune.online.service.readiness import Readiness
from astune.online.service.submissions import Submissions
from astune.online.service.versions import ConversationPolicy, LoadVersion, ServedVersions
from astune.online.store.versions import ModelVersion, register
from astune.online.telemetry import Telemetry
from astune.online.wire import COMPARE_PATH, COMPARISONS_PATH
from astune.store import open_database
from astune.store.database import Database, show_url
from astune.store.writer import Writer
from astune.support.http.browser_requests import Guarded
from astune.support.http.serving import claim_address, serve_until_signal, server_config, url_of
from astune.support.short_pauses import short_pauses
from astune.types import Sampling
from astune.version import __version__

logger = logging.getLogger(__name__)

GRACE_SECONDS = 20
"""How long requests under way may go on when the service ends."""
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep a connection that they do not use, so that it is they who close it."""


def new_conversation_id() -> str:
    return f"c-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Model:
    """The served model: its name and chat format, a loader of its versions, and version 0."""

    name: str
    chat_format: ChatFormat
    load: LoadVersion
    configured: ModelVersion


class OnlineService:
    """The service without a socket: `app.asgi` answers, and `guarded` what comes over a network. To be
    closed; `poll` looks for a newer version.

    Raises:
        ConfigError: tokens that are missing, or conversations that a run would cut.
        StoreError: the database cannot be used.
        ModelError: the model cannot be loaded.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        *,
        clock: Callable[[], float] | None = None,
        token: Callable[[], str] = new_token,
        new_id: Callable[[], str] = new_conversation_id,
    ) -> None:
        clock = clock or SteadyClock()
        astune = config.astune
        online, serve = astune.online, astune.online.serve
        if (strategy := astune.rollout.context.strategy) != "none":
            raise ConfigError(
                f"astune.rollout.context.strategy: got {strategy!r}, but `astune online` answers conversations as they "
                "are; take the key out"
            )
        access = AccessControl(serve, read_tokens(serve), time.monotonic)
        redactor = Redactor.of(online.redact)
        self.telemetry = Telemetry(online.telemetry, model.name)
        self.database = open_database(store_url(config))
        with self.database.writing() as connection:
            register(connection, model.configured)
        self.presence = Presence(self.database, clock, at_once=serve.update_at_once, slow=serve.slow_seconds)
        may_load, most = self.presence.may_load, serve.most_versions
        self.versions = ServedVersions(self.database, model.load, most, serve.pin_seconds, may_load=may_load)
        self.versions.open()
        tracker = _tracker_maker(config, model, self.versions)
        live = LiveConversations(self.database, tracker, most=serve.max_conversations, new_id=new_id)
        self.writer = Writer(self.database)
        parts_of_chat = (live, self.writer, redactor, self.versions, self.presence)
        chat = ChatService(*parts_of_chat, clock=clock, token=token, telemetry=self.telemetry)
        parts = Parts(
            model.name,
            model.chat_format,
            self.database,
            self.versions,
            chat,
            Submissions(self.writer, online.feedback, redactor, clock, self.telemetry),
            access,
            Lookups(self.database, self.versions, time.monotonic),
            self._metrics(access, live, redactor),
            Readiness(self.writer, self.versions, *_places(online_folder(config), self.database)),
            Comparisons(self.writer, self.database, astune, redactor, VersionSampler(chat, self.database), clock),
            self.presence,
            serve.feedback_without_token,
        )
        self.app = OnlineApp(parts)
        self.guarded = Guarded(
            self.telemetry.remember_parent(self.app.asgi),
            self.app.refuse,
            any_name=access.has_tokens,
            hosts=serve.hosts,
            own_pages=(COMPARISONS_PATH,),
            advice="ask for it by its address, or name that in astune.online.serve.hosts",
        )
        """`app` as it is served, for programs alone."""

    def _metrics(self, access: AccessControl, live: LiveConversations, redactor: Redactor) -> ServiceMetrics:
        metrics = ServiceMetrics(self.database, time.monotonic)
        metrics.gauge("astune_requests_under_way", "Requests under way.", lambda: access.under_way)
        metrics.gauge("astune_conversations", "Conversations in memory.", lambda: len(live))
        metrics.gauge("astune_version_answering", "Version of the model that answers.", lambda: self.versions.serving)
        metrics.gauge(
            "astune_version_not_served",
            "The champion, where it cannot be loaded.",
            lambda: self.versions.not_served or 0,
        )
        metrics.gauge("astune_redactions", "Texts that redaction changed.", lambda: redactor.changes)
        metrics.gauge("astune_redaction_failures", "Texts that it failed on.", lambda: redactor.failures)
        metrics.gauge("astune_version_failures", "Times one could not be loaded.", lambda: self.versions.failures)
        return metrics

    async def poll(self) -> None:
        """Load what is to answer now, and tell the store what was counted and what is in memory."""
        try:
            await self.versions.poll()
        finally:
            await asyncio.to_thread(self.presence.report, self.versions.held)

    async def poll_forever(self, seconds: float) -> None:
        while True:
            try:
                await self.poll()
            except Exception as error:  # the store is away for a while: what answers goes on
                logger.error("no look for a new version: %s", error)
            await asyncio.sleep(seconds)

    def drain(self, seconds: float) -> float:
        """Be ready no more; return for how long to answer all the same: others have to learn of it first, if there are
        any."""
        self.presence.state = "draining"
        return seconds if self.presence.others else 0.0

    def close(self) -> None:
        """Write what was taken, then close the database."""
        self.writer.close()
        try:
            self.presence.leave()
        except (StoreError, sa.exc.SQLAlchemyError) as error:
            logger.error("the last counts could not be written: %s", error)
        self.database.close()
        self.telemetry.close()


def serve(config: Config, model: Model, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Requests under way may end; `ready` is told the address."""
    asyncio.run(_serve(config, model, ready))


async def _serve(config: Config, model: Model, ready: Callable[[str], None]) -> None:
    settings = config.astune.online.serve
    listener = claim_address(settings.host, settings.port, "astune.online.serve.port=0 takes a free one")
    with contextlib.closing(listener), contextlib.closing(OnlineService(config, model)) as service:
        served = server_config(
            service.guarded, timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS
        )
        service.presence.url = url_of(settings.host, listener)
        polling = asyncio.create_task(service.poll_forever(settings.poll_seconds))
        try:
            with short_pauses():
                await serve_until_signal(
                    served,
                    listener,
                    lambda: ready(url_of(settings.host, listener)),
                    drain=lambda: service.drain(settings.drain_seconds),
                )
        finally:
            polling.cancel()


def banner(config: Config, model: Model, url: str) -> list[str]:
    """The lines that are printed when the service is ready."""
    tokens = ", ".join(config.astune.online.serve.tokens)
    return [
        f"serves    {model.name} at {url}/v1, OpenAI-compatible",
        f"store     {show_url(store_url(config))}",
        f"access    {f'tokens asked for: {tokens}' if tokens else 'this machine alone, without tokens'}",
        f'feedback  POST {url}/feedback {{"msg_ids": ["chatcmpl-..."], "reward": 1.0}}',
        f"compare   {url}{COMPARE_PATH} shows people two answers",
        f"astune    {__version__}",
    ]


def _places(folder: Path, database: Database) -> tuple[set[Path], Path | None]:
    """Folders that need room, and the file of a SQLite database."""
    name = str(database.url.database)
    if not database.is_sqlite or name.startswith("file:"):
        return {folder}, None
    file = Path(name).absolute()
    return {folder, file.parent}, file


def _tracker_maker(config: Config, model: Model, versions: ServedVersions) -> MakeTracker:
    rollout = config.astune.rollout
    sampling = Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k)

    def tracker(conversation_id: str, began: float) -> ContextTracker:
        chat_format = format_at(model.chat_format, config.astune.model, began)
        seed = _seed(config.astune.seed, conversation_id)
        return ContextTracker(ConversationPolicy(versions), chat_format, sampling, max_turns=MOST_CALLS, seed=seed)

    return tracker


def _seed(seed: int, conversation_id: str) -> int:
    """One for each conversation, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{conversation_id}".encode(), digest_size=8).digest(), "big") >> 1
