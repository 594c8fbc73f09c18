"""Answer the calls of a debug run: a local model, a script, a person, or chat APIs."""
