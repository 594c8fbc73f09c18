"""The Content-Security-Policy of ASTune's pages: a browser may run the scripts and use the styles that a page came
with, and nothing else.

Text of tasks and agents in a page can then neither run nor make the browser fetch anything, even where it got into the
page as markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence


def content_policy(scripts: Sequence[str] = (), styles: Sequence[str] = (), *, asks: bool = False) -> str:
    """A Content-Security-Policy for these inline scripts and styles, given as they stand between their tags. `asks`:
    the page may ask the server that it came from, by script and form, and no other.

    A `style` attribute, as the length of a bar, is let through: it can load nothing.
    """
    sources = {
        "default-src": ["'none'"],
        "script-src": [_hash(text) for text in scripts] or ["'none'"],
        "style-src": [_hash(text) for text in styles],
        "style-src-attr": ["'unsafe-inline'"],
        "img-src": ["data:"],
        **({"connect-src": ["'self'"]} if asks else {}),
        "base-uri": ["'none'"],
        "form-action": ["'self'" if asks else "'none'"],
    }
    return "; ".join(f"{name} {' '.join(values)}" for name, values in sources.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
