"""How good a judge is: its verdicts beside the labels that people gave."""
