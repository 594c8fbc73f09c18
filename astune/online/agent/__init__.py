"""The agent's side of online training: what runs in the process of a deployed agent.

It knows the service by HTTP only.
"""
