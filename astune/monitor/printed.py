"""Output of episodes, printed or logged by libraries: shown line by line, each after the name of its episode.

with episode_output() as output:
    ...                       # print("hm") of an episode: [train/3/t1/0] hm
    output.end(episode_id)    # the episode is over: what it printed without a line's end gets one

An episode's text is mostly a model's or a task's: it is made visible, so that a terminal obeys nothing of it. What
belongs to no episode is passed through as it is.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from astune.support.current_episode import EPISODE
from astune.support.visible import visible


class EpisodeStream:
    """A text stream in front of another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._begun: dict[tuple[str, int], str] = {}
        """What was written of lines that are not complete, by episode and thread."""
        self._open: tuple[str, int] | None = None
        """Whose line stands there without its end: who flushes wants to see it, as pdb its prompt."""

    def write(self, text: str) -> int:
        this = EPISODE.get()
        with self._lock:
            if this is None:
                self._close_line()
                return self._stream.write(text)
            key = (this.episode_id, threading.get_ident())
            *lines, rest = (self._begun.pop(key, "") + text).split("\n")
            for line in lines:
                self._put(key, f"{line}\n")
            if rest:
                self._begun[key] = rest
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        this = EPISODE.get()
        with self._lock:
            if this is not None:
                key = (this.episode_id, threading.get_ident())
                if rest := self._begun.pop(key, ""):
                    self._put(key, rest)
            self._stream.flush()

    def end(self, episode_id: str) -> None:
        with self._lock:
            for key in [key for key in self._begun if key[0] == episode_id]:
                self._put(key, f"{self._begun.pop(key)}\n")
            if self._open is not None and self._open[0] == episode_id:
                self._close_line()

    def _put(self, key: tuple[str, int], text: str) -> None:
        if self._open != key:
            self._close_line()
            named = text.startswith(key[0])  # ASTune's own warnings begin with it
            text = text if named else f"[{key[0]}] {text}"
        self._stream.write(visible(text))
        self._open = None if text.endswith("\n") else key

    def _close_line(self) -> None:
        if self._open is not None:
            self._open = None
            self._stream.write("\n")

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own: `encoding`, `isatty`, `fileno`."""
        return getattr(self._stream, name)


class EpisodeOutput:
    """Both streams of the process."""

    def __init__(self, *streams: EpisodeStream) -> None:
        self._streams = streams

    def end(self, episode_id: str) -> None:
        for stream in self._streams:
            stream.end(episode_id)


@contextmanager
def episode_output() -> Iterator[EpisodeOutput]:
    """Stands in front of `sys.stdout` and `sys.stderr`, and of the streams of loggers that were set up before."""
    before = sys.stdout, sys.stderr
    out, err = EpisodeStream(before[0]), EpisodeStream(before[1])
    standing_for = {id(sys.__stdout__): out, id(sys.__stderr__): err, id(before[0]): out, id(before[1]): err}
    handlers = [(handler, handler.stream) for handler in _stream_handlers() if id(handler.stream) in standing_for]
    for handler, stream in handlers:
        handler.setStream(standing_for[id(stream)])
    sys.stdout, sys.stderr = out, err
    try:
        yield EpisodeOutput(out, err)
    finally:
        sys.stdout, sys.stderr = before
        for handler, stream in handlers:
            handler.setStream(stream)


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    """The handlers that keep a stream. A handler that asks for `sys.stderr` each time, as Python's last resort, needs
    nothing."""
    loggers = [logging.root, *logging.Logger.manager.loggerDict.values()]
    handlers = [handler for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers]
    return [one for one in handlers if isinstance(one, logging.StreamHandler) and "stream" in vars(one)]
