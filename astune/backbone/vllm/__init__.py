"""vLLM, which answers the agents of `--backbone=local`: a server that the run starts.

Nothing here imports torch or vLLM.

settings.py   what the server is started with, by the configuration
child.py      the process between run and server: it ends the server when the run ends, however that ends
server.py     the server as a process: begin, requests, its end
policy.py     its answers as ASTune's `Policy`
in_server/    what the server's own processes run of ours
weights.py    the trainer's weights to the server, and the check that they arrived
"""
