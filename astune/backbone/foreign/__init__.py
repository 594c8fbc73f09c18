"""Other programs: their configuration as plain data, and the packages of theirs that have to be installed."""
