"""Answers to prompts: many at once over one cache of keys and values."""
