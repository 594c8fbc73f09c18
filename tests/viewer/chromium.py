"""Debian's chromium without a window, driven over its debugging pipe; nothing else is needed.

with Chromium() as page:
    page.open(path.as_uri())
    page.press("j")
    assert page.eval("document.title") == "..."
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
KEYS = {
    "ArrowDown": 40,
    "ArrowUp": 38,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "End": 35,
}


class Chromium:
    """One page. `errors` are what its console complains of; `requests` the addresses it asked for but its own."""

    def __init__(self, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self._size = (width, height)
        self._dark = dark
        self._number = 0
        self._buffer = b""
        self._opened = ""
        self.errors: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Chromium:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium_", ignore_cleanup_errors=True)
        self._process, self._send_to, self._read_from = _start(Path(self._folder.name))
        target = self._command("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attach = {"targetId": target, "flatten": True}
        self._session = self._command("Target.attachToTarget", attach, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._command(f"{domain}.enable")
        self.resize(*self._size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._send_to)
        os.close(self._read_from)
        self._process.terminate()
        self._process.wait(120)
        self._folder.cleanup()

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)

    def open(self, address: str, until: str = "document.documentElement?.dataset.ready === 'true'") -> float:
        """Goes to the page and waits until its table is there, or `until` true. Returns the seconds that took."""
        self._opened = address.split("#")[0]
        if address.startswith(self._opened + "#"):
            self._command("Page.navigate", {"url": "about:blank"})
        start = time.perf_counter()
        self._command("Page.navigate", {"url": address})
        self.wait(until)
        return time.perf_counter() - start

    def eval(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        given = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self._command("Runtime.evaluate", given)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 120.0) -> None:
        """Until the expression is true."""
        end = time.monotonic() + seconds
        while not self.eval(f"Boolean({script})"):
            if time.monotonic() > end:
                raise AssertionError(f"never came true: {script}; console: {self.errors}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, *keys: str) -> None:
        for key in keys:
            code = KEYS.get(key, ord(key.upper()[0]))
            values = {"key": key, "windowsVirtualKeyCode": code}
            down = {**values, "type": "keyDown", **({"text": key} if len(key) == 1 else {})}
            self._command("Input.dispatchKeyEvent", {**down, **({"text": "\r"} if key == "Enter" else {})})
            self._command("Input.dispatchKeyEvent", {**values, "type": "keyUp"})

    def write(self, text: str) -> None:
        self._command("Input.insertText", {"text": text})

    def point(self, selector: str, *, click: bool = False) -> None:
        """Brings the first element that the selector finds into view, moves the pointer to its middle, and clicks."""
        script = (
            f"(async () => {{ const found = document.querySelector({json.dumps(selector)});"
            " found.scrollIntoView({block: 'nearest'}); await new Promise(requestAnimationFrame);"
            " await new Promise(requestAnimationFrame); const box = found.getClientRects()[0];"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        x, y = self.eval(script)
        kinds = ("mouseMoved", "mousePressed", "mouseReleased") if click else ("mouseMoved",)
        for kind in kinds:
            event = {"type": kind, "x": x, "y": y, "button": "left" if click else "none", "clickCount": int(click)}
            self._command("Input.dispatchMouseEvent", event)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._command("Page.captureScreenshot")["data"]))

    def _command(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = "own"
    ) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._send_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._take(answer.get("method", ""), answer.get("params", {}))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._read_from, 1 << 20)
            if not read:
                raise AssertionError("chromium has ended")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _take(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["exception"].get("description", "exception"))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(f"console.{params['type']}: {params['args']}")
        elif method == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if address.split("#")[0] != self._opened and not address.startswith(("about:", "data:")):
                self.requests.append(address)


def _start(profile: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and the ends of the pipes to and from it: chromium reads from 3 and writes to 4."""
    assert PROGRAM is not None
    their_end, send_to = os.pipe()
    read_from, their_other_end = os.pipe()
    command = f'exec 3<&{their_end} 4>&{their_other_end}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", PROGRAM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(their_end, their_other_end),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_end)
    os.close(their_other_end)
    return process, send_to, read_from
