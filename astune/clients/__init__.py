"""Clients of what runs elsewhere."""
