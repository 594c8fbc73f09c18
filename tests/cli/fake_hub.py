"""The part of the Hugging Face hub's HTTP that a push takes, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_of_a_test"


@dataclass
class FakeHub:
    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    """The repositories, and which are private."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """The large files, by checksum."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The files of the last commit."""
    uploads: int = 0
    licenses: dict[str, str] = field(default_factory=dict)
    fail_commits: int = 0

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        parts = path.partition("?")[0].strip("/").split("/")
        if method == "PUT" and parts[0] == "store":
            self.objects[parts[1]] = body
            self.uploads += 1
            return (200, {}) if hashlib.sha256(body).hexdigest() == parts[1] else (400, {})
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.private:
                return 409, {"error": "it is there", "url": f"{self.url}/{name}"}
            self.private[name] = asked.get("private", asked.get("visibility") == "private")
            return 200, {"url": f"{self.url}/{name}"}
        if method == "GET" and parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:4])
            card = {"license": self.licenses[name]} if name in self.licenses else None
            return 200, {"id": name, "sha": "0" * 40, "cardData": card, "siblings": [], "tags": []}
        if parts[-3:] == ["lfs", "objects", "batch"]:
            return 200, {"transfer": "basic", "objects": [self._batch(one) for one in json.loads(body)["objects"]]}
        if "preupload" in parts:
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        if "commit" in parts:
            return self._commit([json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"{method} {path}"}

    def _batch(self, one: dict[str, Any]) -> dict[str, Any]:
        known = {"oid": one["oid"], "size": one["size"]}
        there = one["oid"] in self.objects
        return known if there else {**known, "actions": {"upload": {"href": f"{self.url}/store/{one['oid']}"}}}

    def _commit(self, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        if self.fail_commits:
            self.fail_commits -= 1
            return 403, {"error": "not now"}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
        return 200, {"success": True, "commitOid": "1" * 40, "commitUrl": f"{self.url}/o/n/commit/{'1' * 40}"}


@contextmanager
def run_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}" or self.path.startswith("/store/")
            known = known or self.command == "GET"  # what is public
            status, reply = hub.answer(self.command, self.path, body) if known else (401, {"error": "who are you?"})
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *told: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
