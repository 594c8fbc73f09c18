"""The text in which a player is asked. It is made of what its seat knows (`View`) and of nothing else."""

import random

from rules import Event, Question, View
from scripted import astray, most_blamed, silent, wronged

SYSTEM = "End with: The answer is N."
RULES = (
    "We play Werewolves. By night the wolves kill one, by day all vote who must die. The village wins when no wolf is "
    "left, the wolves when they are as many as the others. Say one short sentence, then end with: The answer is N. "
    "N is a number that you may name, or 0 for nobody."
)
ACTS = {
    "kill": "Whom do the wolves kill?",
    "see": "Whom do you want to see?",
    "potion": "{victim} is to die tonight. Name that one to save it, another to poison it.",
    "blame": "Whom do you blame, aloud?",
    "vote": "For whose death do you vote?",
    "shoot": "You die. Whom do you shoot?",
}


def ask_short(question: Question, heard: int) -> str:
    """For the tiny model: who may be named, each right after what there is to say about it, in a drawn order, so that
    who always names the last names anybody. It stands where this model expects the result of a tool."""
    view = question.view
    order = random.Random(f"{view.seat} {view.events}").sample(question.legal, len(question.legal))
    most = most_blamed(view, question.legal)
    words = ", ".join(f"{' '.join(describe(view, seat, most))}{seat}" for seat in order)
    victim = f"dying {question.victim}. " if question.victim else ""
    return f"<tool_response>\n{question.act}: {victim}{words}.\n</tool_response>"


def describe(view: View, seat: int, most: int) -> list[str]:
    """Whether most blame a seat, what is known of it and, for who is no wolf, whether it said nothing today, went
    astray from the village, or was against an innocent before: in words that are one token each of the tiny model,
    which else finds no way from a word to the number behind it."""
    known, village = view.known.get(seat), view.role != "wolf"
    words = {
        "had": village and seat in wronged(view),
        "away": village and seat in astray(view),
        "still": village and seat in silent(view),
        "many": seat == most,
        "team": known == "wolf",
        "friend": known == "good",
    }
    return [word for word, said in words.items() if said] or ["other"]


def ask_full(question: Question, heard: int) -> str:
    """Everything that happened since the player was asked before, in sentences."""
    view = question.view
    known = ", ".join(f"{seat} is {role}" for seat, role in sorted(view.known.items()) if seat != view.seat)
    first = [RULES, f"You are player {view.seat}, a {view.role}."] if heard == 0 else []
    happened = [
        f"{event.when.capitalize()}." if event.what == "begin" else f"{event.who or ''} {tell(event)}".strip()
        for event in view.events[heard:]
    ]
    legal = ", ".join(map(str, question.legal))
    asked = ACTS[question.act].format(victim=question.victim or "Nobody")
    return "\n".join([*first, *happened, f"You know: {known or 'nothing'}.", f"{asked} You may name {legal}, or 0."])


def tell(event: Event) -> str:
    """What somebody did, without who it was, or what happened."""
    verbs = {"kill": "wants to kill", "save": "saves", "poison": "poisons", "blame": "blames", "vote": "votes for"}
    if event.what in verbs:
        said = f' "{event.words}"' if event.words else ""
        return f"{verbs[event.what]} {event.whom or 'nobody'}.{said}"
    if event.what == "see":
        kind = "a wolf" if event.words == "wolf" else "no wolf"
        return f"sees that {event.whom} is {kind}." if event.whom else "sees nobody."
    return f"is {event.what}, a {event.words}." if event.who else f"{event.what}."
