"""Things that answers of a support agent do or do not do, each found in a text by a rule: what a planted rubric is
made of."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """`met` finds it in an answer. `wordings` are criteria that mean it. An answer gets one of `sentences` if it is
    to have the feature, or, with `by_absence`, if it is not. `theme` groups it with others."""

    name: str
    theme: str
    met: Callable[[str], bool]
    wordings: tuple[str, ...]
    sentences: tuple[str, ...] = ()
    by_absence: bool = False


def _says(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    return lambda answer: compiled.search(answer) is not None


def _lacks(pattern: str) -> Callable[[str], bool]:
    says = _says(pattern)
    return lambda answer: not says(answer)


FEATURES: tuple[Feature, ...] = (
    Feature(
        "greeting",
        "Tone",
        _says(r"\A(dear|hello|hi) (ms|mr) \w+"),
        ("Addresses the customer by name.", "Greets the customer by name.", "The customer's name is in the greeting."),
        ("Dear {name},", "Hello {name},", "Hi {name},"),
    ),
    Feature(
        "thanks",
        "Tone",
        _says(r"\bthank"),
        ("Thanks the customer for writing.", "Thanks the customer.", "Contains thanks to the customer."),
        ("Thank you for your message.", "Thanks for getting in touch.", "We thank you for writing."),
    ),
    Feature(
        "no_apology",
        "Tone",
        _lacks(r"\b(sorry|apolog)"),
        ("Does not apologise.", "Contains no apology.", "Is written without an apology."),
        ("We are sorry for this.", "We apologise for the trouble.", "Sorry for the wait."),
        by_absence=True,
    ),
    Feature(
        "order_number",
        "Facts",
        _says(r"\b\d{5}\b"),
        ("Quotes the order number.", "Mentions the order number.", "Refers to the order by its order number."),
        ("Your order {order} is in our system.", "This is about order {order}.", "I looked at order {order}."),
    ),
    Feature(
        "reason",
        "Facts",
        _says(r"\b(because|the reason)\b"),
        ("Explains why the problem occurred.", "Gives the cause of the problem.", "Says why it went wrong."),
        (
            "It was held back because the address was incomplete.",
            "The reason is a full depot.",
            "This took long because a parcel label was torn.",
        ),
    ),
    Feature(
        "amount",
        "Facts",
        _says(r"\b(EUR|USD) \d"),
        (
            "States an amount of money with its currency.",
            "Names a sum in a currency.",
            "The currency of the sum is given.",
        ),
        ("The sum is EUR {amount}.", "That makes USD {amount} in all.", "We have noted EUR {amount}."),
    ),
    Feature(
        "day",
        "Facts",
        _says(r"\b(mon|tues|wednes|thurs|fri)day\b"),
        ("Names the day by which it is settled.", "Gives a day for the delivery.", "Commits to a day of the week."),
        ("It will be there by {day}.", "We settle this until {day}.", "Expect the parcel on {day}."),
    ),
    Feature(
        "policy",
        "Facts",
        _says(r"\b(policy|terms of sale)\b"),
        ("Cites the shop's policy.", "Refers to the policy that applies.", "Names the terms of sale or the policy."),
        (
            "Our returns policy covers this.",
            "Under our terms of sale this is free.",
            "The policy allows it within a month.",
        ),
    ),
    Feature(
        "example",
        "Help",
        _says(r"\b(for example|for instance)\b"),
        ("Gives a concrete example.", "Illustrates its advice with an example.", "Contains at least one example."),
        (
            "For example, a neighbour may sign for it.",
            "You could, for instance, choose a pick-up shop.",
            "For example, the grey model fits as well.",
        ),
    ),
    Feature(
        "next_step",
        "Help",
        _says(r"\b(next step|what happens next|next, )"),
        ("States the next step.", "Tells the customer the next step to take.", "Says what happens next."),
        (
            "Your next step is to reply with a photo.",
            "What happens next: we check the depot.",
            "Next, please open the tracking page.",
        ),
    ),
    Feature(
        "link",
        "Help",
        _says(r"https?://"),
        ("Links to a page with more information.", "Contains a web link.", "Includes the link to a page."),
        (
            "See https://shop.example/help for more.",
            "All is at https://shop.example/orders.",
        ),
    ),
    Feature(
        "contact",
        "Help",
        _says(r"\b(call us|phone)\b"),
        ("Offers a phone number or a call.", "Tells how to reach a person by phone.", "Names a way to call someone."),
        ("You can call us at any hour.", "Our phone line is open until eight.", "Please call us if it fails."),
    ),
    Feature(
        "list",
        "Form",
        _says(r"^- "),
        ("Uses a bulleted list.", "Points are set out as a list.", "Has a list with bullets."),
        ("\n- Keep the box.\n- Keep the receipt.\n", "\n- Check the label.\n- Check the seal.\n"),
    ),
    Feature(
        "no_exclamation",
        "Form",
        _lacks("!"),
        ("Contains no exclamation mark.", "Does without exclamation marks.", "Never uses an exclamation mark."),
        ("We are on it!", "Great choice!", "All will be well!"),
        by_absence=True,
    ),
    Feature(
        "sign_off",
        "Form",
        _says(r"\b(kind regards|best wishes|yours,)"),
        ("Closes with a sign-off.", "Ends with regards or wishes.", "A closing formula stands at its end."),
        ("Kind regards.", "Best wishes from the team.", "Yours, the team."),
    ),
    Feature(
        "question",
        "Form",
        _says(r"\?\s*\Z"),
        ("Ends with a question.", "The last sentence is a question.", "Closes by asking the customer something."),
        ("Does that help?", "Shall we go ahead?", "Is there anything else?"),
    ),
    Feature(
        "short",
        "Form",
        lambda answer: len(answer.split()) <= 60,
        ("Is at most 60 words long.", "Has no more than 60 words.", "Stays within 60 words."),
    ),
)
"""In the order in which an answer has their sentences."""

VAGUE = (
    "Is helpful and complete.",
    "Sounds professional.",
    "Shows empathy with the situation.",
    "Is accurate and relevant.",
    "Has a logical structure.",
    "Uses clear language.",
    "Builds trust.",
    "Goes beyond what was asked.",
)
"""Criteria that mean nothing that can be found in an answer."""

FILLERS = (
    "We have read your message with care.",
    "Our colleagues see cases like yours every week and know what to do about them.",
    "The parcel service that we work with is the one named on our pages.",
    "Everything is written down in your account, where you can read it at any time.",
    "Many customers ask about this.",
    "The item is well liked and in stock in most colours and sizes at the moment.",
)

NAMES = ("Ms Adler", "Mr Brandt", "Ms Costa", "Mr Diallo", "Ms Ekström", "Mr Fields", "Ms Gupta", "Mr Huang")
ITEMS = ("kettle", "desk lamp", "rain jacket", "backpack", "keyboard", "coffee grinder", "bicycle pump", "headset")
TROUBLES = (
    "has not arrived",
    "came with a crack",
    "is the wrong colour",
    "was charged twice",
    "does not switch on",
    "should go to another address",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


@dataclass(frozen=True)
class CustomerMessage:
    """A customer's message."""

    name: str
    item: str
    order: int
    trouble: str

    @property
    def query(self) -> str:
        return f"Order {self.order}: the {self.item} {self.trouble}. What now? {self.name}"


def draw_message(rng: random.Random) -> CustomerMessage:
    return CustomerMessage(rng.choice(NAMES), rng.choice(ITEMS), rng.randrange(10_000, 100_000), rng.choice(TROUBLES))


def draw_answer(message: CustomerMessage, rng: random.Random) -> str:
    """Each feature with probability one half, independently; `short` comes as it comes."""
    parts: list[str] = []
    for feature in FEATURES:
        if feature.sentences and (rng.random() < 0.5) != feature.by_absence:
            parts.append(rng.choice(feature.sentences))
    fillers = rng.sample(FILLERS, rng.randrange(len(FILLERS)))
    at = 1 if parts and parts[0] in FEATURES[0].sentences else 0  # a greeting stands first
    parts[at:at] = fillers
    text = " ".join(parts) or FILLERS[0]
    amount = f"{rng.randrange(5, 200)}.{rng.randrange(10, 100)}"
    return text.format(name=message.name, order=message.order, day=rng.choice(DAYS), amount=amount).strip()


def features_of(answer: str) -> frozenset[str]:
    return frozenset(feature.name for feature in FEATURES if feature.met(answer))


def meaning(criterion: str) -> Feature | None:
    """The feature that a criterion means; None for one that is not worded as any here."""
    return _MEANINGS.get(_plain(criterion))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


_MEANINGS = {_plain(wording): feature for feature in FEATURES for wording in feature.wordings}
