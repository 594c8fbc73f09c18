"""Faults put into the merge, the masks and the weights on purpose, one at a time: the checks of `histories.py` must
find each. A fault they do not find is a hole in the tests; one whose text is gone from the source must be rewritten."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from random import Random
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest

import astune

HISTORIES = 1000
"""Random histories that a fault has to survive to count as not found."""


class Fault(NamedTuple):
    module: str
    old: str
    new: str
    breaks: str

    @property
    def path(self) -> Path:
        return Path(astune.__file__).parent / Path(*self.module.split(".")[1:]).with_suffix(".py")


IDS = "astune.token_ids"
FOREST = "astune.context_tracker.merge.forest"
FORKS = "astune.context_tracker.forks"
TIMELINE = "astune.context_tracker.merge.timeline"
CREDIT = "astune.algorithm.credit"
AGGREGATION = "astune.algorithm.aggregation"
SAMPLES = "astune.algorithm.samples"

FAULTS = [
    Fault(IDS, "join(reversed(pieces))", "join(pieces)", "ids of a long prompt come in the wrong order"),
    Fault(IDS, " + (0 if before is None else len(before))", "", "a prompt is as long as its last piece"),
    Fault(IDS, " and self.packed() == other.packed())", ")", "prompts of equal length are equal"),
    Fault(FOREST, "if not data.startswith(child.own, place):", "if False:", "only the first token is compared"),
    Fault(IDS, "return low * WIDTH", "return (low + 1) * WIDTH", "a fork shares one token too many"),
    Fault(FOREST, "link.share(node.ids, data[place:])", "link.share(node.ids, data)", "shared tokens come twice"),
    Fault(FOREST, "node.parent = upper", "pass", "what hangs below a split loses the upper part"),
    Fault(FOREST, "upper.children[node.own[:WIDTH]] = node", "pass", "what hangs below a split is found no more"),
    Fault(FOREST, "node.own = node.own[size:]", "pass", "the lower part of a split repeats the upper part"),
    Fault(FOREST, "node.ids.share(upper.ids, node.own)", "node.ids.share(upper.ids, b'')", "a split loses tokens"),
    Fault(FOREST, "self.unique_tokens += len(link.own)", "self.unique_tokens += len(data)", "tokens are counted again"),
    Fault(TIMELINE, "(self.turns[number].agent, self", "(turn.agent, self", "an agent goes on with another one's row"),
    Fault(TIMELINE, "self.turns[number].exact) == kind", "turn.exact) == kind", "ids made from text go on"),
    Fault(TIMELINE, "for node in path(end):", "for node in [end]:", "only a prompt that adds nothing goes on"),
    Fault(TIMELINE, "for node in path(end):", "for node in list(path(end))[1:]:", "a prompt that adds nothing forks"),
    Fault(TIMELINE, "for node in path(end):", "for node in [*path(end)][::-1]:", "the shortest row goes on"),
    Fault(TIMELINE, "(free or mine)[-1]", "mine[-1]", "a row that is continued is continued again"),
    Fault(TIMELINE, "(free or mine)[-1]", "(free or mine)[0]", "the lost one of equal answers goes on"),
    Fault(TIMELINE, " or self._places[before].after is not None:", ":", "a branch takes the row it leaves along"),
    Fault(TIMELINE, ".after == number:", ".after is not None:", "all branches are in one row"),
    Fault(FORKS, "turn_fork or BRANCH", "BRANCH", "the prompt builder's reason is lost"),
    Fault(FORKS, "turn_fork or BRANCH", "turn_fork or OTHER_AGENT", "a branch is blamed on another agent"),
    Fault(TIMELINE, "any(node.turns for node in path(prompt_end))", "bool(self._agents)", "whoever comes 2nd shares"),
    Fault(TIMELINE, "self._agents.add(turn.agent)", "pass", "nobody is known, so nothing goes on"),
    Fault(TIMELINE, "turn.agent == agent and turn.prompt_ids", "turn.prompt_ids", "another agent's answer is repeated"),
    Fault(TIMELINE, "turn.excluded or reason", "reason", "a frozen turn is called retried"),
    Fault(TIMELINE, "    if self._places[number].after is None:\n", "    if True:\n", "answers get lost"),
    Fault(TIMELINE, "        spans.reverse()\n", "", "the turns of a branch come backwards"),
    Fault(TIMELINE, "self._span(before, shared=True)", "self._span(before, shared=False)", "turns are trained twice"),
    Fault(TIMELINE, "self._span(number, shared=False)", "self._span(number, shared=True)", "nothing is trained"),
    Fault(TIMELINE, "self._places[row[-1]].token_ids", "self._places[row[0]].token_ids", "rows end too soon"),
    Fault(TIMELINE, "start = len(turn.prompt_ids)", "start = len(turn.prompt_ids) - 1", "the mask is one token off"),
    Fault(TIMELINE, "trainable=turn.trainable", "trainable=True", "frozen and greedy turns are trained"),
    Fault(TIMELINE, "logprobs=turn.logprobs", "logprobs=turn.logprobs[::-1]", "log-probabilities of other tokens"),
    Fault(TIMELINE, "policy_version=turn.policy_version", "policy_version=0", "the age of tokens is lost"),
    Fault(CREDIT, "span.trainable and not (credit", "not (credit", "frozen turns have weight"),
    Fault(CREDIT, 'not (credit == "once" and span.shared)', "not span.shared", "branches never count"),
    Fault(CREDIT, ' and not (credit == "once" and span.shared)', "", "`once` counts shared turns more than once"),
    Fault(CREDIT, "1.0 / branches[span.turn]", "1.0 / len(episode.timelines)", "the mean is over all rows"),
    Fault(AGGREGATION, "return self.tokens * self.share", "return self.tokens", "weights do not sum to 1"),
    Fault(AGGREGATION, "entry.share / (len(sizes)", "1.0 / (len(sizes)", "a shared turn weighs as much as a whole one"),
    Fault(AGGREGATION, "        if entry.size:\n", "        if True:\n", "episodes without loss take weight away"),
    Fault(AGGREGATION, '"episode_mean": entry.episode', '"episode_mean": None', "long episodes weigh more"),
    Fault(AGGREGATION, '"turn_mean": entry.turn', '"turn_mean": entry.episode', "long turns weigh more"),
    Fault(SAMPLES, "number, (number, span.turn), ", "number, span.turn, ", "turns of two episodes count as one"),
    Fault(SAMPLES, "len(span), share)", "len(line.token_ids), share)", "context dilutes the weight"),
]  # fmt: skip


CHECKS = "tests.context_tracker.histories"


class _MutantLoader(SourceFileLoader):
    """Loads a module from its source with the fault in it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.module, str(fault.path))
        self.fault = fault

    def get_code(self, fullname: str) -> CodeType:
        source = self.fault.path.read_text(encoding="utf-8")
        return compile(source.replace(self.fault.old, self.fault.new), self.path, "exec")


class _MutantFinder:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.fault.module:
            return None
        return importlib.util.spec_from_file_location(name, self.fault.path, loader=_MutantLoader(self.fault))


@contextmanager
def checks_with(fault: Fault | None) -> Iterator[ModuleType]:
    """`histories.py` on top of a copy of astune of its own, with the fault in it. The copy is gone afterwards."""
    ours = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name == CHECKS or name.split(".")[0] == "astune"
    }
    finders = [_MutantFinder(fault)] if fault else []
    sys.meta_path[:0] = finders
    try:
        yield importlib.import_module(CHECKS)
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name == CHECKS or name.split(".")[0] == "astune"]:
            del sys.modules[name]
        sys.modules.update(ours)


def first_failure(checks: ModuleType) -> Exception | None:
    for seed in range(HISTORIES):
        try:
            checks.check_all(Random(seed))
        except Exception as error:
            return error
    return None


def test_the_sources_as_they_are_pass_the_checks():
    with checks_with(None) as checks:
        assert first_failure(checks) is None


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.breaks for fault in FAULTS])
def test_every_fault_is_found(fault):
    assert fault.path.read_text(encoding="utf-8").count(fault.old) == 1, f"{fault.old!r} is not once in {fault.path}"
    with checks_with(fault) as checks:
        assert first_failure(checks) is not None, f"nothing noticed that {fault.breaks}"
