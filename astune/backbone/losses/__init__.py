"""Trained tokens, the teacher that weighs them, and losses over their log-probabilities: no model, no engine."""
