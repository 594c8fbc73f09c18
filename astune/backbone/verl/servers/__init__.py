"""The servers that answer episodes, and how they get the weights that the trainer learned.

policy.py         verl's client of its servers as ASTune's `Policy`
publish.py        weights are handed over, and it is checked that they arrived
plugin.py         what verl's own registries have to know, in every process
cpu_server.py     our sampler as one of verl's servers, for machines without GPUs
file_weights.py   weights to servers of their own, by a file, on such a machine
"""
