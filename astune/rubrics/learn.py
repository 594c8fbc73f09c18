"""Learn a rubric from a few examples: propose, judge, revise, select, arrange, and test once.

Contrastive proposals are those of OpenRubrics (arXiv 2510.07743), the loop of propose, judge and revise and the
selection by coding rate those of Auto-Rubric (arXiv 2510.17314), the fitted weights the idea of SVR (arXiv 2606.08077).
Unlike theirs, what is reported is measured on examples that nothing here saw before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from astune.config.judges import RubricsConfig
from astune.errors import AstuneError, nearest
from astune.rubrics.candidates import ProposalRequest, merge_criteria, proposals, propose_criteria, revisions
from astune.rubrics.choose import Choice, choose, dev_helps
from astune.rubrics.edits import Edits
from astune.rubrics.examples import Examples, RubricExample
from astune.rubrics.judge_examples import Asking, Scores, judge_as_a_whole, judge_by_rubric, rewards_of
from astune.rubrics.measure import Accuracy, keys, measure, pass_mark
from astune.rubrics.prompts import Arrangement, arrange_messages
from astune.rubrics.split import Split
from astune.task_judge.llm.rubric import Criterion, Rubric


class NothingHelps(AstuneError):
    """No criterion tells good from bad on the dev examples. `candidates` are texts and their `dev_helps`."""

    def __init__(self, candidates: Sequence[tuple[str, float]]) -> None:
        super().__init__(
            "no criterion tells good from bad on the dev examples; nothing was written. More examples, "
            "astune.task_judge.llm.instructions that say what the answers are for, or another model may help"
        )
        self.candidates = candidates


@dataclass(frozen=True)
class InUse:
    """A rubric and its pass mark, judged as `RubricsAsJudge` does: all criteria in one call."""

    rubric: Rubric
    pass_at: float
    dev: Accuracy


@dataclass(frozen=True)
class Learned:
    """A learned rubric with its accuracy on the test examples, beside that of baselines. `one_round` is the accuracy of
    the rubric before anything was revised, None if there was none yet."""

    in_use: InUse
    rounds: int
    helps: Mapping[str, float]
    test: Accuracy
    majority: Accuracy
    without_rubric: Accuracy
    one_round: Accuracy | None


class RubricLearner:
    """Equal arguments and equal replies give an equal rubric, whichever reply comes first."""

    def __init__(
        self, examples: Examples, split: Split, config: RubricsConfig, asking: Asking, seed: int, edits: Edits
    ) -> None:
        self._kind = examples.kind
        self._split = split
        self._config = config
        self._asking = asking
        self._seed = seed
        self._edits = edits
        self._scores = Scores(asking, (*split.train, *split.dev))
        self._pool: list[Criterion] = []

    async def learn(self) -> Learned:
        """Raises NothingHelps; BudgetSpent, or PolicyError where no model answers, after which it can go on."""
        await self._add(self._edits.criteria, "judge by what is kept")
        first = await self._round(self._differences(), "propose")
        best, rounds = await self._revise(first)
        if best is None:
            helps = dev_helps(self._pool, self._scores, self._split, self._kind)
            raise NothingHelps([(one.text, helps[one.id]) for one in self._pool])
        in_use = await self._arrange(best)
        test = await self._on_test(in_use.rubric, in_use.pass_at, "test")
        return Learned(
            in_use=in_use,
            rounds=rounds,
            helps={one.id: best.helps[one.id] for one in in_use.rubric.criteria},
            test=test,
            majority=self._majority(),
            without_rubric=await self._without_rubric(),
            one_round=test if first is best else await self._one_round(first),
        )

    async def _round(self, requests: Sequence[ProposalRequest], stage: str) -> Choice | None:
        """Adds what is proposed to the pool and chooses from it anew."""
        found = await propose_criteria(self._asking, requests, self._config.scale, stage)
        settled = self._edits.removed | {one.id for one in self._pool}  # what was edited keeps the id of its first text
        new = [one for one in merge_criteria(self._pool, found, self._seed) if one.id not in settled]
        await self._add(new, "judge by the new criteria")
        if not self._pool:
            return None
        kept, at_most = {one.id for one in self._edits.criteria}, self._config.max_criteria
        return choose(self._pool, kept, self._scores, self._split, self._kind, at_most, self._seed)

    async def _add(self, criteria: Sequence[Criterion], stage: str) -> None:
        if criteria:
            await self._scores.add(criteria, stage)
            self._pool += criteria

    def _differences(self) -> list[ProposalRequest]:
        instructions = self._asking.llm.instructions
        return proposals(self._split.train, self._kind, self._pool, self._config, instructions, self._seed)

    async def _revise(self, first: Choice | None) -> tuple[Choice | None, int]:
        """Revise in rounds; the choice that is best on dev, and the number of rounds."""
        best, stale = first, 0
        for number in range(self._config.rounds):
            mistakes = self._mistakes(best)
            perfect = best is not None and best.dev.accuracy == 1.0  # dev could not tell a better one
            if not mistakes or perfect or stale == self._config.patience:
                return best, number
            choice = await self._round(mistakes, f"revise, round {number + 1}")
            stale += 1
            if choice is not None and (best is None or choice.dev.accuracy > best.dev.accuracy):
                best, stale = choice, 0
        return best, self._config.rounds

    def _mistakes(self, best: Choice | None) -> list[ProposalRequest]:
        """Requests about the mistakes of the best choice; where there is none yet, of all candidates together."""
        criteria = best.criteria if best else tuple(self._pool)
        if not criteria:
            return []
        train = self._split.train
        rewards = self._scores.rewards(criteria, [key for one in train for key in keys(one)])
        mark = pass_mark(train, self._kind, rewards)
        instructions = self._asking.llm.instructions
        return revisions(train, self._kind, criteria, self._scores, rewards, mark, self._config, instructions)

    async def _arrange(self, best: Choice) -> InUse:
        """Add themes to the choice, and anchors where these do not make the judge worse on dev."""
        plain, anchored = await arrange(self._asking, best.criteria, self._config.scale)
        in_use = await self._in_use(plain, "judge by the whole rubric")
        if anchored == plain:
            return in_use
        other = await self._in_use(anchored, "judge by the rubric with anchors")
        return other if other.dev.accuracy >= in_use.dev.accuracy else in_use

    async def _in_use(self, criteria: Sequence[Criterion], stage: str) -> InUse:
        rubric = Rubric(criteria=tuple(criteria))
        seen = (*self._split.train, *self._split.dev)
        rewards = rewards_of(await judge_by_rubric(self._asking, rubric, seen, stage))
        mark = pass_mark(self._split.train, self._kind, rewards)
        return InUse(rubric, mark, measure(self._split.dev, self._kind, rewards, mark))

    async def _on_test(self, rubric: Rubric, pass_at: float, stage: str) -> Accuracy:
        judged = await judge_by_rubric(self._asking, rubric, self._split.test, stage)
        return measure(self._split.test, self._kind, rewards_of(judged), pass_at)

    async def _one_round(self, first: Choice | None) -> Accuracy | None:
        if first is None:
            return None
        rubric = Rubric(criteria=first.criteria)
        judged = await judge_by_rubric(self._asking, rubric, self._marked, "judge by the rubric of round one")
        mark = pass_mark(self._marked, self._kind, rewards_of(judged))
        return await self._on_test(rubric, mark, "test the rubric of round one")

    async def _without_rubric(self) -> Accuracy:
        seen = (*self._marked, *self._split.test)
        rewards = await judge_as_a_whole(self._asking, seen, "judge without a rubric")
        mark = pass_mark(self._marked, self._kind, rewards)
        return measure(self._split.test, self._kind, rewards, mark)

    @property
    def _marked(self) -> tuple[RubricExample, ...]:
        """The examples that a baseline's pass mark is chosen on: train, as the rubric's. Pairs and ranks need none."""
        return self._split.train if self._kind == "scored" else ()

    def _majority(self) -> Accuracy:
        """Every scored answer is what most of train and dev are; of two answers neither is better."""
        seen: tuple[RubricExample, ...] = (*self._split.train, *self._split.dev)
        good = 2 * sum(one.good for one in seen) >= len(seen)
        rewards = {key: float(good) for one in self._split.test for key in keys(one)}
        return measure(self._split.test, self._kind, rewards, 0.5)


async def arrange(asking: Asking, criteria: Sequence[Criterion], scale: str) -> tuple[list[Criterion], list[Criterion]]:
    """Arrange the criteria by theme, without and with anchors. Criteria that a person edited keep theme and anchors.
    Where the reply cannot be used, all stay as they are."""
    known = {criterion.id: criterion for criterion in criteria}
    messages = arrange_messages({name: one.text for name, one in known.items()}, scale)
    (reply,) = await asking.stage("arrange", [asking.ask(messages, Arrangement, partial(check_arrangement, known))])
    if reply is None:
        return list(criteria), list(criteria)
    themed = [
        known[name] if known[name].edited else known[name].model_copy(update={"theme": theme.theme.strip()})
        for theme in reply.value.themes
        for name in theme.criteria
    ]
    anchored = [
        one
        if one.edited or one.scale == "binary"
        else one.model_copy(update={"anchors": reply.value.anchors.get(one.id, {})})
        for one in themed
    ]
    return themed, anchored


def check_arrangement(known: dict[str, Criterion], reply: Arrangement) -> None:
    """Raises ValueError unless each criterion stands under exactly one theme and anchors are on its scale."""
    times = Counter(name for theme in reply.themes for name in theme.criteria)
    problems = [f"no criterion {name!r}.{nearest(name, known)}".rstrip(".") for name in times if name not in known]
    problems += [f"criterion {name!r} stands under no theme" for name in known if name not in times]
    problems += [f"criterion {name!r} stands {count} times" for name, count in times.items() if count > 1]
    for name, anchors in reply.anchors.items():
        if name not in known:
            problems.append(f"anchors of {name!r}, which is no criterion")
        elif any(not known[name].min <= score <= known[name].max for score in anchors):
            problems.append(f"anchors of {name!r}: scores from {known[name].min} to {known[name].max}")
    if problems:
        raise ValueError("; ".join(problems))
