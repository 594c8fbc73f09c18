"""Versions made from users' feedback: `astune online train`.

judging.py      scores by a judge for a share of the unrated exchanges
following.py    scores by what users did after an answer
plan.py         which judged answers a commit learns from, which wait, which are left out
episodes.py     recorded answers as episodes and groups
weights.py      weights and baselines at the version that a commit begins from
commit_data.py  everything that a commit learns from, as samples
hints.py        what would have been better, as prompts of a teacher
learning.py     the updates of a commit, and how far they may go
checkpoint.py   the folders of versions
commit.py       one commit, from the plan to the version
trainer.py      when one is due, and who makes it
"""
