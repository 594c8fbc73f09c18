"""Pages over HTTP on this machine only: that of a run, written anew whenever the run has grown, so that it can be
watched; and those of the online service's operator."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse
from starlette.routing import Route

from astune.errors import ConfigError
from astune.monitor import RunDir
from astune.support.http.browser_requests import Guarded
from astune.support.http.serving import bound_socket, serve_until_signal, server_config, url_of
from astune.viewer.page import check_run, view_policy, write_view

HOST = "127.0.0.1"


def view_app(run: Path, folder: Path) -> Guarded:
    """Answers `/` with the page, kept in `folder`. Pages of others are refused, so that no website can read it."""
    check_run(run)
    written: list[tuple[tuple[str, int, int], ...]] = []
    lock = Lock()

    def page() -> Path:
        with lock:
            state = _state(RunDir(run))
            if written != [state]:
                write_view(run, folder / "view.html")
                written[:] = [state]
        return folder / "view.html"

    async def answer(request: Request) -> FileResponse:
        path = await run_in_threadpool(page)
        return FileResponse(path, media_type="text/html; charset=utf-8", headers=page_headers(view_policy()))

    return guard_pages([Route("/", answer)])


def page_headers(policy: str) -> dict[str, str]:
    """The headers of a page with this Content-Security-Policy."""
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }


def guard_pages(routes: Sequence[Route]) -> Guarded:
    """An app that answers these, and nobody who comes by another name or from a page of others."""
    return Guarded(Starlette(routes=routes), lambda error: PlainTextResponse(error.message, 400))


def _state(run: RunDir) -> tuple[tuple[str, int, int], ...]:
    """Changes when the run writes."""
    files = [run.metrics_path, *sorted(run.episodes_dir.glob("*.jsonl"))]
    stats = [(file.name, file.stat()) for file in files if file.exists()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def serve_view(run: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serves the page of a run as `serve_pages` does."""
    with tempfile.TemporaryDirectory(prefix="astune_view_") as folder:
        serve_pages(view_app(run, Path(folder)), port, ready)


def serve_pages(app: Guarded, port: int, ready: Callable[[str], None]) -> None:
    """Serves until Ctrl-C. `port` 0 takes any that is free. `ready` is told the address once connections are taken.

    Raises ConfigError if the port is taken.
    """
    try:
        listener = bound_socket(HOST, port)
    except OSError as error:
        told = error.strerror or error
        raise ConfigError(f"--port {port}: {told}; another one may be free, --port 0 takes any") from error
    with listener, suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        asyncio.run(serve_until_signal(server_config(app), listener, lambda: ready(f"{url_of(HOST, listener)}/")))
