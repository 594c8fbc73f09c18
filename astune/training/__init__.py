"""The training loop, for any engine that brings a `Policy` and a `Learner`.

    start.py           a run is put together, or goes on where one stopped
    loop.py            roll out, judge, learn, publish, again
    evaluation.py      held-out tasks, when they are due
    checkpoints.py     what is saved when, and how a run goes back to it
    stopping.py        the end: reached, Ctrl-C, or an error
    run.py             what a run holds
    engine.py          what it knows of an engine
    ahead.py           rollouts that go on while the model is trained
    comparison.py      two evaluations side by side

Parts that every backbone uses, also one with a loop of its own: `tasks.py` reads and checks tasks, `schedule.py` says
what each step and update gets, `rollout_setup.py` makes of a configuration what rollouts take.
"""
