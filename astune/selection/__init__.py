"""Which of several models? All play the same tasks, those that cannot win stop early, and a rule with a name picks."""
