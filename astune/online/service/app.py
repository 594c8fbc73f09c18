"""The web app of `astune online serve`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ContextOverflow, RolloutError, StoreError
from astune.gateway.anthropic_request import parse_count, parse_messages, user_of
from astune.gateway.api_request import write_answers
from astune.gateway.chat_completions import parse_chat_completion
from astune.gateway.http import (
    answer_error,
    anthropic_error_body,
    call_error,
    error_body,
    is_repeated,
    list_models,
    read_request,
    show_model,
    to_http_error,
)
from astune.gateway.responses import parse_response
from astune.gateway.responses_request import StoredResponses
from astune.online.comparing.page import answer_page
from astune.online.comparing.service import Comparisons
from astune.online.service.access import OPERATOR, AccessControl, TooManyRequests
from astune.online.service.callers import caller_of, check_name
from astune.online.service.chat import ChatService, Recordable, ServiceRequest
from astune.online.service.lookups import Lookups
from astune.online.service.metrics import ServiceMetrics
from astune.online.service.presence import Presence
from astune.online.service.readiness import Readiness
from astune.online.service.stored_responses import PREFIX, load_stored_responses, refers
from astune.online.service.submissions import REFUSED_REWARDS, Submissions
from astune.online.service.versions import ServedVersions
from astune.online.store.aliases import resolve
from astune.online.wire import (
    CHAT_PATH,
    COMMIT_PATH,
    COMPARE_PATH,
    COMPARISONS_PATH,
    FEEDBACK_PATH,
    HEALTH_PATH,
    READY_PATH,
    RECORDS_PATH,
    Status,
)
from astune.store.database import Database, reason
from astune.support.http.service import HttpError, answer_route, json_response, parse_json, unless_disconnected

logger = logging.getLogger(__name__)

CONVERSATION_ID_HEADER = "X-ASTune-Conversation-Id"
VERSION_HEADER = "X-ASTune-Version"
PIN_HEADER = "X-ASTune-Pin-Version"
RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = f"{MESSAGES_PATH}/count_tokens"
EVALUATIONS_PATH = "/v1/logs"
"""As OTLP has it."""
JAVA_WISHES = ("thinking_budget", "include_reasoning")
"""Options that AgentScope Java's client may send, and that say nothing to this model: how it reasons is set by
astune.model.chat_template_kwargs."""
STATUS_PATHS = (FEEDBACK_PATH, COMMIT_PATH, RECORDS_PATH)
"""Their clients read a `Status`: Trinity's takes it from an error, too."""
LATER = 1.0
"""Seconds after which to come back where nobody can say better."""


@dataclass(frozen=True)
class Parts:
    """The parts of the app."""

    model: str
    chat_format: ChatFormat
    database: Database
    versions: ServedVersions
    chat: ChatService
    submissions: Submissions
    access: AccessControl
    lookups: Lookups
    metrics: ServiceMetrics
    readiness: Readiness
    comparisons: Comparisons
    presence: Presence
    feedback_without_token: bool = False


class OnlineApp:
    """`asgi` is the application. Every error has OpenAI's shape, and Anthropic's where its clients ask."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._noted: set[str] = set()
        lookups = parts.lookups
        self.asgi = Starlette(
            routes=[
                self._route(CHAT_PATH, self._chat),
                self._route(RESPONSES_PATH, self._responses),
                self._route(MESSAGES_PATH, self._messages),
                self._route(COUNT_PATH, self._count_tokens),
                self._route(FEEDBACK_PATH, self._feedback, token=not parts.feedback_without_token),
                self._route(EVALUATIONS_PATH, self._evaluations),
                self._route(COMMIT_PATH, self._commit, token=not parts.feedback_without_token),
                self._route(RECORDS_PATH, self._record),
                self._route(COMPARE_PATH, self._compare, "GET", token=False),
                self._route(COMPARISONS_PATH, self._next_pair, "GET"),
                self._route(COMPARISONS_PATH, self._vote),
                self._route("/v1/models", self._models, "GET"),
                self._route("/v1/models/{model:path}", self._model, "GET"),
                self._route(HEALTH_PATH, self._health, "GET", token=False),
                self._route(READY_PATH, self._ready, "GET", token=False),
                self._route("/metrics", self._metrics, "GET"),
                self._route("/v1/astune/requests/{msg_id}", self._look_up(lookups.request), "GET"),
                self._route("/v1/astune/conversations/{conversation_id}", self._look_up(lookups.conversation), "GET"),
                self._route("/v1/astune/versions", self._look_up(lookups.versions), "GET"),
                self._route("/v1/astune/status", self._look_up(lookups.status), "GET"),
            ],
            exception_handlers={HTTPException: _unknown_url},
        )

    def _route(
        self,
        path: str,
        answer: Callable[[Request, str | None], Coroutine[Any, Any, Response]],
        method: str = "POST",
        *,
        token: bool = True,
    ) -> Route:
        """A route; with `token` a token is demanded if the service has any. Without a token the client is None."""

        async def check_and_answer(request: Request) -> Response:
            authorization, access = _authorization(request.headers), self._parts.access
            client = access.client(authorization) if token or authorization or not access.has_tokens else None
            with self._parts.metrics.request(path):
                if method == "GET":
                    return await answer(request, client)
                with access.enter(client or _peer(request)):
                    return await answer(request, client)

        return answer_route(path, check_and_answer, partial(self._answer_error, path), (method,))

    def _answer_error(self, path: str, raised: Exception) -> Response:
        """Answer an error as the clients of `path` read it, and count it."""
        error = to_http_error(_unless_away(raised))
        self._parts.metrics.errors.labels(error.code).inc()
        body = anthropic_error_body(error) if path in (MESSAGES_PATH, COUNT_PATH) else error_body(error)
        if path in STATUS_PATHS:
            body = Status(status="error", message=error.message).to_json() | body
        if error.code in REFUSED_REWARDS.values():
            self._note(
                f"rewards are refused, the first as {error.message}; {error.code} of /metrics counts them", error.code
            )
        headers = {"retry-after": str(round(LATER))} if error.status == 503 else {}
        if isinstance(error, TooManyRequests):
            headers = {"retry-after": str(error.seconds)}
        return json_response(body, error.status, headers)

    def refuse(self, refusal: HttpError) -> ASGIApp:
        """Answer a request that is not for programs."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer_error(scope["path"], refusal)(scope, receive, send)

        return answer

    async def _body(self, request: Request) -> object:
        """The body as JSON, None where it is empty."""
        try:
            body = await read_request(request, self._parts.versions.context_length)
        except ContextOverflow as error:
            raise call_error(error, None) from None
        return parse_json(body) if body.strip() else None

    async def _chat(self, request: Request, client: str | None) -> Response:
        body = await self._body(request)
        if isinstance(body, dict):
            for name in JAVA_WISHES:
                if body.pop(name, None) is not None:
                    self._note(f"{name} is ignored: see astune.model.chat_template_kwargs")
        parsed = parse_chat_completion(body)
        its = caller_of(request.headers, _field(body, "user"), client or "")
        return await self._answer(request, ServiceRequest(parsed, its, _model(body), "chatcmpl-"))

    async def _responses(self, request: Request, client: str | None) -> Response:
        body = await self._body(request)
        its = caller_of(request.headers, _field(body, "user"), client or "")
        stored = StoredResponses()
        if refers(body):
            load = partial(load_stored_responses, body=body, whose=its)
            stored = await asyncio.to_thread(self._parts.database.read, load)
        parsed = parse_response(body, stored)
        instructions = len(parsed.request.messages) - len(parsed.conversation) if parsed.store else None
        return await self._answer(request, ServiceRequest(parsed, its, _model(body), PREFIX, instructions))

    async def _messages(self, request: Request, client: str | None) -> Response:
        body = await self._body(request)
        its = caller_of(request.headers, user_of(body), client or "")
        return await self._answer(request, ServiceRequest(parse_messages(body), its, _model(body), "msg_"))

    async def _count_tokens(self, request: Request, client: str | None) -> Response:
        body = await self._body(request)
        its = caller_of(request.headers, user_of(body), client or "")
        parsed = parse_count(body)
        try:
            tokens = await self._parts.chat.count_tokens(parsed.request, its)
        except RolloutError as error:
            raise call_error(error, parsed.prompt_field) from error
        return json_response({"input_tokens": tokens})

    async def _answer(self, request: Request, asked: ServiceRequest) -> Response:
        parsed: Recordable = asked.parsed
        for note in parsed.notes:
            self._note(note)
        asked = replace(asked, retry=is_repeated(request), version=await self._version_asked_for(request, asked))
        work = asyncio.ensure_future(self._parts.chat.answer(asked))
        over = HttpError(503, "stopping", "the service is ending")
        try:
            answers, live = await unless_disconnected(request, work, over)
        except RolloutError as error:
            raise call_error(error, parsed.prompt_field) from error
        headers = {
            CONVERSATION_ID_HEADER: live.conversation_id,
            VERSION_HEADER: str(answers[0].turn.policy_version),
        }
        self._parts.metrics.count_answers(answers)
        return write_answers(parsed, answers, self._parts.chat_format, headers)

    async def _version_asked_for(self, request: Request, asked: ServiceRequest) -> int | None:
        """The version that an operator's header names. Raises HttpError: 403 for anybody else, 400 for no version."""
        name = request.headers.get(PIN_HEADER)
        if name is None:
            return None
        if not asked.whose.client.startswith(OPERATOR):
            message = f"{PIN_HEADER} is for those who have a token of astune.online.serve.operators"
            raise HttpError(403, "not_an_operator", message)
        try:
            version = await asyncio.to_thread(self._parts.database.read, lambda each: resolve(each, name))
            return version.number
        except StoreError as error:
            raise HttpError(400, "unknown_version", f"{PIN_HEADER}: {error}") from None

    def _note(self, text: str, kind: str | None = None) -> None:
        """Say once what a request asked for and did not get: this text, or the first of its kind."""
        if (kind or text) not in self._noted:
            self._noted.add(kind or text)
            logger.warning("%s", text)

    async def _feedback(self, request: Request, client: str | None) -> Response:
        status, outcome = await self._parts.submissions.feedback(await self._body(request), client)
        headers = {"X-Accepted": outcome.state, "X-Duplicate": str(outcome.duplicate).lower()}
        return json_response(status.to_json(), headers=headers)

    async def _evaluations(self, request: Request, client: str | None) -> Response:
        return json_response(await self._parts.submissions.evaluations(await self._body(request), client))

    async def _commit(self, request: Request, client: str | None) -> Response:
        status, number = await self._parts.submissions.commit(await self._body(request))
        return json_response(status.to_json(), headers={"X-Commit": str(number)})

    async def _record(self, request: Request, client: str | None) -> Response:
        status = await self._parts.submissions.record(await self._body(request), client or "")
        return json_response(status.to_json())

    async def _compare(self, request: Request, client: str | None) -> Response:
        return answer_page()

    async def _next_pair(self, request: Request, client: str | None) -> Response:
        return json_response(await self._parts.comparisons.next(request.query_params, client or ""))

    async def _vote(self, request: Request, client: str | None) -> Response:
        return json_response(await self._parts.comparisons.vote(await self._body(request), client or ""))

    async def _models(self, request: Request, client: str | None) -> Response:
        return list_models(self._parts.model)

    async def _model(self, request: Request, client: str | None) -> Response:
        return show_model(self._parts.model, request.path_params["model"])

    async def _health(self, request: Request, client: str | None) -> Response:
        """The process is there, which is all that a restart could fix; `ready` says what it can do."""
        failure = self._parts.submissions.failure
        state = {"state": "well"} if failure is None else {"state": "cannot write", "reason": failure}
        versions = self._parts.versions
        return json_response({**state, "version": versions.serving, **versions.trouble})

    async def _ready(self, request: Request, client: str | None) -> Response:
        if self._parts.presence.state == "draining":
            return json_response({"ready": False, "state": "draining"}, 503)
        look = await self._parts.readiness.look()
        body = {"ready": look.is_ready, "version": self._parts.versions.serving, **look.parts}
        return json_response(body, 200 if look.is_ready else 503)

    async def _metrics(self, request: Request, client: str | None) -> Response:
        held, totals = self._parts.versions.held, dict(self._parts.presence.totals)
        text = await asyncio.to_thread(self._parts.metrics.text, held, totals)
        return Response(text, media_type="text/plain; version=0.0.4")

    def _look_up(
        self, look: Callable[[Mapping[str, Any], str], object]
    ) -> Callable[[Request, str | None], Coroutine[Any, Any, Response]]:
        async def answer(request: Request, client: str | None) -> Response:
            # Written in the thread as well: a long conversation would keep all others waiting.
            return await asyncio.to_thread(lambda: json_response(look(request.path_params, client or "")))

        return answer


def _unless_away(raised: Exception) -> Exception:
    """The error, or where the database could not be read one that has clients come back."""
    if not isinstance(raised, (sa.exc.OperationalError, sa.exc.InterfaceError)):
        return raised
    logger.error("the store cannot be read: %s", reason(raised))
    return HttpError(503, "store_unavailable", "the store cannot be read now")


def _unknown_url(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path:.200}: {error.detail}"
    return answer_error(HttpError(error.status_code, "unknown_url", message), dict(error.headers or {}))


def _authorization(headers: Mapping[str, str]) -> str | None:
    """The token of a request, which clients of Anthropic may send under another name."""
    key = headers.get("x-api-key")
    return headers.get("authorization") or (None if key is None else f"Bearer {key}")


def _peer(request: Request) -> str:
    """The sender of a request without a token, for the limits."""
    return f"address {request.client.host}" if request.client else ""


def _field(body: object, name: str) -> object:
    return body.get(name) if isinstance(body, Mapping) else None


def _model(body: object) -> str:
    return check_name("model", _field(body, "model") or None) or ""
