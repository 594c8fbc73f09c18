"""Feedback of people and judges on answers, and its states."""
