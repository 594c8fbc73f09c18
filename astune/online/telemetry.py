"""OpenTelemetry out: requests as spans, feedback and verdicts as log events, by its semantic conventions `gen_ai.*`.

Which version spoke stands in each span, as `gen_ai.response.model: NAME@v7`. No message of anybody is sent. Where the
collector is away, figures are lost and nothing waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from astune.context_tracker.tracker import ChatAnswer
from astune.errors import ConfigError, explain_missing
from astune.online.store.feedback.rows import JUDGE
from astune.online.store.feedback.states import NewFeedback
from astune.support.http.service import HttpError
from astune.version import __version__

EVALUATION = "gen_ai.evaluation.result"
KIND = "astune.feedback.kind"
"""Stands in events of this service alone: feedback that comes back with it was known before."""
NANOSECONDS = 1e9
FLUSH_MILLISECONDS = 5000
_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


class AskedChat(Protocol):
    """A request as it was read: the model as asked for, and how the id of the reply begins."""

    @property
    def model(self) -> str: ...

    @property
    def kind(self) -> str: ...


class Telemetry:
    """Sends to the collector of `endpoint`; without one it sends nothing. Raises MissingDependency, ConfigError."""

    def __init__(self, endpoint: str | None, model: str = "astune") -> None:
        self.is_on, self._model = endpoint is not None, model
        if endpoint is None:
            return
        with explain_missing("astune.online.telemetry", "'astune[telemetry]'"):
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        address = endpoint.rstrip("/")
        if address.endswith(("/v1/traces", "/v1/logs")):
            raise ConfigError(
                f"astune.online.telemetry: {endpoint}: leave /v1/... out; spans and events have their own"
            )
        its = Resource.create({"service.name": "astune", "service.version": __version__})
        self._traces, self._logs = TracerProvider(resource=its), LoggerProvider(resource=its)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{address}/v1/traces")))
        self._logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{address}/v1/logs")))
        self._tracer, self._logger = self._traces.get_tracer("astune"), self._logs.get_logger("astune")

    def answer(self, asked: AskedChat, conversation: str, answers: Sequence[ChatAnswer], began: float) -> None:
        """Send the span of a request that was answered."""
        version = answers[0].turn.policy_version
        said = {
            "gen_ai.response.id": f"{asked.kind}{answers[0].answer_id}",
            "gen_ai.response.model": f"{self._model}@v{version}",
            "gen_ai.response.finish_reasons": [each.turn.finish_reason for each in answers],
            "gen_ai.conversation.id": conversation,
            "gen_ai.usage.input_tokens": answers[0].prompt_tokens,
            "gen_ai.usage.output_tokens": sum(each.completion_tokens for each in answers),
            "astune.version": version,
        }
        self._span(asked, began, said, None)

    def fail(self, asked: AskedChat, error: BaseException, began: float) -> None:
        """Send the span of a request that was not answered."""
        kind = error.code if isinstance(error, HttpError) else type(error).__name__
        self._span(asked, began, {"error.type": kind}, kind)

    def _span(self, asked: AskedChat, began: float, said: Mapping[str, Any], error: str | None) -> None:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = _traceparent.get()
        context = None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})
        named = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "astune", "gen_ai.request.model": asked.model}
        span = self._tracer.start_span(
            f"chat {asked.model or self._model}",
            context,
            SpanKind.SERVER,
            {**named, **said},
            start_time=int(began * NANOSECONDS),
        )
        if error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end(int(time.time() * NANOSECONDS))

    def evaluate(self, new: NewFeedback) -> None:
        """Send an event for each score on each answer: of a person, or of a judge."""
        if not self.is_on:
            return
        judge = new.author.removeprefix(JUDGE) if new.author.startswith(JUDGE) else None
        for part in new.parts:
            for msg_id in new.msg_ids if part.value is not None else ():
                said = {
                    "gen_ai.evaluation.name": part.name,
                    "gen_ai.evaluation.score.value": part.value,
                    "gen_ai.response.id": msg_id,
                    KIND: part.kind if judge is None else "judge",
                }
                if new.comment is not None:
                    said["gen_ai.evaluation.explanation"] = new.comment
                now = int(new.received * NANOSECONDS)
                self._logger.emit(timestamp=now, event_name=EVALUATION, attributes=said)

    def remember_parent(self, app: ASGIApp) -> ASGIApp:
        """The app, whose requests' spans become parts of the traces that they come in."""
        if not self.is_on:
            return app

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            found = dict(scope.get("headers", ())).get(b"traceparent")
            _traceparent.set(None if found is None else found.decode("latin-1"))
            await app(scope, receive, send)

        return answer

    def close(self) -> None:
        """Send what is left."""
        if self.is_on:
            self._traces.force_flush(FLUSH_MILLISECONDS)
            self._logs.force_flush(FLUSH_MILLISECONDS)
            self._traces.shutdown()
            self._logs.shutdown()
