"""Stop a debug run at calls, tool results and verdicts, and carry out commands there."""
