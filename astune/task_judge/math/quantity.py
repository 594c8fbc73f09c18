r"""Read numbers as people write them in answers: `1,234.50`, `\$5`, `50%`, `-3/4`, `2 1/2`, `3\times 10^4`,
`72 clips`."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from astune.task_judge.math.units import Unit, currency, read_unit

MAX_QUANTITY = 200
"""A text of more characters is no number with its unit, and no formula with a label."""

NOISE = Fraction(1, 10**12)
"""Relative difference below which decimals are equal: what floating point adds to 0.1 + 0.2."""

_CHANGES_VALUE = (
    "zero one two three four five six seven eight nine ten eleven twelve tens hundred thousand dozen googol lakh crore "
    "mil mill mln mio mlrd mrd bn bln bil tn thou grand score gross pair half halves third thirds quarter quarters "
    "double doubled triple tripled twice thrice quadruple quadrupled halved squared cubed power exponent root "
    "factorial reciprocal inverse inverted opposite upside negative negated minus plus times over divided multiplied "
    "mod modulo remainder base sqrt sin cos tan log pi "
    "or nor not no never neither cannot unless except excluding but if otherwise else instead rather maybe perhaps "
    "probably possibly wrong incorrect false invalid impossible less fewer least more most below above under "
    "minimum maximum percentage modulus recurring repeating counting provided depending assuming conditional undefined "
    "unknown unclear unsure ish until without versus although though however whereas raised choose fold error guess"
)
CHANGES_VALUE = frozenset(_CHANGES_VALUE.split())
"""Words that make "number, then words" something else than that number: 72 or so, 72 plus tax."""
_IN_OTHER_LANGUAGES = (
    "afe akpe alaf apem arivo bin dubu duisend duizend elfu ezer hezar hilj hiljada hiljade hozar juta kuma lak libo "
    "mila mille milles nghin ribu tausend trieu tuhat tuhatta tuhansia tusen tusind tuusig tys tysiac yuta "
    "hundert honderd hundra hundre cien cientos cento centos centinaia dutzend dozijn dussin dusin docena docenas "
    "douzaine douzaines dozzina dozzine duzia duzias myriad myriads"
)
_NUMERALS = frozenset(_IN_OTHER_LANGUAGES.split())
"""Words of other languages than English that write in a to z, for a thousand and more (Unicode's CLDR, compact
decimals, without what is an English word or a unit), for a hundred and for a dozen. Their words for a million and more
are `_MILLIONS`."""
_MILLIONS = re.compile(r"(?!billiards?$)(?:m|b|tr|quadr)[iy]l+[hijy]*(?:(?:o+a?e?n|oes|o?un)[a-z]*|a+r(?:[dg][a-z]*)?)")
_NUMERAL = re.compile(
    r"(?:thir|four|fif|six|seven|eigh|nine)teen(?:ths?)?|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ies|ieths?)"
    r"|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand)ths?|[a-z]*illion(?:s|ths?)?"
    r"|(?:hundred|thousand|dozen|lakh|crore)s|[a-z]+n't|[a-z]+fold|(?:kilo|mega|giga)bucks?"
)
"""Further ones: 72 tenths, 72 quadrillion, 72 isn't it."""
_FALLS_SHORT = re.compile(r"\b(?:short|shy)(?: of\b|$)")
_CHANGES_VALUE_CHINESE = re.compile("[十百千万亿京垓打半分之或和与至到不非零一二两三四五六七八九负倍加减乘除阶若外]")
_UNITS_CHINESE = re.compile("千[米克]|分钟")
SCALES: dict[str, Fraction] = {
    word: Fraction(factor)
    for words, factor in (
        ("hundred", 100), ("thousand", 10**3), ("million", 10**6), ("billion", 10**9), ("trillion", 10**12),
        ("quadrillion", 10**15), ("dozen", 12), ("万", 10**4), ("亿", 10**8),
        ("tenth tenths", "1/10"), ("hundredth hundredths", "1/100"), ("thousandth thousandths", "1/1000"),
    )
    for word in words.split()
}  # fmt: skip

_SCALE = re.compile(rf"(?:{'|'.join(SCALES)})(?![A-Za-z])")

_NUMBER = re.compile(
    r"""(?:(?:(?P<rounded>about|approximately|around|roughly|\\approx|≈)|exactly|only|an?)\s*)?
    (?P<sign>[-+]?|(?:[Mm]inus|[Nn]egative)(?=\ ))\s*
    (?P<currency>[€£¥]|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z]))?\s*(?P<inner>[-+]?)\s*
    (?: (?:(?P<whole>\d+)\s*)? \\frac\s*\{\s*(?P<n1>[-+]?\d+)\s*\}\s*\{\s*(?P<d1>\d+)\s*\}
      | (?:(?P<whole2>\d+)\s+(?:and\s+)?)? (?P<n2>\d+)\s*/\s*(?P<d2>\d+) (?![\d.,/])
      | (?P<begins>\d*\.\d*) (?:\\(?:overline|bar|dot)\s*(?:\{\s*(?P<period>\d+)\s*\}|(?P<period2>\d))
                               | \((?P<period3>\d+)\))
      | (?P<european> \d{1,3}(?:\.\d{3})+,\d+ | \d{1,3}(?:\.\d{3}){2,} )(?![\d,.]\d)
      | (?P<decimal> (?:\d{1,3}(?:(?P<comma>[,\ ])\d{3}(?:(?P=comma)\d{3})*)|\d{1,2}(?:,\d{2})+,\d{3})
                     (?:\.\d+)?(?![\d,.]\d)
                   | (?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))? )
        (?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*(?P<ten>[-+]?\d{1,3})\s*\}|(?P<ten2>\d{1,3})))? )
    \s*(?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)
_LABEL = re.compile(
    r"[A-Za-z°€£¥\u4e00-\u9fff][A-Za-z°.'/\u4e00-\u9fff-]*(?:\^\{?\d\}?)?"
    r"(?: ?/ ?[A-Za-z.\u4e00-\u9fff]+(?:\^\{?\d\}?)?|[ ,-]+[A-Za-z.'\u4e00-\u9fff]+(?:\^\{?\d\}?)?)*"
)
_LABELLED = re.compile(r"(.*?[\d\\].*?) ([A-Za-z].*)", re.DOTALL)
_BETWEEN_PARTS = re.compile(r"(?<=[A-Za-z])[ ,]+(?:and )?(?=\d)")


@dataclass(frozen=True)
class Quantity:
    value: Fraction
    percent: bool = False
    unit: Unit | None = None
    """None for a number without unit, and for what is no known unit: 72 clips."""
    is_fraction: bool = False
    latex: str = ""
    """The number for math-verify: a fraction as one, a decimal with the digits it was written with."""
    half: Fraction | None = None
    """Half of the last digit's place, where it is marked as rounded: 0.005 of about 3.14."""

    def equals(self, given: Quantity) -> bool | None:
        """True if `given` is right where this is the reference. 50% is right for 50 and for 0.5, as in math-verify.
        None for a fraction beside a decimal that is not the same number: `worker` knows which decimals are
        roundings."""
        scale = self.unit.factor / given.unit.factor if self.unit and given.unit else Fraction(1)
        if self.unit and given.unit and self.unit.dimension != given.unit.dimension:
            return False
        candidates = [(self.value * scale, given.value)]
        if self.percent != given.percent:
            percent = (self.value / 100, given.value) if self.percent else (self.value, given.value / 100)
            candidates.append(percent)
        if any(_close(*pair) or self._is_rounded(*pair) for pair in candidates):
            return True
        return None if self.is_fraction != given.is_fraction else False

    def _is_rounded(self, value: Fraction, given: Fraction) -> bool:
        """True if `given` rounds to `value`, this number or the same in another unit."""
        if self.half is None or not self.value:
            return False
        return abs(given - value) <= self.half * abs(value / self.value)


def read_quantity(text: str, unit_letters: bool = False) -> Quantity | None:
    """The number that `text`, a normalised answer, is; None if it is anything else. `unit_letters` says that a letter
    that touches the number may be its unit: 3h is three hours then, not 3 times h."""
    text = text.replace(r"^{\circ}", "°").replace(r"^\circ", "°")
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_QUANTITY else None
    if match is None or (match["sign"] and match["inner"]) or (number := _read_value(match)) is None:
        return None
    rest, attached = match["rest"], not text[: match.start("rest")].endswith(" ")
    scale = found[0] if (found := _SCALE.match(rest)) else ""
    if scale:
        number, rest, attached = number * SCALES[scale], rest[len(scale) :].strip(), False
    if match["inner"] == "-" or match["sign"] not in ("", "+"):
        number = -number
    percent = re.match(r"%|percent\b|per cent\b", rest)
    if percent:
        rest, attached = rest[percent.end() :].strip(), False
    if rest and not _is_label(rest, attached and not unit_letters, bool(percent)):
        return _sum_of_parts(text)
    written = match["decimal"] if match["decimal"] and not scale else None
    fraction = match["decimal"] is None and match["european"] is None
    half = _half(match, scale) if match["rounded"] else None
    latex = _latex(number, written, match["ten"] or match["ten2"]) + (r"\%" if percent else "")
    unit = currency(match["currency"]) if match["currency"] else read_unit(rest)
    return Quantity(number, bool(percent), unit, fraction, latex, half)


def without_label(formula: str) -> str:
    r"""`formula` without the words behind it that only say what was counted: `9\pi square inches` is `9\pi`."""
    match = _LABELLED.fullmatch(formula) if len(formula) <= MAX_QUANTITY else None
    return match[1] if match and _is_label(match[2], attached=False, percent=False) else formula


def _sum_of_parts(text: str) -> Quantity | None:
    """2 hours 30 minutes: quantities of one dimension, each of a smaller unit than the one before it."""
    written = _BETWEEN_PARTS.split(text)
    found = [read_quantity(part) for part in written] if len(written) > 1 else []
    parts = [(part, part.unit) for part in found if part is not None and part.unit is not None]
    if not parts or len(parts) < len(written):
        return None
    units = [unit for _, unit in parts]
    if any(a.factor <= b.factor or a.dimension != b.dimension for a, b in pairwise(units)):
        return None
    value = sum((part.value * unit.factor for part, unit in parts), Fraction(0)) / units[0].factor
    return replace(parts[0][0], value=value, latex=_latex(value))


def _digits(written: str) -> str:
    return re.sub(r"[, ]", "", written)


def _latex(number: Fraction, written: str | None = None, ten: str | None = None) -> str:
    """`number` as a fraction, or as the decimal `written` times a power of ten."""
    sign = "-" if number < 0 else ""
    if written and "." in written:
        digits, _, exponent = _digits(written).lower().partition("e")
        power = int(exponent or 0) + int(ten or 0)
        return sign + digits.removesuffix(".") + (f"\\cdot 10^{{{power}}}" if power else "")
    if number.denominator == 1:
        return str(number)
    return f"{sign}\\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"


def _half(match: re.Match[str], scale: str) -> Fraction | None:
    """Half of the place of its last digit; None for a fraction."""
    if match["decimal"] is None:
        return None
    places = len(match["decimal"].lower().partition("e")[0].partition(".")[2])
    power = int(match["ten"] or match["ten2"] or match["decimal"].lower().partition("e")[2] or 0)
    return Fraction(10) ** (power - places) / 2 * SCALES.get(scale, 1)


def _read_value(match: re.Match[str]) -> Fraction | None:
    if match["european"] is not None:
        return Fraction(match["european"].replace(".", "").replace(",", "."))
    if match["begins"] is not None:
        return _repeating(match["begins"], match["period"] or match["period2"] or match["period3"])
    if match["decimal"] is not None:
        return Fraction(_digits(match["decimal"])) * Fraction(10) ** int(match["ten"] or match["ten2"] or 0)
    numerator, denominator = int(match["n1"] or match["n2"]), int(match["d1"] or match["d2"])
    whole = match["whole"] or match["whole2"]
    if denominator == 0 or (whole and numerator < 0):
        return None
    return int(whole or 0) + Fraction(numerator, denominator)


def _repeating(begins: str, period: str) -> Fraction:
    r"""0.1\overline{6} is 1/10 + 6/90."""
    places = len(begins.partition(".")[2])
    return Fraction(f"0{begins}0") + Fraction(int(period), (10 ** len(period) - 1) * 10**places)


def _is_label(rest: str, attached: bool, percent: bool) -> bool:
    """True if the words behind a number only say what was counted. A letter or two that name no unit are algebra,
    and so is anything but a longer unit that touches the number: 5x, 5m, 5 ab."""
    if not _LABEL.fullmatch(rest):
        return False
    words = re.findall(r"[A-Za-z°€£¥']+|[\u4e00-\u9fff]+", rest.lower())
    if not CHANGES_VALUE.isdisjoint(words) or any(map(is_numeral, words)) or _FALLS_SHORT.search(rest):
        return False
    first = words[0]
    if first > "\u4e00":
        label = _UNITS_CHINESE.sub("", rest)
        return not (_CHANGES_VALUE_CHINESE.search(label) or any(unicodedata.numeric(sign, None) for sign in label))
    known = read_unit(rest) is not None
    if first in ("°", "€", "£", "¥") or percent:
        return True
    if attached:
        return len(first) > 1 and known
    return len(first) >= 3 or first in ("of", "per", "in") or known


def is_numeral(word: str) -> bool:
    """Numerals are few in every language, words for what was counted are not: these are never guessed at."""
    return word in _NUMERALS or word in SCALES or any(kind.fullmatch(word) for kind in (_NUMERAL, _MILLIONS))


def _close(a: Fraction, b: Fraction) -> bool:
    if a == b:
        return True
    whole = a.denominator == 1 and b.denominator == 1
    return not whole and abs(a - b) <= NOISE * max(abs(a), abs(b))
