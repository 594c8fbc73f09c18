"""Services in the manner of AgentJet: the same envelope, no word of a protocol, and states of several shapes."""

import json
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.testing.chat_server import QuietServer

SEEN = {"role": "user", "content": "You see a door."}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server, call = self.server, self.path.strip("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert set(body) <= {"env_type", "task_id", "instance_id", "messages", "params"} and None not in body.values()
        server.asked.append(call)
        if server.fails == call:
            return self._reply(500, {"detail": "Internal Server Error"})
        if call == "get_env_profile":
            return self._reply(200, {"success": True, "task_ids": [1, 2]})
        if call in ("create", "step"):
            data = {"state": server.state, "reward": 0, "is_terminated": call == "step", "info": None}
            return self._reply(200, {"success": True, "data": data})
        return self._reply(200, {"success": True, "data": 0.5} if call == "evaluate" else {"success": True})

    def _reply(self, status, content):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with QuietServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.fails, server.state = [], None, [SEEN]
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("state", [SEEN, [SEEN], [[SEEN]], SEEN["content"]])
async def test_an_episode_works_with_every_shape_of_state(server, state):
    server.state = state
    client = EnvServiceClient(server.url)
    assert client.task_ids("train", "appworld") == ["1", "2"]
    instance = EnvInstance(server.url, "i-1", "appworld", "1")
    assert (await client.create("appworld", "1", "i-1")).messages == (SEEN,)
    stepped = await client.step(instance, {"role": "assistant", "content": "open"}, number=0)
    assert (stepped.messages, stepped.reward, stepped.done, stepped.info) == ((SEEN,), 0.0, True, {})
    assert await client.evaluate(instance) == 0.5
    await client.release(instance)
    assert server.asked == ["get_env_profile", "create", "step", "evaluate", "release"]
