"""Episodes as files: to play again, to judge anew, to compare."""
