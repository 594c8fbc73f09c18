"""Examples to learn from, in place of episodes that are played: read from files, made into rows of tokens.

read.py            a file of conversations, preferences or recorded episodes
fields.py          the fields of a line, checked
conversation.py    what was said as the tokens of an episode in which the model said it
episodes.py        recorded episodes: to imitate, or compared with each other
example.py         an example, and the count of what gives none, by cause
samples.py         rows with their weight in the loss
"""
