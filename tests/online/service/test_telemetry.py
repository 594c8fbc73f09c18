"""OpenTelemetry out, to a collector that takes it down, and in, as a collector sends it."""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from astune.errors import ConfigError
from astune.online.service.serving import OnlineService
from astune.online.telemetry import EVALUATION, Telemetry
from astune.store.tables import feedback
from tests.online.service.conftest import Client, configured, over_network, scripted

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []

        class Take(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                self.bodies.append((handler.path, body))
                handler.send_response(200)
                handler.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Take)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[tuple[object, dict[str, object]]]:
        read = [ExportTraceServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/traces"]
        found = [span for each in read for one in each.resource_spans for s in one.scope_spans for span in s.spans]
        return [(span, attributes(span)) for span in found]

    def events(self) -> list[tuple[str, dict[str, object]]]:
        read = [ExportLogsServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/logs"]
        found = [log for each in read for one in each.resource_logs for s in one.scope_logs for log in s.log_records]
        return [(log.event_name, attributes(log)) for log in found]


def attributes(record: object) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in record.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def event(**given: object) -> dict[str, object]:
    def value(each: object) -> dict[str, object]:
        return {"doubleValue": each} if isinstance(each, float) else {"stringValue": each}

    named = {"id": "gen_ai.response.id", "user": "user.id"}
    said = {
        named.get(name, f"gen_ai.evaluation.{name.replace('score_', 'score.')}"): each for name, each in given.items()
    }
    return {"eventName": EVALUATION, "attributes": [{"key": key, "value": value(each)} for key, each in said.items()]}


def logs(*records: object) -> dict[str, object]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


async def test_each_answer_says_which_version_spoke_and_each_score_is_an_event(
    collector: Collector, chat_format, tmp_path: Path
) -> None:
    rewards = {"rewards": {"tone": 1.0}, "rating_as": "tone"}
    online = {"telemetry": collector.url, "feedback": rewards}
    config = configured(f"sqlite:///{tmp_path}/store.db", online=online)
    opened = OnlineService(config, scripted(chat_format, lambda prompt: "4"))
    with closing(opened) as service, over_network(service) as (host, port):
        async with Client(service) as client:
            address = f"http://{host}:{port}"
            question = {"messages": [{"role": "user", "content": "2 + 2?"}], "model": "shop", "user": "ana"}
            asked = await client.post("/v1/chat/completions", json=question)
            reply = asked.json()
            said = {"msg_ids": [reply["id"]], "rating": 4, "comment": "yes", "user": "ana"}
            assert (await client.post("/feedback", json=said)).status_code == 200
            assert (await client.post("/feedback", json=said)).headers["x-duplicate"] == "true"
        async with httpx.AsyncClient(trust_env=False) as network:
            headers = {"traceparent": PARENT}
            await network.post(f"{address}/v1/chat/completions", json=question, headers=headers)
            too_long = question | {"messages": [{"role": "user", "content": "word " * 9000}]}
            refused = await network.post(f"{address}/v1/chat/completions", json=too_long)
            assert refused.status_code == 400
    spans = collector.spans()
    first = spans[0][1]
    assert spans[0][0].name == "chat shop"
    assert (first["gen_ai.response.model"], first["gen_ai.response.id"]) == ("scripted@v0", reply["id"])
    assert first["gen_ai.conversation.id"] == asked.headers["x-astune-conversation-id"]
    assert first["gen_ai.usage.output_tokens"] == reply["usage"]["completion_tokens"]
    assert spans[1][0].trace_id.hex() == PARENT.split("-")[1]
    assert spans[1][0].parent_span_id.hex() == PARENT.split("-")[2]
    assert all("error.type" in found for _, found in spans[2:])
    assert collector.events() == [
        (
            EVALUATION,
            {
                "gen_ai.evaluation.name": "tone",
                "gen_ai.evaluation.score.value": 0.75,
                "gen_ai.response.id": reply["id"],
                "astune.feedback.kind": "rating",
                "gen_ai.evaluation.explanation": "yes",
            },
        )
    ]
    assert b"2 + 2" not in b"".join(body for _, body in collector.bodies)


async def test_a_collector_s_events_are_feedback(chat_format, tmp_path: Path) -> None:
    config = configured(f"sqlite:///{tmp_path}/store.db", online={"feedback": {"rewards": {"tone": 0.5}}})
    with closing(OnlineService(config, scripted(chat_format, lambda prompt: "4"))) as service:
        async with Client(service) as client:
            ids = [(await client.chat([{"role": "user", "content": f"{n}?"}], user="ana"))["id"] for n in range(3)]
            own = event(id=ids[0], name="reward", score_value=0.0)
            own["attributes"].append({"key": "astune.feedback.kind", "value": {"stringValue": "thumb"}})
            body = logs(
                event(id=ids[0], name="tone", score_value=0.8, explanation="polite", user="ana"),
                event(id=ids[1], name="user_feedback", score_value=1.0),
                event(id=ids[2], name="right", score_label="pass"),
                {"body": {"stringValue": "a line of a log"}},
                own,
                event(id=ids[0], name="tune", score_value=0.8),
                event(name="tone", score_value=0.8),
            )
            taken = await client.post("/v1/logs", json=body)
            assert taken.status_code == 200, taken.text
            partial = taken.json()["partialSuccess"]
            assert partial["rejectedLogRecords"] == "2" and "Did you mean 'tone'?" in partial["errorMessage"]
            assert (await client.post("/v1/logs", json=logs())).json() == {"partialSuccess": {}}
            wrong = await client.post("/v1/logs", json={"resourceLogs": 3})
            assert wrong.status_code == 400 and "a list 'resourceLogs'" in wrong.text
        with service.database.reading() as connection:
            rows = connection.execute(feedback.select().order_by(feedback.c.id)).all()
    assert [(row.kind, row.name, row.value, row.author) for row in rows] == [
        ("number", "tone", 0.8, "ana"),
        ("number", "reward", 1.0, ""),
        ("thumb", "reward", 1.0, ""),
    ]


def test_a_wrong_address_or_weight_is_said() -> None:
    with pytest.raises(ConfigError, match="leave /v1/"):
        Telemetry("http://localhost:4318/v1/traces")
    with pytest.raises(ValueError, match=r"rewards has no weight for it\. Did you mean 'tone'"):
        configured("sqlite:///x.db", online={"feedback": {"rewards": {"tone": 1.0}, "rating_as": "tune"}})
