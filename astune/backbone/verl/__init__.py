"""The verl backbone: ASTune's own loop over verl's engines on Ray.

    backbone.py      the run: what has to be installed, what is checked and set before verl is imported
    engine.py        Ray joined, workers and servers started, and put together for the loop
    demand.py        how many GPUs and CPUs that takes
    processes.py     one of them dies
    environment.py   what verl reads when it is imported
    servers/   answers to episodes, weights for the servers
    trainer/   samples as verl's rows, our losses, the learner over verl's training workers
    cpu/       what verl lacks to run on a machine without GPUs

verl is imported by the modules below only, and only when a run chose this backbone: every process that does so pays for
it with several seconds.
"""
