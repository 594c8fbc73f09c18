"""The page of `astune view`: every episode of a run, down to the single token."""
