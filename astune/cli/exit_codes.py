"""The numbers that commands end with."""

DONE, FAILED, BAD_INPUT, LEARNED_NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
"""`BAD_INPUT`: something is wrong in the command or the configuration. 130 is what shells give for Ctrl-C."""
