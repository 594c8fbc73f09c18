"""The numbers that commands end with."""

DONE, FAILED, BAD_INPUT, LEARNED_NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
"""`BAD_INPUT`: something is wrong in the command or the configuration. `INTERRUPTED`, what shells give for Ctrl-C,
is of a command that would have ended by itself; what goes on until it is stopped, as a server, is `DONE` by it."""
