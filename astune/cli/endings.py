"""The end of a command: its exit code, and advice for an error that comes from outside, as of a full disk, which nobody
needs to report."""

from __future__ import annotations

import errno

DONE, FAILED, BAD_INPUT, LEARNED_NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
"""Ctrl-C ends a command that would have ended by itself with `INTERRUPTED`, as shells do, and a server with `DONE`."""

MEANINGS = {
    DONE: "done; a run has learned something, a check has found nothing",
    FAILED: "stopped before the end: nothing could be judged, a tool was dead, updates failed, or ASTune did; or a "
    "fault was found, or two episodes differ",
    BAD_INPUT: "never began: the command, the configuration, the tasks or the model is wrong, or a package is missing",
    LEARNED_NOTHING: "went through all steps, and none of them changed the model (`rubrics`, `prompt`: nothing better; "
    "`eval --models`: none solved a task)",
    INTERRUPTED: "stopped by Ctrl-C, SIGTERM or SIGHUP; what was done is saved, and `--resume` goes on",
}
"""For `--help`; docs/runs.md has the same."""


_SYSTEM = {
    "the disk, or the user's share of it, is full: make room": (errno.ENOSPC, errno.EDQUOT),
    "this user may not do that: see who owns the file and its folder": (errno.EACCES, errno.EPERM, errno.EROFS),
    "a name in the path is a file where a folder is needed, or the other way round": (errno.ENOTDIR, errno.EISDIR),
    "the address is taken or not of this machine: choose another port, or end what listens there": (
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
    ),
    "too many files or connections are open: `ulimit -n` says how many may be; raise it, or lower "
    "astune.rollout.max_concurrent": (errno.EMFILE, errno.ENFILE),
    "memory, or the number of processes that may be, is used up": (errno.ENOMEM, errno.EAGAIN),
    "the disk or its driver failed: see the system's log": (errno.EIO, errno.ESTALE),
    "the other side of a connection is away: see whether that server runs": (
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN),
    ),
}
_CLASSES = {
    "builtins.MemoryError": "memory is used up: lower astune.rollout.max_concurrent or "
    "astune.trainer.micro_batch_tokens; `astune doctor` counts what a run needs",
    "torch.OutOfMemoryError": "memory of the GPU is used up: lower astune.rollout.max_concurrent or "
    "astune.trainer.micro_batch_tokens; `astune doctor` counts what a run needs",
    "ray.exceptions.RayError": "Ray or a process on it failed: its logs, usually in /tmp/ray/session_latest/logs on "
    "each node, say why; where a process was killed it is mostly for memory",
    "sqlalchemy.exc.OperationalError": "the database did not do what it was asked: see whether it runs and has room",
    "httpx.TransportError": "a server did not answer: see whether it runs",
    "socket.gaierror": "a server's name is not known here: see how it is written, and the network of this machine",
    "ssl.SSLError": "an encrypted connection was not made: see the certificate of the server, and this machine's clock",
}


def what_to_do(error: BaseException) -> str | None:
    """Say what happened outside of ASTune and what helps; None for an error that may be a fault of ASTune."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    found = [advice for name, advice in _CLASSES.items() if name in names]
    if not found and isinstance(error, OSError):
        found = [advice for advice, numbers in _SYSTEM.items() if error.errno in numbers]
    return found[0] if found else None
