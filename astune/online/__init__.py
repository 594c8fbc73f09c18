"""Online training: a deployed agent gets better from what its users say.

`wire` has the bodies that agent and service exchange.
"""
