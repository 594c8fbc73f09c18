"""Units that can be converted into each other, or contradict each other: 5 km are 5000 m and no 5 miles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    dimension: str
    factor: Fraction
    """Its size in the dimension's first unit."""


_DIMENSIONS = {
    "length": "1/1000 mm millimeter millimetre 毫米; 1/100 cm centimeter centimetre 厘米; 1 m meter metre 米; "
    "1000 km kilometer kilometre 千米 公里; 127/5000 in inch inche; 381/1250 ft foot feet; 1143/1250 yd yard; "
    "201168/125 mi mile",
    "mass": "1/1000 mg milligram 毫克; 1 g gram 克; 1000 kg kilogram 千克 公斤; 45359237/1600000 oz ounce; "
    "45359237/100000 lb lbs pound; 1000000 ton tonne 吨",
    "volume": "1/1000 ml milliliter millilitre 毫升; 1 l liter litre 升",
    "time": "1 s sec second 秒; 60 min minute 分钟; 3600 h hr hour 小时; 86400 day 天; 604800 week 周 星期",
    "months": "1 month 个月; 12 yr year 年",
    "dollar": "1/100 cent; 1 dollar usd buck 美元",
    "euro": "1 euro eur € 欧元",
    "sterling": "1 gbp £ 英镑",
    "yuan": "1 yuan rmb yen ¥ 元",
    "rupee": "1 rupee rs",
    "degree": "1 degree ° 度",
    "radian": "1 radian rad",
    "celsius": "1 celsius °c",
    "fahrenheit": "1 fahrenheit °f",
    "speed": "201168/450000 mph",
}
UNITS = {
    name: Unit(dimension, Fraction(entry.split()[0]))
    for dimension, entries in _DIMENSIONS.items()
    for entry in entries.split("; ")
    for name in entry.split()[1:]
}
"""By their names, without the plural s. Any other word behind a number is a label."""

MONEY = ("dollar", "euro", "sterling", "yuan", "rupee")

_NAME = r"°\s?[CF](?![A-Za-z])|degrees? (?:celsius|fahrenheit)|[A-Za-z]+|[°€£¥]|[\u4e00-\u9fff]+"
_POWER = r"(?:\s*\^\s*\{?\s*(?P<power>[23])\s*\}?)?"
_UNIT = re.compile(
    rf"(?P<shape>square |sq\.? |cubic |平方|立方)?(?P<name>{_NAME}){_POWER}"
    rf"(?:\s*(?:/|\bper\b|每)\s*(?:an? )?(?P<by>{_NAME})(?:\s*\^\s*\{{?\s*(?P<by_power>[23])\s*\}}?)?)?",
    re.IGNORECASE,
)
_SHAPES = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "平方": 2, "立方": 3}


def read_unit(words: str) -> Unit | None:
    """The unit that `words`, what stands behind a number, begin with: `km`, `square meters`, `m/s`, `cents each`."""
    match = _UNIT.match(words)
    unit = _find_unit(match["name"]) if match else None
    if match is None or unit is None or re.match(r"in +[a-z]", words):  # 72 in total
        return None
    unit = _to_the_power(unit, _SHAPES.get((match["shape"] or "").strip().lower(), 0) or int(match["power"] or 1))
    if match["by"] is None or unit.dimension in MONEY:  # $10 per hour is right for $10
        return unit
    by = _find_unit(match["by"])
    if by is None:
        return None
    by = _to_the_power(by, int(match["by_power"] or 1))
    if (unit.dimension, by.dimension) == ("length", "time"):
        return Unit("speed", unit.factor / by.factor)
    return Unit(f"{unit.dimension}/{by.dimension}", unit.factor / by.factor)


def currency(sign: str) -> Unit:
    """The unit of a sign or code in front of a number."""
    return UNITS[sign.lower().removesuffix(".")]


def _find_unit(name: str) -> Unit | None:
    name = re.sub(r"degrees? (?=[cf])|(?<=°)\s", "", name.lower())
    unit = UNITS.get(name) or UNITS.get(name.removesuffix("s"))
    if unit is None and name > "\u4e00":
        longest = max((known for known in UNITS if name.startswith(known)), key=len, default=None)
        unit = UNITS[longest] if longest else None
    return unit


def _to_the_power(unit: Unit, power: int) -> Unit:
    if power == 1:
        return unit
    return Unit(f"{unit.dimension}^{power}", unit.factor**power)
