"""What a user did after an answer, and judges that say what it tells of the answer.

followed.py    what followed an exchange, on the main line of its conversation
verdict.py     a judge's word on it: -1, 0 or +1, with a reason and perhaps a hint
rules.py       the judge by plain words
asked.py       the judge that asks other models
"""
