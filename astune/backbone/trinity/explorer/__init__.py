"""The processes of Ray that play: Trinity's explorer, which reads tasks and evaluates, its workflow runners, and the
pipeline that makes rows of what they played."""
