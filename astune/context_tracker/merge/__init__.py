"""From single calls to timelines: which call goes on from which."""
