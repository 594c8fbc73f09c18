"""Examples to learn from, in place of episodes that are played: read from files, made into rows of tokens.

read.py            a file of conversations, preferences or recorded episodes
fields.py          the fields of a line, checked
conversation.py    what was said as the tokens of an episode in which the model said it
samples.py         rows with their weight in the loss
"""
