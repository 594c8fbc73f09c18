"""Scripted players of every role at three skills. They see what their seat knows (`View`), and draw from its seed.

simple   names anybody who may be named
middle   a villager goes with the village: it blames whom most blame, and votes against those who say nothing, go
         against the village or were against an innocent before; a wolf does half the time what a strong one does
strong   a villager also keeps in mind who was for or against a wolf, and against itself; a wolf goes with the
         village, even against another wolf, and by night kills who was most against wolves
"""

import random
from collections import Counter
from collections.abc import Sequence

from rules import Answer, Question, View

GOOD = ("villager", "seer", "witch", "hunter", "good")
ACCUSING = ("blame", "vote")
WORDS = ("I think {} is a wolf.", "Look at {}.", "{} is too quiet for me.", "I do not trust {}.")


class Scripted:
    def __init__(self, skill: str, seat: int, seed: int) -> None:
        self.skill = skill
        self._draw = random.Random(f"{seed} {seat}")

    async def answer(self, question: Question) -> Answer:
        name = self._draw.choice(question.legal) if self.skill == "simple" else self._choose(question)
        if question.act != "blame" or not name:
            return Answer(name)
        return Answer(name, self._draw.choice(WORDS).format(name))

    def _choose(self, question: Question) -> int:
        view, act = question.view, question.act
        if view.role == "wolf":
            return self._wolf(question)
        wolves = [seat for seat in question.legal if view.known.get(seat) == "wolf"]
        if act == "potion" and question.victim in question.legal:
            return question.victim
        if act in ("potion", "shoot") and not wolves and self.skill == "middle":
            return 0
        if act == "see":
            new = [seat for seat in question.legal if seat not in view.known]
            return self._draw.choice(new or question.legal)
        if wolves:
            return wolves[0]
        unsure = [seat for seat in question.legal if view.known.get(seat) not in GOOD] or list(question.legal)
        crowd = most_blamed(view, unsure)
        if act == "blame" and crowd:
            return crowd
        return self._highest(unsure, suspicion(view, self.skill))

    def _wolf(self, question: Question) -> int:
        view = question.view
        prey = [seat for seat in question.legal if view.known.get(seat) != "wolf"]
        if not prey or (self.skill == "middle" and self._draw.random() < 0.5):
            return self._draw.choice(prey or question.legal)
        if question.act == "kill":
            accusers = [
                each.who for each in view.events if each.what in ACCUSING and view.known.get(each.whom) == "wolf"
            ]
            return self._highest(prey, Counter(accusers))
        return most_blamed(view, question.legal) or self._draw.choice(prey)

    def _highest(self, seats: list[int], score: Counter) -> int:
        most = max(score[seat] for seat in seats)
        return self._draw.choice([seat for seat in seats if score[seat] == most])


def count_blamed(view: View) -> Counter:
    """How many blame a seat today."""
    return Counter(event.whom for event in view.today("blame") if event.whom)


def most_blamed(view: View, seats: Sequence[int]) -> int:
    """Of these the one whom most blame today, the first among equals; 0 if nobody blames any."""
    blamed = count_blamed(view)
    return max((seat for seat in blamed if seat in seats), key=lambda seat: blamed[seat], default=0)


def silent(view: View) -> set[int]:
    """Who has said nothing today."""
    return {event.who for event in view.today("blame") if not event.whom}


def astray(view: View) -> set[int]:
    """Who blames another today than most do, and is not whom most blame."""
    blamed = count_blamed(view)
    most = max(blamed.values(), default=0)
    said = [event for event in view.today("blame") if event.whom]
    return {event.who for event in said if blamed[event.whom] < most and blamed[event.who] < most}


def wronged(view: View) -> Counter:
    """How often each was against one who is dead and was innocent."""
    against = [event for event in view.events if event.what in ACCUSING and event.whom not in (0, *view.alive)]
    return Counter(event.who for event in against if view.known.get(event.whom) in GOOD)


def suspicion(view: View, skill: str) -> Counter:
    """How much a seat is to be suspected, as far as the viewer knows."""
    score = count_blamed(view) + wronged(view)
    score.update(dict.fromkeys(silent(view), 9))
    score.update(dict.fromkeys(astray(view), 6))
    for event in view.events if skill == "strong" else ():
        if event.what not in ACCUSING or not event.whom:
            continue
        if view.known.get(event.whom) == "wolf":
            score[event.who] -= 2
        if event.whom == view.seat:
            score[event.who] += 1
    return score
