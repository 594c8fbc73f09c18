r"""Numbers as people write them in answers: `1,234.50`, `$5`, `50%`, `-3/4`, `2 1/2`, `\frac{3}{4}`, `72 clips`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

NOISE = Fraction(1, 10**12)
"""Relative difference below which decimals are equal: what floating point adds to 0.1 + 0.2."""

_UNIT_NAMES = (
    "mm millimeter millimetre",
    "cm centimeter centimetre",
    "m meter metre",
    "km kilometer kilometre",
    "in inch inche",
    "ft foot feet",
    "yd yard",
    "mi mile",
    "mg milligram",
    "g gram",
    "kg kilogram",
    "oz ounce",
    "ml milliliter millilitre",
    "l liter litre",
    "sec second",
    "min minute",
    "h hr hour",
    "day",
    "week",
    "month",
    "yr year",
    "cent",
    "dollar usd buck",
    "euro eur",
    "degree",
)
UNITS = {name: names.split()[0] for names in _UNIT_NAMES for name in names.split()}
"""Units that can contradict each other, without the plural s; any other word behind a number is a label."""

_CHANGES_VALUE = (
    "hundred thousand million billion trillion dozen score half quarter third pair squared cubed power zero one two "
    "three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety "
    "or not no plus minus times over divided multiplied less more except wrong incorrect isn't sqrt sin cos tan log "
    "mod pi"
)
CHANGES_VALUE = frozenset(_CHANGES_VALUE.split())
"""Words that make "number, then words" something else than that number: 72 thousand, 72 or so, 72 plus tax."""

_NUMBER = re.compile(
    r"""(?P<sign>[-+]?)\s*[€£¥]?\s*(?P<inner>[-+]?)\s*
    (?: (?:(?P<whole>\d+)\s*)? \\frac\s*\{\s*(?P<n1>[-+]?\d+)\s*\}\s*\{\s*(?P<d1>\d+)\s*\}
      | (?:(?P<whole2>\d+)\s+)? (?P<n2>\d+)\s*/\s*(?P<d2>\d+) (?![\d.,/])
      | (?P<decimal> \d{1,3}(?:(?P<comma>[,\ ])\d{3}(?:(?P=comma)\d{3})*)(?:\.\d+)?(?![\d,.]\d)
                   | (?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2}(?!\d))? ) )
    \s*(?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_UNIT = re.compile(r"[A-Za-z°€£¥][A-Za-z°.'/-]*(?:\^\{?\d\}?)?(?: ?/ ?[A-Za-z.]+(?:\^\{?\d\}?)?|[ ,-]+[A-Za-z.']+)*")

_LABELLED = re.compile(r"(.*?[\d\\].*?) ([A-Za-z].*)", re.DOTALL)


@dataclass(frozen=True)
class Quantity:
    value: Fraction
    percent: bool = False
    unit: str | None = None
    """Canonical name, if it is one of `UNITS`."""
    is_fraction: bool = False
    latex: str = ""
    """The number for math-verify: a fraction as one, a decimal with the digits it was written with."""

    def equals(self, given: Quantity) -> bool | None:
        """Whether `given` is right where this is the reference. 50% is right for 50 and for 0.5, as in math-verify.
        None for a fraction beside a decimal that is not the same number: how much rounding is allowed is
        math-verify's business."""
        if self.unit and given.unit and self.unit != given.unit:
            return False
        candidates = [(self.value, given.value)]
        if self.percent != given.percent:
            percent = (self.value / 100, given.value) if self.percent else (self.value, given.value / 100)
            candidates.append(percent)
        if any(_close(*pair) for pair in candidates):
            return True
        return None if self.is_fraction != given.is_fraction else False


def read_quantity(text: str) -> Quantity | None:
    """The number that `text`, a normalised answer, is; None if it is anything else."""
    text = text.replace(r"^{\circ}", "°").replace(r"^\circ", "°")
    match = _NUMBER.fullmatch(text) if len(text) <= 200 else None
    if match is None or (match["sign"] and match["inner"]) or (number := _value(match)) is None:
        return None
    if "-" in (match["sign"], match["inner"]):
        number = -number
    rest, attached = match["rest"], not text[: match.start("rest")].endswith(" ")
    percent = re.match(r"%|percent\b|per cent\b", rest)
    if percent:
        rest, attached = rest[percent.end() :].strip(), False
    if rest and not _is_label(rest, attached, bool(percent)):
        return None
    first = re.split(r"[^A-Za-z°]", rest, maxsplit=1)[0] if rest else ""
    latex = _latex(number, None if match["decimal"] is None else _digits(match)) + (r"\%" if percent else "")
    return Quantity(number, bool(percent), _unit(first), match["decimal"] is None, latex)


def without_label(formula: str) -> str:
    r"""`formula` without the words behind it that only say what was counted: `9\pi square inches` is `9\pi`."""
    match = _LABELLED.fullmatch(formula) if len(formula) <= 200 else None
    return match[1] if match and _is_label(match[2], attached=False, percent=False) else formula


def _digits(match: re.Match[str]) -> str:
    return re.sub(r"[, ]", "", match["decimal"])


def _latex(number: Fraction, digits: str | None) -> str:
    sign = "-" if number < 0 else ""
    if digits and "e" not in digits.lower():
        return sign + digits.removesuffix(".")
    if number.denominator == 1:
        return str(number)
    return f"{sign}\\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"


def _value(match: re.Match[str]) -> Fraction | None:
    if match["decimal"] is not None:
        return Fraction(_digits(match))
    numerator, denominator = int(match["n1"] or match["n2"]), int(match["d1"] or match["d2"])
    whole = match["whole"] or match["whole2"]
    if denominator == 0 or (whole and numerator < 0):
        return None
    return int(whole or 0) + Fraction(numerator, denominator)


def _is_label(rest: str, attached: bool, percent: bool) -> bool:
    """Whether the words behind a number only say what was counted. A letter or two that name no unit are algebra,
    and so is anything but a longer unit that touches the number: 5x, 5m, 5 ab."""
    if not _UNIT.fullmatch(rest):
        return False
    words = re.findall(r"[A-Za-z°€£¥']+", rest.lower())
    if not CHANGES_VALUE.isdisjoint(words):
        return False
    first = words[0]
    if first in ("°", "€", "£", "¥") or percent:
        return True
    if attached:
        return len(first) > 1 and _unit(first) is not None
    return len(first) >= 3 or first in ("of", "per") or _unit(first) is not None


def _unit(word: str) -> str | None:
    word = word.lower()
    return UNITS.get(word) or UNITS.get(word.removesuffix("s"))


def _close(a: Fraction, b: Fraction) -> bool:
    if a == b:
        return True
    whole = a.denominator == 1 and b.denominator == 1
    return not whole and abs(a - b) <= NOISE * max(abs(a), abs(b))
