"""One conversation of a user with an agent, as each kind of source has it: written by AgentScope, its agent service,
OpenTelemetry's exporter, the online service's store, and a chat log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.states import FeedbackPart, NewFeedback, add
from astune.online.store.requests import RecordedRequest, RecordedTurn, TurnPlace, record
from astune.store.database import open_database
from astune.testing.chat_server import ScriptedChatServer, chat_completion
from astune.types import Turn

CALL = {"id": "c1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "4*3"}'}}
SYSTEM = {"role": "system", "content": "You solve."}
ASKED = ("What is 4*3? Write to ana@x.org", "And 4*4?", "And 4*5?", "That is wrong.")
SAID = ("It is 12.", "It is 17.", "It is 21.", "It is 20.")
SCHEMA = {
    "name": "calculate",
    "description": "Work out.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


def told() -> list[dict[str, Any]]:
    """All that is said: a tool is used, and of the third answer the user complains."""
    messages: list[dict[str, Any]] = [SYSTEM]
    for number, (asked, said) in enumerate(zip(ASKED, SAID, strict=True)):
        messages.append({"role": "user", "content": asked})
        if not number:
            messages.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
            messages.append({"role": "tool", "tool_call_id": "c1", "content": "12"})
        messages.append({"role": "assistant", "content": said})
    return messages


def write_chat_log(path: Path) -> None:
    messages = told()
    messages[4] |= {"thumb": "up"}
    messages[6] |= {"thumb": "down", "correction": "It is 16."}
    path.write_text(json.dumps({"id": "s1", "messages": messages}) + "\n")


def write_online_store(path: Path) -> None:
    """The five calls of the conversation, and what was said of two answers."""
    database, rules = open_database(f"sqlite:///{path}"), FeedbackConfig()
    messages = told()
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    with database.writing() as connection:
        before = None
        for number, place in enumerate(answers):
            turn = Turn("solver", (), (), (), 0, "stop", messages=messages[:place], response=messages[place])
            request = RecordedRequest(
                msg_id=f"m{number}",
                conversation_id="s1",
                client="",
                user="ana",
                task_id=None,
                run_id=None,
                exchange=f"m{max(number, 0) if number > 1 else 0}",
                follows=None if before is None else TurnPlace(f"m{number - 1}", 0),
                seen=number,
                agent="solver",
                model="m",
                asked=10.0 * number,
                answered=10.0 * number + 1,
                turns=(RecordedTurn(turn, f"digest {number}"),),
            )
            record(connection, request, before)
            before = turn
        for msg_id, part in (
            ("m1", FeedbackPart("thumb", value=1.0)),
            ("m2", FeedbackPart("thumb", value=0.0)),
            ("m2", FeedbackPart("correction", correction="It is 16.")),
        ):
            add(
                connection, NewFeedback(received=99.0, author="ana", client="", parts=(part,), msg_ids=(msg_id,)), rules
            )
    database.close()


def write_with_agentscope(spans: Path, service: Path) -> None:
    """Let an agent of AgentScope have the conversation; write its spans with what people said of them, and the tables
    of the agent service, with a session of a schedule beside."""
    with (
        _tracing() as exported,
        ScriptedChatServer([chat_completion({"content": None, "tool_calls": [CALL]}), *SAID]) as api,
    ):
        messages = asyncio.run(_talk(api.base_url, service))
    rows = _encoded(exported)
    spans.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert messages


async def _talk(base_url: str, service: Path) -> int:
    from agentscope.agent import Agent
    from agentscope.app.storage import AsyncSQLAlchemyStorage, SessionConfig
    from agentscope.app.storage._model._session import ScheduleOrigin
    from agentscope.credential import OpenAICredential
    from agentscope.message import TextBlock, UserMsg
    from agentscope.middleware import TracingMiddleware
    from agentscope.model import OpenAIChatModel
    from agentscope.tool import FunctionTool, ToolChunk, Toolkit

    from astune.workflow.agentscope import training_defaults

    def calculate(expression: str) -> ToolChunk:
        """Work out."""
        return ToolChunk(content=[TextBlock(text="12")])

    model = OpenAIChatModel(OpenAICredential(api_key="x", base_url=base_url), "scripted", stream=False)
    toolkit = Toolkit(tools=[FunctionTool(calculate)])
    agent = Agent("solver", "You solve.", model, toolkit, [TracingMiddleware()], **training_defaults())
    for asked in ASKED:
        await agent.reply(UserMsg("ana", asked))
    kept = 0
    async with AsyncSQLAlchemyStorage(f"sqlite+aiosqlite:///{service}") as storage:
        await storage.upsert_session("ana-1", "solver", SessionConfig(workspace_id="w"), session_id="s1")
        due = ScheduleOrigin(schedule_id="daily")
        await storage.upsert_session("ana-1", "solver", SessionConfig(workspace_id="w"), session_id="s2", origin=due)
        await storage.upsert_message("ana-1", "s2", UserMsg("daily", "Write the report."))
        for message in agent.state.context:
            said = message.get_text_content() or ""
            if said.endswith(SAID[0]):
                message.metadata["feedback"] = {"thumb": "up"}
            if said.endswith(SAID[1]):
                message.metadata["feedback"] = [{"thumb": "down"}, {"correction": "It is 16."}]
            await storage.upsert_message("ana-1", "s1", message)
            kept += 1
    return kept


@contextmanager
def _tracing() -> Iterator[Any]:
    """OpenTelemetry's own provider in the place of the global one, which may be set once."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    before, exporter, provider = trace._TRACER_PROVIDER, InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace._TRACER_PROVIDER = provider
    try:
        yield exporter
    finally:
        trace._TRACER_PROVIDER = before


def _encoded(exporter: Any) -> list[dict[str, Any]]:
    """A line of spans, and one of log records with evaluations of two of them."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry._logs import LogRecord
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    spans = exporter.get_finished_spans()
    logs, provider = InMemoryLogRecordExporter(), LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
    agents = [span for span in spans if span.name.startswith("invoke_agent")]
    for span, name, about in (
        (agents[0], "user_feedback", {"gen_ai.evaluation.score.label": "thumbs_up"}),
        (agents[1], "user_feedback", {"gen_ai.evaluation.score.value": 0.0}),
        (agents[1], "user_correction", {"gen_ai.evaluation.explanation": "It is 16."}),
        (agents[2], "Relevance", {"gen_ai.evaluation.score.value": 1.0}),
    ):
        event = LogRecord(
            event_name="gen_ai.evaluation.result",
            context=set_span_in_context(NonRecordingSpan(span.get_span_context())),
            attributes={"gen_ai.evaluation.name": name, **about},
        )
        provider.get_logger("feedback").emit(event)
    return [MessageToDict(encode_logs(logs.get_finished_logs())), MessageToDict(encode_spans(spans))]
