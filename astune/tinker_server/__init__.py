"""A server that speaks the HTTP protocol of the tinker SDK, over the model and the sampler of the local backbone.

With it Trinity-RFT's `tinker` engine and trainer run on this machine, on its CPU or its GPU:

    app.py          addresses, keys, JSON: one small function for each request of the SDK
    service.py      the state of the server, and what each request does
    jobs.py         answers that are fetched later, requests of one model in their order, the samplers' event loop
    requests.py     the body of a request, and the error of a client
    wire.py         the SDK's protobuf messages and the parts of its JSON that hold tokens
    rows.py         token rows as one packed prefix tree, and the log-probabilities of their targets
    training.py     a model under training: gradients, AdamW, saving and loading
    lora.py         the adapter that a client asks for
    versions.py     the weights that are sampled, a few of them in memory
    checkpoints.py  tinker:// paths as folders that are complete or absent
    server.py       the process: socket, event loop, what a client needs to know
    child.py        the server as a child process of a program
"""
