"""Requests that policies refuse or send to servers, and the check that a server has the trainer's weights."""
