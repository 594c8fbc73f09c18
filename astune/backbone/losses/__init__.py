"""Losses over the log-probabilities of sampled tokens: torch, no model, no engine. One file per family."""
