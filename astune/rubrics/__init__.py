"""Learn a rubric, the criteria of a judge, from a few examples. In the order in which they come in:

from_config      from a configuration to a rubric in a file; a rubric judged by labelled examples
examples         reads answers that people scored, paired or ranked
split            deals them to train, dev and test
learn            the loop: propose, judge, revise, choose, arrange, test
candidates         criteria that models propose; `prompts` has the words
judge_examples     the answers judged by criteria, each call made and paid once
choose             from candidates to a rubric, by `similarity`, `coding_rate` and `weights`
arrange            themes and anchors
measure            agreement with people
report           the file's provenance and figures
edits            what a person changed in a file, which is kept
tables           rubrics on the terminal
"""
