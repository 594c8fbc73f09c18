"""GEPA (Agrawal et al. 2025, arXiv 2507.19457) by the package of that name.

Of the package are: which candidate is reflected on (a draw among those that are best at some task), on which tasks,
which text of it, when two candidates are merged, and that a new one has to be better on a few tasks before it plays all
of them. Ours is what the package does in a way that a run cannot use:

- Its budget counts evaluations that cost nothing, and is looked at once a round. Ours counts episodes and money before
  they are spent.
- It goes on from a pickle that knows neither its random numbers nor its place in the tasks, and plays the first
  candidate again. Here it begins anew, and is told from the record what it asked for before.
- An error of its reflection is a line in its log, after which it tries for ever. Here it ends the search.
- Its reflection sees a score and a text for each task, and takes whatever stands between fences for the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astune.errors import MissingDependency
from astune.prompts.problem import Problem


class GepaSearch:
    """Searches by GEPA."""

    def search(self, problem: Problem) -> None:
        """Raises SearchEnds, and MissingDependency."""
        try:
            from gepa.api import optimize
        except ImportError as error:
            raise MissingDependency(
                "astune.prompts.method gepa needs the package gepa: pip install 'astune[prompt]'"
            ) from error
        tasks = list(range(len(problem.tasks)))
        optimize(
            seed_candidate=dict(problem.first),
            trainset=tasks,
            valset=tasks,
            adapter=_Adapter(problem),  # type: ignore[arg-type]
            reflection_minibatch_size=min(problem.config.batch, len(tasks)),
            skip_perfect_score=False,
            use_merge=len(problem.first) > 1,
            stop_callbacks=lambda state: problem.is_over(),
            logger=_Quiet(),
            callbacks=[_Mergers(problem)],  # type: ignore[list-item]
            track_best_outputs=False,
            seed=problem.seed,
        )


class _Adapter:
    """The problem as the package wants it: a task is its number, a trajectory too."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def evaluate(self, batch: Sequence[int], candidate: Mapping[str, str], capture_traces: bool = False) -> Any:
        from gepa.core.adapter import EvaluationBatch

        results = self._problem.evaluate(candidate, batch)
        scores = [result.score for result in results]
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=list(batch) if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, batch: Any, names: Sequence[str]) -> Mapping[str, Any]:
        return {name: [{"task": task} for task in batch.trajectories] for name in names}

    def propose_new_texts(
        self, candidate: Mapping[str, str], dataset: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, str]:
        return self._problem.reflect(candidate, names, [row["task"] for row in dataset[names[0]]])


class _Mergers:
    """Tells whose child a merger is: the package says so when it has been played."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._pool: dict[int, Mapping[str, str]] = {}

    def on_valset_evaluated(self, event: Any) -> None:
        self._pool[event["candidate_idx"]] = dict(event["candidate"])

    def on_merge_attempted(self, event: Any) -> None:
        parents = [self._pool[number] for number in event["parent_ids"]]
        self._problem.candidates.set_parents(event["merged_candidate"], parents)


class _Quiet:
    """The package's own log is not shown: the record says more."""

    def log(self, message: str) -> None:
        pass
