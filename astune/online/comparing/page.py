"""The page on which raters say which of two answers is better: the viewer's style and kit, and a script of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from markupsafe import Markup
from starlette.responses import HTMLResponse

from astune.viewer.page import content_policy, read_parts, render
from astune.viewer.serve import page_headers

PAGE = Path(__file__).parent / "page"


def answer_page() -> HTMLResponse:
    """Answer with the page, which holds nothing that was said."""
    text, policy = _page()
    return HTMLResponse(text, headers=page_headers(policy))


@cache
def _page() -> tuple[str, str]:
    parts = read_parts("js", ("dom", "theme", "message")), read_parts("js", ("compare",), PAGE)
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"
    style = read_parts("css", ("base", "episode")) + "\n" + read_parts("css", ("compare",), PAGE)
    policy = content_policy([script], [style], asks=True)
    return render("compare.html.j2", folder=PAGE, policy=policy, script=Markup(script), style=Markup(style)), policy
