r"""Make answers that look like the right one and are wrong.

>>> near_misses(Task("1", "9 * 8?", answer="72"))["another last digit"]
'77'
>>> near_misses(Task("1", "Half of 1.5?", answer=r"\frac{3}{4}"))["upside down"]
'\\frac{4}{3}'

Each differs in value from the reference by how it is made, whatever a judge says of it: a kind is left out where that
is not sure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from astune.check_tasks.wordings import options
from astune.task_judge.math.final_answer import reference_answer
from astune.task_judge.math.normalise import is_words, normalise
from astune.task_judge.math.quantity import MAX_QUANTITY, Quantity, read_quantity, without_label
from astune.task_judge.math.units import UNITS
from astune.types import Task

OF_NUMBERS = (
    "one more", "another first digit", "another last digit", "a digit more", "a digit less", "the other sign",
    "another unit", "upside down", "another numerator", "another denominator", "the numerator alone",
)  # fmt: skip
"""Kinds that also suit judges which take more than one answer to be right."""
NEAR_MISSES = (
    *OF_NUMBERS,
    "a part of it", "another element", "the other way round", "other brackets", "another option", "the opposite",
    "another first word", "another last word", "its negation",
)  # fmt: skip

_DECIMAL = re.compile(
    r"(?P<before>-?(?:USD |\\?\$)?-?)(?P<digits>\d[\d,]*)(?P<point>\.\d+)?(?P<rest>(?:[ %°].*)?)", re.DOTALL
)
_FRACTION = re.compile(
    r"(?P<sign>-?)(?P<a>\\frac ?\{|)(?P<n>\d+)(?P<b>\} ?\{| ?/ ?)(?P<d>\d+)(?P<c>\}?)(?P<rest>(?: .*)?)"
)
_FORMULA = re.compile(r"[\w\\{}()+\-*/^. ]+")
_NO_VALUE = re.compile(
    r"_|\\(?:infty|pm|mp|in|to|l[et]q?|g[et]q?|neq?|cup|cap|emptyset|begin|circ|mathbb|approx|[lc]?dots|[{}])(?![A-Za-z])|\\[{}]"
)
_LEADING = re.compile(r"(-?)(\d+)(?=\\pi|\\sqrt|[a-z](?![a-z]))")
_LIST = re.compile(
    r"(?P<open>\\left ?[(\[]|\\left ?\\\{|[(\[]|\\\{|)(?P<inner>[^()\[\]]+?)"
    r"(?P<close>\\right ?[)\]]|\\right ?\\\}|[)\]]|\\\}|)"
)
_EQUATION = re.compile(r"([^=<>]*[^=<>!:]=)([^=<>]+)")
_RATIO = re.compile(r"(\d+) ?: ?(\d+)")
_OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


def near_misses(task: Task) -> dict[str, str]:
    """By kind, of those in `NEAR_MISSES` that suit the reference answer."""
    reference = reference_answer(task.answer or "")
    normal = normalise(reference)
    if not normal or "\n" in reference or len(reference) > MAX_QUANTITY:
        return {}
    for make in (_option, _of_decimal, _of_fraction, _of_list, _of_equation, _of_formula, _of_words):
        made = [*make(task, reference.replace(r"^\circ", "°"))] or [*make(task, normal)]
        by_text = {text: kind for kind, text in reversed(made) if text not in (normal, reference)}
        if by_text:
            return {by_text[text]: text for _, text in made if text in by_text} | {"its negation": f"not {reference}"}
    return {"its negation": f"not {reference}"}


def _option(task: Task, text: str) -> Iterator[tuple[str, str]]:
    if opposite := _OPPOSITES.get(text.lower()):
        yield "the opposite", opposite
        return
    given = options(task)
    own = normalise(text).strip("()").casefold()
    labels = [normalise(each).strip("()").casefold() for each in given]
    if own in labels:
        beside = given[(labels.index(own) + 1) % len(given)]
        yield "another option", beside
    elif re.fullmatch(r"\(?[A-D]\)?", text):
        letter = text.strip("()")
        yield "another option", text.replace(letter, "ABCDA"["ABCD".index(letter) + 1])


def _of_decimal(task: Task, text: str) -> Iterator[tuple[str, str]]:
    match, quantity = _DECIMAL.fullmatch(text), read_quantity(normalise(text))
    if match is None or quantity is None or quantity.is_fraction:
        return
    before, digits, rest = match["before"], match["digits"].replace(",", ""), match["rest"]
    point = match["point"] or ""
    first = next((place for place, digit in enumerate(digits) if digit != "0"), None)

    def write(digits: str, point: str = point, before: str = before) -> str:
        return f"{before}{digits}{point}{rest}"

    yield "one more", write(str(int(digits) + 1))
    if first is not None:
        yield "another first digit", write(digits[:first] + _other(digits[first]) + digits[first + 1 :])
        if not point:
            yield "a digit more", write(digits + "7")
            yield "a digit less", write(digits[:-1]) if len(digits) > first + 1 else write(digits)
    last = point or digits
    changed = last[:-1] + str((int(last[-1]) + 5) % 10)
    yield "another last digit", write(digits, changed) if point else write(changed)
    if quantity.value:
        yield "the other sign", write(digits, before=before.replace("-", "") if "-" in before else f"-{before}")
    yield from _with_another_unit(quantity, f"{digits}{point}")


def _other(digit: str) -> str:
    return str(int(digit) % 9 + 1)


def _with_another_unit(quantity: Quantity, digits: str) -> Iterator[tuple[str, str]]:
    unit = quantity.unit
    if unit is None or not quantity.value:
        return
    others = (
        name for name, other in UNITS.items() if other.dimension == unit.dimension and other.factor != unit.factor
    )
    sign = "-" if quantity.value < 0 else ""
    yield "another unit", f"{sign}{digits} {next(others, 'kg' if unit.dimension != 'mass' else 'km')}"


def _of_fraction(task: Task, text: str) -> Iterator[tuple[str, str]]:
    match = _FRACTION.fullmatch(text)
    if match is None or not int(match["d"]) or not int(match["n"]) or bool(match["a"]) != bool(match["c"]):
        return
    n, d = int(match["n"]), int(match["d"])

    def write(n: int, d: int, sign: str = match["sign"]) -> str:
        return f"{sign}{match['a']}{n}{match['b']}{d}{match['c']}{match['rest']}"

    if n != d:
        yield "upside down", write(d, n)
    if d != 1:
        yield "the numerator alone", f"{match['sign']}{n}{match['rest']}"
    yield "another numerator", write(n + 1, d)
    yield "another denominator", write(n, d + 1)
    yield "the other sign", write(n, d, "" if match["sign"] else "-")


def _of_list(task: Task, text: str) -> Iterator[tuple[str, str]]:
    if ratio := _RATIO.fullmatch(text):
        if int(ratio[1]) != int(ratio[2]):
            yield "the other way round", f"{ratio[2]}:{ratio[1]}"
        return
    match = _LIST.fullmatch(text)
    parts = [part.strip() for part in match["inner"].split(",")] if match else []
    values = [quantity.value for part in parts if (quantity := read_quantity(part)) is not None]
    if match is None or len(parts) < 2 or bool(match["open"]) != bool(match["close"]):
        return
    if match["open"][-1:] + match["close"][-1:] in ("[)", "(]"):
        yield "other brackets", text.replace("[", "(").replace("]", ")")
    if len(set(values)) < len(parts):  # not all of them plain numbers, or some the same
        return

    def write(*parts: str) -> str:
        return f"{match['open']}{', '.join(parts)}{match['close']}"

    yield "another element", write(*parts[:-1], str(max(values, key=abs).__ceil__() + 1))
    if "[" not in match["open"] and "]" not in match["close"]:
        yield "a part of it", write(*parts[:-1])
        if match["open"].endswith("("):
            yield "the other way round", write(*reversed(parts))


def _of_equation(task: Task, text: str) -> Iterator[tuple[str, str]]:
    match = _EQUATION.fullmatch(text)
    side = match[2].strip() if match else ""
    if match is None or _has_no_value(match[1][:-1]) or _has_no_value(side):
        return
    number = read_quantity(side)
    whole = number is not None and number.value.denominator == 1 and side.lstrip("-").isdigit()
    yield "one more", match[1] + (str(int(side) + 1) if whole else f"{side}+1")


def _of_formula(task: Task, text: str) -> Iterator[tuple[str, str]]:
    formula = without_label(text)
    if _has_no_value(formula) or read_quantity(formula) is not None or re.fullmatch(r"\(?[A-Z]+\)?", formula):
        return
    yield "one more", f"{formula}+1"
    leading = _LEADING.match(formula)
    if leading and int(leading[2]) and not re.search(r"[-+]", formula[1:]):
        rest = formula[leading.end() :]
        yield "another first digit", f"{leading[1]}{_other(leading[2][0])}{leading[2][1:]}{rest}"
        yield "the other sign", f"{'' if leading[1] else '-'}{leading[2]}{rest}"


def _has_no_value(formula: str) -> bool:
    """True if the formula holds anything but numbers, letters and signs that calculate with them."""
    return not _FORMULA.fullmatch(formula) or _NO_VALUE.search(formula) is not None or is_words(formula)


def _of_words(task: Task, text: str) -> Iterator[tuple[str, str]]:
    words = text.split()
    if len(words) > 1 and all(re.fullmatch(r"[A-Za-z'-]+[,.]?", word) for word in words):
        yield "another first word", " ".join(["qwerty", *words[1:]])
        yield "another last word", " ".join([*words[:-1], "qwerty"])
