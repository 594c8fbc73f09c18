"""`astune view`: every episode of a run in one page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from astune.support.visible import tell


def view(run: Path, out: Path | None, serve: bool, port: int, open_browser: bool) -> int:
    """Writes the page, or serves it until Ctrl-C. Raises ConfigError for a folder that is no run."""
    if serve:
        return _serve(run, port, open_browser)
    from astune.viewer import write_view

    path = write_view(run, out or run / "view.html")
    tell(f"view    {path}")
    if open_browser:
        webbrowser.open(path.absolute().as_uri())
    return 0


def _serve(run: Path, port: int, open_browser: bool) -> int:
    from astune.viewer.run_page.serve import serve_view

    def ready(address: str) -> None:
        tell(f"view    {address}   (reload for what the run has written since; Ctrl-C ends)", flush=True)
        if open_browser:
            webbrowser.open(address)

    serve_view(run, port, ready)
    return 0
