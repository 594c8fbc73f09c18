"""Versions made from what users say: `astune online train`.

plan.py         which judged answers a commit learns from, which wait, which are left out
episodes.py     recorded answers as episodes and groups
baseline.py     advantages of attempts with and without siblings
lesson.py       all that a commit learns, as samples
learning.py     the updates of a commit, and how far they may go
checkpoint.py   the folders of versions
commit.py       one commit, from the plan to the version
trainer.py      when one is due, and who makes it
"""
