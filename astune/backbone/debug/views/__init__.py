"""What a debug run shows: the run as it goes, what is asked for at a stop, and what one update does."""
