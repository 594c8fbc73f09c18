"""Real agents of the installed AgentScope, and a real server that writes down what would reach AgentScope Studio."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from typing import Any

import pytest

from astune.errors import ConfigError, MissingDependency
from astune.testing.chat_server import QuietServer
from astune.workflow.agentscope_studio import studio

pytest.importorskip("agentscope")
from agentscope.message import TextBlock
from agentscope.tool import Toolkit
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

FIRST_LINE = metadata.version("agentscope").startswith("1.")
if FIRST_LINE:
    import agentscope
    from agentscope.agent import AgentBase, ReActAgent
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import Msg
    from agentscope.tool import ToolResponse as ToolSays
else:
    from agentscope.agent import Agent
    from agentscope.message import UserMsg
    from agentscope.middleware import MiddlewareBase, TracingMiddleware
    from agentscope.tool import FunctionTool
    from agentscope.tool import ToolChunk as ToolSays

    from astune.workflow.agentscope import training_defaults

CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call>'
ANSWERS = [CALL, "It is 42.", CALL, "Still 42."]
RUN = {"project": "math", "name": "math-debug", "run_id": "math-1"}


class Studio:
    """Takes everything, as Studio does; `status` is what it answers to messages."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, Any]] = []
        self.spans: list[Any] = []
        self.status = 200
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def sent(self, procedure: str) -> list[Any]:
        return [body for path, body in self.posts if path == f"/trpc/{procedure}"]

    def attributes(self, key: str) -> list[str | None]:
        """Of every span, in order."""
        found = [{item.key: item.value.string_value for item in span.attributes} for span in self.spans]
        return [values.get(key) for values in found]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        studio = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    data = gzip.decompress(data) if self.headers["Content-Encoding"] == "gzip" else data
                    for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                        studio.spans += [span for scope in resource.scope_spans for span in scope.spans]
                else:
                    studio.posts.append((self.path, json.loads(data)))
                self.send_response(studio.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Studio]:
    started = Studio()
    yield started
    started.close()


def double(number: int) -> ToolSays:
    """Twice a number.

    Args:
        number: any
    """
    return ToolSays(content=[TextBlock(type="text", text=str(2 * number))])


def make_agent(tuner: Any, **options: Any) -> Any:
    """As a user writes it: nothing in it is for Studio."""
    if not FIRST_LINE:
        options = {"toolkit": Toolkit(tools=[FunctionTool(double)])} | training_defaults() | options
        return Agent("solver", "You solve.", tuner.model("solver"), **options)
    toolkit = Toolkit()
    toolkit.register_tool_function(double)
    agent = ReActAgent("solver", "You solve.", tuner.model("solver"), OpenAIChatFormatter(), toolkit=toolkit, **options)
    agent.set_console_output_enabled(False)
    return agent


async def ask(agent: Any, question: str) -> str:
    reply = await (agent(Msg("user", question, "user")) if FIRST_LINE else agent.reply(UserMsg("user", question)))
    text: str = reply.get_text_content()
    return text


def texts(message: dict[str, Any]) -> list[str]:
    """What a message shows, block by block."""
    content = message["msg"]["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [
        block["text"]
        if block["type"] == "text"
        else f"{block['type']} {block['name']} {block.get('input', '')}".strip()
        for block in blocks
    ]


async def test_a_run_its_messages_and_a_trace_per_episode_arrive(make_tuner: Any, server: Studio) -> None:
    tuner, _, _ = make_tuner(ANSWERS)
    with studio(server.url + "/", **RUN) as in_studio:
        for number in range(2):
            with in_studio(f"debug/t/{number}", "Twice 21?"):
                assert await ask(make_agent(tuner), "Twice 21?") == ("It is 42.", "Still 42.")[number]
        (running,) = server.sent("registerRun")

    assert {key: running[key] for key in ("project", "name", "id", "status")} == {
        "project": "math",
        "name": "math-debug",
        "id": "math-1",
        "status": "running",
    }
    assert server.posts[-1] == ("/trpc/registerRun", running | {"status": "done"})

    messages = server.sent("pushMessage")
    assert {message["runId"] for message in messages} == {"math-1"}
    assert [(m["replyName"], m["replyRole"], texts(m)) for m in messages if m["replyRole"] == "user"] == [
        ("debug/t/0", "user", ["Twice 21?"]),
        ("debug/t/1", "user", ["Twice 21?"]),
    ]
    said = [(message["replyName"], text) for message in messages for text in texts(message)]
    assert ("solver", "tool_use double {'number': 21}") in said and ("solver", "tool_result double") in said
    assert said.index(("solver", "It is 42.")) < said.index(("debug/t/1", "Twice 21?"))
    assert said[-1] == ("solver", "Still 42.")
    assert len({message["replyId"] for message in messages}) == 4
    for message in messages:
        assert set(message["msg"]) == {"id", "name", "role", "content", "metadata", "timestamp"}

    assert set(server.attributes("gen_ai.conversation.id")) == {"math-1"}
    roots = {span.trace_id: span.name for span in server.spans if not span.parent_span_id}
    assert sorted(roots.values()) == ["debug/t/0", "debug/t/1"]
    for trace_id, name in roots.items():
        kinds = [span.name.split()[0] for span in server.spans if span.trace_id == trace_id and span.name != name]
        assert (kinds.count("invoke_agent"), kinds.count("execute_tool"), kinds.count("chat")) == (1, 1, 2)
    inputs = [value for value in server.attributes("gen_ai.input.messages") if value]
    assert any("Twice 21?" in value for value in inputs)


async def test_afterwards_nothing_is_left_of_it(make_tuner: Any, server: Studio) -> None:
    tuner, _, _ = make_tuner(ANSWERS)
    before = state()
    with pytest.raises(KeyError), studio(server.url, **RUN):
        assert state() != before
        during = make_agent(tuner)
        raise KeyError
    assert state() == before
    posts = len(server.posts)
    assert server.sent("registerRun")[-1]["status"] == "done"
    await ask(during, "Twice 21?")
    await ask(make_agent(tuner), "Twice 21?")
    with trace.get_tracer("other").start_as_current_span("other") as span:
        assert "gen_ai.conversation.id" not in getattr(span, "attributes", {})
    assert server.posts[posts:] == [] and server.spans == []


def state() -> object:
    if not FIRST_LINE:
        return Agent.__init__
    config = agentscope._config
    hooks = dict(AgentBase._class_pre_print_hooks)
    return config.run_id, config.project, config.name, config.trace_enabled, hooks


@pytest.mark.skipif(FIRST_LINE, reason="middlewares are of AgentScope 2.x")
async def test_the_middlewares_an_agent_has_stay_and_none_is_doubled(make_tuner: Any, server: Studio) -> None:
    met: list[str] = []

    class Mine(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Any) -> Any:
            met.append(agent.name)
            async for event in next_handler(**input_kwargs):
                yield event

    tuner, _, _ = make_tuner(ANSWERS[:2])
    with studio(server.url, **RUN) as in_studio, in_studio("e", "q"):
        await ask(make_agent(tuner, middlewares=[Mine(), TracingMiddleware()]), "Twice 21?")
    assert met == ["solver"]
    assert [span.name for span in server.spans].count("invoke_agent solver") == 1


@pytest.mark.skipif(FIRST_LINE, reason="1.x sends each message by itself")
async def test_a_reply_grows_while_it_is_under_way(make_tuner: Any, server: Studio) -> None:
    tuner, _, _ = make_tuner(["<think>\nEasy.\n</think>\n\n" + CALL, "It is 42."])
    with studio(server.url, **RUN):
        await ask(make_agent(tuner), "Twice 21?")
    first, last = server.sent("pushMessage")
    assert first["msg"]["id"] == last["msg"]["id"] and first["replyId"] == last["replyId"]
    assert [block["type"] for block in first["msg"]["content"]][-1] in ("tool_use", "tool_result")
    assert [block["type"] for block in last["msg"]["content"]][-3:] == ["tool_use", "tool_result", "text"]
    assert last["msg"]["content"][-2]["output"] == [{"type": "text", "text": "42"}]


@pytest.mark.fault(
    "Foreign servers", "AgentScope Studio is gone in the middle of a run", "one warning; the episodes go on"
)
async def test_an_episode_goes_on_when_studio_is_gone(
    make_tuner: Any, server: Studio, caplog: pytest.LogCaptureFixture
) -> None:
    tuner, _, _ = make_tuner(ANSWERS)
    with caplog.at_level(logging.WARNING, "astune"), studio(server.url, **RUN) as in_studio:
        server.close()
        for number in range(2):
            with in_studio(f"e{number}", "q"):
                await ask(make_agent(tuner), "Twice 21?")
    assert [record.message.count("is gone") for record in caplog.records if record.name.startswith("astune")] == [1]


async def test_a_message_that_studio_refuses_is_a_warning(server: Studio, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "astune"), studio(server.url, **RUN) as in_studio:
        server.status = 400
        with in_studio("e0", "q"):
            pass
        server.status = 200
        with in_studio("e1", "q"):
            pass
    assert [record.message.count("refuses a message") for record in caplog.records if "astune" in record.name] == [1]
    assert [message["replyName"] for message in server.sent("pushMessage")] == ["e0", "e1"]


def test_no_studio_is_found_out_before_anything_runs() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    before = state()
    nobody = rf"^astune\.debug\.studio_url: '{url}': no AgentScope Studio answers there"
    with pytest.raises(ConfigError, match=nobody), studio(url, **RUN):
        raise AssertionError
    assert state() == before


def test_another_server_is_no_studio(server: Studio) -> None:
    server.status = 404
    with pytest.raises(ConfigError, match="answers, but not as an AgentScope Studio: HTTP 404"):
        studio(server.url, **RUN).__enter__()


@pytest.mark.parametrize("url", ["localhost:3000", "http://", "http://localhost:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"astune\.debug\.studio_url"):
        studio(url, **RUN).__enter__()


def test_without_agentscope_the_error_says_what_to_install(server: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", not_installed)
    with pytest.raises(MissingDependency, match=r'studio_url needs AgentScope.*pip install "astune\[agentscope2\]"'):
        studio(server.url, **RUN).__enter__()
    assert server.posts == []


def test_without_a_url_nothing_is_imported() -> None:
    code = (
        "import sys\nfrom astune.workflow.agentscope_studio import studio\n"
        "with studio(None, project='p', name='n', run_id='r') as in_studio, in_studio('e', 'q'):\n"
        "    print(*sorted({'agentscope', 'opentelemetry'} & set(sys.modules)), 'ran')"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "ran"
