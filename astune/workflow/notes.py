"""Warnings that are given once per run, however many episodes they are true of."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)


class Notes:
    """Warnings of a run, each subject once. Calls may come from several threads."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def once(self, subject: str, text: str) -> None:
        """Warn with `text`, unless something was said of `subject` before."""
        with self._lock:
            new = subject not in self._said
            self._said.add(subject)
        if new:
            self.say(subject, text)

    def say(self, subject: str, text: str) -> None:
        """Log the first warning of a subject."""
        logger.warning("%s (said once per run)", text)
