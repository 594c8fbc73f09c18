"""`astune prompt`: search for better texts of an agent, and tell on tasks that the search never saw whether they are.

A third of the training tasks is held out. The search (`search`) plays candidates on the others, has models
write new texts from what the agent did and what the judge said (`reflection`), and drops those that quote the tasks
(`leaks`). How it goes on from there is a method's affair: `gepa_method`, or a class with

    def search(self, problem: Problem) -> None: ...     # calls problem.evaluate, reflect and is_over, till that is True

In the end the best candidate and the first one play the held-out tasks, and a paired test says whether it is better.
All that was played and said is kept in the folder of the run, `runs/<project>/<name>-prompts`:

    search.json          which tasks are searched on and which held out, and the names of the texts
    candidates.jsonl     a row for each candidate, in the order in which they came up
    reflections.jsonl    a row for each question to the models that reflect: parent, name, reply, why refused, cost
    episodes/            prompt_c0.jsonl and so on: the episodes of the search, phase "prompt/c0"; eval_c0.jsonl: those
                         of the test, phase "eval/c0". `step` is the round
    result.json          what came of it
    prompts.yaml         the texts to use: the best candidate's if the test shows that it is better, else the first ones

A row of candidates.jsonl, which is written anew after every evaluation:

    {"candidate": "c3", "parents": ["c1"], "step": 4, "fate": "kept", "why": "",
     "texts": {"system": "..."}, "changed": ["system"],
     "scores": {"task-7": 0.5, "task-9": 1.0}, "mean": 0.75, "success": 0.75,
     "calls": 8, "prompt_tokens": 1200, "completion_tokens": 300, "cost": 0.0}

`step` is the round in which it came up. `fate` is "first" for the candidate that everything begins with, "kept" for one
that was played at all tasks of the search, "tried" for one that was no better than its parent on a few tasks and went
no further, "dropped" for one that was not played as `why` says (what it quotes or has lost), "unplayed" for one before
whose turn the search ended. `scores` are mean rewards by task; `mean` and `success` (the share of attempts that passed,
null where no judge says that) are over the tasks played so far, null where there are none.
`parents` are two for a merger, none for the first.

A search that was killed goes on with the same result: what is on the disk is taken from there, and what is missing is
played, with the seeds that it would have had.
"""
