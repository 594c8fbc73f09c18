"""Faults put into the merge, the masks and the weights on purpose, one at a time: the checks of `histories.py` must
find each. A fault that they do not find is a hole in the tests.

A fault is a function that puts faulty code in the place of sound code: most call the sound one and spoil what it does.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from astune.algorithm import aggregation, samples
from astune.algorithm.aggregation import Entry
from astune.context_tracker import forks, merge
from astune.context_tracker.merge import PrefixForest, TurnForest
from astune.errors import InvariantError
from astune.token_ids import WIDTH, TokenIds
from tests.context_tracker.histories import check_all
from tests.rows import each_row

HISTORIES = 1000
"""Random histories that a fault has to survive to count as not found."""
FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def breaks(what):
    """The decorated function plants a fault: `what` says what is broken then."""

    def keep(plant):
        FAULTS[what] = plant
        return plant

    return keep


def spoil(what, place, name, faulty):
    """`faulty(sound, *arguments)` stands in the place of `place.name`, which is `sound`."""
    sound = getattr(place, name)

    def plant(patch):
        patch.setattr(place, name, lambda *args, **options: faulty(sound, *args, **options))

    FAULTS[what] = plant


# Token ids


@breaks("ids of a long prompt come in the wrong order")
def _(patch):
    def pack(ids):
        return ids.own if ids.before is None else ids.own + ids.before.pack()

    patch.setattr(TokenIds, "pack", pack)


@breaks("a prompt is as long as its last piece")
def _(patch):
    patch.setattr(TokenIds, "__len__", lambda ids: len(ids.own) // WIDTH)


@breaks("prompts of equal length are equal")
def _(patch):
    patch.setattr(TokenIds, "__eq__", lambda left, right: len(left) == len(right))


@breaks("shared tokens come twice")
def _(patch):
    def share(ids, before, own):
        ids._link = (before, ids.own)

    patch.setattr(TokenIds, "share", share)


spoil("a fork shares one token too many", merge, "count_shared_bytes", lambda sound, *both: sound(*both) + WIDTH)


# The forest


@breaks("only the first token is compared")
def _(patch):
    patch.setattr(PrefixForest, "_split", lambda self, node, size: node)


def splitting(spoilt):
    """A split after which `spoilt(upper, node, its own tokens before)` is done."""

    def faulty(sound, self, node, size):
        own = node.own
        upper = sound(self, node, size)
        spoilt(upper, node, own)
        return upper

    return PrefixForest, "_split", faulty


spoil(
    "what hangs below a split loses the upper part",
    *splitting(lambda upper, node, own: setattr(node, "parent", upper.parent)),
)
spoil("what hangs below a split is found no more", *splitting(lambda upper, node, own: upper.children.clear()))
spoil(
    "the lower part of a split repeats the upper part", *splitting(lambda upper, node, own: setattr(node, "own", own))
)
spoil("a split loses tokens", *splitting(lambda upper, node, own: node.ids.share(upper.ids, b"")))


def counts_again(sound, self, ids):
    before = self.unique_tokens
    node = sound(self, ids)
    if self.unique_tokens > before:
        self.unique_tokens = before + len(ids)
    return node


spoil("tokens are counted again", PrefixForest, "insert", counts_again)


# Which turn goes on from which


def in_timeline(name, faulty):
    return merge, name, faulty


def in_forest(name, faulty):
    return TurnForest, name, faulty


spoil(
    "an agent goes on with another one's timeline", *in_timeline("_of_one_kind", lambda sound, a, b: a.exact == b.exact)
)
spoil("ids made from text go on", *in_timeline("_of_one_kind", lambda sound, a, b: a.agent == b.agent))
spoil("only a prompt that adds nothing goes on", *in_timeline("path", lambda sound, node: [node]))
spoil("a prompt that adds nothing forks", *in_timeline("path", lambda sound, node: [*sound(node)][1:]))
spoil("the shortest timeline goes on", *in_timeline("path", lambda sound, node: [*sound(node)][::-1]))
spoil("a timeline that is continued is continued again", *in_forest("_newest_free", lambda sound, self, mine: mine[-1]))
spoil(
    "the lost one of equal answers goes on",
    *in_forest(
        "_newest_free", lambda sound, self, mine: next((i for i in mine if self._places[i].after is None), mine[0])
    ),
)
spoil(
    "all branches are in one timeline",
    *in_forest("_is_first_after", lambda sound, self, before, number: self._places[before].after is not None),
)


def takes_along(sound, self, turn):
    sound(self, turn)
    place = self._places[-1]
    if place.before is not None:
        self._places[place.before].after, place.fork = len(self.turns) - 1, None


def forgets_agent(sound, self, turn):
    sound(self, turn)
    self._agents.discard(turn.agent)


spoil("a branch takes the timeline it leaves along", *in_forest("add", takes_along))
spoil("nobody is known, so nothing goes on", *in_forest("add", forgets_agent))


# Why it forks


spoil("the prompt builder's reason is lost", forks, "of_timeline", lambda sound, label, **facts: sound(None, **facts))
spoil(
    "a branch is blamed on another agent",
    forks,
    "of_timeline",
    lambda sound, label, **facts: "other_agent" if (cause := sound(label, **facts)) == "branch" else cause,
)
spoil(
    "whoever comes shares",
    forks,
    "of_timeline",
    lambda sound, label, *, agent_known, tokens_known: sound(label, agent_known=agent_known, tokens_known=True),
)


# Answers that were lost


def of_all_agents(sound, self, agent, *rest):
    for one in {turn.agent for turn in self.turns}:
        sound(self, one, *rest)


def continued_ones_too(sound, self, *args):
    after = [place.after for place in self._places]
    for place in self._places:
        place.after = None
    sound(self, *args)
    for place, number in zip(self._places, after, strict=True):
        place.after = number


spoil("another agent's answer is repeated", *in_forest("exclude_repeated", of_all_agents))
spoil("answers get lost", *in_forest("exclude_repeated", continued_ones_too))
spoil(
    "a frozen turn is called retried",
    *in_timeline("replace", lambda sound, turn, excluded: sound(turn, excluded="retried")),
)


# Timelines and their spans


def backwards(sound, self, own, shared):
    line = sound(self, own, shared)
    spans = [span for span in line.spans if span.shared][::-1]
    return replace(line, spans=(*spans, *line.spans[len(spans) :]))


def too_short(sound, self, own, shared):
    return replace(sound(self, own, shared), token_ids=self._places[own[0]].token_ids)


def spans(**changes):
    """Spans with other values: functions of the span."""

    def faulty(sound, self, number, *, shared):
        span = sound(self, number, shared=shared)
        return replace(span, **{name: value(span) for name, value in changes.items()})

    return in_forest("_span", faulty)


spoil("the turns of a branch come backwards", *in_forest("_timeline", backwards))
spoil("timelines end too soon", *in_forest("_timeline", too_short))
spoil("turns are trained twice", *spans(shared=lambda span: False))
spoil("nothing is trained", *spans(shared=lambda span: True))
spoil("the mask is one token off", *spans(start=lambda span: span.start - 1, stop=lambda span: span.stop - 1))
spoil("frozen and greedy turns are trained", *spans(trainable=lambda span: True))
spoil("log-probabilities of other tokens", *spans(logprobs=lambda span: span.logprobs[::-1]))
spoil("the age of tokens is lost", *spans(policy_version=lambda span: 0))


# Shares and weights


def in_episode(**changes):
    """The episode, its spans with other values."""

    def faulty(sound, episode, credit):
        lines = [
            replace(line, spans=tuple(replace(span, **changes) for span in line.spans)) for line in episode.timelines
        ]
        return sound(replace(episode, timelines=tuple(lines)), credit)

    return faulty


def only_own(sound, episode, credit):
    shares = zip(episode.timelines, sound(episode, credit), strict=True)
    return [
        tuple(0.0 if span.shared else share for span, share in zip(line.spans, row, strict=True))
        for line, row in shares
    ]


def over_all(sound, episode, credit):
    if credit != "mean_branch":
        return sound(episode, credit)
    return [tuple(share / len(episode.timelines) for share in row) for row in sound(episode, "per_branch")]


spoil("frozen turns have weight", samples, "span_shares", in_episode(trainable=True))
spoil("`once` counts shared turns more than once", samples, "span_shares", in_episode(shared=False))
spoil("branches never count", samples, "span_shares", only_own)
spoil("the mean is over all timelines", samples, "span_shares", over_all)


@breaks("weights do not sum to 1")
def _(patch):
    patch.setattr(Entry, "size", property(lambda entry: entry.tokens))


def whole_shares(sound, entries, *rest):
    return [
        weight / entry.share if weight else 0.0 for weight, entry in zip(sound(entries, *rest), entries, strict=True)
    ]


def with_idle_units(sound, entries, kind, most):
    units, busy = ({aggregation._unit(one, kind) for one in some} for some in (entries, [e for e in entries if e.size]))
    return [weight * len(busy) / len(units) for weight in sound(entries, kind, most)]


spoil("a shared turn weighs as much as a whole one", samples, "token_weights", whole_shares)
spoil("episodes without loss take weight away", samples, "token_weights", with_idle_units)
spoil(
    "long episodes weigh more",
    aggregation,
    "_unit",
    lambda sound, entry, kind: None if kind == "episode_mean" else sound(entry, kind),
)
spoil(
    "long turns weigh more",
    aggregation,
    "_unit",
    lambda sound, entry, kind: entry.episode if kind == "turn_mean" else sound(entry, kind),
)
spoil(
    "turns of two episodes count as one",
    samples,
    "Entry",
    lambda sound, task, episode, turn, *rest: sound(task, episode, turn[1], *rest),
)


def context_counts(sound, number, episode, weighting):
    sizes = [len(line.token_ids) for line in episode.timelines for _ in line.spans]
    return (replace(entry, tokens=size) for entry, size in zip(sound(number, episode, weighting), sizes, strict=True))


spoil("context dilutes the weight", samples, "_entries", context_counts)


def first_failure() -> Exception | None:
    for seed in range(HISTORIES):
        try:
            check_all(Random(seed))
        except (AssertionError, ValueError, InvariantError) as error:  # not one that the planting itself raised
            return error
    return None


def test_the_sources_as_they_are_pass_the_checks():
    assert first_failure() is None


@each_row("what", FAULTS)
def test_every_fault_is_found(what, monkeypatch):
    FAULTS[what](monkeypatch)
    assert first_failure() is not None, f"nothing noticed that {what}"


def test_there_are_as_many_faults_as_the_documentation_says():
    assert len(FAULTS) == 46
