r"""Compare two answers as far as that takes no algebra.

>>> from astune.task_judge.math.normalise import normalise
>>> compare(normalise("$72.00"), normalise("72 clips"))
<Relation.EQUAL: 'equal'>
>>> compare("72", "I don't know")
<Relation.UNREAD: 'unread'>
"""

from __future__ import annotations

import re
from enum import Enum
from fractions import Fraction

from astune.task_judge.math.normalise import MAX_LENGTH, SYMBOLS, is_words
from astune.task_judge.math.quantity import Quantity, read_quantity, without_label


class Relation(Enum):
    """The relation of an answer to a reference."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNREAD = "unread"
    """One of them is no mathematics: words that are not equal as text."""
    ALGEBRA = "algebra"
    """`worker` has to compare them."""

    @classmethod
    def of(cls, equal: bool) -> Relation:
        return cls.EQUAL if equal else cls.DIFFERENT


_BASE = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?(\d+)\}?")
_CHOICE = re.compile(r"(?:option|choice|answer)?\s*[(\[]?([A-J])(?:[)\].:]+\s*(.*)|\s*)", re.IGNORECASE | re.DOTALL)
_CHOICES = re.compile(r"[A-J]{2,5}")
_YES_OR_NO = re.compile(r"(yes|no|true|false|是|不是|否|对|错)(?:[,.!;:，]\s*(.*))?", re.IGNORECASE | re.DOTALL)  # noqa: RUF001
_SAYS_MORE = re.compile(
    r"\b(?:yes|no|not|true|false|or|but|and|unless|except|if|maybe|perhaps|however|sometimes|depends)\b|[是不否对错]",
    re.IGNORECASE,
)
_TAKES_BACK = re.compile(
    r"[,;/&+]|(?:unless|if|except|or|but|nor|cannot)\b|(?:is|was|ca)n't\b|(?:is|was) (?:not|wrong|incorrect|false)\b"
)
_ANSWER_LABEL = re.compile(r"A ?: ?(.+)", re.DOTALL)
_OPTION = re.compile(r"\(?[A-J]\)?")
_TIME = re.compile(r"(\d{1,2})(?::([0-5]\d))?(?:\s*([ap])\.?m\.?)?", re.IGNORECASE)
_DATE = re.compile(
    r"\d{1,4}-0\d|[12]\d{3}(?:-[01]\d|-[01]?\d-[0-3]?\d|[/.][01]?\d[/.][0-3]?\d)|[0-3]?\d[-/.][0-3]?\d[-/.](?:19|20)\d\d"
)
_FACTORS = re.compile(r"(\([^(),]*\)) ?(?=\([^(),]*\))")
_UNSOLVED = re.compile(r"\d+\s*[a-z]|\d*\s*[a-z]\s*[+-]\s*\d+", re.IGNORECASE)

_AND_OR = re.compile(r"(?:\s*[,;]\s*|\s+)(?:and|or)\s+(?![A-Za-z]{2,})")
_NAME = re.compile(r"^(?:\\angle ?)?(?:[A-Za-z]|[A-Z]{2,3})(?:_\{?\w+\}?|\([^()=]*\))?\s*=\s*(?!.*=)")
_APPROXIMATION = re.compile(r"(.*\S) ?(?:\\approx(?![A-Za-z])|≈) ?(\S.*)")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)")


def compare(reference: str, answer: str) -> Relation:
    """The relation of two normalised answers. Numbers are compared exactly, up to the noise of floating point (relative
    1e-12)."""
    if len(answer) > MAX_LENGTH or not answer:
        return Relation.EQUAL if _squeeze(reference) == _squeeze(answer) else Relation.UNREAD
    answer = _without_answer_label(reference, answer)
    reference, answer = _one_side(reference, answer), _one_side(answer, reference)
    reference, answer = _values(reference, answer)
    expected = read_quantity(reference)
    given = read_quantity(answer, unit_letters=bool(expected and expected.unit))
    if expected and given:
        equal = expected.equals(given)
        return Relation.ALGEBRA if equal is None else Relation.of(equal)
    if _squeeze(reference) == _squeeze(answer):
        return Relation.EQUAL
    for compare_kind in _KINDS:
        known = compare_kind(reference, answer)
        if known is not None:
            return Relation.of(known)
    if len(reference) > MAX_LENGTH:
        return Relation.UNREAD
    reference, answer = as_list(reference), as_list(answer)
    if not expected and is_words(without_label(reference)):
        return Relation.UNREAD
    if not given and (is_words(label_off := without_label(answer)) or _lists_numbers(label_off)):
        return Relation.UNREAD
    if expected and len({part.value for part in map(read_quantity, answer.split(", ")) if part}) > 1:
        return Relation.DIFFERENT  # several numbers are not one
    if "=" not in reference and _UNSOLVED.fullmatch(answer.partition("=")[0].strip()) and "=" in answer:
        return Relation.DIFFERENT  # 2x = 10 says what x is, but 10 is not it; math-verify takes the last side
    return Relation.ALGEBRA


def is_known_kind(text: str) -> bool:
    """True if a normalised answer is an option, a time, a ratio or a number in another base: no algebra."""
    return any(kind(text, text) is not None for kind in _KINDS)


def for_algebra(text: str) -> str:
    """A normalised answer as the LaTeX that `worker` gets: a number loses its unit."""
    quantity = read_quantity(text)
    formula = quantity.latex if quantity else without_label(as_list(text))
    formula = _FACTORS.sub(r"\1\\cdot ", formula)
    if _TRIGONOMETRIC.search(formula):
        formula = _DEGREES.sub(r"\\frac{\1\\pi}{180}", formula)
    return re.sub(r"(?<=[\d}])(?: ?\* ?)?i(?![A-Za-z])", " i", formula)


def as_list(text: str) -> str:
    """Solutions with words between them, x = 2 or x = 3, as a list."""
    return _AND_OR.sub(", ", text)


def _values(reference: str, answer: str) -> tuple[str, str]:
    """Both without a name where only one of them has it: x = 72 and 72 become 72 and 72."""
    if ("=" in reference) == ("=" in answer):
        return reference, answer
    return _NAME.sub("", reference, count=1), _NAME.sub("", answer, count=1)


def _without_answer_label(reference: str, answer: str) -> str:
    """ "A: 18" is an option with its text where the reference is one, else the answer 18."""
    labelled = _ANSWER_LABEL.fullmatch(answer)
    if labelled is None or (_OPTION.fullmatch(reference) and not _OPTION.fullmatch(labelled[1])):
        return answer
    return labelled[1]


def _one_side(text: str, other: str) -> str:
    r"""One side of an exact value and its rounding, \pi \approx 3.14: the rounding where `other` is a decimal."""
    sides = _APPROXIMATION.fullmatch(text)
    if sides is None or "," in sides[1] or is_words(sides[1]):
        return text
    rounded = rf"\approx {sides[2]}"
    exact, decimal, beside = read_quantity(sides[1]), read_quantity(rounded), read_quantity(other)
    if exact and decimal and not decimal.equals(exact):
        return text
    return rounded if beside is not None and not beside.is_fraction else sides[1]


def _squeeze(text: str) -> str:
    """The text for a comparison as text: no case, no spaces but those between digits; an option such as (A)
    without brackets."""
    squeezed = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).casefold()
    return squeezed[1:-1] if re.fullmatch(r"\([a-z]\)", squeezed) else squeezed


def _choices(reference: str, answer: str) -> bool | None:
    """Compares options A to J: (B), B., B. 12 apples; AC is A and C."""
    if _CHOICES.fullmatch(reference):
        listed = re.fullmatch(r"\(?[A-J]\)?(?:(?:\s*,\s*|\s+)(?:and\s+)?\(?[A-J]\)?)+", answer)
        return sorted(reference) == sorted(re.findall("[A-J]", answer)) if listed else None
    expected = re.fullmatch(r"\(?([A-J])\)?", reference)
    given = _CHOICE.fullmatch(answer) if expected else None
    if expected is None or given is None:
        return None
    more = re.search(r"(?<![A-Za-z])\(?[A-J]\)?(?![A-Za-z])", given[2] or "")
    return not more and not _TAKES_BACK.match(given[2] or "") and expected[1] == given[1].upper()


def _yes_or_no(reference: str, answer: str) -> bool | None:
    expected, given = _YES_OR_NO.fullmatch(reference), _YES_OR_NO.fullmatch(answer)
    if expected is None or given is None or _SAYS_MORE.search(given[2] or ""):
        return None
    return expected[1].lower() == given[1].lower()


def _times(reference: str, answer: str) -> bool | None:
    """Compares times of day: 3:30 PM is 15:30, and 3:30 where one of them does not say which half of the day."""
    expected, given = _TIME.fullmatch(reference), _TIME.fullmatch(answer)
    if not (expected and given) or not all(found[2] or found[3] for found in (expected, given)):
        return None
    if not (expected[3] or given[3] or (expected[2] and given[2])):
        return None
    halves = bool(expected[3] or int(expected[1]) > 12) and bool(given[3] or int(given[1]) > 12)
    day = 24 * 60 if halves or not (expected[3] or given[3]) else 12 * 60
    return _minutes(expected) % day == _minutes(given) % day


def _minutes(time: re.Match[str]) -> int:
    hour = int(time[1])
    if time[3]:
        hour = hour % 12 + (12 if time[3].lower() == "p" else 0)
    return 60 * hour + int(time[2] or 0)


def _ratios(reference: str, answer: str) -> bool | None:
    """Compares ratios: 3:4 is 6:8 and 3 to 4; a ratio of two is their quotient, but 5:1 is not 5."""
    expected, given = _ratio(reference), _ratio(answer)
    if min(len(expected), len(given)) == 1 and max(len(expected), len(given)) > 1:
        (number,), parts = sorted((expected, given), key=len)
        whole = number.denominator == 1 and len(given) > 1
        return not whole and len(parts) == 2 and parts[1] != 0 and parts[0] / parts[1] == number
    if len(expected) < 2 or len(given) < 2:
        return None
    pairs = list(zip(expected, given, strict=False))
    return len(expected) == len(given) and all(a * pairs[0][1] == b * pairs[0][0] for a, b in pairs)


def _ratio(text: str) -> list[Fraction]:
    parts: list[Quantity | None] = [read_quantity(part.strip()) for part in re.split(r":|\bto\b", text)]
    known = [part.value for part in parts if part is not None and part.unit is None and not part.percent]
    return known if len(known) == len(parts) else []


def _bases(reference: str, answer: str) -> bool | None:
    """Compares numbers with their bases, which math-verify drops. 12 in base 7 is not 12, but 5 in base 8 is 5."""
    expected, given = _BASE.fullmatch(reference), _BASE.fullmatch(answer)
    if given is not None and reference.isdecimal():
        return given[1] == reference and len(reference) == 1 and int(reference) < int(given[2])
    if expected is None or given is None or not any(digit.isdigit() for digit in expected[1]):
        return None
    return expected[2] == given[2] and expected[1].lower() == given[1].lower()


def _dates(reference: str, answer: str) -> bool | None:
    """Compares dates: 2024-01-05 is no difference and 1/5/2024 no quotient; a date equals its own text only."""
    return False if _DATE.fullmatch(reference) or _DATE.fullmatch(answer) else None


_KINDS = (_choices, _yes_or_no, _times, _ratios, _bases, _dates)


def _lists_numbers(text: str) -> bool:
    """Numbers side by side with nothing between them: math-verify multiplies or adds them, or takes the first."""
    return re.search(r"(?<![_\d])\d+\s+\.?\d", text) is not None


_OPERATION = re.compile(
    r"\\(?P<name>i*int|oint|sum|prod|lim|[dt]?binom|choose|gcd|lcm|det|max|min|[lr]?floor|[lr]?ceil|[bp]?mod)(?![A-Za-z])"
    r"|(?<![\\A-Za-z])(?P<word>lcm|gcd|det|max|min|mod)(?![A-Za-z])|(?P<factorial>!)(?!=)"
    r"|(?P<derivative>\\frac ?\{ ?d[^{}]*\} ?\{ ?d ?[A-Za-z](?:\^\{?\d\}?)? ?\})"
)
_LOOKS = re.compile(r"\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\[,!;: ]|\\[cd]ot(?![A-Za-z])|\\times(?![A-Za-z])|[\s*$]")
_CALCULATES = re.compile(r"[-+*/^(]|\\(?:sqrt|frac|times|cdot)(?![A-Za-z])")
_FRACTION = re.compile(r"\\[dtc]?frac ?\{([^{}]*)\} ?\{([^{}]*)\}")


def is_unfinished(question: str, reference: str, answer: str) -> bool:
    """True if `answer`, a formula, leaves an operation to do that the reference does not (an integral, a binomial), or
    stands in the question as it is. Both answers are normalised, and not the same text."""
    if _operations(answer) - _operations(reference):
        return True
    plain = _remove_looks(answer)
    if sorted(plain) == sorted(_remove_looks(reference)) or not _CALCULATES.search(answer):
        return False
    spaced = r"\s*".join(map(re.escape, plain))
    alone = rf"(?<![\w\\^_+*/-])(?<![+*/-] ){spaced}(?!\w|\s*[-+*/^_!(])"
    return re.search(alone, _remove_looks(question, " ")) is not None


def _operations(formula: str) -> set[str]:
    return {str(found[0]).strip("\\") if not found["derivative"] else "d" for found in _OPERATION.finditer(formula)}


def _remove_looks(text: str, gap: str = "") -> str:
    """`text` without what only changes how a formula looks; `gap` is put where something was."""
    return _FRACTION.sub(r"\1/\2", _LOOKS.sub(gap, text.translate(SYMBOLS))).replace("{", "").replace("}", "")
