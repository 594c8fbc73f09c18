"""Versions of `astune online` made by Trinity's trainer in its mode `train`.

engine.py    the engine that online training is given, and what of Trinity lives as long as it does
learner.py   the samples of an update to Trinity and its weights back, as a `Learner`
session.py   Trinity's launcher on Ray, kept alive from update to update
"""
