"""Where a debug run stops, and the commands that it takes there."""
