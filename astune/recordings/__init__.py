"""Read recorded episodes (recording), play them again (replay), judge them anew (rescore) and compare them (diff)."""
