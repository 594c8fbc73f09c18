"""The HTTP library that the openai package sends its requests with."""

from __future__ import annotations

import functools
from importlib import import_module, metadata
from typing import Any


@functools.cache
def http_library() -> Any:
    """The HTTP library that the installed openai package is built on: httpx2 since 3.0, httpx before."""
    return import_module("httpx2" if int(metadata.version("openai").split(".")[0]) >= 3 else "httpx")
