"""Show a debug run as it goes, parts of an episode on demand, and what one update would do."""
