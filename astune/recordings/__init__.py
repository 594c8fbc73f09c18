"""Keep episodes as files (recording), choose among them (filter), play them again (replay), judge them anew (rescore)
and compare them (diff)."""
