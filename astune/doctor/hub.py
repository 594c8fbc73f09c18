"""The Hugging Face hub: is it reachable, and what of it is on this machine already?

Answers within seconds; the hub's own clients would retry for minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx

SECONDS = 5.0


def is_hub_id(path: str) -> bool:
    """True if `path` is meant for the hub: `owner/name`, and there is no such folder."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).exists()


def is_reachable() -> bool:
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        httpx.head(address, timeout=SECONDS)
    except httpx.HTTPError:
        return False
    return True


def has_data_set(path: str) -> bool:
    """True if the data set `owner/name` was read on this machine before."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    return (cache / path.replace("/", "___")).is_dir()


def find_cached_model(path: str) -> Path | None:
    """The folder of what this machine has of the model `owner/name`; None if that is nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
