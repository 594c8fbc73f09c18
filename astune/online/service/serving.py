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

from astune import __version__
from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.errors import ConfigError
from astune.online.place import store_url
from astune.online.redaction import Redactor
from astune.online.service.app import OnlineApp, Parts
from astune.online.service.chat import MOST_CALLS, Answering, new_token
from astune.online.service.conversations import LiveConversations
from astune.online.service.doors import Doors, read_tokens
from astune.online.service.lookups import Lookups
from astune.online.service.metrics import ServiceMetrics
from astune.online.service.taking import Taking
from astune.online.service.versions import ConversationPolicy, LoadVersion, ServedVersions
from astune.store import open_database
from astune.store.database import shown
from astune.store.versions import ModelVersion, register
from astune.store.writer import Writer
from astune.support.serving import bound_socket, serve_until_signal, server_config, url_of
from astune.support.short_pauses import short_pauses
from astune.types import Sampling

logger = logging.getLogger(__name__)

GRACE_SECONDS = 20
"""How long requests under way may go on when the service ends."""
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep a connection that they do not use, so that it is they who close it."""


def new_conversation_id() -> str:
    return f"c-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Model:
    """What answers: how to load a version of it, how it writes chats, and what version 0 is."""

    name: str
    chat_format: ChatFormat
    load: LoadVersion
    configured: ModelVersion


class OnlineService:
    """The service without a socket: `app.asgi` answers. To be closed; `poll` looks for a newer version.

    Raises:
        ConfigError: tokens that are missing.
        StoreError: the database cannot be used.
        ModelError: the model cannot be loaded.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        *,
        clock: Callable[[], float] = time.time,
        token: Callable[[], str] = new_token,
        new_id: Callable[[], str] = new_conversation_id,
    ) -> None:
        astune = config.astune
        online, serve = astune.online, astune.online.serve
        doors = Doors(serve, read_tokens(serve), clock)
        redactor = Redactor.of(online.redact)
        self.database = open_database(store_url(config))
        with self.database.writing() as connection:
            register(connection, model.configured)
        self.versions = ServedVersions(self.database, model.load, clock)
        self.versions.open()
        sampling = Sampling(
            astune.rollout.max_tokens, astune.rollout.temperature, astune.rollout.top_p, astune.rollout.top_k
        )

        def tracker(conversation_id: str) -> ContextTracker:
            policy = ConversationPolicy(self.versions, conversation_id)
            seed = _seed(astune.seed, conversation_id)
            return ContextTracker(policy, model.chat_format, sampling, max_turns=MOST_CALLS, seed=seed)

        live = LiveConversations(self.database, tracker, most=serve.max_conversations, new_id=new_id)
        self.writer = Writer(self.database)
        metrics = ServiceMetrics(self.database, clock)
        metrics.gauge("astune_requests_under_way", "Requests under way.", lambda: doors.under_way)
        metrics.gauge("astune_conversations", "Conversations in memory.", lambda: len(live))
        metrics.gauge("astune_version", "Version of the model that answers.", lambda: self.versions.newest)
        metrics.gauge("astune_redactions", "Texts that redaction changed.", lambda: redactor.changes)
        metrics.gauge("astune_redaction_failures", "Texts that it failed on.", lambda: redactor.failures)
        metrics.gauge("astune_version_failures", "Times one could not be loaded.", lambda: self.versions.failures)
        parts = Parts(
            model.name,
            model.chat_format,
            self.database,
            self.versions,
            Answering(live, self.writer, redactor, clock=clock, token=token),
            Taking(self.writer, online.feedback, redactor, clock),
            doors,
            Lookups(self.database, self.versions, clock),
            metrics,
            serve.feedback_without_token,
        )
        self.app = OnlineApp(parts)

    async def poll_forever(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.versions.poll()
            except Exception as error:  # the store is away for a while: what answers goes on
                logger.error("no look for a new version: %s", error)

    def close(self) -> None:
        """Write what was taken, then close the database."""
        self.writer.close()
        self.database.close()


def serve(config: Config, model: Model, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Requests under way may end; `ready` is told the address."""
    asyncio.run(_serve(config, model, ready))


async def _serve(config: Config, model: Model, ready: Callable[[str], None]) -> None:
    settings = config.astune.online.serve
    try:
        listener = bound_socket(settings.host, settings.port)
    except OSError as error:
        told = error.strerror or error
        raise ConfigError(
            f"cannot serve at {settings.host}:{settings.port}: {told}; astune.online.serve.port=0 takes a free one"
        ) from error
    with contextlib.closing(listener), contextlib.closing(OnlineService(config, model)) as service:
        served = server_config(
            service.app.asgi, timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS
        )
        polling = asyncio.create_task(service.poll_forever(settings.poll_seconds))
        try:
            with short_pauses():
                await serve_until_signal(served, listener, lambda: ready(url_of(settings.host, listener)))
        finally:
            polling.cancel()


def banner(config: Config, model: Model, url: str) -> list[str]:
    """What is said when the service is ready, line by line."""
    tokens = ", ".join(config.astune.online.serve.tokens)
    return [
        f"serves   {model.name} at {url}/v1, OpenAI-compatible",
        f"store    {shown(store_url(config))}",
        f"tokens   {f'asked for: {tokens}' if tokens else 'none: this machine alone can come in'}",
        f'feedback POST {url}/feedback {{"msg_ids": ["chatcmpl-..."], "reward": 1.0}}',
        f"astune   {__version__}",
    ]


def _seed(seed: int, conversation_id: str) -> int:
    """One for each conversation, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{conversation_id}".encode(), digest_size=8).digest(), "big") >> 1
